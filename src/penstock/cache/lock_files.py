"""The lock files of a cache directory's entries, in a directory that only this user can write.

Whoever can open a file can hold a lock on it for ever, so that nothing here lies in the cache
directory, which others may write. A lock file has no content but a lease's claim; one that is
removed is made again when it is needed.
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

    They lie in *place*, a directory that is made for its owner alone; None is `locks` in the state
    directory. Their names there are digests of the cache directory's identity and the given name,
    so that all paths of one directory lead to the same lock. *now* tells which claims of late
    writers are still good. Thread-safe.
    """

    def __init__(
        self, path: str, files: FileSystem, place: str | None, now: Callable[[], Now]
    ) -> None:
        self._path, self._files, self._given = path, files, place
        self._now = now
        # What was asked for, and the directory that was made for it.
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
        """A descriptor of the lock file *name*, locked; None if it could not be had in *timeout*
        seconds.

        Another file may have taken the name meanwhile, since who removes an entry removes its lock:
        then the new one is locked. With *create* one is made where there is none, and a link in its
        place goes. *opened* is told of each descriptor before it is waited for. Raises
        `FileNotFoundError` without the file or the cache directory, `OSError`, `Unreadable` where
        no such directory can be had or nothing can be locked there.
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
        """Closes *fd*, whatever the system says to it."""
        with suppress(OSError):
            self._files.close(fd)

    def open(self, name: str) -> int:
        """The lock file opened again, unlocked. Raises as `take`, and `FileNotFoundError`."""
        return self._open(self.path_of(name), create=False)

    def lend(self, name: str) -> CacheHandle | None:
        """The lock file opened, or made, for a driver alone; None if that fails."""
        with suppress(OSError, CacheError):
            return CacheHandle(self._open(self.path_of(name), create=True))
        return None

    def is_current(self, fd: int, name: str) -> bool:
        """Whether *name* still names the file that *fd* has open. Raises `OSError`,
        `Unreadable`.
        """
        return self._names(self.path_of(name), fd)

    def exists(self, name: str) -> bool:
        """Whether there is such a file; False where that cannot be told."""
        with suppress(OSError, CacheError):
            self._files.status_of(self.path_of(name))
            return True
        return False

    def remove(self, name: str) -> None:
        """Removes the file if possible; one that stays is unused. Only for its holder."""
        with suppress(OSError, CacheError):
            self._files.unlink(self.path_of(name))

    def path_of(self, name: str) -> str:
        """Where the lock file *name* of the cache directory lies. Raises `OSError` for a cache
        directory that is not there, `Unreadable` where there can be no lock files.
        """
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
            # Somebody has removed the directory since it was made.
            self._made = "", ""
            self._directory()
            return open_cache_file(path, create=True, files=self._files)
