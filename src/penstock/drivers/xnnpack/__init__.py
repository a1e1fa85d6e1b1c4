"""LiteRT as a driver: partitions run as `.tflite` files, on XNNPACK or on LiteRT's own kernels
(docs/xnnpack.md).

Nothing here imports the engine before a model is prepared.
"""

from __future__ import annotations

from penstock.drivers.xnnpack.device import BuiltinDevice, XnnpackDevice

__all__ = ["BuiltinDevice", "XnnpackDevice", "create"]


def create() -> list[XnnpackDevice]:
    """The entry point of `penstock.drivers`: LiteRT with XNNPACK, and without. Both say where
    LiteRT is missing.
    """
    return [XnnpackDevice(), BuiltinDevice()]
