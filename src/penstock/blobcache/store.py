"""One small file that several processes read and replace as a whole.

Replacing is atomic: a new file is written beside the old one, synced and renamed. A process that
dies, at whatever point, leaves the old file or the new one. Those who replace take turns by a lock
on `<name>.lock`, a file that stays; that is also why the new file can have one name, `<name>.tmp`,
and the next writer removes what a dead one left. Readers take no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from penstock.blobcache.clock import Clock
from penstock.blobcache.files import Files

_FIRST_WAIT_S: Final = 0.001
_LONGEST_WAIT_S: Final = 0.05


class Store:
    """The file at *path*. *lock_timeout* is how many seconds `update` waits for its turn."""

    def __init__(self, path: Path, files: Files, clock: Clock, lock_timeout: float) -> None:
        self.path, self._files, self._clock = path, files, clock
        self._lock_timeout = lock_timeout

    def read(self, most: int) -> bytes | None:
        """The file's bytes; None where there is no file.

        A file of more than *most* bytes is read up to *most* + 1 of them, so that the caller can
        tell.
        """
        try:
            fd = self._files.open_read(self.path)
        except FileNotFoundError:
            return None
        try:
            wanted = min(self._files.size(fd), most + 1)
            parts = []
            while wanted and (part := self._files.read(fd, wanted)):
                parts.append(part)
                wanted -= len(part)
        finally:
            self._files.close(fd)
        return b"".join(parts)

    def update(self, most: int, change: Callable[[bytes | None], bytes]) -> None:
        """Replaces the file by what *change* makes of its bytes, which are given as `read` gives
        them.

        Nobody else's `update` comes between. Nothing is written when the bytes stay the same.
        Raises `OSError` (`TimeoutError` when the lock was not to be had) with the old file still
        there, or, when only making the new name durable failed, with the new one there.
        """
        with self._locked():
            old = self.read(most)
            new = change(old)
            if new != old:
                self._publish(new)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        name = self.path.with_name(self.path.name + ".lock")
        end, current = self._clock.now() + self._lock_timeout, False
        while not current:
            fd = self._files.open_lock(name)
            try:
                self._wait_for_lock(fd, end)
                try:
                    # Somebody who tidied up may have removed what was locked; others would lock a
                    # new one.
                    current = self._files.is_current(fd, name)
                    if current:
                        yield
                finally:
                    self._files.unlock(fd)
            finally:
                self._files.close(fd)

    def _wait_for_lock(self, fd: int, end: float) -> None:
        wait = _FIRST_WAIT_S
        while not self._files.try_lock(fd):
            if self._clock.now() >= end:
                raise TimeoutError(
                    f"another process has held the lock of {self.path} for {self._lock_timeout} s"
                )
            self._clock.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _publish(self, data: bytes) -> None:
        temporary = self.path.with_name(self.path.name + ".tmp")
        try:
            fd = self._files.open_new(temporary)
        except FileExistsError:
            self._files.unlink(temporary)
            fd = self._files.open_new(temporary)
        try:
            try:
                self._write(fd, data)
                self._files.sync(fd)
            finally:
                self._files.close(fd)
            self._files.replace(temporary, self.path)
        except BaseException:
            with suppress(OSError):
                self._files.unlink(temporary)
            raise
        self._files.sync_directory(self.path.parent)

    def _write(self, fd: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            written = self._files.write(fd, rest)
            if not written:
                raise OSError(f"{self.path}: the system accepts no more bytes")
            rest = rest[written:]
