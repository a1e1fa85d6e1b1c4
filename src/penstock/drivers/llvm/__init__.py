"""Penstock's own compiler as a driver: it compiles models to code of the processor (docs/llvm.md).

LLVM is imported when a model is compiled, not earlier, and not for a model from the cache.
"""

from __future__ import annotations

from penstock.drivers.llvm.device import LlvmDevice

__all__ = ["LlvmDevice", "create"]


def create() -> LlvmDevice:
    """The entry point. `check` reports a missing llvmlite, and a processor without kernels."""
    return LlvmDevice()
