"""Doubles of the operating system's files that fail at a chosen operation, or report every
operation.

Each is a `penstock.sealed.FileSystem`, for a `Seal` or a `penstock.cache.CacheDirectory`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.sealed import FileSystem
from penstock.sealed.files import StrPath


class QuickFiles(FileSystem):
    """The system's files without waiting for the disk. A crash may lose such files."""

    def sync(self, fd: int) -> None:
        os.fstat(fd)

    def sync_directory(self, path: StrPath) -> None:
        Path(path).stat()


QUICK_FILES: Final = QuickFiles()


class ReadOnlyFiles(QuickFiles):
    """The system's files with *mount* read-only: a write below it raises `OSError(EROFS)`."""

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
    """Simulates the death of the process: no code that catches errors runs afterwards."""


_OPERATIONS: Final = frozenset(name for name in dir(FileSystem) if not name.startswith("_"))


@dataclass
class FaultyFiles(FileSystem):
    """A `FileSystem` whose operation number *at* (from 0) calls *fault* instead; counts the
    operations.

    *fault* raises, or returns to let the operation continue. *only* restricts the count to
    operations of these names. After a `Crash` only closing works, because the system closes a dead
    process's files. `log` has the names of the operations so far. To make every operation fail
    once, try *at* 0, 1, 2, ... until `log` is not longer than *at*.
    """

    at: int = -1
    fault: Callable[[], None] = lambda: None
    only: Sequence[str] = ()
    inner: FileSystem = QUICK_FILES
    log: list[str] = field(default_factory=list)
    dead: bool = False

    def __getattribute__(self, name: str) -> Any:
        if name not in _OPERATIONS or name in super().__getattribute__("__dict__"):
            return super().__getattribute__(name)
        operation = getattr(self.inner, name)

        def call(*arguments: object, **named: object) -> object:
            if self.dead and name != "close":
                raise Crash
            if not self.only or name in self.only:
                self.log.append(name)
                if len(self.log) == self.at + 1:
                    if name == "close":  # closes despite the fault
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
class SteppedFiles(FileSystem):
    """A `FileSystem` that calls *before* with the name of each operation, just before it."""

    before: Callable[[str], None]
    inner: FileSystem = QUICK_FILES

    def __getattribute__(self, name: str) -> Any:
        if name not in _OPERATIONS or name in super().__getattribute__("__dict__"):
            return super().__getattribute__(name)
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
