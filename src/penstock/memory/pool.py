"""`MemoryPool`: a shareable region of memory that a client owns and passes to drivers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.arguments import path_of
from penstock.closing import Closing
from penstock.errors import ClosedError, InputError
from penstock.hal import Memory
from penstock.ir import ConstantPool, NDArray
from penstock.memory.mapping import ASHMEM, MMAP_FD, PROT_READ, PROT_WRITE, MappedFd, size_of
from penstock.memory.shared import (
    DescribedBuffer,
    SharedMemory,
    anonymous_fd,
    check_size,
    duplicate,
    sealed_fd,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.ir import Operand
    from penstock.memory.bound import BoundMemory, Kind

BOTH = PROT_READ | PROT_WRITE


class MemoryPool(Closing):
    """Shareable memory of fixed size.

    It is made by `anonymous`, `sealed`, `from_file` or `from_hardware_buffer`. `memory` is the
    argument for a `hal.Request`; `view` gives NumPy arrays of it. The region is unmapped, and its
    descriptor closed, when the pool is closed and its last view is freed. Views stay valid after
    `close`.
    """

    def __init__(self, shared: SharedMemory, fd: int, offset: int = 0, prot: int = BOTH) -> None:
        self._shared: SharedMemory | None = shared
        self._fd, self._offset, self._prot = fd, offset, prot
        self._bytes: NDArray | None = None

    @classmethod
    def anonymous(cls, nbytes: int) -> MemoryPool:
        """A pool of *nbytes* zero bytes that belongs to no file. Its memory is `ashmem`.

        It is a memfd sealed against resizing, or an unlinked temporary file on systems without
        memfds. Raises `InputError` for a size that is negative or beyond `MAX_POOL_BYTES`,
        `ResourceExhaustedTransient` if the system has no room or no descriptor left.
        """
        check_size(nbytes)
        nbytes = int(nbytes)
        fd = anonymous_fd(nbytes, "pool")
        return cls(SharedMemory(fd, Memory(ASHMEM, fd, nbytes)), fd)

    @classmethod
    def sealed(cls, content: NDArray | bytes | bytearray | memoryview) -> MemoryPool:
        """A read-only pool of the bytes of *content*, copied once. Its memory is `ashmem`.

        On Linux it is a memfd sealed against writing and resizing, so that constants in it are not
        copied for drivers in other processes. On other systems only the views are protected.

        Raises `InputError` if *content* is no C-contiguous buffer, holds Python objects, or is
        beyond `MAX_POOL_BYTES`. Raises `ResourceExhaustedTransient` if the system has no room or no
        descriptor left.
        """
        flat = _flat(content)
        check_size(flat.nbytes)
        fd = sealed_fd(flat, "constants")
        return cls(SharedMemory(fd, Memory(ASHMEM, fd, flat.nbytes)), fd, prot=PROT_READ)

    @classmethod
    def from_file(
        cls,
        file: str | os.PathLike[str] | int,
        offset: int = 0,
        nbytes: int | None = None,
        prot: int = BOTH,
    ) -> MemoryPool:
        """A pool of *nbytes* of *file* from byte *offset* on; None: to the end of the file.

        *file* is a path, or a descriptor, which is duplicated. Its memory is `mmap_fd` (NNAPI's
        `ANeuralNetworksMemory_createFromFd`). *offset* need not be aligned. *prot* is 0 or made of
        `PROT_READ` and `PROT_WRITE`: without `PROT_READ` there are no views, without `PROT_WRITE`
        they are read-only. Writes go to the file. Another process that can write the file can
        change the pool's content. If it shortens the file, a process that reads beyond the new end
        dies.

        Raises `InputError` for a negative offset, a size that is not positive or not in the file,
        other bits in *prot*, and a file that cannot be mapped. Raises `OSError` if the path cannot
        be opened, and `ResourceExhaustedTransient` if no descriptor is left.
        """
        if prot not in range(BOTH + 1):
            raise InputError(f"prot is {prot!r}; it is 0, PROT_READ, PROT_WRITE or both together")
        fd = _open(file, prot)
        try:
            length = _checked_length(fd, offset, nbytes)
        except BaseException:
            os.close(fd)
            raise
        handle = MappedFd(fd, offset, prot)
        return cls(SharedMemory(fd, Memory(MMAP_FD, handle, length)), fd, offset, prot)

    @classmethod
    def from_hardware_buffer(cls, buffer: DescribedBuffer) -> MemoryPool:
        """The bytes of *buffer*, which must be a BLOB. Its memory is `hardware_buffer_blob`.

        The caller may close *buffer*. Raises `InputError` for another format: an image is never
        mapped, but passed to drivers unchanged.
        """
        if not isinstance(buffer, DescribedBuffer):
            raise InputError(f"a pool is made of a HardwareBuffer, not of {type(buffer).__name__}")
        if not buffer.description.is_blob:
            raise InputError(
                f"a hardware buffer of format {buffer.description.format:#x} has no bytes to view; "
                "only a BLOB is a memory pool: give the buffer itself as an input or in out="
            )
        shared = buffer.shared
        return cls(shared, shared.memory.handle.fd)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.memory.size

    @property
    def memory(self) -> Memory:
        """The pool for drivers; its descriptor is valid until `close` and while views live."""
        return self._open().memory

    @property
    def readonly(self) -> bool:
        """Whether views cannot be written."""
        self._open()
        return not self._prot & PROT_WRITE

    @property
    def readable(self) -> bool:
        """Whether there are views."""
        self._open()
        return bool(self._prot & PROT_READ)

    def view(self, dtype: npt.DTypeLike, shape: int | Sequence[int], offset: int = 0) -> NDArray:
        """An array of *dtype* and *shape* over the pool's bytes from *offset* on.

        It is writable unless `readonly`. Raises `InputError` if it does not fit, holds Python
        objects, or the pool cannot be read.
        """
        size = self.nbytes
        try:
            kind = np.dtype(dtype)
        except (TypeError, ValueError) as error:
            raise InputError(f"a view needs a dtype of NumPy's, not {dtype!r}: {error}") from None
        if kind.hasobject:
            raise InputError("a pool holds bytes; it cannot be viewed as Python objects")
        several = isinstance(shape, Iterable) and not isinstance(shape, str)
        dimensions: tuple[Any, ...] = tuple(shape) if several else (shape,)  # type: ignore[arg-type]  # as asked above
        if any(not isinstance(d, int | np.integer) for d in (*dimensions, offset)):
            given = f"{dimensions} and {offset!r}"
            raise InputError(f"a view has whole numbers for its shape and offset, not {given}")
        needed = kind.itemsize * math.prod(map(int, dimensions))
        if min(dimensions, default=0) < 0 or offset < 0 or offset + needed > size:
            raise InputError(
                f"{kind.name} of shape {dimensions} at byte {offset} "
                f"does not fit into a pool of {size} bytes"
            )
        array: NDArray = self._map()[offset : offset + needed].view(kind).reshape(dimensions)
        return array

    @property
    def buffer(self) -> memoryview:
        """All bytes by Python's buffer protocol, read-only if the pool is.

        From Python 3.12 on, `memoryview(pool)` is the same.
        """
        return memoryview(self._map().data)

    def __buffer__(self, flags: int) -> memoryview:
        return self.buffer

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> NDArray:
        """All bytes as flat uint8, not copied unless NumPy requests a copy."""
        return np.array(self._map(), dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        """Exports all bytes as flat uint8; *options* are those of the array API's `__dlpack__`.

        A read-only pool needs a consumer that supports DLPack 1.0 (`max_version`); otherwise
        `BufferError` is raised.
        """
        return self._map().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def bind_argument(
        self, user: object, kind: Kind, index: int, operand: Operand
    ) -> BoundMemory | NDArray:
        """Binds the pool as an input or output of one run (`penstock.memory.bound.Bindable`).

        The value is at the pool's first byte, and the pool may be longer.
        """
        from penstock.memory.bound import BoundPool, LentPool, extent_of, place_of

        memory = self.memory
        if kind == "output" and self.readonly:
            raise InputError(f"{place_of(kind, operand)}: the pool is read-only")
        shape, nbytes = extent_of(memory, kind, operand)
        if not self.readable:
            return BoundPool(self, memory, operand.dtype, shape, nbytes=nbytes)
        return LentPool(self, self, memory, operand, shape, nbytes)

    def constants(self) -> ConstantPool:
        """The pool as memory of a model's constants (`ModelBuilder.located`), not copied.

        It must not be written as long as a model with constants in it is used. A driver in another
        process gets the descriptor of a pool that `sealed` made, or of a memfd sealed against
        writing and resizing. It gets a copy of any other pool; the receipt of the compile lists it.
        """
        return ConstantPool(self.buffer.toreadonly(), self._open(), self.memory.name)

    def flush(self) -> None:
        """Writes the changes of views to the file behind the pool, and waits for it.

        Only pools of files need it. Raises `OSError` if the file cannot be written.
        """
        self._open().flush()

    def close(self) -> None:
        """Releases the memory. Views keep it, and its descriptor. A second call does nothing."""
        self._shared = self._bytes = None

    def _open(self) -> SharedMemory:
        if (shared := self._shared) is None:
            raise ClosedError("memory pool used after close()")
        return shared

    def _map(self) -> NDArray:
        shared = self._open()
        if (known := self._bytes) is not None:
            return known
        if not self._prot & PROT_READ:
            raise InputError("a pool without PROT_READ cannot be viewed")
        mapped = shared.map(self._fd, self._offset, writable=bool(self._prot & PROT_WRITE))
        self._bytes = mapped
        if self._shared is None:
            # Another thread closed it meanwhile; the mapping must not stay.
            self._bytes = None
        return mapped

    def __repr__(self) -> str:
        shared = self._shared
        size = "closed" if shared is None else f"{shared.memory.name}, {shared.memory.size} bytes"
        return f"MemoryPool({size})"

    def __reduce__(self) -> Any:
        raise TypeError("a memory pool cannot be pickled; its bytes can")


def _flat(content: object) -> memoryview:
    """The bytes of an array or another buffer."""
    try:
        if isinstance(content, np.ndarray):
            # Python's buffers do not support some element types.
            if not content.flags.c_contiguous or content.dtype.hasobject:
                raise ValueError("it is not C-contiguous, or holds Python objects")
            return memoryview(content.reshape(-1).view(np.uint8).data)
        # What is no buffer is refused below.
        return memoryview(content).cast("B")  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise InputError(
            "a sealed pool is made of an array or another contiguous buffer, not of this "
            f"{type(content).__name__}: {error}"
        ) from None


def _open(file: str | os.PathLike[str] | int, prot: int) -> int:
    """A separate descriptor."""
    made_of = "a memory pool is made of a path (str or PathLike) or a descriptor (int)"
    if isinstance(file, bool) or not isinstance(file, str | os.PathLike | int):
        raise InputError(f"{made_of}, not of {file!r}")
    if isinstance(file, int):
        return duplicate(file, "a memory pool")
    flags = os.O_RDWR if prot & PROT_WRITE else os.O_RDONLY
    path = path_of(file, made_of)
    return os.open(path, flags | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))


def _checked_length(fd: int, offset: int, nbytes: int | None) -> int:
    if isinstance(offset, bool) or not hasattr(offset, "__index__"):
        raise InputError(f"a pool of a file begins at a whole number of bytes, not {offset!r}")
    size = size_of(fd)
    if nbytes is None and 0 <= size <= offset:
        where = f"byte {offset} is not in a file of {size} bytes" if size else "the file is empty"
        raise InputError(f"no pool without a byte can be made of a file: {where}")
    length = size - offset if nbytes is None else nbytes
    if offset < 0 or length <= 0 or offset + length > size:
        raise InputError(
            f"a pool of {length} bytes at byte {offset} is not in a file of {size} bytes"
        )
    check_size(length)
    return length
