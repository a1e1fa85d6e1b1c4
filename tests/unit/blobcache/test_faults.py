"""Every file operation of a load and of a save fails in turn: the file is the old one or the new
one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.blobcache import Capacity, PersistentBlobCache, Policy, Select
from penstock.blobcache.files import Files
from tests.support_blobcache import OPERATIONS, Crash, Disk, FaultyFiles, ManualClock

OLD = {b"old": b"1" * 50, b"both": b"old"}
NEW = {b"old": b"1" * 50, b"both": b"new", b"new": b"2" * 50}
ERRORS = [errno.ENOSPC, errno.EIO, errno.EACCES]


def holder(path: Path, files: Files | None = None) -> PersistentBlobCache:
    cache = PersistentBlobCache(path, files=files, clock=ManualClock())
    cache.initialize(policy=Policy(Select.LRU, Capacity.FIT))
    return cache


def content(path: Path, files: Files | None = None) -> dict[bytes, bytes]:
    cache = holder(path, files)
    found = dict(cache.items())
    assert cache.problem == ""
    return found


def write_old(path: Path) -> None:
    for name in ("blobs", "blobs.tmp", "blobs.lock"):
        path.with_name(name).unlink(missing_ok=True)
    with holder(path) as cache:
        for key, value in OLD.items():
            assert cache.set(key, value)


def change(cache: PersistentBlobCache) -> None:
    for key, value in NEW.items():
        cache.set(key, value)


def leave_a_temporary_file(path: Path) -> None:
    path.with_name("blobs.tmp").write_bytes(b"what a dead process left")


def leave_nothing(path: Path) -> None:
    """As it is after every save."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


def operations_of_a_save(path: Path, prepare: Callable[[Path], None]) -> list[str]:
    """What is done from the load to the end of a save that works."""
    write_old(path)
    prepare(path)
    files = FaultyFiles()
    cache = holder(path, files)
    change(cache)
    assert cache.save()
    assert content(path) == NEW
    return files.log


@pytest.mark.parametrize("prepare", [leave_nothing, leave_a_temporary_file])
def test_a_save_does_every_operation(path: Path, prepare: Callable[[Path], None]) -> None:
    log = operations_of_a_save(path, prepare)
    assert set(log) >= set(OPERATIONS) - {"unlink"}
    assert ("unlink" in log) == (prepare is leave_a_temporary_file)
    assert log.index("sync") < log.index("replace") < log.index("sync_directory")


@pytest.mark.parametrize("code", ERRORS, ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize("prepare", [leave_nothing, leave_a_temporary_file])
def test_failed_save_leaves_the_old_or_new_file_and_raises(
    path: Path, prepare: Callable[[Path], None], code: int
) -> None:
    log = operations_of_a_save(path, prepare)
    for number, name in enumerate(log):
        write_old(path)
        prepare(path)
        files = FaultyFiles(number, OSError(code, os.strerror(code)))
        cache = holder(path, files)
        change(cache)
        loaded = cache.problem == ""
        saved = cache.save()
        assert files.open == set(), name
        assert loaded or name in {"open_read", "size", "read", "close"}
        assert (saved and cache.problem == "") != (cache.problem != "")
        if loaded:
            assert not saved, name
            assert os.strerror(code) in cache.problem
        assert content(path) == (NEW if saved or name in late(log, number) else OLD), name
        assert dict(cache.items()) == NEW
        if name != "unlink":
            assert not path.with_name("blobs.tmp").exists() or prepare is leave_a_temporary_file
        cache.set(b"later", b"3")
        assert cache.save()
        assert cache.problem == ""
        assert content(path) == {**NEW, b"later": b"3"}
        assert sorted(p.name for p in path.parent.iterdir()) == ["blobs", "blobs.lock"]


def late(log: list[str], number: int) -> list[str]:
    """The operations after the rename, if *number* is one of them."""
    return log[number:] if number > log.index("replace") else []


@pytest.mark.parametrize("prepare", [leave_nothing, leave_a_temporary_file])
def test_a_crash_leaves_old_or_new(path: Path, prepare: Callable[[Path], None]) -> None:
    log = operations_of_a_save(path, prepare)
    for number, name in enumerate(log):
        write_old(path)
        prepare(path)
        files = FaultyFiles(number, Crash())
        with pytest.raises(Crash):
            change_and_save(holder(path, files))
        files.bury()
        assert content(path) == (NEW if name in late(log, number) else OLD), name
        with holder(path) as survivor:
            change(survivor)
        assert content(path) == NEW
        assert sorted(p.name for p in path.parent.iterdir()) == ["blobs", "blobs.lock"]


def change_and_save(cache: PersistentBlobCache) -> None:
    change(cache)
    cache.save()


def test_reads_and_writes_of_a_few_bytes_are_continued(path: Path) -> None:
    write_old(path)
    files = FaultyFiles(short=True)
    cache = holder(path, files)
    change(cache)
    assert cache.save()
    assert files.log.count("write") == path.stat().st_size
    assert content(path) == NEW


def test_a_system_that_takes_no_bytes_is_an_error(path: Path) -> None:
    class Full(FaultyFiles):
        def write(self, fd: int, data: memoryview) -> int:
            return 0

    write_old(path)
    cache = holder(path, Full())
    change(cache)
    assert not cache.save()
    assert "accepts no more bytes" in cache.problem
    assert content(path) == OLD


def test_an_interrupt_is_passed_on_and_loses_nothing(path: Path) -> None:
    log = operations_of_a_save(path, leave_nothing)
    write_old(path)
    files = FaultyFiles(log.index("sync"), KeyboardInterrupt())
    cache = holder(path, files)
    change(cache)
    with pytest.raises(KeyboardInterrupt):
        cache.save()
    assert files.open == set()
    assert content(path) == OLD
    assert cache.save()
    assert content(path) == NEW


def test_power_lost_at_any_operation_leaves_old_or_new() -> None:
    path = Path("blobs").absolute()
    disk = Disk()
    change_to_old = holder(path, disk)
    for key, value in OLD.items():
        change_to_old.set(key, value)
    assert change_to_old.save()
    started, seen = disk.done, 0
    for die_at in range(100):
        dying = disk.copy(die_at)
        try:
            change_and_save(holder(path, dying))
        except Crash:
            pass
        else:
            break
        for state in dying.states():
            seen += 1
            assert content(path, Disk.of(state)) in (OLD, NEW)
    else:
        pytest.fail("a save has no end")
    assert started > 5
    assert seen > 50
    dying.die_at = None
    assert content(path, dying) == NEW
    for state in dying.states():
        assert content(path, Disk.of(state)) == NEW


def test_the_simulated_disk_finds_a_missing_sync() -> None:
    """The disk of the test above is of use: without the sync before the rename it finds a
    mixture.
    """

    class Unsynced(Disk):
        def sync(self, fd: int) -> None:
            """Forgotten."""

    path, disk = Path("blobs").absolute(), Unsynced()
    cache = holder(path, disk)
    change(cache)
    assert cache.save()
    broken = 0
    for state in disk.states():
        reader = holder(path, Disk.of(state))
        broken += dict(reader.items()) != NEW
    assert broken
