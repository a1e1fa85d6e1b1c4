"""Client-managed pools, hardware buffers, and mapping them on the driver's side."""

from typing import TYPE_CHECKING

from penstock.facade import lazily
from penstock.memory.mapping import (
    MEMORY_KINDS,
    PROT_READ,
    PROT_WRITE,
    MappedFd,
    Mapping,
    PoolPlace,
    live_mappings,
    map_memory,
    pool_of,
)

if TYPE_CHECKING:
    from penstock.memory.allocation import BufferDesc, InputRole, OutputRole, allocate
    from penstock.memory.buffer import DeviceBuffer
    from penstock.memory.hardware import HardwareBuffer
    from penstock.memory.layout import PoolLayout
    from penstock.memory.mapping import (
        HardwareBufferDescription,
        HardwareBufferFormat,
        HardwareBufferHandle,
        HardwareBufferUsage,
    )
    from penstock.memory.pool import MemoryPool

__all__ = [
    "MEMORY_KINDS",
    "PROT_READ",
    "PROT_WRITE",
    "BufferDesc",
    "DeviceBuffer",
    "HardwareBuffer",
    "HardwareBufferDescription",
    "HardwareBufferFormat",
    "HardwareBufferHandle",
    "HardwareBufferUsage",
    "InputRole",
    "MappedFd",
    "Mapping",
    "MemoryPool",
    "OutputRole",
    "PoolLayout",
    "PoolPlace",
    "allocate",
    "live_mappings",
    "map_memory",
    "pool_of",
]

__getattr__ = lazily(
    __name__,
    {
        "allocation": "BufferDesc InputRole OutputRole allocate",
        "buffer": "DeviceBuffer",
        "mapping": "HardwareBufferDescription HardwareBufferFormat HardwareBufferHandle "
        "HardwareBufferUsage",
        "hardware": "HardwareBuffer",
        "layout": "PoolLayout",
        "pool": "MemoryPool",
    },
)
