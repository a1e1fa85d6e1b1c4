"""What the handle of a hardware buffer is: a descriptor, and Android's description of what it holds
(NNAPI section 6.3).
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from msgspec import Struct


class HardwareBufferFormat(enum.IntEnum):
    """Layouts of a hardware buffer, with Android's numbers (`AHardwareBuffer_Format`); a buffer may
    have others.
    """

    R8G8B8A8_UNORM = 0x1
    R8G8B8X8_UNORM = 0x2
    R8G8B8_UNORM = 0x3
    R5G6B5_UNORM = 0x4
    R16G16B16A16_FLOAT = 0x16
    BLOB = 0x21
    Y8CB8CR8_420 = 0x23
    R10G10B10A2_UNORM = 0x2B
    D16_UNORM = 0x30
    D24_UNORM = 0x31
    D24_UNORM_S8_UINT = 0x32
    D32_FLOAT = 0x33
    D32_FLOAT_S8_UINT = 0x34
    S8_UINT = 0x35
    YCBCR_P010 = 0x36
    R8_UNORM = 0x38
    R16_UINT = 0x39
    R16G16_UINT = 0x3A
    R10G10B10A10_UNORM = 0x3B


class HardwareBufferUsage(enum.IntFlag):
    """What a hardware buffer is for, with Android's numbers (`AHardwareBuffer_UsageFlags`)."""

    CPU_READ_RARELY = 2
    CPU_READ_OFTEN = 3
    CPU_READ_MASK = 0xF
    CPU_WRITE_RARELY = 2 << 4
    CPU_WRITE_OFTEN = 3 << 4
    CPU_WRITE_MASK = 0xF << 4
    GPU_SAMPLED_IMAGE = 1 << 8
    GPU_FRAMEBUFFER = 1 << 9
    PROTECTED_CONTENT = 1 << 14
    VIDEO_ENCODE = 1 << 16
    SENSOR_DIRECT_DATA = 1 << 23
    GPU_DATA_BUFFER = 1 << 24


class HardwareBufferDescription(Struct, frozen=True):
    """The shape of a hardware buffer (`AHardwareBuffer_Desc`).

    *width*, *height* and *stride* count pixels, *stride* from the start of one row to that of the
    next; of a BLOB, *width* counts bytes and *height* and *layers* are 1. *format* is a
    `HardwareBufferFormat` or a vendor's number, *usage* `HardwareBufferUsage` bits.
    """

    format: int
    width: int
    height: int = 1
    layers: int = 1
    stride: int = 0
    usage: int = 0

    @property
    def is_blob(self) -> bool:
        """Whether the buffer is plain bytes."""
        return self.format == HardwareBufferFormat.BLOB


class HardwareBufferHandle(NamedTuple):
    """Handle of a `hardware_buffer_blob` or `hardware_buffer` memory: the descriptor of a dma-buf,
    or of the memfd that stands in for one, and what it holds.
    """

    fd: int
    description: HardwareBufferDescription
