"""A file, read once into memory that nothing can write afterwards.

On Linux the copy is in a sealed memfd, mapped read-only: another process can get the descriptor and
still cannot change a byte. On other systems it is a private `bytes` object.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import BinaryIO, Final, TypeAlias

from penstock import knobs
from penstock.arguments import path_of
from penstock.errors import LimitExceeded
from penstock.memory.limits import MIB, available_memory, explained

CHUNK: Final = 1 << 22
LEAST_SEALED: Final = 1 << 20
"""Bytes from which `seal_chunks` uses a memfd, which takes a descriptor."""

HEAD: Final = 4096
"""Bytes at the beginning of a file that are checked before the rest is read."""

Judge: TypeAlias = Callable[[bytes, "int | None"], None]
"""A check that raises to reject a file, by its first `HEAD` bytes and its size, if known."""

HAS_MEMFD: Final = sys.platform == "linux" and hasattr(os, "memfd_create")

_lock = threading.Lock()
_open: set[int] = set()

MOST_WRITTEN: Final = 1 << 26
"""Most bytes written by one system call."""

PATIENCE_S: Final = 2.0
"""Most seconds that `add_seals` waits while the kernel uses a page of the file."""

PAUSE_S: Final = 0.005

_DESCRIPTORS = ("/dev/fd/", "/dev/stdin", "/proc/")
"""Paths of descriptors that are open already: `/dev/stdin`, `/dev/fd/N`, `/proc/self/fd/N`."""


def open_file(name: str) -> io.FileIO:
    """Opens the file at *name* for reading: a regular file, or an inherited pipe.

    The pipe is one that this process got as a descriptor. Raises `OSError`; with EINVAL for a
    device, which may never end, and for a named pipe, which may never be written.
    """
    # Without O_NONBLOCK, opening a named pipe waits until another process opens its other end.
    # The caller closes it.
    file = open(name, "rb", buffering=0, opener=_without_waiting)  # noqa: SIM115
    try:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise OSError(errno.EINVAL, "is a device, not a file", name)
        places = os.path.abspath(name), os.path.realpath(name)
        if stat.S_ISFIFO(mode) and not any(p.startswith(_DESCRIPTORS) for p in places):
            raise OSError(
                errno.EINVAL,
                "is a named pipe, not a regular file; pipe what it gives through /dev/stdin",
                name,
            )
        if sys.platform != "win32":
            os.set_blocking(file.fileno(), True)
    except BaseException:
        file.close()
        raise
    return file


def _without_waiting(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


class SealedFile:
    """The bytes of a file, read-only: *view* is valid as long as any view of it lives.

    *fd* is the sealed memfd behind it, or None without one (private memory, or a plain mapping).
    The descriptor is closed when this object is freed; the memory stays until its last view is
    freed.
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
        """The `hal.Memory` name of the memory; empty for memory of this process."""
        if self.mapped:
            return "mmap_fd"
        return "ashmem" if self.fd is not None else ""

    def unload(self) -> None:
        """Lets the system unmap the pages that were read. A later read maps them again.

        They stay in the file, and in a sealed memfd. Private memory is left alone: it is nowhere
        else.
        """
        region = self.view.obj
        if sys.platform != "win32" and isinstance(region, mmap.mmap) and self.kind:
            region.madvise(mmap.MADV_DONTNEED)


def open_descriptors() -> int:
    """Number of descriptors that live `SealedFile`s hold."""
    return len(_open)


def _takes_all(head: bytes, size: int | None) -> None:
    """The `Judge` that accepts any file."""


def read_path(path: str | os.PathLike[str], judge: Judge = _takes_all) -> SealedFile:
    """Reads the file at *path* once, if *judge* accepts it.

    Raises as `read_file`, `OSError` also if the file cannot be opened, and `InputError` if *path*
    is no path. Devices and named pipes are rejected (`OSError`, EINVAL): they may never end.
    """
    with open_file(path_of(path, "a file is named by a path")) as file:
        return read_file(file, judge)


def map_path(path: str | os.PathLike[str]) -> SealedFile:
    """Maps the file at *path* instead of reading it.

    Only for files that no process changes. A process that can write the file changes what later
    readers of the view see. If it truncates the file, they die with SIGBUS.
    """
    with open_file(path_of(path, "a file is named by a path")) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return SealedFile(memoryview(b""))
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        # An immutable file is passed to another process without a copy: `/proc/self/fd/N` of a
        # sealed memfd.
        fd = os.dup(file.fileno()) if is_write_sealed(file.fileno()) else None
    return SealedFile(memoryview(mapping), fd, mapped=True)


def read_file(file: BinaryIO, judge: Judge = _takes_all) -> SealedFile:
    """Reads *file* from its current position to its end, in chunks, if *judge* accepts it.

    Raises the error of *judge*, `OSError` if it cannot be read, and `LimitExceeded` for too many
    bytes. The limit of a file is the machine's memory; the limit of a stream without a known size
    is the knob `stream_limit_mib`.
    """
    size = _rest_of(file)
    if sys.platform != "win32" and HAS_MEMFD and isinstance(file, io.FileIO) and size is not None:
        judge(os.pread(file.fileno(), HEAD, file.tell()), size)
        bound = _Bound(size)
        return _sealed(lambda fd: _send(file, fd, bound))
    head = _read_head(file)
    judge(head, size)
    rest = iter(lambda: file.read(CHUNK), b"")
    return _gather(_Bound(size).checked(chain([head], rest)))


