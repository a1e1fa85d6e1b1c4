"""A descriptor of shareable memory and what it stands for, kept for as long as anything of it is used."""

from __future__ import annotations

import errno
import mmap
import os
import sys
import threading
import weakref
from typing import Final

import numpy as np

from penstock.errors import InputError, ResourceExhaustedTransient
from penstock.hal import Memory
from penstock.ir import NDArray
from penstock.memory.regions import Region, map_region, place

MAX_POOL_BYTES: Final = 2**40
"""No pool is larger: sizes beyond it are mistakes in the caller's arithmetic."""


class SharedMemory:
    """*fd*, taken over, and the *memory* it stands for. Both are good until the last of this object, and of the views
    that `map` gave, dies.
    """

    __slots__ = ("__weakref__", "_lock", "_region", "memory")

    def __init__(self, fd: int, memory: Memory) -> None:
        self.memory = memory
        self._region: weakref.ref[Region] | None = None
        self._lock = threading.Lock()
        weakref.finalize(self, os.close, fd)

    def map(self, fd: int, offset: int = 0, *, writable: bool = True) -> NDArray:
        """All bytes of the memory, which start at *offset* of *fd*, as flat uint8; `pool_of` finds what lies in them.

        Mapped once for as long as any view lives. Raises `ResourceExhaustedTransient` where there is no room for it,
        `InputError` where the descriptor cannot be mapped so.
        """
        if self.memory.size == 0:
            return np.empty(0, np.uint8)
        with self._lock:
            region = None if self._region is None else self._region()
            if region is not None:
                return region.array
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
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
        """Writes what was changed through views to the file behind, and waits for it. Raises `OSError`."""
        region = None if self._region is None else self._region()
        if region is not None and region.writable:
            region.flush()


def check_size(nbytes: int) -> None:
    """Raises `InputError` for a size that no pool can have."""
    if isinstance(nbytes, bool) or not isinstance(nbytes, int | np.integer):
        raise InputError(f"the size of a pool is a whole number of bytes, not {nbytes!r}")
    if not 0 <= nbytes <= MAX_POOL_BYTES:
        raise InputError(f"a pool of {nbytes} bytes; 0 to {MAX_POOL_BYTES} are possible")


def duplicate(fd: object, what: str) -> int:
    """A descriptor of one's own for what *fd* is. Raises `InputError` where it is none, and
    `ResourceExhaustedTransient` when none is left.
    """
    if not isinstance(fd, int) or isinstance(fd, bool):
        raise InputError(f"{what} needs a descriptor, not {type(fd).__name__}")
    try:
        return os.dup(fd)
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", None) == errno.EMFILE:
            raise ResourceExhaustedTransient(f"no duplicate of descriptor {fd}: {error}") from error
        raise InputError(f"descriptor {fd} cannot be {what}: {error}") from None


def anonymous_fd(nbytes: int, name: str) -> int:
    """A descriptor of *nbytes* zero bytes that belong to no file: a memfd sealed against resizing, or an unlinked
    temporary file where there are none. Raises `ResourceExhaustedTransient`.
    """
    try:
        return _anonymous_fd(nbytes, name)
    except OSError as error:
        raise ResourceExhaustedTransient(f"no pool of {nbytes} bytes: {error}") from error


if sys.platform == "linux":
    import fcntl

    _SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL

    def _anonymous_fd(nbytes: int, name: str) -> int:
        fd = os.memfd_create(f"penstock-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(fd)
            raise
        return fd

else:

    def _anonymous_fd(nbytes: int, name: str) -> int:
        import tempfile

        with tempfile.TemporaryFile(prefix=f"penstock-{name}-") as file:
            file.truncate(nbytes)
            return os.dup(file.fileno())
