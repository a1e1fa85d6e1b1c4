"""`SimulatedDevice`: a device that speaks for hardware which is not there."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from penstock.hal import Capabilities, Device, DeviceType, PerformanceInfo
from penstock.testing.doubles.intercepting import InterceptingDevice


class SimulatedDevice(InterceptingDevice):
    """*device* under another name, as if it were hardware of *type* and *families*: for what looks
    for a kind of device.

    Its capabilities say that it is simulated, and receipts say so of every step that ran on it.
    *performance* maps element types to execution times relative to the reference device.
    """

    def __init__(
        self,
        device: Device,
        name: str,
        type: DeviceType,  # the device's own word for it
        families: tuple[str, ...] = (),
        performance: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(device, name)
        self._type = type
        self._capabilities = replace(
            device.capabilities,
            families=families,
            simulated=True,
            only_when_named=True,
            performance={t: PerformanceInfo(p, p) for t, p in (performance or {}).items()},
        )

    @property
    def type(self) -> DeviceType:
        return self._type

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities
