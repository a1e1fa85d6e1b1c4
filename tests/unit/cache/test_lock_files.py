"""The lock files of cache directories in the user's own directory: which there are, and which
go.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.cache import claim
from penstock.cache.eviction import collect
from penstock.cache.naming import file_names, lease_name, lock_name, temporary_name
from penstock.errors import NoEntry, Unreadable
from penstock.sealed.files import FileStatus, StrPath
from penstock.testing.doubles import QuickFiles
from tests.support_cache import Bench, token_of

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

TOKEN = token_of(1)
FEW = 6


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, clock=time.time)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "MOST_LOCK_FILES", FEW)
    monkeypatch.setattr(claim, "MOST_REMOVED", 3)


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
def test_all_paths_of_a_directory_lead_to_one_lock(bench: Bench, tmp_path: Path) -> None:
    with bench.directory.lease(TOKEN) or pytest.fail("not leased"):
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "cache").symlink_to(bench.path)
        other = Bench(tmp_path / "elsewhere", clock=time.time)
        locks = other.directory.store.locks.path_of(lock_name(TOKEN))
        assert Path(locks).name == bench.lock_file(lock_name(TOKEN)).name


def test_directories_have_locks_of_their_own(bench: Bench, tmp_path: Path) -> None:
    other = Bench(tmp_path / "other", clock=time.time)
    bench.compile(TOKEN, "old")
    other.compile(TOKEN, "old")
    name = lock_name(TOKEN)
    assert bench.lock_file(name).name != other.lock_file(name).name
    assert bench.lock_file(name).name != bench.lock_file(lock_name(token_of(2))).name


@pytest.mark.usefixtures("few")
def test_lock_files_are_bounded(bench: Bench) -> None:
    for number in range(40):
        bench.compile(token_of(number), "old")
        assert len(bench.lock_files()) <= FEW + 1
    assert {bench.load(token_of(number), ["old"]) for number in range(40)} == {"old"}
    assert len(bench.lock_files()) <= FEW + 1


@pytest.mark.usefixtures("few")
def test_locks_that_somebody_has_are_not_removed(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    path = bench.lock_file(lock_name(TOKEN))
    os.utime(path, (1, 1))
    with bench.directory.open(TOKEN, (2, 1)):
        for number in range(2, 40):
            bench.compile(token_of(number), "old")
        assert path.exists()
    for number in range(40, 80):
        bench.compile(token_of(number), "old")
    assert not path.exists()


@pytest.mark.usefixtures("few")
def test_a_late_writer_keeps_its_lock_and_its_claim(bench: Bench) -> None:
    writer = bench.compile_later(TOKEN)
    path = bench.lock_file(lock_name(TOKEN))
    os.utime(path, (1, 1))
    for number in range(2, 40):
        bench.compile(token_of(number), "old")
    assert path.exists()
    assert path.with_suffix(".lease").exists()
    assert writer.write(model=[b"1", b"2"], data=[b"3"]).saved
    writer.close()


def test_a_lease_file_without_a_holder_goes(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    left = bench.lock_file(lease_name(TOKEN))
    left.write_bytes(b"of a process that died")
    bench.compile(token_of(2), "old")
    assert not left.exists()


def test_files_with_other_names_stay(bench: Bench, few: None) -> None:
    bench.compile(TOKEN, "old")
    other = bench.root / "locks" / "README.lock"
    other.touch()
    os.utime(other, (1, 1))
    for number in range(2, 20):
        bench.compile(token_of(number), "old")
    assert other.exists()


def test_a_directory_of_locks_that_somebody_removed_is_made_again(bench: Bench) -> None:
    directory = bench.directory
    (directory.lease(TOKEN) or pytest.fail("not leased")).close()
    (bench.root / "locks").rmdir()
    with directory.lease(TOKEN) or pytest.fail("not leased"):
        assert bench.lock_files() == [".lease"]


class WithoutLocks(QuickFiles):
    def try_lock(self, fd: int, *, exclusive: bool) -> bool:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_entries_are_read_only_without_file_locks(bench: Bench) -> None:
    bench.compile(TOKEN, "old")
    bench.files = WithoutLocks()
    assert bench.load(TOKEN, ["old"]) == "old"
    assert bench.load(token_of(2), ["old"]) is NoEntry
    with pytest.raises(Unreadable, match="cannot be locked"):
        bench.directory.lease(token_of(2))


def test_no_lock_file_is_made_for_an_entry_that_is_not_there(bench: Bench) -> None:
    bench.path.mkdir()
    assert bench.load(TOKEN, ["old"]) is NoEntry
    assert bench.lock_files() == []


class Anothers(QuickFiles):
    """Another user has made all files but locks."""

    def status_of(self, path: StrPath) -> FileStatus:
        found = super().status_of(path)
        return found if str(path).endswith("lock") else replace(found, owner=found.owner + 1)


@pytest.mark.skipif(os.name != "posix", reason="files have no owner there")
def test_files_that_another_user_may_be_writing_stay_for_a_day(bench: Bench) -> None:
    """His lease lies in his own directory, where nobody else sees it."""
    bench.compile(TOKEN, "old")
    bench.files = Anothers()
    temporary = bench.path / temporary_name(file_names(token_of(2), 1, 0)[0])
    temporary.touch()
    empty = bench.path / file_names(token_of(3), 1, 0)[0]
    empty.touch()
    assert collect(bench.directory.store, None) == []
    assert (temporary.exists(), empty.exists()) == (True, True)
    bench.clock = lambda: time.time() + 90_000
    assert collect(bench.directory.store, None) == [token_of(3)]
    assert (temporary.exists(), empty.exists()) == (False, False)
    assert bench.load(TOKEN, ["old"]) == "old"
