"""Removing from a store what nobody needs, while machines read it and publish."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tuf.api.metadata import Targets

from penstock.errors import CacheError, StoreUnavailable
from penstock.remotecache import roles
from penstock.remotecache.leases import Waiting, lease_name
from penstock.remotecache.pruning import GRACE, Pruned, prune
from penstock.remotecache.publishing import _upload
from tests.support_store_attacks import REFUSED, Files, outcome
from tests.support_stores import Fleet, parcel

ONE, TWO = bytes(32), bytes(range(32))


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    fleet = Fleet(tmp_path, f"file://{tmp_path}/store")
    fleet.publish(ONE, "one")
    return fleet


@pytest.fixture
def files(tmp_path: Path, fleet: Fleet) -> Files:
    return Files(tmp_path / "store")


def age(files: Files, by: timedelta = 2 * GRACE) -> None:
    """Makes all objects of the store older."""
    for path in files.place.rglob("*"):
        if path.is_file():
            at = path.stat().st_mtime - by.total_seconds()
            os.utime(path, (at, at))


def pruned(fleet: Fleet, name: str = "ci") -> Pruned:
    publisher = fleet.publisher(name)
    return prune(publisher._remote, publisher)


def entries(files: Files) -> int:
    return len(files.names(roles.ENTRIES))


def test_entries_of_the_current_list_are_kept(fleet: Fleet, files: Files) -> None:
    fleet.publish(TWO, "two", name="dev")
    age(files)
    found = pruned(fleet)
    assert (found.entries, found.needed) == (0, ())
    machine = fleet.machine()
    assert (outcome(machine, ONE), outcome(machine, TWO)) == ("one", "two")


def test_an_entry_that_was_replaced_is_removed_after_the_grace(fleet: Fleet, files: Files) -> None:
    age(files)
    fleet.publish(ONE, "again")
    assert pruned(fleet).entries == 0
    age(files)
    assert pruned(fleet).entries == entries(files) == 1
    assert outcome(fleet.machine(), ONE) == "again"


def test_a_machine_that_began_before_a_publication_reads_to_the_end(
    fleet: Fleet, files: Files
) -> None:
    """It has the timestamp already when the next one is written and the store is pruned."""
    age(files)
    machine = fleet.machine()
    genuine = machine.store
    done: list[Pruned] = []

    class Late:
        url = genuine.url

        def __getattr__(self, name: str) -> Any:
            return getattr(genuine, name)

        def get(self, name: str, most: int) -> Any:
            found = genuine.get(name, most)
            if name == roles.TIMESTAMP:
                fleet.publish(ONE, "again")
                done.append(pruned(fleet, "dev"))
            return found

    late: Any = Late()
    assert outcome(fleet.machine(late), ONE) == "one"
    assert (done[0].metadata, done[0].entries) == (1, 0)


def test_old_versions_of_metadata_are_removed_and_roots_stay(fleet: Fleet, files: Files) -> None:
    for number in range(5):
        fleet.publish(TWO, f"number {number}")
    fleet.revoke("dev", by="ci")
    age(files)
    before = len(files.names(roles.METADATA))
    assert pruned(fleet).metadata >= 10
    names = files.names(roles.METADATA)
    assert len(names) < before - 8
    assert {"metadata/1.root.json", "metadata/2.root.json"} <= set(names)
    assert outcome(fleet.machine(), TWO) == "number 4"


def test_entries_and_lists_of_a_revoked_publisher_are_removed(fleet: Fleet, files: Files) -> None:
    fleet.publish(TWO, "two", name="dev")
    fleet.revoke("dev", by="ci")
    age(files)
    pruned(fleet)
    assert entries(files) == 1
    assert not [name for name in files.names(roles.METADATA) if ".dev." in name]
    assert outcome(fleet.machine(), ONE) == "one"


def test_leases_of_dead_machines_are_removed_and_others_stay(fleet: Fleet, files: Files) -> None:
    fleet.store.create(lease_name(ONE), b"dead")
    age(files)
    held = Waiting(fleet.store, TWO).take()
    assert held is not None
    assert pruned(fleet).leases == 1
    assert files.names(roles.LEASES) == [lease_name(TWO)]
    held.close()


def test_an_upload_that_nobody_listed_yet_is_kept_for_the_grace(fleet: Fleet, files: Files) -> None:
    fleet.store.create(f"{roles.ENTRIES}/{'a' * 64}", b"of a publisher that is under way")
    age(files, GRACE / 2)
    assert pruned(fleet).entries == 0
    age(files, GRACE)
    assert pruned(fleet).entries == 1


def test_an_old_upload_that_is_published_now_counts_as_new(
    fleet: Fleet, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other publisher prunes between the upload and the next timestamp."""
    content = parcel("two").pack()
    _upload(fleet.store, content)
    age(files)
    publisher = fleet.publisher("dev")
    commit = publisher._commit

    def prune_first(change: Callable[[], dict[str, Targets]]) -> None:
        pruned(fleet)
        commit(change)

    monkeypatch.setattr(publisher, "_commit", prune_first)
    publisher.publish({TWO: content})
    assert outcome(fleet.machine(), TWO) == "two"


