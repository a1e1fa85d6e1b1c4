"""Publishing and finding entries, by several publishers at once, and renewing what expires."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import pytest

from penstock.errors import (
    Expired,
    NoEntry,
    NotTrusted,
    OtherVersion,
    SealBroken,
    StoreUnavailable,
    WrongLength,
)
from penstock.remotecache import roles
from penstock.remotecache.fetching import within
from penstock.remotecache.parcel import unpack
from penstock.remotecache.publishing import Publisher, Validity
from tests.support_store_attacks import bin_with
from tests.support_stores import Fleet, parcel, signer

TOKEN = bytes(range(32))
PAST = Validity(timestamp=timedelta(seconds=-1))


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_a_machine_finds_what_a_publisher_published(fleet: Fleet) -> None:
    fleet.publish(TOKEN, "compiled")
    found = fleet.machine().look_up(TOKEN)
    assert found.parcel == parcel("compiled")
    assert found.listed.publisher == "ci"


def test_a_look_up_asks_for_few_objects(fleet: Fleet) -> None:
    """docs/fleet.md counts on it. The entry itself is one more."""
    fleet.publish(TOKEN)
    machine = fleet.machine()
    asked = []
    for _ in range(2):
        before = machine.metadata.requests
        machine.look_up(TOKEN)
        asked.append(machine.metadata.requests - before)
    assert asked == [6, 2]


def test_an_entry_that_nobody_published_is_named(fleet: Fleet) -> None:
    with pytest.raises(NoEntry, match="has no entry for this key"):
        fleet.machine().look_up(TOKEN)


def test_an_entry_of_the_second_publisher_is_found(fleet: Fleet) -> None:
    fleet.publish(bytes(32), name="ci")
    fleet.publish(TOKEN, name="dev")
    assert fleet.machine().look_up(TOKEN).listed.publisher == "dev"


def test_a_later_entry_replaces_an_earlier_one(fleet: Fleet) -> None:
    fleet.publish(TOKEN, "first")
    machine = fleet.machine()
    machine.look_up(TOKEN)
    fleet.publish(TOKEN, "second")
    assert machine.look_up(TOKEN).parcel == parcel("second")


def test_publishing_the_same_again_writes_nothing(fleet: Fleet) -> None:
    publisher = fleet.publisher()
    assert publisher.publish({TOKEN: parcel().pack()}) == [TOKEN]
    before = fleet.store.get(roles.TIMESTAMP, 1 << 20)
    assert publisher.publish({TOKEN: parcel().pack()}) == []
    assert fleet.store.get(roles.TIMESTAMP, 1 << 20) == before


def test_publishers_at_once_lose_nothing(fleet: Fleet) -> None:
    tokens = [os.urandom(32) for _ in range(6)]
    publishers = [fleet.publisher(name) for name in ("ci", "dev", "ci", "dev", "ci", "dev")]
    errors: list[Exception] = []

    def publish(token: bytes, publisher: Publisher) -> None:
        try:
            publisher.publish({token: parcel().pack()})
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    pairs = zip(tokens, publishers, strict=True)
    threads = [threading.Thread(target=publish, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    machine = fleet.machine()
    assert [machine.look_up(token).parcel for token in tokens] == [parcel()] * 6


def test_a_key_of_no_publisher_cannot_publish(fleet: Fleet) -> None:
    with pytest.raises(NotTrusted, match="not that of a publisher"):
        Publisher(fleet.machine(), signer())


def test_a_publisher_that_died_half_way_does_not_stop_others(fleet: Fleet) -> None:
    fleet.publish(TOKEN, "first")
    own = bin_with(bytes(32))
    for name in (f"2.{own}.json", f"3.{own}.json", "3.snapshot.json", "4.snapshot.json"):
        fleet.store.create(f"{roles.METADATA}/{name}", b"left behind")
    fleet.publish(bytes(32), "second")
    assert fleet.machine().look_up(bytes(32)).parcel == parcel("second")


def test_bytes_in_the_place_of_an_entry_are_replaced_by_its_publisher(fleet: Fleet) -> None:
    name = f"{roles.ENTRIES}/{sha256(parcel().pack()).hexdigest()}"
    fleet.store.create(name, b"in the way")
    fleet.publish(TOKEN)
    assert fleet.machine().look_up(TOKEN).parcel == parcel()


def test_a_machine_without_history_refuses_an_expired_timestamp(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, validity=PAST)
    with pytest.raises(Expired, match=r"timestamp\.json is expired"):
        fleet.machine().look_up(TOKEN)


def test_a_machine_with_history_refuses_an_expired_timestamp(fleet: Fleet) -> None:
    fleet.publish(TOKEN)
    machine = fleet.machine()
    machine.look_up(TOKEN)
    fleet.publisher(validity=PAST).renew()
    with pytest.raises(Expired):
        machine.look_up(TOKEN)


@pytest.mark.parametrize("role", ["list", "root"])
def test_an_expired_role_is_refused(role: str, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, validity=Validity(**{role: timedelta(seconds=-1)}))
    if role == "list":
        fleet.publish(TOKEN)
    with pytest.raises(Expired):
        fleet.machine().look_up(TOKEN)


def test_a_publisher_renews_an_expired_timestamp(fleet: Fleet) -> None:
    fleet.publish(TOKEN)
    fleet.publisher(validity=PAST).renew()
    fleet.publisher("dev").renew()
    assert fleet.machine().look_up(TOKEN).parcel == parcel()


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", bytes(1 << 14), None])
def test_a_publisher_mends_a_timestamp_that_was_overwritten(
    content: bytes | None, fleet: Fleet
) -> None:
    fleet.publish(TOKEN)
    publisher = fleet.publisher()
    found = fleet.store.get(roles.TIMESTAMP, 1 << 20)
    assert found is not None
    if content is None:
        fleet.store.delete(roles.TIMESTAMP)
    else:
        fleet.store.update(roles.TIMESTAMP, content, found.etag)
    publisher.renew()
    assert fleet.machine().look_up(TOKEN).parcel == parcel()


def test_a_publisher_renews_its_expired_list(fleet: Fleet) -> None:
    fleet.publish(TOKEN)
    fleet.publisher(validity=Validity(list=timedelta(seconds=-1))).renew()
    with pytest.raises(Expired):
        fleet.machine().look_up(TOKEN)
    fleet.publisher().renew()
    assert fleet.machine().look_up(TOKEN).parcel == parcel()


def test_an_entry_that_is_too_large_is_not_published(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.remotecache.publishing.MOST_BYTES", 10)
    with pytest.raises(WrongLength, match="more than 10"):
        fleet.publish(TOKEN)


def test_an_entry_that_does_not_decode_is_refused(fleet: Fleet) -> None:
    fleet.publisher().publish({TOKEN: b"no parcel", bytes(32): parcel(format=2).pack()})
    with pytest.raises(SealBroken, match="cannot be decoded"):
        fleet.machine().look_up(TOKEN)
    with pytest.raises(OtherVersion, match="has format 2"):
        fleet.machine().look_up(bytes(32))


def test_work_that_does_not_end_is_left_alone() -> None:
    ended = threading.Event()
    with pytest.raises(StoreUnavailable, match=r"did not answer within 0.02 s"):
        within(0.02, lambda: ended.wait(10))
    ended.set()


@pytest.mark.parametrize("error", [ZeroDivisionError("odd"), SystemExit(3), RecursionError("deep")])
def test_another_librarys_error_is_named(error: BaseException) -> None:
    def work() -> None:
        raise error

    with pytest.raises(StoreUnavailable, match=rf"a library failed .*{type(error).__name__}"):
        within(10, work)


def test_errors_of_work_are_raised() -> None:
    with pytest.raises(SealBroken, match="cannot be decoded"):
        within(10, lambda: unpack(b""))
