"""ONNX Runtime as a driver: each installed execution provider is a device (docs/onnxruntime.md).

The engine is imported when a model is first prepared, not earlier.
"""

from __future__ import annotations

from penstock.drivers.onnxruntime.device import OnnxRuntimeDevice
from penstock.drivers.onnxruntime.installation import find_installation

__all__ = ["OnnxRuntimeDevice", "create"]


def create() -> list[OnnxRuntimeDevice]:
    """The entry point: one device for each provider, or one device that reports what is missing."""
    installation = find_installation()
    return [OnnxRuntimeDevice(provider, installation) for provider in installation.providers]