def test_a_publisher_that_stopped_for_long_begins_again(fleet: Fleet, files: Files) -> None:
    """Its list was written, and removed while it stood still; its timestamp is not accepted."""
    publisher = fleet.publisher("dev")
    genuine = publisher._remote.store
    stopped: list[int] = []

    class Slow:
        url = genuine.url

        def __getattr__(self, name: str) -> Any:
            return getattr(genuine, name)

        def update(self, name: str, content: bytes, etag: str) -> Any:
            if name == roles.TIMESTAMP and not stopped:
                stopped.append(1)
                age(files)
                pruned(fleet)
            return genuine.update(name, content, etag)

    slow: Any = Slow()
    publisher._remote.store = publisher._remote.metadata.store = slow
    publisher.publish({TWO: parcel("two").pack()})
    assert stopped
    assert outcome(fleet.machine(), ONE) == "one"
    assert outcome(fleet.machine(), TWO) in {"two", REFUSED}
    publisher.publish({TWO: parcel("two").pack()})
    assert outcome(fleet.machine(), TWO) == "two"


def test_a_store_that_hides_a_list_loses_no_entry(fleet: Fleet, files: Files) -> None:
    fleet.publish(TWO, "two", name="dev")
    age(files)
    publisher = fleet.publisher("ci")
    (files.place / files.metadata("dev")).unlink()
    with pytest.raises((StoreUnavailable, CacheError)):
        prune(publisher._remote, publisher)
    assert entries(files) == 2


def test_entries_that_were_not_published_for_long_are_unlisted(fleet: Fleet, files: Files) -> None:
    publisher = fleet.publisher("ci")
    today = datetime.now(UTC).date()
    assert publisher.unlist(today - timedelta(days=30)) == 0
    assert publisher.unlist(today + timedelta(days=2)) == 1
    assert outcome(fleet.machine(), ONE) == REFUSED
    assert publisher.publish({ONE: parcel("one").pack()}) == [ONE]
    assert outcome(fleet.machine(), ONE) == "one"


def test_publishing_again_renews_the_date_once_in_a_week(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = parcel("one").pack()
    publisher = fleet.publisher("ci")
    assert publisher.publish({ONE: content}) == []
    before = fleet.store.get(roles.TIMESTAMP, 1 << 20)
    monkeypatch.setattr("penstock.remotecache.publishing._RENEWED_AFTER", timedelta(0))
    assert publisher.publish({ONE: content}) == []
    assert fleet.store.get(roles.TIMESTAMP, 1 << 20) != before


def test_files_of_writers_that_died_are_removed_after_the_grace(fleet: Fleet, files: Files) -> None:
    left = [f"{prefix}/x.{'0' * 16}.tmp" for prefix in (roles.METADATA, roles.ENTRIES)]
    for name in left:
        files.write(name, b"half")
    assert pruned(fleet).unfinished == 0
    age(files)
    found = pruned(fleet)
    assert found.unfinished == 2
    assert not any((files.place / name).exists() for name in left)
    assert outcome(fleet.machine(), ONE) == "one"
