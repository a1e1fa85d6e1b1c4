"""OpenVINO as a driver: each of its plugins that this machine has is a device (docs/openvino.md).

Nothing here imports the engine before a model is prepared.
"""

from __future__ import annotations

from penstock.drivers.openvino.device import OpenVinoDevice
from penstock.drivers.openvino.installation import find_installation

__all__ = ["OpenVinoDevice", "create"]


def create() -> list[OpenVinoDevice]:
    """The entry point of `penstock.drivers`: one device a plugin, or one that says what is missing."""
    installation = find_installation()
    return [OpenVinoDevice(plugin, installation) for plugin in installation.plugins]
