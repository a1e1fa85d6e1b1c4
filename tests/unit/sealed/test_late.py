"""Late writes: what they replace, when they are dropped, and what another process finds at every
moment.
"""

from __future__ import annotations

import errno
import gc
import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import CacheError, ClosedError, NoEntry, NotYetWritten, Unreadable
from penstock.hal import CacheHandle, PrepareConfig
from penstock.sealed import EntryFiles, FileRegistry, FileSystem, LateWriter, SaveReport
from penstock.sealed.locks import lock, locked, unlock
from penstock.testing.doubles import Crash, FaultyFiles, QuickFiles, SteppedFiles, failing
from tests.conftest import open_descriptors
from tests.support_sealed import BINDING, FAULTS, TOKEN, Rig

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

OLD = (b"old program", b"old second"), (b"old weights",)
NEW = (b"new program, longer", b"new second"), (b"new weights",)


@pytest.fixture
def old(tmp_path: Path) -> Rig:
    return Rig(tmp_path, program=OLD[0], weights=OLD[1])


@pytest.fixture
def new(tmp_path: Path) -> Rig:
    return Rig(tmp_path, program=NEW[0], weights=NEW[1])


def found(rig: Rig) -> object:
    """Which generation the cache holds, or the class of the refusal."""
    try:
        loaded = rig.load()
    except CacheError as error:
        return type(error)
    payloads = tuple(map(bytes, loaded.model)), tuple(map(bytes, loaded.data))
    assert payloads in {OLD, NEW}, "a mixture"
    return payloads


def first_published(rig: Rig) -> bytes:
    report = rig.save()
    assert report.entry is not None
    return report.entry


def publish(rig: Rig) -> bytes:
    """As a runtime does: files of their own, moved into place, the replaced entry forgotten."""
    before = rig.entry()
    report = rig.save("new")
    assert report.entry is not None
    for source, target in zip(rig.paths("new"), rig.paths(), strict=True):
        source.replace(target)
    if before:
        rig.seal().forget(TOKEN, before)
    return report.entry


def dropped(report: SaveReport, reason: str) -> bool:
    assert not report.saved
    assert (report.reason or "").startswith(reason), report.reason
    return True


def test_an_entry_that_is_empty_is_written_late(new: Rig) -> None:
    with new.late(None) as writer:
        assert new.refuses(NotYetWritten)
        report = new.write(writer)
        assert report.saved
        assert writer.expected == report.entry == new.entry()
        assert new.hits()


def test_an_entry_is_replaced_late_and_forgotten(old: Rig, new: Rig) -> None:
    first = first_published(old)
    with new.late(first) as writer:
        second = new.write(writer)
        assert found(new) == NEW
        third = new.write(writer)
        assert third.entry not in {first, second.entry, None}
    assert found(new) == NEW
    assert [row.entry for row in new.registry().rows()] == [third.entry]


def test_second_of_two_late_writers_is_refused(old: Rig, new: Rig) -> None:
    with old.late(None) as one, new.late(None) as two:
        assert new.write(two).saved
        assert dropped(old.write(one), "ForeignEntry: model file 0 was written by another process")
        assert one.expected is None
    first = new.entry()
    with old.late(first) as one, new.late(first) as two:
        assert old.write(one).saved
        assert dropped(new.write(two), "ForeignEntry: model file 0 holds another entry")
        assert found(old) == OLD


def test_files_that_were_replaced_are_not_written(old: Rig, new: Rig) -> None:
    with old.late(first_published(old)) as writer:
        entry = publish(new)
        assert dropped(old.write(writer), "NoEntry: the entry was replaced or removed")
        with pytest.raises(NoEntry):
            writer.load()
    assert found(new) == NEW
    assert [row.entry for row in new.registry().rows()] == [entry]


