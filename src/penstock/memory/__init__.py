"""Client-managed pools, hardware buffers, and mapping them on the driver's side."""

from typing import TYPE_CHECKING, Final

from penstock.facade import lazily

if TYPE_CHECKING:
    from penstock.memory.allocation import (
        BufferDesc as BufferDesc,
        InputRole as InputRole,
        OutputRole as OutputRole,
        allocate as allocate,
    )
    from penstock.memory.buffer import DeviceBuffer as DeviceBuffer
    from penstock.memory.hardware import HardwareBuffer as HardwareBuffer
    from penstock.memory.layout import PoolLayout as PoolLayout
    from penstock.memory.mapping import (
        MEMORY_KINDS as MEMORY_KINDS,
        PROT_READ as PROT_READ,
        PROT_WRITE as PROT_WRITE,
        HardwareBufferDescription as HardwareBufferDescription,
        HardwareBufferFormat as HardwareBufferFormat,
        HardwareBufferHandle as HardwareBufferHandle,
        HardwareBufferUsage as HardwareBufferUsage,
        MappedFd as MappedFd,
        Mapping as Mapping,
        PoolPlace as PoolPlace,
        live_mappings as live_mappings,
        map_memory as map_memory,
        pool_of as pool_of,
    )
    from penstock.memory.pool import MemoryPool as MemoryPool

NAMES: Final = {
    "allocation": "BufferDesc InputRole OutputRole allocate",
    "buffer": "DeviceBuffer",
    "hardware": "HardwareBuffer",
    "layout": "PoolLayout",
    "mapping": "MEMORY_KINDS PROT_READ PROT_WRITE HardwareBufferDescription HardwareBufferFormat "
    "HardwareBufferHandle HardwareBufferUsage MappedFd Mapping PoolPlace live_mappings map_memory "
    "pool_of",
    "pool": "MemoryPool",
}
"""The names of this package, by the module that has them."""

__all__ = list(" ".join(NAMES.values()).split())

__getattr__ = lazily(__name__, NAMES)
