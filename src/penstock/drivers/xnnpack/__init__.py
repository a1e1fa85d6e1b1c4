"""LiteRT as a driver: partitions run as `.tflite` files, on XNNPACK or on LiteRT's own kernels (docs/xnnpack.md).

Nothing here imports the engine before a model is prepared.
"""

from __future__ import annotations

from penstock.drivers.xnnpack.device import XnnpackDevice

__all__ = ["XnnpackDevice", "create"]


def create() -> XnnpackDevice:
    """The entry point of `penstock.drivers`: one device, which says where LiteRT is missing."""
    return XnnpackDevice()
