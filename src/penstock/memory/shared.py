"""A descriptor of shareable memory and its `Memory`, kept while any part of it is used."""

from __future__ import annotations

import errno
import mmap
import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.errors import GeneralFailure, InputError, ResourceExhaustedTransient
from penstock.hal import Memory
from penstock.ir import NDArray
from penstock.memory.limits import explained
from penstock.memory.mapping import Region, map_region, place
from penstock.memory.sealed_file import add_seals, is_write_sealed, write_all

if TYPE_CHECKING:
    from penstock.memory.mapping import HardwareBufferDescription

MAX_POOL_BYTES: Final = 2**40
"""Most bytes of a pool: larger sizes are mistakes in the caller's arithmetic."""


class SharedMemory:
    """Owns *fd* and *memory*, both valid as long as this object or a view of `map` lives."""

    __slots__ = ("__weakref__", "_lock", "_region", "memory")

    def __init__(self, fd: int, memory: Memory) -> None:
        self.memory = memory
        self._region: weakref.ref[Region] | None = None
        self._lock = threading.Lock()
        weakref.finalize(self, os.close, fd)

    def map(self, fd: int, offset: int = 0, *, writable: bool = True) -> NDArray:
        """All bytes of the memory as flat uint8; `pool_of` finds arrays in them.

        They start at *offset* of *fd*. Mapped once for as long as any view lives. Raises
        `ResourceExhaustedTransient` if there is no address space, `InputError` if the descriptor
        cannot be mapped in this way.
        """
        if self.memory.size == 0:
            return np.empty(0, np.uint8)
        with self._lock:
            region = None if self._region is None else self._region()
            if region is not None:
                return region.array
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            if not writable and is_write_sealed(fd):
                # Before Linux 6.7 a sealed file can only be mapped privately. It cannot change, so
                # both mappings are equal.
                access = mmap.ACCESS_COPY
            try:
                region = map_region(fd, self.memory.size, access, offset, self)
            except PermissionError as error:
                raise InputError(
                    f"this memory cannot be mapped as it is protected: {error}"
                ) from None
            except (OSError, ValueError, OverflowError) as error:
                raise ResourceExhaustedTransient(f"no address space for a pool: {error}") from error
            place(region, self.memory)
            self._region = weakref.ref(region)
            return region.array

    def flush(self) -> None:
        """Writes changes through views to the file and waits for it. Raises `OSError`."""
        region = None if self._region is None else self._region()
        if region is not None and region.writable:
            region.flush()


class DescribedBuffer(ABC):
    """A hardware buffer as a memory pool needs it; `HardwareBuffer` is one."""

    @property
    @abstractmethod
    def description(self) -> HardwareBufferDescription:
        """The shape and format of the buffer."""

    @property
    @abstractmethod
    def shared(self) -> SharedMemory:
        """The owner of the descriptor. Raises `ClosedError` once the buffer is closed."""


def check_size(nbytes: int) -> None:
    """Raises `InputError` for an invalid size of a pool."""
    if isinstance(nbytes, bool) or not isinstance(nbytes, int | np.integer):
        raise InputError(f"the size of a pool is a whole number of bytes, not {nbytes!r}")
    if not 0 <= nbytes <= MAX_POOL_BYTES:
        raise InputError(f"a pool of {nbytes} bytes; 0 to {MAX_POOL_BYTES} are possible")


def duplicate(fd: object, what: str) -> int:
    """A duplicate of *fd*. Raises `InputError` or `ResourceExhaustedTransient`."""
    if not isinstance(fd, int) or isinstance(fd, bool):
        raise InputError(f"{what} needs a descriptor, not {type(fd).__name__}")
    try:
        return os.dup(fd)
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", None) == errno.EMFILE:
            raise ResourceExhaustedTransient(f"no duplicate of descriptor {fd}: {error}") from error
        raise InputError(f"descriptor {fd} cannot be {what}: {error}") from None


def kept_memory(memory: Memory) -> SharedMemory | None:
    """*memory*, an `ashmem` or `mmap_fd`, with a duplicate descriptor; None for another kind.

    The owner may then close the original. Raises `InputError` and `ResourceExhaustedTransient` as
    `duplicate`.
    """
    match memory.handle:
        case int(fd):
            own = duplicate(fd, "kept")
            return SharedMemory(own, Memory(memory.name, own, memory.size))
        case (int(fd), int(offset), int(protection)):
            own = duplicate(fd, "kept")
            from penstock.memory.mapping import MappedFd

            handle = MappedFd(own, offset, protection)
            return SharedMemory(own, Memory(memory.name, handle, memory.size))
    return None


def anonymous_fd(nbytes: int, name: str) -> int:
    """A descriptor of *nbytes* zero bytes that belong to no file.

    It is a memfd sealed against resizing, or an unlinked temporary file on systems without memfds.
    Raises `ResourceExhaustedTransient`.
    """
    try:
        return _anonymous_fd(nbytes, name)
    except OSError as error:
        raise ResourceExhaustedTransient(
            f"no pool of {nbytes} bytes: {explained(error)}"
        ) from error


def sealed_fd(content: memoryview, name: str) -> int:
    """A descriptor of memory that holds *content*, sealed if the system has seals.

    The seals forbid writing and resizing. Raises `ResourceExhaustedTransient`, and `GeneralFailure`
    if *content* lies in a file that has become shorter.
    """
    try:
        return _sealed_fd(content, name)
    except OSError as error:
        if error.errno == errno.EFAULT:
            raise GeneralFailure(
                "constants cannot be read any more: the file that they lie in has become shorter"
            ) from error
        raise ResourceExhaustedTransient(
            f"no pool of {content.nbytes} bytes: {explained(error)}"
        ) from error


if sys.platform == "linux":
    import fcntl

    _SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL

    def _memfd(name: str, fill: Callable[[int], object], seals: int) -> int:
        fd = os.memfd_create(f"penstock-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            fill(fd)
            add_seals(fd, seals)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _anonymous_fd(nbytes: int, name: str) -> int:
        return _memfd(name, lambda fd: os.ftruncate(fd, nbytes), _SEALS)

    def _sealed_fd(content: memoryview, name: str) -> int:
        return _memfd(name, lambda fd: write_all(fd, content), _SEALS | fcntl.F_SEAL_WRITE)

else:

    def _anonymous_fd(nbytes: int, name: str) -> int:
        import tempfile

        with tempfile.TemporaryFile(prefix=f"penstock-{name}-") as file:
            file.truncate(nbytes)
            return os.dup(file.fileno())

    def _sealed_fd(content: memoryview, name: str) -> int:
        fd = _anonymous_fd(content.nbytes, name)
        try:
            write_all(fd, content)
        except BaseException:
            os.close(fd)
            raise
        return fd
