"""A file read once into memory that nobody can write afterwards.

On Linux the copy stands in a sealed memfd, mapped read-only, so that another process can be handed the
descriptor and still cannot change a byte; elsewhere it is a private `bytes` object.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import stat
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

from penstock.arguments import path_of

CHUNK: Final = 1 << 22
HAS_MEMFD: Final = sys.platform == "linux" and hasattr(os, "memfd_create")

_lock = threading.Lock()
_open: set[int] = set()


class SealedFile:
    """The bytes of a file, read-only: *view* for as long as any view of it lives.

    *fd* is the sealed memfd behind it, or None where there is none (private memory, or a plain mapping).
    The descriptor is closed when this object dies; the memory stays until the last view of it dies.
    """

    def __init__(self, view: memoryview, fd: int | None = None, *, mapped: bool = False) -> None:
        self.view, self.fd, self.mapped = view, fd, mapped
        if fd is not None:
            with _lock:
                _open.add(fd)
            weakref.finalize(self, _close, fd)

    def __len__(self) -> int:
        return self.view.nbytes

    @property
    def kind(self) -> str:
        """The `hal.Memory` name of what the bytes lie in; empty for memory of this process."""
        if self.mapped:
            return "mmap_fd"
        return "ashmem" if self.fd is not None else ""


def open_descriptors() -> int:
    """How many descriptors living `SealedFile`s hold."""
    return len(_open)


def read_path(path: str | os.PathLike[str]) -> SealedFile:
    """Reads the file at *path* once. Raises `OSError` when it cannot be opened or read, `InputError` for what is no path.

    Devices are refused (`OSError`, EINVAL): they may never end.
    """
    name = path_of(path, "a file is named by a path")
    with open(name, "rb", buffering=0) as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise OSError(errno.EINVAL, "is a device, not a file", name)
        return read_file(file)


def map_path(path: str | os.PathLike[str]) -> SealedFile:
    """Maps the file at *path* instead of reading it.

    Whoever can write the file changes what later readers of the view see, and truncating it makes them
    die with SIGBUS: only for files that nobody touches.
    """
    with open(path_of(path, "a file is named by a path"), "rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return SealedFile(memoryview(b""))
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return SealedFile(memoryview(mapping), mapped=True)


def read_file(file: BinaryIO) -> SealedFile:
    """Reads *file* from where it stands to its end, in chunks."""
    if HAS_MEMFD and isinstance(file, io.FileIO):
        return _sealed(lambda fd: _send(file, fd))
    return _gather(iter(lambda: file.read(CHUNK), b""))


def seal_bytes(content: bytes | bytearray | memoryview) -> SealedFile:
    """*content* as a sealed file; `bytes`, which nobody can change, are used as they are."""
    if isinstance(content, bytes):
        return SealedFile(memoryview(content))
    flat = memoryview(content).cast("B")
    return _gather(iter([flat[i : i + CHUNK] for i in range(0, flat.nbytes, CHUNK)]))


def _gather(chunks: Iterator[bytes | memoryview]) -> SealedFile:
    if HAS_MEMFD:
        return _sealed(lambda fd: _write(chunks, fd))
    return SealedFile(memoryview(b"".join(chunks)))


def _write(chunks: Iterator[bytes | memoryview], fd: int) -> int:
    """Writes all *chunks* and returns how many bytes they were."""
    size = 0
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest.nbytes:
            written = os.write(fd, rest)
            size, rest = size + written, rest[written:]
    return size


def _send(file: io.FileIO, fd: int) -> int:
    """Copies the rest of *file* inside the kernel; pipes, which cannot be sent from, through memory."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "sendfile into a memfd is Linux's")
    size = 0
    try:
        while sent := os.sendfile(fd, file.fileno(), None, CHUNK):
            size += sent
    except OSError as error:
        if size or error.errno != errno.EINVAL:
            raise
        size = _write(iter(lambda: file.read(CHUNK) or b"", b""), fd)
    return size


def _sealed(fill: Callable[[int], int]) -> SealedFile:
    """The sealed memfd that *fill* writes into; it returns the number of bytes."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "sealed files are Linux's")
    import fcntl

    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fd = os.memfd_create("penstock-model", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        size = fill(fd)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        # Before Linux 6.7 a write-sealed memfd can be mapped privately only.
        mapping = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) if size else b""
    except BaseException:
        os.close(fd)
        raise
    return SealedFile(memoryview(mapping), fd)


def _close(fd: int) -> None:
    with _lock:
        _open.discard(fd)
    os.close(fd)
