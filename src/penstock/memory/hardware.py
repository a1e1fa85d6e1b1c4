"""Hardware buffers: plain bytes, and images with rows and planes.

The bytes are in dma-bufs, or in memory that stands in for them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.closing import Closing
from penstock.errors import ClosedError, GeneralFailure, InputError
from penstock.hal import Memory
from penstock.ir import NDArray
from penstock.ir.types import static_shape
from penstock.memory import dmabuf
from penstock.memory.mapping import (
    HARDWARE_BUFFER,
    HARDWARE_BUFFER_BLOB,
    HardwareBufferDescription,
    HardwareBufferFormat as Format,
    HardwareBufferHandle,
    HardwareBufferUsage as Usage,
    Mapping,
    announce,
    mapped_once,
    region_of,
    size_of,
)
from penstock.memory.shared import (
    MAX_POOL_BYTES,
    DescribedBuffer,
    SharedMemory,
    anonymous_fd,
    check_size,
    duplicate,
)

if TYPE_CHECKING:
    from penstock.ir import Operand
    from penstock.memory.bound import BoundMemory, Kind


ROW_ALIGNMENT: Final = 64
"""Rows of allocated images are a multiple of this many bytes, if whole pixels allow it."""

BITS_PER_PIXEL: Final[dict[int, int]] = {
    kind: bits
    for bits, kinds in {
        8: (Format.BLOB, Format.S8_UINT, Format.R8_UNORM),
        12: (Format.Y8CB8CR8_420,),
        16: (Format.R5G6B5_UNORM, Format.D16_UNORM, Format.R16_UINT),
        24: (Format.R8G8B8_UNORM, Format.YCBCR_P010),
        32: (
            *(Format.R8G8B8A8_UNORM, Format.R8G8B8X8_UNORM, Format.R10G10B10A2_UNORM),
            *(Format.D24_UNORM, Format.D24_UNORM_S8_UINT, Format.D32_FLOAT, Format.R16G16_UINT),
        ),
        64: (Format.R16G16B16A16_FLOAT, Format.D32_FLOAT_S8_UINT, Format.R10G10B10A10_UNORM),
    }.items()
    for kind in kinds
}
"""Bits of one pixel with its share of every plane, by format."""


class HardwareBuffer(Closing, DescribedBuffer):
    """A buffer of a hardware allocator, made by `allocate`, or by `wrap` around an existing one.

    A BLOB is bytes, and `MemoryPool.from_hardware_buffer` views it. Any other format is an image:
    the runtime never maps it, and it can only be an input or output of an execution (NNAPI section
    6.3).
    """

    def __init__(self, shared: SharedMemory, backing: str) -> None:
        self._shared: SharedMemory | None = shared
        self._backing = backing

    @classmethod
    def allocate(
        cls,
        width: int,
        height: int = 1,
        *,
        format: int = Format.BLOB,
        layers: int = 1,
        usage: int = Usage.CPU_READ_OFTEN | Usage.CPU_WRITE_OFTEN,
    ) -> HardwareBuffer:
        """A new buffer of zeros: a BLOB of *width* bytes, or images.

        There are *layers* images of *width* x *height* pixels. The memory is from a dma-heap or
        udmabuf if the system has one that this process may open, else a memfd that stands in for a
        dma-buf. `backing` names it.

        Raises `InputError` for dimensions that are not positive, a BLOB of more than one row or
        layer and a format of unknown size. Raises `ResourceExhaustedTransient` if the system has no
        room or no descriptor left.
        """
        _check_whole(format)
        bits = BITS_PER_PIXEL.get(format)
        if bits is None:
            raise InputError(f"the size of hardware buffers of format {format:#x} is not known")
        _check_whole(width, height, layers, usage)
        stride = width if format == Format.BLOB else _stride(width, bits)
        description = HardwareBufferDescription(format, width, height, layers, stride, usage)
        nbytes = _needed(description)
        fd, backing = dmabuf.allocate(nbytes, partial(anonymous_fd, name="hardware-buffer"))
        return cls(_shared(fd, description, nbytes), backing)

    @classmethod
    def wrap(cls, fd: int, description: HardwareBufferDescription) -> HardwareBuffer:
        """The buffer behind *fd*: an existing dma-buf, or the memfd that stands in for one.

        Dma-bufs come from V4L2, PipeWire or a GPU's driver, for example. The descriptor is
        duplicated: the caller keeps, and closes, *fd*.

        Raises `InputError` for a description that contradicts itself or needs more bytes than the
        buffer has, and for a descriptor of anything but memory. Raises `ResourceExhaustedTransient`
        if no descriptor is left.
        """
        if not isinstance(description, HardwareBufferDescription):
            raise InputError(
                f"a HardwareBufferDescription is needed, not {type(description).__name__}"
            )
        needed = _needed(description)
        own = duplicate(fd, "a hardware buffer")
        try:
            available = size_of(own)
            if available < needed or not available:
                raise InputError(
                    f"descriptor {fd} has {available} bytes; {description} needs {needed}"
                )
        except BaseException:
            os.close(own)
            raise
        return cls(
            _shared(own, description, needed if description.is_blob else available), "wrapped"
        )

    @property
    def description(self) -> HardwareBufferDescription:
        """The shape and format of the buffer."""
        handle: HardwareBufferHandle = self.memory.handle
        return handle.description

    @property
    def memory(self) -> Memory:
        """The buffer for drivers; its descriptor is valid until `close` and while views live."""
        return self.shared.memory

    @property
    def nbytes(self) -> int:
        """Size in bytes: of a BLOB its width."""
        return self.memory.size

    @property
    def backing(self) -> str:
        """Kind of memory: "dma_heap", "udmabuf", "memfd" (a stand-in), or "wrapped"."""
        return self._backing

    @property
    def shared(self) -> SharedMemory:
        """The owner of the descriptor; for `MemoryPool`."""
        if (shared := self._shared) is None:
            raise ClosedError("hardware buffer used after close()")
        return shared

    @property
    def is_dma_buf(self) -> bool:
        """Whether the kernel manages it as a dma-buf, which needs each use by the CPU announced."""
        return dmabuf.is_dma_buf(self.shared.memory.handle.fd)

    @contextmanager
    def lock(self, *, write: bool = False) -> Iterator[NDArray]:
        """The bytes as flat uint8 during the block, read-only unless *write*.

        Raises `InputError` if the memory cannot be mapped in that way,
        `ResourceExhaustedTransient`, `ClosedError`.
        """
        if write is not False and write is not True:
            raise InputError(f"write must be true or false, not {write!r}")
        shared = self.shared
        fd = shared.memory.handle.fd
        with mapped_once(fd, shared.memory.size, write=write) as mapping:
            mapping.ended = announce(mapping, fd, write=write)
            yield mapping.array

    def bind_argument(
        self, user: object, kind: Kind, index: int, operand: Operand
    ) -> BoundMemory | NDArray:
        """Binds the buffer as an input or output of one run (`penstock.memory.bound.Bindable`).

        A BLOB is used from its first byte on and may be longer than the value. An image is passed
        to the device unchanged; the device decides whether it fits.
        """
        from penstock.memory.bound import BoundPool, LentPool, extent_of, place_of
        from penstock.memory.pool import MemoryPool

        memory = self.memory
        if self.description.is_blob:
            shape, nbytes = extent_of(memory, kind, operand)
            if self.is_dma_buf:
                # A mapping announces the CPU's use to the kernel; a stored view does not.
                return BoundPool(self, memory, operand.dtype, shape, nbytes=nbytes)
            pool = MemoryPool.from_hardware_buffer(self)
            return LentPool(self, pool, memory, operand, shape, nbytes)
        shape = static_shape(operand.shape)
        if shape is None:
            raise InputError(
                f"{place_of(kind, operand)} has an unknown shape, which an image cannot have"
            )
        # In the request, an image has no bytes: its offset and length are 0 (NNAPI 6.3).
        return BoundPool(self, memory, operand.dtype, shape, nbytes=0)

    def close(self) -> None:
        """Closes the buffer. Pools made of it keep the memory. A second call does nothing."""
        self._shared = None

    def __repr__(self) -> str:
        if self._shared is None:
            return "HardwareBuffer(closed)"
        return f"HardwareBuffer({self.description}, {self._backing})"

    def __reduce__(self) -> Any:
        raise TypeError("a hardware buffer cannot be pickled; send its descriptor instead")


def _shared(fd: int, description: HardwareBufferDescription, nbytes: int) -> SharedMemory:
    name = HARDWARE_BUFFER_BLOB if description.is_blob else HARDWARE_BUFFER
    return SharedMemory(fd, Memory(name, HardwareBufferHandle(fd, description), nbytes))


def _stride(width: int, bits: int) -> int:
    """Pixels from one row to the next: the fewest that make rows of whole `ROW_ALIGNMENT`s."""
    unit = ROW_ALIGNMENT * 8 // math.gcd(ROW_ALIGNMENT * 8, bits)
    return -(-width // unit) * unit


def _check_whole(*numbers: object) -> None:
    for number in numbers:
        if not isinstance(number, int):
            raise InputError(f"what describes a hardware buffer is whole numbers, not {number!r}")


def _needed(description: HardwareBufferDescription) -> int:
    """Minimum bytes of a buffer of *description*, as far as its format defines them."""
    d = description
    _check_whole(d.width, d.height, d.layers, d.stride, d.usage)
    if min(d.width, d.height, d.layers) < 1 or d.stride < 0 or d.usage < 0:
        raise InputError(
            "a hardware buffer has a width, height and layers of 1 or more, and a stride and usage "
            f"of 0 or more, not {d.width}, {d.height}, {d.layers}, {d.stride} and {d.usage}"
        )
    if d.is_blob:
        if d.height != 1 or d.layers != 1:
            raise InputError(f"a BLOB has one row and one layer, not {d.height} and {d.layers}")
        check_size(d.width)
        return d.width
    if d.stride and d.stride < d.width:
        raise InputError(f"{d} has a stride below its width")
    bits = BITS_PER_PIXEL.get(d.format, 0)
    nbytes = -(-(d.stride or d.width) * d.height * d.layers * bits // 8)
    if nbytes > MAX_POOL_BYTES:
        raise InputError(f"{d} takes {nbytes} bytes; {MAX_POOL_BYTES} are possible")
    return nbytes


PIXELS: Final[dict[int, tuple[str, int]]] = {
    Format.R8G8B8A8_UNORM: ("u1", 4),
    Format.R8G8B8X8_UNORM: ("u1", 4),
    Format.R8G8B8_UNORM: ("u1", 3),
    Format.R16G16B16A16_FLOAT: ("<f2", 4),
    Format.D16_UNORM: ("<u2", 1),
    Format.D32_FLOAT: ("<f4", 1),
    Format.S8_UINT: ("u1", 1),
    Format.R8_UNORM: ("u1", 1),
    Format.R16_UINT: ("<u2", 1),
    Format.R16G16_UINT: ("<u2", 2),
}
"""Formats whose pixels are whole numbers: their dtype, and the numbers per pixel."""


def map_image(memory: Memory) -> Mapping:
    """Maps a `hardware_buffer` for CPU access until it is closed.

    The array has the shape (layers, height, width, numbers per pixel); rows may have gaps between
    them. Raises `GeneralFailure` for other memory, a wrong description, and formats without plain
    numbers.
    """
    match memory.name, memory.handle:
        case "hardware_buffer", (int(fd), HardwareBufferDescription() as d):
            pass
        case _:
            raise GeneralFailure(
                f"{memory.name!r} with the handle {memory.handle!r} is no {HARDWARE_BUFFER}"
            )
    if d.format not in PIXELS:
        raise GeneralFailure(f"images of format {d.format:#x} cannot be read here")
    name, numbers = PIXELS[d.format]
    kind: np.dtype[np.generic] = np.dtype(name)
    stride = d.stride or d.width
    if min(d.width, d.height, d.layers) < 1 or stride < d.width:
        raise GeneralFailure(f"{d} describes no image")
    needed = d.layers * d.height * stride * numbers * kind.itemsize
    if needed > memory.size:
        raise GeneralFailure(f"{d} takes {needed} bytes of a memory of {memory.size}")
    flat = region_of(memory, fd)[:needed].view(kind)
    mapping = Mapping(flat.reshape(d.layers, d.height, stride, numbers)[:, :, : d.width])
    mapping.ended = announce(mapping, fd)
    return mapping