def seal_bytes(content: bytes | bytearray | memoryview, judge: Judge = _takes_all) -> SealedFile:
    """*content* as a sealed file if *judge* accepts it; `bytes` are used without a copy."""
    flat = memoryview(content).cast("B")
    judge(bytes(flat[:HEAD]), flat.nbytes)
    if isinstance(content, bytes):
        return SealedFile(memoryview(content))
    return _gather(iter([flat[i : i + CHUNK] for i in range(0, flat.nbytes, CHUNK)]))


def seal_chunks(chunks: Iterable[memoryview], size: int) -> SealedFile:
    """The bytes of all *chunks*, of together *size* bytes, as a sealed file. Only one chunk is in
    memory beside it. Fewer than `LEAST_SEALED` bytes are kept in memory of this process.
    """
    if HAS_MEMFD and size >= LEAST_SEALED:
        return _gather(iter(chunks))
    content, at = bytearray(size), 0
    for chunk in chunks:
        content[at : at + chunk.nbytes] = chunk
        at += chunk.nbytes
    return SealedFile(memoryview(content).toreadonly())


class _Bound:
    """Most bytes that may be read of a file of that *size*, or of a stream of unknown size."""

    def __init__(self, size: int | None) -> None:
        self._stream = knobs.stream_limit_mib() * MIB
        if size is not None and size > available_memory():
            raise LimitExceeded(
                f"the file has {size} bytes, more than this machine has memory: "
                f"{available_memory()}; map=True maps it"
            )
        # A file that grows while it is read counts as a stream from then on.
        self._left = self._stream if size is None else max(size, self._stream)

    def take(self, count: int) -> int:
        """Counts *count* bytes as read. Raises `LimitExceeded` if there are too many."""
        self._left -= count
        if self._left < 0:
            raise LimitExceeded(
                f"what it is read from gave more than {self._stream} bytes (knob "
                "stream_limit_mib): more is read from a regular file"
            )
        return count

    def checked(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.take(len(chunk))
            yield chunk


def _rest_of(file: BinaryIO) -> int | None:
    """Bytes from the position of *file* to its end; None if unknown."""
    if isinstance(file, io.BytesIO):
        return max(0, file.getbuffer().nbytes - file.tell())
    if not isinstance(file, io.FileIO | io.BufferedReader):
        return None
    try:
        status = os.fstat(file.fileno())
    except io.UnsupportedOperation:
        return None
    # Files of /proc and /sys report a size of 0 even if they have content.
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return None
    return max(0, status.st_size - file.tell())


def _read_head(file: BinaryIO) -> bytes:
    head = b""
    while part := file.read(HEAD - len(head)):
        head += part
    return head


def _gather(chunks: Iterator[bytes | memoryview]) -> SealedFile:
    if HAS_MEMFD:
        return _sealed(lambda fd: _write(chunks, fd))
    return SealedFile(memoryview(b"".join(chunks)))


def _write(chunks: Iterable[bytes | memoryview], fd: int) -> int:
    """Writes all *chunks* and returns how many bytes they were."""
    size = 0
    for chunk in chunks:
        view = memoryview(chunk)
        write_all(fd, view)
        size += view.nbytes
    return size


def _send(file: io.FileIO, fd: int, bound: _Bound) -> int:
    """Copies the rest of *file* inside the kernel if possible, else through memory."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "sendfile into a memfd is Linux's")
    size = 0
    try:
        while sent := os.sendfile(fd, file.fileno(), None, CHUNK):
            size += bound.take(sent)
    except OSError as error:
        if size or error.errno != errno.EINVAL:
            raise
        size = _write(bound.checked(iter(lambda: file.read(CHUNK) or b"", b"")), fd)
    return size


def _sealed(fill: Callable[[int], int]) -> SealedFile:
    """The sealed memfd that *fill* writes into; it returns the number of bytes."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "sealed files are Linux's")
    import fcntl

    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fd = os.memfd_create("penstock-model", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        try:
            size = fill(fd)
        except OSError as error:
            raise explained(error) from None
        add_seals(fd, seals)
        # Before Linux 6.7 a write-sealed memfd can be mapped privately only.
        mapping = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) if size else b""
    except BaseException:
        os.close(fd)
        raise
    return SealedFile(memoryview(mapping), fd)


def write_all(fd: int, content: memoryview) -> None:
    """Writes *content* to *fd*. Raises `OSError`, EFAULT if its mapping lost its memory."""
    rest = content.cast("B")
    while rest.nbytes:
        rest = rest[os.write(fd, rest[:MOST_WRITTEN]) :]


def add_seals(fd: int, seals: int) -> None:
    """Adds *seals* to an anonymous file (fcntl(2)). Raises `OSError`.

    Linux refuses F_SEAL_WRITE with EBUSY while anything else holds a page of the file, such as the
    kernel's own walk over memory. That ends by itself: this waits up to `PATIENCE_S` seconds.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "sealed files are Linux's")
    import fcntl

    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() >= until:
                raise
        else:
            return
        time.sleep(PAUSE_S)


def is_write_sealed(fd: int) -> bool:
    """Whether *fd* is memory that nobody can write any more: never, where there are no seals."""
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)
    except (OSError, OverflowError, ValueError):
        return False


def _close(fd: int) -> None:
    with _lock:
        _open.discard(fd)
    os.close(fd)
