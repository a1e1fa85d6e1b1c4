"""The device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from penstock.drivers.xnnpack.installation import Installation, find_installation
from penstock.errors import DeviceUnavailable
from penstock.hal import (
    Capabilities,
    DeviceBase,
    DeviceType,
    PerformanceInfo,
    PrepareConfig,
    Support,
    validate_prepare,
)

if TYPE_CHECKING:
    from penstock.drivers.xnnpack.prepared import XnnpackPreparedModel
    from penstock.ir import Model

FLOAT: Final = PerformanceInfo(execution_time=0.1, power_usage=0.1)
EIGHT_BITS: Final = PerformanceInfo(execution_time=0.05, power_usage=0.05)
OTHER: Final = PerformanceInfo(execution_time=0.5, power_usage=0.5)


class XnnpackDevice(DeviceBase):
    """The processor, through XNNPACK and LiteRT's own kernels. *installation* is that of this machine by default."""

    name = "xnnpack"
    type = DeviceType.CPU
    capabilities = Capabilities(
        performance={
            "float32": FLOAT,
            "int8": EIGHT_BITS,
            "uint8": EIGHT_BITS,
            "int16": OTHER,
        },
        default_performance=OTHER,
        dispatch_ns=3_000,
        families=("xnnpack", "litert"),
    )

    def __init__(self, installation: Installation | None = None) -> None:
        self._given = installation

    @cached_property
    def _installation(self) -> Installation:
        return self._given or find_installation()

    @cached_property
    def version(self) -> str:
        """Driver, engine and processor."""
        return self._installation.describe()

    def check(self) -> str | None:
        return self._installation.reason or None

    def supported_operations(self, model: Model) -> Sequence[Support]:
        from penstock.drivers.xnnpack.support import examine

        return examine(model)

    def prepare_model(self, model: Model, config: PrepareConfig) -> XnnpackPreparedModel:
        validate_prepare(model, config)
        if (reason := self.check()) is not None:
            raise DeviceUnavailable(f"device {self.name}: {reason}")
        from penstock.drivers.xnnpack.preparation import prepare

        return prepare(model, config)
