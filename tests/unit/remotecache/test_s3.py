"""A store on a server that speaks S3, in a process of its own, with faults."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from benchmarks.cache import small
from penstock import knobs
from penstock.compilation import CacheOutcome
from penstock.errors import CacheError, InputError, StoreUnavailable, WrongLength
from penstock.remotecache import roles
from penstock.remotecache.publishing import check_conditional
from penstock.remotecache.stores import open_store
from tests.support_stores import Fleet, parcel

pytest.importorskip("moto")

ROOT = Path(__file__).resolve().parents[3]
TOKEN = bytes(range(32))
_count = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The server's address."""
    command = [sys.executable, str(ROOT / "tests" / "store_server.py")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


@pytest.fixture
def url(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of the server, empty, without faults."""
    settings = {"ENDPOINT_URL": server, "ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret"}
    for name, value in {**settings, "REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    bucket = f"bucket{next(_count)}"
    put(f"{server}/faults/none")
    put(f"{server}/{bucket}")
    return f"s3://{bucket}/prefix"


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Fleet:
    fleet = Fleet(tmp_path, url)
    fleet.publish(TOKEN)
    return fleet


@pytest.fixture
def fault(server: str) -> Callable[[str], None]:
    """Makes the server fail that way."""
    return lambda kind: put(f"{server}/faults/{kind}")


def put(address: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(address, method="PUT")):
        return


def test_machines_share_entries(fleet: Fleet) -> None:
    assert fleet.machine().look_up(TOKEN).parcel == parcel()
    fleet.publish(bytes(32), "other", name="dev")
    assert fleet.machine().look_up(bytes(32)).parcel == parcel("other")


def test_objects_are_written_on_conditions(url: str) -> None:
    store = open_store(url)
    etag = store.create("a", b"first")
    assert etag
    assert store.create("a", b"second") is None
    assert store.update("a", b"second", '"0"') is None
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


def test_a_bucket_that_is_missing_is_named(server: str, url: str) -> None:
    with pytest.raises(CacheError):
        check_conditional(open_store("s3://missing/prefix"))


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


def test_a_server_that_is_down_is_named(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    machine = fleet.machine(open_store(fleet.url, seconds=0.3))
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        machine.look_up(TOKEN)
