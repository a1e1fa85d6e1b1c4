"""The lock files of a cache directory's entries, in a directory that only this user can write.

A process that can open a file can hold a lock on it for ever. Therefore the locks are not in the
cache directory, which others may write. A lock file has no content except a lease's claim. A
removed one is made again when needed.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.errors import CacheError, NotRegularFile
from penstock.hal import CacheHandle
from penstock.sealed.files import FileSystem, open_cache_file
from penstock.sealed.locks import lock, unlock
from penstock.sealed.places import lock_directory, make_private_directory, state_directory

if TYPE_CHECKING:
    from penstock.cache.claim import Now

_ROUNDS: Final = 64


class LockFiles:
    """The locks of the cache directory *path*, by the file names of `penstock.cache.naming`.

    They are in the directory *place*, which only its owner can read; None is `locks` in the state
    directory. A lock's file name is a digest of the cache directory's identity and the given name,
    so all paths of one directory have the same lock. *now* decides which claims of late writers are
    still valid. Thread-safe.
    """

    def __init__(
        self, path: str, files: FileSystem, place: str | None, now: Callable[[], Now]
    ) -> None:
        self._path, self._files, self._given = path, files, place
        self._now = now
        # The requested path, and the directory made for it.
        self._made = "", ""

    def take(
        self,
        name: str,
        *,
        exclusive: bool,
        create: bool,
        timeout: float,
        should_stop: Callable[[], bool] | None = None,
        opened: Callable[[int], None] | None = None,
    ) -> int | None:
        """A descriptor of the lock file *name*, locked; None if that took more than *timeout*
        seconds.

        If the file was replaced meanwhile (removing an entry removes its lock), the new file is
        locked. With *create* a missing file is made, and a link in its place is removed. *opened*
        is called with each descriptor before the wait. Raises `FileNotFoundError` without the file
        or the cache directory, `OSError`, and `Unreadable` if the lock directory cannot be made or
        does not support locks.
        """
        until = time.monotonic() + timeout
        rounds = 0
        while True:
            path = self.path_of(name)
            fd = self._open(path, create=create)
            try:
                if opened is not None:
                    opened(fd)
                held = lock(
                    fd,
                    exclusive=exclusive,
                    timeout=max(0.0, until - time.monotonic()),
                    should_stop=should_stop,
                    locks=self._files,
                )
                if held and self._names(path, fd):
                    return fd
            except BaseException:
                self.close(fd)
                raise
            self.release(fd)
            rounds += 1
            if not held or (rounds >= _ROUNDS and time.monotonic() > until):
                return None

    def release(self, fd: int) -> None:
        """Unlocks and closes. Duplicates of the descriptor hold no lock afterwards."""
        try:
            unlock(fd, locks=self._files)
        finally:
            self.close(fd)

    def close(self, fd: int) -> None:
        """Closes *fd* and ignores errors."""
        with suppress(OSError):
            self._files.close(fd)

    def lend(self, name: str) -> CacheHandle | None:
        """Opens or makes the lock file for the driver only; None if that fails."""
        with suppress(OSError, CacheError):
            return CacheHandle(self._open(self.path_of(name), create=True))
        return None

    def is_current(self, fd: int, name: str) -> bool:
        """Whether *name* still refers to the file open as *fd*. Raises `OSError`, `Unreadable`."""
        return self._names(self.path_of(name), fd)

    def exists(self, name: str) -> bool:
        """Whether the lock file exists; False if unknown."""
        with suppress(OSError, CacheError):
            self._files.status_of(self.path_of(name))
            return True
        return False

    def remove(self, name: str) -> None:
        """Removes the file if possible. Only the lock's holder may call it."""
        with suppress(OSError, CacheError):
            self._files.unlink(self.path_of(name))

    def path_of(self, name: str) -> str:
        """The path of the lock file *name*. Raises `OSError` without the cache, `Unreadable`."""
        device, number = self._files.identity_of(self._path)
        entry, role = os.path.splitext(name)
        digest = hashlib.sha256(f"penstock lock\0{device}:{number}:{entry}".encode()).hexdigest()
        return os.path.join(self._directory(), digest + role)

    def _directory(self) -> str:
        asked, made = self._made
        wanted = self._given or state_directory()
        if asked != wanted:
            if self._given is None:
                made = lock_directory()
            else:
                make_private_directory(made := self._given)
            self._made = wanted, made
        return made

    def _names(self, path: str, fd: int) -> bool:
        try:
            named = self._files.status_of(path)
        except FileNotFoundError:
            return False
        return named.identity == self._files.status(fd).identity

    def _open(self, path: str, *, create: bool) -> int:
        try:
            return open_cache_file(path, files=self._files)
        except FileNotFoundError:
            if not create:
                raise
        except NotRegularFile:
            if not create:
                raise
            status = self._files.status_of(path)
            if not status.regular or status.links > 1:
                self._files.unlink(path)
        with suppress(OSError, CacheError):
            from penstock.cache.claim import make_room

            make_room(os.path.dirname(path), self._files, self._now)
        try:
            return open_cache_file(path, create=True, files=self._files)
        except FileNotFoundError:
            # The directory was removed after it was made.
            self._made = "", ""
            self._directory()
            return open_cache_file(path, create=True, files=self._files)
