"""OpenVINO as a driver: each plugin of OpenVINO on this machine is a device (docs/openvino.md).

The engine is imported when a model is first prepared, not earlier.
"""

from __future__ import annotations

from penstock.drivers.openvino.device import OpenVinoDevice
from penstock.drivers.openvino.installation import find_installation

__all__ = ["OpenVinoDevice", "create"]


def create() -> list[OpenVinoDevice]:
    """The entry point: one device for each plugin, or one device that reports what is missing."""
    installation = find_installation()
    return [OpenVinoDevice(plugin, installation) for plugin in installation.plugins]
