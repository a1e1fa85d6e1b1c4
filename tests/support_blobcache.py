"""What the tests of `penstock.blobcache` put in place of time and of the file system."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from penstock.blobcache.files import Clock, Files

T = TypeVar("T")

OPERATIONS = (
    "open_read", "open_new", "open_lock", "size", "read", "write", "sync", "close", "replace",
        "unlink",
    "sync_directory", "try_lock", "is_current", "unlock",
)  # fmt: skip


class ManualClock(Clock):
    """Time that passes when a test says so; what is due then runs in the test's thread."""

    def __init__(self) -> None:
        self.time = 0.0
        self.waiting: list[tuple[float, Callable[[], object]]] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def after(self, seconds: float, action: Callable[[], object]) -> Callable[[], None]:
        entry = (self.time + seconds, action)
        self.waiting.append(entry)

        def cancel() -> None:
            with suppress(ValueError):
                self.waiting.remove(entry)

        return cancel

    def advance(self, seconds: float) -> None:
        self.time += seconds
        for entry in [e for e in self.waiting if e[0] <= self.time]:
            self.waiting.remove(entry)
            entry[1]()


class Crash(BaseException):
    """The process has died here: nothing that follows has an effect."""


class FaultyFiles(Files):
    """The system's files, of which one operation fails: the one numbered *fail_at*, with *error*.

    With a `Crash` all that follow fail as well. *short* writes one byte at a time.
    """

    def __init__(
        self, fail_at: int | None = None, error: BaseException | None = None, *, short: bool = False
    ) -> None:
        self.fail_at, self.error, self.short = fail_at, error, short
        self.log: list[str] = []
        self.open: set[int] = set()

    def _do(self, name: str, operation: Callable[[], T]) -> T:
        number = len(self.log)
        self.log.append(name)
        crashed = (
            isinstance(self.error, Crash) and self.fail_at is not None and number > self.fail_at
        )
        if (number == self.fail_at or crashed) and self.error is not None:
            raise self.error
        return operation()

    def bury(self) -> None:
        """Closes what a dead process had open, as the system does."""
        while self.open:
            os.close(self.open.pop())

    def _opened(self, fd: int) -> int:
        self.open.add(fd)
        return fd

    def open_read(self, path: Path) -> int:
        return self._do("open_read", lambda: self._opened(Files.open_read(self, path)))

    def open_new(self, path: Path) -> int:
        return self._do("open_new", lambda: self._opened(Files.open_new(self, path)))

    def open_lock(self, path: Path) -> int:
        return self._do("open_lock", lambda: self._opened(Files.open_lock(self, path)))

    def size(self, fd: int) -> int:
        return self._do("size", lambda: Files.size(self, fd))

    def read(self, fd: int, size: int) -> bytes:
        return self._do("read", lambda: Files.read(self, fd, min(size, 7) if self.short else size))

    def write(self, fd: int, data: memoryview) -> int:
        return self._do("write", lambda: Files.write(self, fd, data[:1] if self.short else data))

    def sync(self, fd: int) -> None:
        self._do("sync", lambda: Files.sync(self, fd))

    def close(self, fd: int) -> None:
        try:
            self._do("close", lambda: None)
        except OSError:
            self._close(fd)  # as the system does: it reports, and closes
            raise
        self._close(fd)

    def _close(self, fd: int) -> None:
        self.open.remove(fd)
        Files.close(self, fd)

    def replace(self, source: Path, target: Path) -> None:
        self._do("replace", lambda: Files.replace(self, source, target))

    def unlink(self, path: Path) -> None:
        self._do("unlink", lambda: Files.unlink(self, path))

    def sync_directory(self, path: Path) -> None:
        self._do("sync_directory", lambda: Files.sync_directory(self, path))

    def try_lock(self, fd: int) -> bool:
        return self._do("try_lock", lambda: Files.try_lock(self, fd))

    def is_current(self, fd: int, path: Path) -> bool:
        return self._do("is_current", lambda: Files.is_current(self, fd, path))

    def unlock(self, fd: int) -> None:
        self._do("unlock", lambda: Files.unlock(self, fd))


@dataclass
class Inode:
    content: bytes = b""
    synced: bytes | None = None

    def after_power_loss(self) -> Iterator[bytes]:
        """Contents that may be found: what is not synced may be there, in part, or as zeros."""
        if self.content == self.synced:
            yield self.content
            return
        if self.synced is not None:
            yield self.synced
        for size in {0, 1, len(self.content) // 2, len(self.content) - 1, len(self.content)}:
            yield self.content[: max(0, size)]
        yield bytes(len(self.content))


@dataclass
class Disk(Files):
    """Files in memory with a cache that loses power: after operation *die_at* nothing is done any
    more.
    """

    die_at: int | None = None
    names: dict[Path, Inode] = field(default_factory=dict)
    history: list[dict[Path, Inode]] = field(default_factory=lambda: [{}])
    handles: list[tuple[Inode, int]] = field(default_factory=list)
    done: int = 0

    def states(self) -> Iterator[dict[Path, bytes]]:
        """Every directory with every content that may be found when power is back."""
        for names in self.history:
            found: list[dict[Path, bytes]] = [{}]
            for path, inode in names.items():
                found = [{**f, path: c} for f in found for c in inode.after_power_loss()]
            yield from found

    @classmethod
    def of(cls, files: dict[Path, bytes]) -> Disk:
        names = {path: Inode(content, content) for path, content in files.items()}
        return cls(names=names, history=[dict(names)])

    def copy(self, die_at: int) -> Disk:
        """The same content, not yet touched, dying there."""
        return replace(Disk.of({p: i.content for p, i in self.names.items()}), die_at=die_at)

    def _step(self) -> None:
        if self.done == self.die_at:
            raise Crash
        self.done += 1

    def _open(self, inode: Inode) -> int:
        self.handles.append((inode, 0))
        return len(self.handles) - 1

    def _renamed(self) -> None:
        self.history.append(dict(self.names))

    def open_read(self, path: Path) -> int:
        self._step()
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return self._open(self.names[path])

    def open_new(self, path: Path) -> int:
        self._step()
        if path in self.names:
            raise FileExistsError(errno.EEXIST, "exists", str(path))
        self.names[path] = Inode()
        self._renamed()
        return self._open(self.names[path])

    def open_lock(self, path: Path) -> int:
        self._step()
        return self._open(Inode())

    def size(self, fd: int) -> int:
        return len(self.handles[fd][0].content)

    def read(self, fd: int, size: int) -> bytes:
        inode, at = self.handles[fd]
        self.handles[fd] = (inode, at + size)
        return inode.content[at : at + size]

    def write(self, fd: int, data: memoryview) -> int:
        self._step()
        inode, size = self.handles[fd][0], max(1, len(data) // 2)
        inode.content += bytes(data[:size])
        return size

    def sync(self, fd: int) -> None:
        self._step()
        self.handles[fd][0].synced = self.handles[fd][0].content

    def close(self, fd: int) -> None:
        self._step()

    def replace(self, source: Path, target: Path) -> None:
        self._step()
        self.names[target] = self.names.pop(source)
        self._renamed()

    def unlink(self, path: Path) -> None:
        self._step()
        del self.names[path]
        self._renamed()

    def sync_directory(self, path: Path) -> None:
        self._step()
        self.history = [dict(self.names)]

    def try_lock(self, fd: int) -> bool:
        return True

    def is_current(self, fd: int, path: Path) -> bool:
        return True

    def unlock(self, fd: int) -> None:
        self._step()
