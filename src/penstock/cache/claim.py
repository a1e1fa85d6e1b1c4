"""Lease claims, marks of open lock files, and removal of unused lock files."""

from __future__ import annotations

import os
import re
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import structs

from penstock import knobs
from penstock.cache.naming import Count
from penstock.errors import CacheError
from penstock.processes import Process, namespace, started
from penstock.sealed.files import FileSystem, open_cache_file, read_small
from penstock.sealed.locks import lock, unlock

_MOST_CLAIM_BYTES: Final = 4096
_MOST_PID: Final = (1 << 32) - 1
# Largest backward difference, in seconds, between two readings of one clock.
_SLACK: Final = 1.0


class Now(NamedTuple):
    """Readings of the clocks.

    *wall* is in seconds since the epoch, by a clock that users can set. *up* is in seconds since
    the system *boot* began, by a clock that cannot be set. They are 0 and empty if the platform has
    no such clock.
    """

    wall: float
    up: float = 0.0
    boot: str = ""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What the holder of a lease writes to the lease file about itself.

    The process has the number *pid*, *started* at this tick of the system *boot*, in the process
    *namespace* (each empty if the platform does not provide it). It claims the entry for *seconds*,
    *until* this second since the epoch. The claim began when the system was *up* for so many
    seconds, 0 if unknown.

    With *late*, its driver writes the *models* and *datas* files before the claim ends. If it is
    also *marked*, the driver has given up once no open file description of the entry's lock is
    marked (`penstock.cache.claim`).
    """

    pid: Annotated[int, msgspec.Meta(ge=1, le=_MOST_PID)]
    started: str
    boot: str
    namespace: str
    until: float
    seconds: float
    up: float = 0.0
    late: bool = False
    models: Count = 0
    datas: Count = 0
    marked: bool = False

    @classmethod
    def of_this_process(cls, now: Now, seconds: float) -> Claim:
        pid = os.getpid()
        return cls(
            pid=pid,
            started=started(pid),
            boot=now.boot,
            namespace=namespace(),
            until=now.wall + seconds,
            seconds=seconds,
            up=now.up,
        )

    def late_writers(self, models: int, datas: int, *, marked: bool) -> Claim:
        """The claim of the same process while its driver has not yet written the files."""
        return structs.replace(self, late=True, models=models, datas=datas, marked=marked)

    def pack(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def unpack(cls, content: bytes) -> Claim | None:
        """Parses a claim; None for invalid bytes."""
        try:
            return msgspec.json.decode(content, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    @classmethod
    def read(cls, files: FileSystem, fd: int) -> Claim | None:
        """The claim in a lease file; None if it has none. Raises `OSError`."""
        return cls.unpack(read_small(files, fd, _MOST_CLAIM_BYTES))

    def over(self, now: Now) -> bool:
        """Whether the lease has expired. Setting the clock back does not end a lease."""
        if self._same_clock(now):
            return not now.up - self.up < self.seconds
        return not now.wall < self.until

    def expired(self, now: Now, most: float) -> bool:
        """Whether a late writer's time has passed: *most* seconds, or its clock was set back."""
        began = self.up if (same := self._same_clock(now)) else self.until - self.seconds
        age = (now.up if same else now.wall) - began
        return not -_SLACK < age < min(self.seconds, most)

    def awaits(self, now: Now) -> bool:
        """Whether a late writer may still write the entry, as far as its claim says."""
        return self.late and not self.expired(now, knobs.late_write_seconds()) and not self.dead()

    def is_open(self, lease: str, files: FileSystem) -> bool:
        """Whether the late writer has the lock beside *lease* open, or has not marked it."""
        if not self.marked:
            return True
        fd = open_cache_file(lease.removesuffix(".lease") + ".lock", files=files)
        try:
            return is_marked(fd)
        finally:
            files.close(fd)

    def _same_clock(self, now: Now) -> bool:
        return self.up > 0 and now.up > 0 and self.boot == now.boot != ""

    def dead(self) -> bool:
        """Whether the process is known to have ended. An invisible process counts as alive."""
        return Process(self.pid, self.started, self.boot, self.namespace).ended() is True


def uptime() -> float:
    """Seconds since the system booted, including sleep; 0 if unknown."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return 0.0


if sys.platform == "linux":
    import fcntl

# struct flock of 64-bit Linux: type, whence, start, length, process.
_FLOCK: Final = struct.Struct("=hh4xqqi4x")
_AT: Final = 1 << 40
_SUPPORTED: Final = sys.maxsize > 1 << 32


def mark(fd: int) -> bool:
    """Marks the open file description of *fd*; False if the platform does not support marks.

    Call it while another open file description holds the exclusive lock. On file systems where both
    kinds of lock are the same (NFS) the mark then fails, because it could not be told from a
    reader's lock.
    """
    if sys.platform == "linux" and _SUPPORTED:
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, 0, _AT, 1, 0))
            return True
    return False


def is_marked(fd: int, *, unknown: bool = True) -> bool:
    """Whether another open file description of the file is marked; *unknown* if not detectable."""
    if sys.platform == "linux" and _SUPPORTED:
        with suppress(OSError):
            found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, _AT, 1, 0))
            kind: int = _FLOCK.unpack(found)[0]
            return kind != fcntl.F_UNLCK
    return unknown


MOST_LOCK_FILES: Final = 1024
"""Maximum lock files in the directory. One more causes the removal of unused locks."""

MOST_REMOVED: Final = 256
"""Lock files removed below that limit, and files examined beyond it."""

_OURS: Final = re.compile(r"[0-9a-f]{64}\.(lock|lease)")


def make_room(directory: str, files: FileSystem, now: Callable[[], Now]) -> None:
    """Makes room for one more lock file in *directory*.

    Removes expired leases. Beyond the limit it also removes the oldest unused locks. A lock is kept
    if a process holds it, if an open file description of it is marked, or if a late writer will
    still write its entry. Raises `OSError`.
    """
    found = files.names(directory, MOST_LOCK_FILES + MOST_REMOVED)
    ours = [os.path.join(directory, name) for name in filter(_OURS.fullmatch, found)]
    over = [path for path in ours if path.endswith(".lease")][:MOST_REMOVED]
    if (many := len(found) - MOST_LOCK_FILES) >= 0:
        over += oldest([path for path in ours if path not in over], many + MOST_REMOVED, files)
    for path in over:
        with suppress(OSError, CacheError):
            _remove_unused(path, files, now)


def oldest(paths: list[str], count: int, files: FileSystem) -> list[str]:
    """The *count* files of *paths* that were modified first. Raises `OSError`."""
    dated = []
    for path in paths:
        with suppress(FileNotFoundError):
            dated.append((files.status_of(path).modified_ns, path))
    return [path for _, path in sorted(dated)[:count]]


def _remove_unused(path: str, files: FileSystem, now: Callable[[], Now]) -> None:
    fd = open_cache_file(path, files=files)
    try:
        if not lock(fd, exclusive=True, timeout=0, locks=files):
            return
        try:
            if is_marked(fd, unknown=False):
                return
            claim = Claim.read(files, fd)
            if claim is not None and claim.awaits(now()) and claim.is_open(path, files):
                return
            # The name may belong to another file since it was opened.
            if files.status_of(path).identity == files.status(fd).identity:
                files.unlink(path)
        finally:
            unlock(fd, locks=files)
    finally:
        files.close(fd)
