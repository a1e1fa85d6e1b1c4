"""Graphics processors over WebGPU, and software that stands in for one (docs/webgpu.md).

wgpu is imported when a model is first prepared, not earlier.
"""

from __future__ import annotations

from penstock.drivers.webgpu.device import WebGpuDevice
from penstock.drivers.webgpu.installation import HARDWARE, SOFTWARE

__all__ = ["WebGpuDevice", "create"]


def create() -> list[WebGpuDevice]:
    """The entry point: the device of hardware, and the one of software. `check` says what is
    missing.
    """
    return [WebGpuDevice(HARDWARE), WebGpuDevice(SOFTWARE)]