@pytest.mark.parametrize("number", range(4))
def test_when_one_file_is_gone_none_is_written(old: Rig, new: Rig, number: int) -> None:
    """The lock among them: whoever comes next makes a new one, which this writer would not hold."""
    with new.late(first_published(old)) as writer:
        path = [*old.paths(), old.root / "cache" / "lock"][number]
        path.rename(old.root / "aside")
        (old.root / "aside").unlink()
        assert dropped(new.write(writer), "NoEntry: ")
    assert len(new.registry().rows()) == 1


def test_a_hard_link_is_not_written_through(old: Rig, new: Rig) -> None:
    with new.late(first_published(old)) as writer:
        (old.root / "second name").hardlink_to(old.paths()[1])
        assert dropped(new.write(writer), "NotRegularFile: model file 1 is a hard link")
        (old.root / "second name").unlink()
        assert found(new) == OLD
        assert new.write(writer).saved


def test_files_that_hold_rubbish_are_not_taken_for_empty(new: Rig) -> None:
    with new.late(None) as writer:
        new.paths()[2].write_bytes(b"rubbish")
        assert dropped(new.write(writer), "ForeignEntry: data file 0 was written by another")


def test_held_lock_is_not_waited_for_by_default(
    old: Rig, new: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("penstock.sealed.locks.time.sleep", waits.append)
    with (
        new.late(first_published(old)) as writer,
        new.lock() as reader,
        locked(reader.fd, exclusive=False),
    ):
        report = new.write(writer)
        assert dropped(report, "Unreadable: the entry is in use: its lock was not free")
        assert report.in_use
        assert not writer.is_free()
        assert not waits
        assert new.write(writer, timeout=0.02).in_use
        assert waits
        assert writer.load(timeout=0).model[0] == OLD[0][0]
        unlock(reader.fd)
        assert writer.is_free()
        report = new.write(writer)
        assert report.saved
        assert not report.in_use
        lock(reader.fd, exclusive=True)
        with pytest.raises(Unreadable):
            writer.load(timeout=0)


def test_closing_is_boring(new: Rig) -> None:
    with new.late(None) as writer:
        writer.close()
        writer.close()
        assert writer.is_free()
        report = new.write(writer)
        assert dropped(report, "ClosedError: the late writer is closed")
        assert not report.in_use
        with pytest.raises(ClosedError):
            writer.load()


def test_closing_ends_a_wait_for_the_lock(old: Rig, new: Rig) -> None:
    reports: list[SaveReport] = []
    waiting = threading.Event()

    def before(name: str) -> None:
        if name == "try_lock":
            waiting.set()

    stepped = SteppedFiles(before)
    with (
        new.late(first_published(old), files=stepped) as writer,
        new.lock() as reader,
        locked(reader.fd, exclusive=False),
    ):
        thread = threading.Thread(target=lambda: reports.append(new.write(writer, timeout=60.0)))
        thread.start()
        assert waiting.wait(30)
        began = time.monotonic()
        writer.close()
        thread.join(30)
        assert time.monotonic() - began < 30
    assert dropped(reports[0], "Unreadable: the late writer was closed while it waited")


def test_a_writer_that_is_forgotten_holds_no_descriptors(new: Rig) -> None:
    with new.handles(create=True) as (model, data), new.lock() as opened:
        writer = LateWriter(
            new.seal(), EntryFiles(model, data, TOKEN, BINDING, lock=opened), expected=None
        )
        held = open_descriptors()
        del writer
        gc.collect()
        assert open_descriptors() < held


@pytest.mark.parametrize("at", range(4))
def test_handles_that_cannot_be_kept_are_a_reason(new: Rig, at: int) -> None:
    files = FaultyFiles(at, failing(errno.EMFILE), only=["duplicate"])
    with new.late(None, files=files) as writer:
        reason = "Unreadable: the cache handles cannot be kept: Too many open files"
        assert dropped(new.write(writer), reason)
        with pytest.raises(Unreadable):
            writer.load()


def test_wrong_payloads_and_wrong_handles_are_a_reason(old: Rig, new: Rig) -> None:
    with new.late(first_published(old)) as writer:
        assert dropped(writer.write(model=[b""]), "InvalidArgument: 1 model and 0 data payloads")
        text: list[bytes] = ["text", "text"]  # type: ignore[list-item]  # what a caller may do
        assert dropped(writer.write(model=text, data=NEW[1]), "TypeError: ")
        assert found(new) == OLD
    with new.handles() as (model, data), new.lock() as opened:
        writer = LateWriter(
            new.seal(), EntryFiles(model, [], TOKEN, BINDING, lock=opened), expected=None
        )
        assert dropped(new.write(writer), "InvalidArgument: 2 model and 0 data cache files")
        writer.close()
        writer = LateWriter(
            new.seal(), EntryFiles(model, data, b"", BINDING, lock=opened), expected=None
        )
        assert dropped(new.write(writer), "InvalidArgument: token and binding have 0 and 32")
        writer.close()


def test_a_forked_child_does_not_write(new: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    with new.late(None) as writer:
        monkeypatch.setattr(os, "getpid", lambda: 1)
        assert dropped(new.write(writer), "StateError: ")


def test_late_entry_of_another_process_is_read(old: Rig, new: Rig) -> None:
    first = first_published(old)
    with old.late(first) as one, new.late(first) as two:
        assert new.write(two).saved
        assert dropped(old.write(one), "ForeignEntry: ")
        loaded = one.load()
        assert tuple(map(bytes, loaded.model)) == NEW[0]
        assert one.expected == loaded.entry == two.expected
        assert old.write(one).saved
    with new.late(None, "empty") as writer, pytest.raises(NotYetWritten):
        writer.load()


def test_threads_of_one_driver_write_one_after_the_other(new: Rig) -> None:
    reports: list[SaveReport] = []
    with new.late(None) as writer:
        threads = [
            threading.Thread(target=lambda: reports.append(new.write(writer, timeout=60.0)))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(report.saved for report in reports)
    assert new.hits()
    assert len(new.registry().rows()) == 1


def test_a_driver_makes_one_from_its_config(new: Rig) -> None:
    with new.handles(create=True) as (model, data), new.lock() as opened:
        handles = [CacheHandle(handle.fd) for handle in (*model, *data, opened)]
        config = PrepareConfig(
            token=TOKEN,
            binding=BINDING,
            model_cache=tuple(handles[:2]),
            data_cache=tuple(handles[2:3]),
            lock=handles[3],
        )
        without_lock = PrepareConfig(model_cache=config.model_cache, data_cache=config.data_cache)
        seal = new.seal()
        assert seal.late_writer(without_lock, expected=None) is None
        assert seal.late_writer(PrepareConfig(lock=handles[3]), expected=None) is None
        writer = seal.late_writer(config, expected=None)
    assert writer is not None
    assert new.write(writer).saved
    writer.close()
    assert new.hits()


def write_late(rig: Rig, expected: bytes | None, files: FileSystem | FaultyFiles) -> SaveReport:
    with rig.late(expected, files=files) as writer:
        return rig.write(writer)


def operations(tmp_path: Path) -> list[str]:
    """Of a late write over an older entry, its descriptors' duplication and closing included."""
    root = tmp_path / "counted"
    root.mkdir()
    first = first_published(Rig(root, program=OLD[0], weights=OLD[1]))
    counting = FaultyFiles()
    assert write_late(Rig(root, program=NEW[0], weights=NEW[1]), first, counting).saved
    return counting.log


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_at_any_file_operation_of_a_late_write(tmp_path: Path, name: str) -> None:
    outcomes = set()
    log = operations(tmp_path)
    assert set(log) == {
        *("duplicate", "open", "status", "read_into", "close", "try_lock", "unlock"),
        *("truncate", "write", "sync"),
    }
    for at in range(len(log)):
        root = tmp_path / f"{at}"
        root.mkdir()
        first = first_published(Rig(root, program=OLD[0], weights=OLD[1]))
        rig = Rig(root, program=NEW[0], weights=NEW[1])
        with suppress(Crash):
            report = write_late(rig, first, FaultyFiles(at, FAULTS[name]))
            assert report.saved or (report.reason or "").startswith("Unreadable: ")
            assert not report.emptied or found(rig) is NotYetWritten
        outcome = found(rig)
        outcomes.add(outcome)
        assert outcome in {OLD, NEW} or isinstance(outcome, type)
        with rig.lock() as opened:
            assert lock(opened.fd, exclusive=True, timeout=0), "the lock was not given back"
        assert rig.saved()
        assert found(rig) == NEW
    assert {OLD, NEW} <= outcomes
    assert len(outcomes) > 2


@pytest.mark.parametrize("name", ["ENOSPC", "EIO", "EACCES"])
def test_after_a_fault_the_same_writer_writes_again(tmp_path: Path, name: str) -> None:
    """Whether the files still hold the old entry, or were emptied, it knows what to expect."""
    log = operations(tmp_path)
    first_use, last = log.index("try_lock"), len(log) - log[::-1].index("unlock")
    for at in range(first_use, last):
        root = tmp_path / f"{at}"
        root.mkdir()
        first = first_published(Rig(root, program=OLD[0], weights=OLD[1]))
        rig = Rig(root, program=NEW[0], weights=NEW[1])
        with rig.late(first, files=FaultyFiles(at, FAULTS[name])) as writer:
            rig.write(writer)
            report = rig.write(writer)
            assert report.saved, report.reason
            assert found(rig) == NEW
        assert len(rig.registry().rows()) == 1


def test_a_reader_between_any_two_file_operations(old: Rig, new: Rig) -> None:
    """Without the lock: the old entry, then a named miss, then the new one. With it: never a
    miss.
    """
    unlocked: list[object] = []
    behind_lock: list[object] = []
    looking = False

    def look(_name: str) -> None:
        nonlocal looking
        if looking:
            return
        looking = True
        unlocked.append(found(new))
        with new.lock() as opened, locked(opened.fd, exclusive=False, timeout=0) as held:
            behind_lock.append(found(new) if held else None)
        looking = False

    with new.late(first_published(old), files=SteppedFiles(look)) as writer:
        assert new.write(writer).saved
    look("")
    order = [OLD if o == OLD else NEW if o == NEW else "miss" for o in unlocked]
    assert [o for i, o in enumerate(order) if not i or order[i - 1] != o] == [OLD, "miss", NEW]
    locks = [o for i, o in enumerate(behind_lock) if not i or behind_lock[i - 1] != o]
    assert locks == [OLD, None, NEW]


def test_a_process_that_dies_at_any_file_operation_of_the_registry(tmp_path: Path) -> None:
    """State and cache as they stand before each file operation of the registry in a late write,
    looked at as another process does.
    """
    outcomes = []
    root = tmp_path / "run"
    root.mkdir()
    first = first_published(Rig(root, program=OLD[0], weights=OLD[1]))
    rig = Rig(root, program=NEW[0], weights=NEW[1])
    copies: list[Path] = []

    def copy(_name: str) -> None:
        copies.append(tmp_path / f"copy {len(copies)}")
        shutil.copytree(root, copies[-1])

    stepped: Any = SteppedFiles(copy)
    seal = rig.seal_with(FileRegistry(rig.registry_file, rig.owner, rig.keys(), files=stepped))
    with rig.late(first, seal=seal) as writer:
        assert rig.write(writer).saved
    for place in copies:
        outcomes.append(found(Rig(place, program=NEW[0], weights=NEW[1])))
        assert outcomes[-1] in {OLD, NEW}
    assert {OLD, NEW} == set(outcomes)
    assert outcomes == sorted(outcomes, key=lambda outcome: outcome == NEW)


def test_a_late_write_waits_for_the_disk_after_payloads_and_after_seals(old: Rig, new: Rig) -> None:
    synced: list[int] = []

    class Counting(QuickFiles):
        def sync(self, fd: int) -> None:
            synced.append(fd)

    with new.late(first_published(old), files=Counting()) as writer:
        assert new.write(writer).saved
    assert len(synced) == 6
