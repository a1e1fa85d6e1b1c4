"""`MemoryPool`: a shareable region of memory that a client owns and lends to drivers."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from penstock.errors import ClosedError, InputError, ResourceExhaustedTransient
from penstock.hal import Memory
from penstock.ir import NDArray
from penstock.memory.mapping import map_shared

if TYPE_CHECKING:
    import numpy.typing as npt

MAX_POOL_BYTES: Final = 2**40
"""No pool is larger: sizes beyond it are mistakes in the caller's arithmetic."""


class MemoryPool:
    """Shareable memory, of fixed size, zero at first; made by `anonymous`.

    `memory` is what goes into a `hal.Request`; `view` gives NumPy arrays of it. The region is unmapped
    when the pool is closed and its last view has died; views stay good after `close`.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self._memory: Memory | None = Memory("ashmem", fd, nbytes)
        self._bytes: NDArray | None = None
        self._lock = threading.Lock()
        self._close_fd = weakref.finalize(self, os.close, fd)

    @classmethod
    def anonymous(cls, nbytes: int) -> MemoryPool:
        """A pool of *nbytes* bytes that belongs to no file: a memfd sealed against resizing, or an
        unlinked temporary file where there are none.

        Raises `InputError` for a size that is negative or beyond `MAX_POOL_BYTES`,
        `ResourceExhaustedTransient` when the system has no room or no descriptor left.
        """
        if not 0 <= nbytes <= MAX_POOL_BYTES:
            raise InputError(f"a pool of {nbytes} bytes; 0 to {MAX_POOL_BYTES} are possible")
        try:
            fd = _anonymous_fd(nbytes)
        except OSError as error:
            raise ResourceExhaustedTransient(f"no pool of {nbytes} bytes: {error}") from error
        return cls(fd, nbytes)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.memory.size

    @property
    def memory(self) -> Memory:
        """The pool as drivers get it; its descriptor is good until `close`."""
        if self._memory is None:
            raise ClosedError("memory pool used after close()")
        return self._memory

    def view(self, dtype: npt.DTypeLike, shape: int | Sequence[int], offset: int = 0) -> NDArray:
        """An array of *dtype* and *shape* over the pool's bytes from *offset* on, writable.

        Raises `InputError` where it would not fit, or holds Python objects.
        """
        memory, kind = self.memory, np.dtype(dtype)
        if kind.hasobject:
            raise InputError("a pool holds bytes; it cannot be viewed as Python objects")
        dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
        needed = kind.itemsize
        for dimension in dimensions:
            needed *= dimension
        if min(dimensions, default=0) < 0 or offset < 0 or offset + needed > memory.size:
            raise InputError(
                f"{kind.name} of shape {dimensions} at byte {offset} "
                f"does not fit into a pool of {memory.size} bytes"
            )
        array: NDArray = self._map(memory)[offset : offset + needed].view(kind).reshape(dimensions)
        return array

    def close(self) -> None:
        """Closes the descriptor; twice is harmless. Views keep the memory itself."""
        with self._lock:
            self._memory = self._bytes = None
            self._close_fd()

    def _map(self, memory: Memory) -> NDArray:
        with self._lock:
            if self._memory is None:
                raise ClosedError("memory pool used after close()")
            if self._bytes is None:
                self._bytes = _map(memory)
            return self._bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        size = "closed" if self._memory is None else f"{self._memory.size} bytes"
        return f"MemoryPool({size})"

    def __reduce__(self) -> Any:
        raise TypeError("a memory pool cannot be pickled; its bytes can")


def _map(memory: Memory) -> NDArray:
    if memory.size == 0:
        return np.empty(0, np.uint8)
    try:
        return map_shared(memory.handle, memory.size)
    except OSError as error:
        raise ResourceExhaustedTransient(f"no address space for a pool: {error}") from error


if sys.platform == "linux":
    import fcntl

    _SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL

    def _anonymous_fd(nbytes: int) -> int:
        fd = os.memfd_create("penstock-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(fd)
            raise
        return fd

else:

    def _anonymous_fd(nbytes: int) -> int:
        import tempfile

        with tempfile.TemporaryFile(prefix="penstock-pool-") as file:
            file.truncate(nbytes)
            return os.dup(file.fileno())
