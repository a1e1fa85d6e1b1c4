"""What a compile does with a shared store, and what its receipt says."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock
from benchmarks.cache import small
from penstock import knobs
from penstock.cache import CacheInfo
from penstock.compilation import StepReceipt
from penstock.compilation.entry import is_due
from penstock.errors import Cancelled, InputError, StoreUnavailable
from penstock.hal import CancelToken
from penstock.remotecache import roles
from penstock.remotecache.bins import Lists
from penstock.remotecache.leases import BuildLease, Waiting, lease_name
from penstock.remotecache.publishing import Publisher
from penstock.remotecache.stores import ObjectStore, Stored, open_store
from penstock.sealed.places import asked_path
from tests.support_stores import Fleet


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


@pytest.fixture(autouse=True)
def _short_waits() -> Iterator[None]:
    with knobs.override(store_wait_seconds=0.2):
        yield


def start(fleet: Fleet, machine: str, key: str = "", **arguments: Any) -> StepReceipt:
    """One compile on *machine*, which publishes with the key of the publisher *key*."""
    given: dict[str, Any] = {"cache": fleet.url, "num_threads": 1, **arguments}
    with fleet.on(machine, key), penstock.compile(small(), devices=["lab"], **given) as compiled:
        receipt: StepReceipt = compiled.receipt.steps[0]
        assert compiled.receipt.compiles == (receipt.cache.outcome != "hit")
        return receipt


def test_a_machine_loads_what_another_one_published(fleet: Fleet) -> None:
    built = start(fleet, "builder", "ci").cache
    assert (built.outcome, built.saved) == ("miss", True)
    assert built.shared.startswith(f"NoEntry: {fleet.url} has no entry for this key; published")
    got = start(fleet, "reader").cache
    assert got.outcome == "hit"
    assert got.shared == f"fetched from {fleet.url}, published by ci"
    assert str(got).endswith(f"shared store: {got.shared}")


def test_a_local_hit_asks_no_store(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    start(fleet, "reader")
    monkeypatch.setattr("penstock.compilation.filling.fill", None)
    again = start(fleet, "reader").cache
    assert (again.outcome, again.shared) == ("hit", "")


def test_a_machine_without_a_key_publishes_nothing(fleet: Fleet) -> None:
    assert "published" not in start(fleet, "one").cache.shared
    assert start(fleet, "two").cache.outcome == "miss"


def test_the_store_of_the_settings_is_used_by_default(fleet: Fleet) -> None:
    start(fleet, "builder", "ci")
    with knobs.override(cache_store=fleet.url):
        assert start(fleet, "reader", cache=True).cache.outcome == "hit"


def test_a_directory_of_its_own_may_have_a_store(fleet: Fleet, tmp_path: Path) -> None:
    start(fleet, "builder", "ci")
    info = CacheInfo(tmp_path / "own", store=fleet.url)
    assert start(fleet, "reader", cache=info).cache.shared.startswith("fetched")
    assert list((tmp_path / "own").iterdir())


def test_a_callers_token_finds_the_entry_by_its_content(fleet: Fleet, tmp_path: Path) -> None:
    start(fleet, "builder", "ci")
    info = CacheInfo(tmp_path / "own", bytes(32), store=fleet.url)
    assert start(fleet, "reader", cache=info).cache.shared.startswith("fetched")


def test_a_trusted_token_shares_nothing(fleet: Fleet, tmp_path: Path) -> None:
    info = CacheInfo(tmp_path / "own", bytes(32), trust_token=True, store=fleet.url)
    assert start(fleet, "builder", "ci", cache=info).cache.shared.startswith("off: a token")


def test_other_ingredients_are_another_entry(fleet: Fleet) -> None:
    start(fleet, "builder", "ci")
    assert start(fleet, "reader", preference="low_power").cache.outcome == "miss"


def test_without_a_trusted_root_nothing_is_believed(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(fleet, "builder", "ci")
    monkeypatch.setattr("penstock.knobs.store_root", lambda: "")
    found = start(fleet, "reader").cache
    assert found.outcome == "miss"
    assert found.shared.startswith("NotTrusted: the knob store_root names no trusted root")


def tokens(publisher: Publisher) -> list[bytes]:
    """What *publisher* lists."""
    listed = Lists(publisher._remote.metadata, publisher.name).entries()
    return [bytes.fromhex(one.path.split("/")[1]) for one in listed]


def test_an_entry_of_another_key_is_refused(fleet: Fleet) -> None:
    """A publisher lists the entry of one key under the name of another."""
    start(fleet, "builder", "ci")
    start(fleet, "builder", "ci", preference="low_power")
    publisher = fleet.publisher()
    first, second = tokens(publisher)
    one, two = (publisher._remote.look_up(token).parcel.pack() for token in (first, second))
    publisher.publish({first: two, second: one})
    found = start(fleet, "reader").cache
    assert found.outcome == "miss"
    assert found.shared.startswith("ForeignEntry: ")


class Stopped:
    """The store of a fleet, which never answers from *after* requests on: what waits fails when it
    is released, so that nothing abandoned publishes later.
    """

    def __init__(self, store: ObjectStore, after: int) -> None:
        self.url, self._store, self._left = store.url, store, after
        self.released = threading.Event()

    def get(self, name: str, most: int) -> Stored | None:
        self._left -= 1
        if self._left < 0:
            self.released.wait(30)
            raise StoreUnavailable("the store was stopped")
        return self._store.get(name, most)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


@pytest.mark.parametrize("after", [0, 1, 3, 5])
def test_a_store_that_stops_answering_costs_a_bounded_time(
    after: int, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(fleet, "builder", "ci")
    stopped = Stopped(fleet.store, after)
    monkeypatch.setattr("penstock.remotecache.stores.open_store", lambda *_: stopped)
    try:
        with knobs.override(store_seconds=0.1):
            found = start(fleet, "reader").cache
    finally:
        stopped.released.set()
    assert found.outcome == "miss"
    assert found.saved
    assert found.shared == "StoreUnavailable: the store did not answer within 0.1 s"


def test_a_store_that_gives_no_answer_is_waited_for_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Stopped(fleet.store, 0)
    monkeypatch.setattr("penstock.remotecache.stores.open_store", lambda *_: stopped)
    said = []
    try:
        with knobs.override(store_seconds=0.1):
            said.append(start(fleet, "one", "ci").cache.shared)
            asked = stopped._left
            said += [start(fleet, name, "ci").cache.shared for name in ("two", "three")]
    finally:
        stopped.released.set()
    assert said[0].startswith("StoreUnavailable: the store did not answer within 0.1 s")
    assert {words.partition(", and")[0] for words in said[1:]} == {
        "StoreUnavailable: the store gave no answer in time or asked for a pause"
    }
    assert stopped._left == asked
    monkeypatch.undo()
    monkeypatch.setattr("penstock.compilation.sharing._silent_until", {fleet.url: 0.0})
    assert start(fleet, "four").cache.shared.startswith("NoEntry")


def test_a_store_that_asks_for_a_pause_is_left_alone_for_it(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def refuse(name: str, *_: object) -> None:
        asked.append(name)
        error = StoreUnavailable("the server answered 503")
        error.retry_after = 100.0
        raise error

    overloaded = SimpleNamespace(url=fleet.url, get=refuse)
    monkeypatch.setattr("penstock.remotecache.stores.open_store", lambda *_: overloaded)
    first, second = (start(fleet, name).cache for name in ("one", "two"))
    assert first.shared == "StoreUnavailable: the server answered 503"
    assert second.saved
    assert second.shared.endswith(("is asked again in 99 s", "is asked again in 100 s"))
    assert len(asked) == 1


def test_a_store_that_asks_for_a_pause_while_an_entry_is_published_is_left_alone(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = StoreUnavailable("the server answered 503")
    error.retry_after = 100.0

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr("penstock.remotecache.publishing.Publisher.publish", refuse)
    first, second = (start(fleet, name, "ci").cache for name in ("one", "two"))
    assert first.saved
    assert first.shared.endswith("not published: StoreUnavailable: the server answered 503")
    assert second.shared.endswith(("is asked again in 99 s", "is asked again in 100 s"))


def test_a_process_first_asks_a_store_after_a_random_pause(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(fleet, "builder", "ci")
    monkeypatch.setattr("penstock.compilation.sharing._first_asked", {})
    monkeypatch.setattr("penstock.compilation.sharing.random.uniform", lambda _, most: most / 2)
    with knobs.override(store_jitter_seconds=0.6):
        seconds = []
        for name in ("one", "two"):
            began = time.monotonic()
            assert start(fleet, name).cache.shared.startswith("fetched")
            seconds.append(time.monotonic() - began)
    assert seconds[0] >= 0.3
    assert seconds[1] < seconds[0]


def test_a_store_gets_a_share_of_the_time_to_the_deadline(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Stopped(fleet.store, 0)
    monkeypatch.setattr("penstock.remotecache.stores.open_store", lambda *_: stopped)
    try:
        with knobs.override(store_seconds=1000.0):
            found = start(fleet, "reader", timeout=4.0).cache
    finally:
        stopped.released.set()
    assert found.saved
    assert found.shared.startswith("StoreUnavailable: the store did not answer within 0.")


def test_a_step_that_runs_elsewhere_meanwhile_is_fetched_in_the_background(fleet: Fleet) -> None:
    start(fleet, "builder", "ci")
    policy = penstock.Policy(while_compiling="reference")
    wanted: dict[str, Any] = {"num_threads": 1, "policy": policy, "cache": fleet.url}
    with fleet.on("reader"), penstock.compile(small(), devices=["lab"], **wanted) as compiled:
        for step in compiled._executable.base.compilation.steps:
            if step.pending is not None:
                assert step.pending.wait(20)
                made = step.pending.result
                assert made is not None
                assert made.receipt.cache.shared.startswith("fetched from ")
                break
        else:
            pytest.fail("no step was pending")


def test_a_cancelled_compile_waits_for_no_store(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Stopped(fleet.store, 0)
    monkeypatch.setattr("penstock.remotecache.stores.open_store", lambda *_: stopped)
    cancel = CancelToken()
    timer = threading.Timer(0.1, cancel.set)
    timer.start()
    try:
        with pytest.raises(Cancelled):
            start(fleet, "reader", cancel=cancel)
    finally:
        stopped.released.set()
        timer.join()


def test_a_compile_waits_for_another_machine(fleet: Fleet) -> None:
    """The other machine gives its lease up when it has published."""
    entry, content = published(fleet)
    held = Waiting(fleet.store, entry).take()
    assert held is not None
    publisher = fleet.publisher()

    def finish() -> None:
        publisher.publish({entry: content})
        held.close()

    timer = threading.Timer(0.3, finish)
    timer.start()
    with knobs.override(store_wait_seconds=20.0):
        found = start(fleet, "reader").cache
    timer.join()
    assert found.shared.startswith("fetched")


def published(fleet: Fleet) -> tuple[bytes, bytes]:
    """The name and the content of the entry of `start`, which a store of its own shows."""
    other = Fleet(fleet.place / "other")
    start(other, "builder", "ci")
    publisher = other.publisher()
    (token,) = tokens(publisher)
    return token, other.machine().look_up(token).parcel.pack()


def test_machines_at_once_compile_once(fleet: Fleet) -> None:
    found: list[StepReceipt] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(start(fleet, f"machine{n}", "ci")))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.cache.outcome for one in found) == ["hit", "hit", "hit", "miss"]


@pytest.mark.parametrize("key", ["", "ci"])
def test_a_lease_costs_at_most_the_bound(key: str, fleet: Fleet) -> None:
    entry, _ = published(fleet)
    with BuildLease(fleet.store, entry, fleet.store.create(lease_name(entry), b"held") or ""):
        found = start(fleet, "reader", key).cache
    assert found.outcome == "miss"
    assert found.shared.startswith("NotYetWritten: another machine was still compiling it")


def test_a_builder_gives_its_lease_up(fleet: Fleet) -> None:
    start(fleet, "builder", "ci")
    entry, _ = published(fleet)
    assert fleet.store.get(lease_name(entry), 1000) is None


def test_local_copies_of_a_revoked_publisher_are_refused(fleet: Fleet) -> None:
    start(fleet, "builder", "ci")
    assert start(fleet, "reader").cache.shared.startswith("fetched")
    assert start(fleet, "reader").cache.outcome == "hit"
    fleet.revoke("ci", by="dev")
    # Another key makes the machine ask the store, and learn of the revocation.
    start(fleet, "reader", preference="low_power")
    after = start(fleet, "reader").cache
    assert after.outcome == "miss"
    assert after.reason.startswith("RolledBack: the registry no longer lists this entry")


def make_due(fleet: Fleet, machine: str, hours: float) -> None:
    """Makes the last question to the store so many hours old."""
    with fleet.on(machine):
        path = Path(asked_path(fleet.url))
        at = path.stat().st_mtime - 3600 * hours
        os.utime(path, (at, at))


def test_a_start_that_hits_learns_of_a_revocation_within_a_day(fleet: Fleet) -> None:
    start(fleet, "builder", "ci")
    start(fleet, "reader")
    fleet.revoke("ci", by="dev")
    make_due(fleet, "reader", 23)
    assert start(fleet, "reader").cache.outcome == "hit"
    make_due(fleet, "reader", 1.01)
    assert start(fleet, "reader").cache.reason.startswith("RolledBack: ")


def test_a_start_that_hits_asks_once_a_day(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    start(fleet, "builder", "ci")
    start(fleet, "reader")
    make_due(fleet, "reader", 25)
    asked: list[str] = []
    genuine = open_store

    def counting(url: str, seconds: float) -> ObjectStore:
        asked.append(url)
        return genuine(url, seconds)

    monkeypatch.setattr("penstock.remotecache.stores.open_store", counting)
    for _ in range(3):
        assert start(fleet, "reader").cache.outcome == "hit"
    assert asked == [fleet.url]


def test_a_store_that_is_down_leaves_copies_in_use(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(fleet, "builder", "ci")
    start(fleet, "reader")
    make_due(fleet, "reader", 25)
    stopped = Stopped(fleet.store, 0)
    monkeypatch.setattr("penstock.remotecache.stores.open_store", lambda *_: stopped)
    try:
        with knobs.override(store_seconds=0.1):
            assert [start(fleet, "reader").cache.outcome for _ in range(2)] == ["hit", "hit"]
    finally:
        stopped.released.set()
    assert stopped._left == -1
    make_due(fleet, "reader", 0.2)
    with fleet.on("reader"):
        assert is_due(fleet.url)


def test_the_question_can_be_switched_off(fleet: Fleet) -> None:
    start(fleet, "builder", "ci")
    start(fleet, "reader")
    make_due(fleet, "reader", 1000)
    with fleet.on("reader"), knobs.override(store_check_hours=0):
        assert not is_due(fleet.url)


def test_own_compiles_outlive_a_revocation(fleet: Fleet) -> None:
    start(fleet, "builder", "ci")
    fleet.revoke("ci", by="dev")
    start(fleet, "builder", preference="low_power")
    assert start(fleet, "builder").cache.outcome == "hit"


def test_a_store_that_cannot_be_published_to_is_named(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(store: ObjectStore) -> None:
        raise InputError(f"{store.url} cannot be published to")

    monkeypatch.setattr("penstock.remotecache.publishing.check_conditional", refuse)
    found = start(fleet, "builder", "ci").cache
    assert found.saved
    assert f"not published: {fleet.url} cannot be published to" in found.shared


def test_a_key_of_no_publisher_is_named(fleet: Fleet) -> None:
    fleet.keys["stranger"] = Fleet(fleet.place / "other").keys["ci"]
    found = start(fleet, "builder", "stranger").cache
    assert found.saved
    assert "not published: NotTrusted: the key" in found.shared


def test_a_store_without_a_name_only_costs_a_compile(fleet: Fleet) -> None:
    found = start(fleet, "reader", cache="s3://").cache
    assert (found.outcome, found.saved) == ("miss", True)
    assert found.shared == "'s3://' names no bucket or host"


@pytest.mark.parametrize("store", ["ftp://x", "s3:/x", 5])
def test_a_store_that_is_none_is_refused(store: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a shared store begins with one of"):
        CacheInfo(tmp_path, store=store)


def test_nothing_of_the_store_is_in_the_cache_but_the_entry(fleet: Fleet, tmp_path: Path) -> None:
    start(fleet, "builder", "ci")
    start(fleet, "reader", cache=CacheInfo(tmp_path / "own", store=fleet.url))
    names = {path.name for path in (tmp_path / "own").iterdir() if path.is_file()}
    assert {len(name) for name in names} == {66, 69}
    assert fleet.store.get(roles.TIMESTAMP, 1 << 20) is not None
