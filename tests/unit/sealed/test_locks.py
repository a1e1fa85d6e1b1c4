"""Locks between processes: what excludes what, for how long, and who gives up."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import Unreadable
from penstock.sealed.locks import FileLocks, lock, locked, unlock

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

HOLDER = """
import os, sys
from penstock.sealed.locks import lock
fd = os.open(sys.argv[1], os.O_RDWR)
assert lock(fd, exclusive=sys.argv[2] == "exclusive", timeout=0)
print("held", flush=True)
sys.stdin.read(1)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "entry.lock"
    made.touch()
    return made


@pytest.fixture
def open_again(path: Path) -> Iterator[Callable[[], int]]:
    """Opens the file once more, with an open file description of its own."""
    opened: list[int] = []

    def again() -> int:
        opened.append(os.open(path, os.O_RDWR))
        return opened[-1]

    yield again
    for fd in opened:
        os.close(fd)


def test_many_readers_or_one_writer(open_again: Callable[[], int]) -> None:
    one, two, writer = open_again(), open_again(), open_again()
    assert lock(one, exclusive=False, timeout=0)
    assert lock(two, exclusive=False, timeout=0)
    assert not lock(writer, exclusive=True, timeout=0)
    unlock(one)
    assert not lock(writer, exclusive=True, timeout=0)
    unlock(two)
    assert lock(writer, exclusive=True, timeout=0)
    assert not lock(one, exclusive=False, timeout=0)
    assert not lock(two, exclusive=True, timeout=0)


def test_a_duplicate_has_the_same_lock_and_an_unlock_is_for_both(
    open_again: Callable[[], int],
) -> None:
    one, other = open_again(), open_again()
    copy = os.dup(one)
    try:
        assert lock(one, exclusive=True, timeout=0)
        assert lock(copy, exclusive=True, timeout=0)
        unlock(copy)
        assert lock(other, exclusive=True, timeout=0)
    finally:
        os.close(copy)


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
def test_a_process_that_dies_gives_its_lock_back(
    path: Path, open_again: Callable[[], int], kind: str
) -> None:
    fd = open_again()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert not lock(fd, exclusive=True, timeout=0)
        assert lock(fd, exclusive=False, timeout=0) is (kind == "shared")
        unlock(fd)
        holder.kill()
        assert lock(fd, exclusive=True, timeout=30)


def test_a_writer_waits_until_the_reader_is_done(open_again: Callable[[], int]) -> None:
    reader, writer = open_again(), open_again()
    assert lock(reader, exclusive=False)
    asked = 0

    def third_time() -> bool:
        nonlocal asked
        asked += 1
        if asked == 3:
            unlock(reader)
        return False

    assert lock(writer, exclusive=True, should_stop=third_time)
    assert asked == 3


def test_a_timeout_is_kept(open_again: Callable[[], int]) -> None:
    reader, writer = open_again(), open_again()
    assert lock(reader, exclusive=False)
    start = time.monotonic()
    assert not lock(writer, exclusive=True, timeout=0.1)
    assert time.monotonic() - start >= 0.1


def test_a_wait_is_stopped_when_it_is_asked_to(
    open_again: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = open_again(), open_again()
    assert lock(reader, exclusive=False)
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert not lock(writer, exclusive=True, should_stop=lambda: len(pauses) == 12)
    assert max(pauses) <= 0.05


def test_a_block_has_the_lock_while_it_runs(open_again: Callable[[], int]) -> None:
    one, two = open_again(), open_again()
    with locked(one, exclusive=True) as held:
        assert held
        with locked(two, exclusive=False, timeout=0) as also:
            assert not also
        with locked(two, exclusive=True, timeout=0) as also:
            assert not also
    with locked(two, exclusive=True, timeout=0) as held:
        assert held


def test_unlockable_file_is_named(path: Path) -> None:
    fd = os.open(path, os.O_RDWR)
    os.close(fd)
    with pytest.raises(Unreadable, match="Unreadable: the file cannot be locked: Bad file"):
        lock(fd, exclusive=True, timeout=0)
    unlock(fd)

    class NoLocks(FileLocks):
        def try_lock(self, fd: int, *, exclusive: bool) -> bool:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        def unlock(self, fd: int) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with pytest.raises(Unreadable, match="No locks available"):
        lock(0, exclusive=True, locks=NoLocks())
    unlock(0, locks=NoLocks())
