"""Bytes and who owns them: client-managed pools, and mapping them on the driver's side."""

from penstock.memory.mapping import (
    PROT_READ,
    PROT_WRITE,
    MappedFd,
    Mapping,
    live_mappings,
    map_memory,
)
from penstock.memory.pool import MemoryPool

__all__ = [
    "PROT_READ",
    "PROT_WRITE",
    "MappedFd",
    "Mapping",
    "MemoryPool",
    "live_mappings",
    "map_memory",
]
