"""File operations that seals use. A test can replace them to make each one fail."""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
from collections.abc import Callable
from itertools import islice
from typing import Final, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from penstock.arguments import path_of
from penstock.errors import NotRegularFile, ReadOnly, Unreadable
from penstock.sealed.locks import FileLocks

StrPath: TypeAlias = "str | os.PathLike[str]"

_BINARY: Final[int] = getattr(os, "O_BINARY", 0)
_CLOEXEC: Final[int] = getattr(os, "O_CLOEXEC", 0)
_NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)
READ_ONLY: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
"""Errors of files on a read-only mount, and of files without write permission."""
_LETTERS: Final = 64
"""How many letters of a token a cache file's name begins with (NNAPI section 2.3)."""


@runtime_checkable
class Handle(Protocol):
    """An open cache file, borrowed for the call: `hal.CacheHandle` is one."""

    @property
    def fd(self) -> int: ...


class Renaming:
    """Raises the error that *made* returns, instead of an `OSError` of its block.

    It is a class because an error that leaves a generator's block is in a reference cycle with the
    frames that it passed. The cycle keeps their memory and descriptors until garbage collection.
    """

    def __init__(self, made: Callable[[OSError], Exception]) -> None:
        self._made = made

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            raise self._made(error) from None


def unreadable(what: str) -> Renaming:
    """Turns an `OSError` of the block into `Unreadable`: *what* failed, and its cause."""
    return Renaming(lambda error: Unreadable(f"{what}: {error.strerror or error}"))


class FileStatus(Struct, frozen=True):
    """Status of a file.

    *regular* is whether it is a regular file, *links* the number of its names, *size* is in bytes.
    *owner* is 0 on systems without owners, *mode* its permission bits. *identity* is unique as long
    as the file exists. *modified_ns* counts nanoseconds since the epoch.
    """

    regular: bool
    links: int
    size: int
    owner: int = 0
    mode: int = 0o600
    identity: tuple[int, int] = (0, 0)
    modified_ns: int = 0


