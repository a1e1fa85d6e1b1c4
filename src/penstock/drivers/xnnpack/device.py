"""The device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from penstock.driverkit.installation import derived_with
from penstock.drivers.xnnpack.installation import DERIVED_WITH, Installation, find_installation
from penstock.errors import DeviceUnavailable
from penstock.hal import (
    Capabilities,
    DeviceBase,
    DeviceType,
    PerformanceInfo,
    PrepareConfig,
    Support,
    refuse_unmapped,
    validate_prepare,
)

if TYPE_CHECKING:
    from penstock.drivers.xnnpack.engine import Kernels
    from penstock.drivers.xnnpack.prepared import XnnpackPreparedModel
    from penstock.ir import Model

PERFORMANCE: Final = {
    "float32": PerformanceInfo(execution_time=0.15, power_usage=0.15),
    "int8": PerformanceInfo(execution_time=0.05, power_usage=0.05),
    "uint8": PerformanceInfo(execution_time=0.15, power_usage=0.15),
    "int16": PerformanceInfo(execution_time=1.75, power_usage=1.75),
    "int32": PerformanceInfo(execution_time=0.05, power_usage=0.05),
}
"""Measured on networks of each type, on one thread of an x86-64 processor with AVX-512; int16 and
int32 on single operations: LiteRT's layers of int16 are plain loops, up to 8 times slower, its
arithmetic is not.
"""

BRANCH: Final = PerformanceInfo(execution_time=0.1, power_usage=0.1)
"""An IF beside what its branches compute."""

OTHER: Final = PerformanceInfo(execution_time=0.9, power_usage=0.9)
BUILTIN: Final = PerformanceInfo(execution_time=0.5, power_usage=0.5)
"""LiteRT's own kernels, roughly: whoever names the device wants its results, not its speed."""
DISPATCH_NS: Final = 3_000


class XnnpackDevice(DeviceBase):
    """The processor, through XNNPACK and LiteRT's own kernels. *installation* is that of this
    machine by default.
    """

    name = "xnnpack"
    type = DeviceType.CPU
    claims = Capabilities(
        performance=PERFORMANCE,
        default_performance=OTHER,
        if_performance=BRANCH,
        while_performance=BRANCH,
        dispatch_ns=DISPATCH_NS,
        families=("xnnpack", "litert"),
    )

    kernels: tuple[Kernels, ...] = ("xnnpack", "builtin")
    """The kernel sets that it chooses from."""

    def __init__(self, installation: Installation | None = None) -> None:
        self._given = installation

    @cached_property
    def _installation(self) -> Installation:
        return self._given or find_installation()

    @cached_property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # known once the files were looked at
        """Its claims, and the version of LiteRT that they were derived with."""
        return derived_with(self.claims, "LiteRT", DERIVED_WITH, self._installation.version)

    @cached_property
    def version(self) -> str:
        """Driver, engine and processor."""
        return self._installation.describe()

    def check(self) -> str | None:
        from penstock.drivers.xnnpack.engine import unusable

        return self._installation.reason or unusable()

    def supported_operations(self, model: Model) -> Sequence[Support]:
        from penstock.drivers.xnnpack.support import examine

        return refuse_unmapped(model, examine(model, self.kernels), self.capabilities.memory_kinds)

    def prepare_model(self, model: Model, config: PrepareConfig) -> XnnpackPreparedModel:
        validate_prepare(model, config, self.capabilities.memory_kinds)
        if (reason := self.check()) is not None:
            raise DeviceUnavailable(f"device {self.name}: {reason}")
        from penstock.drivers.xnnpack.preparation import prepare

        return prepare(model, config, self.kernels)


class BuiltinDevice(XnnpackDevice):
    """The processor, through LiteRT's own optimised kernels alone: LiteRT's
    `BUILTIN_WITHOUT_DEFAULT_DELEGATES`.
    """

    name = "xnnpack-builtin"
    claims = Capabilities(
        default_performance=BUILTIN,
        dispatch_ns=DISPATCH_NS,
        families=("litert",),
        only_when_named=True,
    )
    kernels = ("builtin",)
