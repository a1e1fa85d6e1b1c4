"""The operating system's files, doubled: ones that fail at a chosen operation, and ones that show
every operation.

Each is a `penstock.sealed.FileSystem`, to be given to a `Seal` or a
`penstock.cache.CacheDirectory`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.sealed import FileSystem, SystemFiles
from penstock.sealed.files import StrPath


class QuickFiles(SystemFiles):
    """The system's files without waiting for the disk, for files that a crash may lose."""

    def sync(self, fd: int) -> None:
        os.fstat(fd)

    def sync_directory(self, path: StrPath) -> None:
        Path(path).stat()


QUICK_FILES: Final = QuickFiles()


class ReadOnlyFiles(QuickFiles):
    """The system's files with *mount* mounted read-only: whatever would write below it raises
    `OSError(EROFS)`.
    """

    def __init__(self, mount: StrPath) -> None:
        super().__init__()
        self._mount = Path(mount)

    def open(self, path: StrPath, flags: int, mode: int = 0o600) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            self._refuse(path)
        return super().open(path, flags, mode)

    def link(self, source: StrPath, target: StrPath) -> None:
        self._refuse(target)
        super().link(source, target)

    def replace(self, source: StrPath, target: StrPath) -> None:
        self._refuse(target)
        super().replace(source, target)

    def unlink(self, path: StrPath) -> None:
        self._refuse(path)
        super().unlink(path)

    def touch(self, path: StrPath, modified_ns: int) -> None:
        self._refuse(path)
        super().touch(path, modified_ns)

    def mkdir(self, path: StrPath, mode: int = 0o700) -> None:
        if Path(path).exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._refuse(path)
        super().mkdir(path, mode)

    def _refuse(self, path: StrPath) -> None:
        if Path(path).is_relative_to(self._mount):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)


class Crash(BaseException):
    """The process dies here: nothing that catches errors runs any more."""


@dataclass
class FaultyFiles:
    """A `FileSystem` whose operation number *at* (from 0) does *fault* instead of its work; counts
    the operations.

    *fault* raises, or returns to let the operation go on. *only* counts operations of these names
    alone. After a `Crash` nothing works any more but closing, which the system does for a dead
    process. `log` has the names of the operations so far: with *at* 0, 1, 2, ... until it is no
    longer than *at*, every one was made to fail.
    """

    at: int = -1
    fault: Callable[[], None] = lambda: None
    only: Sequence[str] = ()
    inner: FileSystem = QUICK_FILES
    log: list[str] = field(default_factory=list)
    dead: bool = False

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self.inner, name)

        def call(*arguments: object, **named: object) -> object:
            if self.dead and name != "close":
                raise Crash
            if not self.only or name in self.only:
                self.log.append(name)
                if len(self.log) == self.at + 1:
                    if name == "close":  # closes, whatever it says
                        operation(*arguments, **named)
                    try:
                        self.fault()
                    except Crash:
                        self.dead = True
                        raise
                    if name == "close":
                        return None
            return operation(*arguments, **named)

        return call


@dataclass
class SteppedFiles:
    """A `FileSystem` that calls *before* with the name of each operation, just before it."""

    before: Callable[[str], None]
    inner: FileSystem = QUICK_FILES

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self.inner, name)

        def call(*arguments: object, **named: object) -> object:
            self.before(name)
            return operation(*arguments, **named)

        return call


def failing(code: int) -> Callable[[], None]:
    """A fault that raises `OSError(code)`: `FaultyFiles(at=3, fault=failing(errno.ENOSPC))`."""

    def fail() -> None:
        raise OSError(code, os.strerror(code))

    return fail


def crash() -> None:
    """The fault of a process that dies."""
    raise Crash
