"""LiteRT as a driver: it runs partitions as `.tflite` files, with XNNPACK or with LiteRT's own
kernels (docs/xnnpack.md).

The engine is imported when a model is prepared, not earlier.
"""

from __future__ import annotations

from penstock.drivers.xnnpack.device import BuiltinDevice, XnnpackDevice

__all__ = ["BuiltinDevice", "XnnpackDevice", "create"]


def create() -> list[XnnpackDevice]:
    """The entry point: LiteRT with XNNPACK, and without. `check` reports a missing LiteRT."""
    return [XnnpackDevice(), BuiltinDevice()]
