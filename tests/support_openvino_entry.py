"""An entry of the OpenVINO driver, to be attacked."""

from __future__ import annotations

from penstock.drivers.openvino import OpenVinoDevice
from tests.support_engine_entry import EngineEntry, Recording
from tests.support_openvino import cpu


class Recorded(Recording, OpenVinoDevice):
    """Keeps the configuration that it was last asked to load with."""


class OpenVinoEntry(EngineEntry):
    """As `EngineEntry`, of the device `openvino-cpu`."""

    form = "optimised"

    def device(self) -> OpenVinoDevice:
        return cpu()

    def recorded(self) -> OpenVinoDevice:
        device = cpu()
        return Recorded(device.plugin, device._installation)