class FileSystem(FileLocks):
    """Operations of the system on descriptors and paths. Each raises `OSError`.

    None trusts a descriptor's offset. Tests override them.
    """

    def __init__(self) -> None:
        self._offset_lock = threading.Lock()

    def status(self, fd: int) -> FileStatus:
        return _status(os.fstat(fd))

    def read_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        """Reads up to *buffer*'s bytes from *offset*. Returns the number, 0 at the end."""
        if sys.platform == "win32":
            with self._offset_lock:
                os.lseek(fd, offset, os.SEEK_SET)
                content = os.read(fd, buffer.nbytes)
            buffer[: len(content)] = content
            return len(content)
        return os.preadv(fd, [buffer], offset)

    def write(self, fd: int, content: memoryview, offset: int) -> int:
        """Writes a part of *content* at *offset*. Returns the number of bytes."""
        if sys.platform == "win32":
            with self._offset_lock:
                os.lseek(fd, offset, os.SEEK_SET)
                return os.write(fd, content)
        return os.pwrite(fd, content, offset)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Returns once the file's bytes would survive a loss of power."""
        os.fsync(fd)

    def open(self, path: StrPath, flags: int, mode: int = 0o600) -> int:
        """A descriptor that children do not inherit. A symbolic link is rejected (ELOOP)."""
        return os.open(path, flags | _CLOEXEC | _BINARY | _NOFOLLOW, mode)

    def duplicate(self, fd: int) -> int:
        """Another descriptor of the same open file, which child processes do not inherit."""
        return os.dup(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def link(self, source: StrPath, target: StrPath) -> None:
        """Creates *target* as a second name of *source*. Raises `FileExistsError` if it exists."""
        os.link(source, target)

    def replace(self, source: StrPath, target: StrPath) -> None:
        os.replace(source, target)

    def unlink(self, path: StrPath) -> None:
        os.unlink(path)

    def status_of(self, path: StrPath) -> FileStatus:
        """As `status`, of *path*; a symbolic link is not followed, and is not regular."""
        return _status(os.lstat(path))

    def identity_of(self, path: StrPath) -> tuple[int, int]:
        """Device and inode of *path*, links followed: equal for all paths of one directory."""
        found = os.stat(path)
        return found.st_dev, found.st_ino

    def names(self, directory: StrPath, most: int | None = None) -> list[str]:
        """Up to *most* names in *directory*, in any order."""
        with os.scandir(directory) as entries:
            return [entry.name for entry in islice(entries, most)]

    def mkdir(self, path: StrPath, mode: int = 0o700) -> None:
        os.mkdir(path, mode)

    def touch(self, path: StrPath, modified_ns: int) -> None:
        """Sets the file's times of last access and change."""
        follow = os.utime not in os.supports_follow_symlinks
        os.utime(path, ns=(modified_ns, modified_ns), follow_symlinks=follow)

    def sync_directory(self, path: StrPath) -> None:
        """Returns once the names in *path* are durable, if the platform reports that."""
        if sys.platform == "win32":
            return
        fd = os.open(path, os.O_RDONLY | _CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def is_private(status: FileStatus) -> bool:
    """Whether it is a regular file that only this user can read or write (0600 or 0400)."""
    if sys.platform == "win32":
        return status.regular
    return status.regular and status.owner == os.geteuid() and status.mode in {0o600, 0o400}


def _status(found: os.stat_result) -> FileStatus:
    mode, identity = found.st_mode, (found.st_dev, found.st_ino)
    counts = found.st_nlink, found.st_size, found.st_uid
    return FileStatus(stat.S_ISREG(mode), *counts, stat.S_IMODE(mode), identity, found.st_mtime_ns)


SYSTEM_FILES: Final = FileSystem()


def open_cache_file(
    path: StrPath, *, create: bool = False, files: FileSystem = SYSTEM_FILES
) -> int:
    """A read-write descriptor of the cache file at *path*, never a symbolic link.

    Without *create*, a read-only file is opened for reading. With *create* a missing file is
    created, readable by its owner alone.

    Raises `NotRegularFile` for a link, directory, device or file with a second name,
    `FileNotFoundError`, `ReadOnly` if a file cannot be created or written, `Unreadable` otherwise.
    """
    return open_entry_file(path, create=create, files=files)[0]


def open_entry_file(
    path: StrPath, *, create: bool = False, files: FileSystem = SYSTEM_FILES
) -> tuple[int, bool]:
    """As `open_cache_file`, and whether the descriptor can be written."""
    writable = True
    name = path_of(path, "a cache file is named by a path")
    flags = getattr(os, "O_NONBLOCK", 0)
    try:
        try:
            fd = files.open(name, flags | os.O_RDWR | (os.O_CREAT if create else 0))
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            if create:
                why = f"{error.strerror}{_whose(path, error, files)}"
                raise ReadOnly(f"{_shown(path)} cannot be written: {why}") from None
            fd, writable = files.open(name, flags | os.O_RDONLY), False
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO}:
            raise NotRegularFile(
                f"{_shown(path)} is a link or no file ({error.strerror})"
            ) from None
        why = f"{error.strerror}{_whose(path, error, files)}"
        raise Unreadable(f"{_shown(path)} cannot be opened: {why}") from None
    try:
        require_regular(files, fd, _shown(path))
    except BaseException:
        files.close(fd)
        raise
    return fd, writable


def _whose(path: StrPath, error: OSError, files: FileSystem) -> str:
    """Advice for a file that only another user can access; empty for other files."""
    if sys.platform == "win32" or error.errno not in {errno.EACCES, errno.EPERM}:
        return ""
    try:
        owner = files.status_of(path).owner
    except OSError:
        return ""
    if owner == os.geteuid():
        return ""
    return (
        f"; it is user {owner}'s, and entries are their user's alone: a cache directory for each "
        "user (cache=DIR, or the knob "
        "cache_dir) makes hits of these misses"
    )


def _shown(path: StrPath) -> str:
    """The path for messages, with only the first letters of a token."""
    above, name = os.path.split(os.fspath(path))
    return os.path.join(above, name if len(name) < _LETTERS else f"{name[:8]}...{name[_LETTERS:]}")


def require_regular(files: FileSystem, fd: int, place: str) -> FileStatus:
    """The status of a regular file with at most one name. Raises `NotRegularFile` for others."""
    status = files.status(fd)
    if not status.regular:
        raise NotRegularFile(f"{place} is not a regular file")
    if status.links > 1:
        raise NotRegularFile(f"{place} is a hard link: the file has {status.links} names")
    return status


def read_exactly(files: FileSystem, fd: int, buffer: memoryview, offset: int) -> bool:
    """Fills *buffer* from *offset* on. Returns False if the file ends too early."""
    done = 0
    while done < buffer.nbytes:
        with buffer[done:] as rest:
            count = files.read_into(fd, rest, offset + done)
        if not count:
            return False
        done += count
    return True


def read_small(files: FileSystem, fd: int, most: int) -> bytes:
    """The whole file behind *fd*; empty if it has more than *most* bytes."""
    size = files.status(fd).size
    if size > most:
        return b""
    content = bytearray(size)
    with memoryview(content) as view:
        return bytes(content) if read_exactly(files, fd, view, 0) else b""


def write_all(
    files: FileSystem, fd: int, content: bytes | bytearray | memoryview, offset: int
) -> None:
    """Writes all of *content* at *offset*."""
    with memoryview(content) as whole, whole.cast("B") as flat:
        done = 0
        while done < flat.nbytes:
            with flat[done : done + (1 << 24)] as rest:
                done += files.write(fd, rest, offset + done)
