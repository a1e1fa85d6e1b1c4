"""The devices, one for each plugin of OpenVINO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock import hal
from penstock.driverkit.engine import EngineDevice
from penstock.driverkit.installation import derived_with
from penstock.drivers.openvino import engine
from penstock.drivers.openvino.installation import DERIVED_WITH, Installation, Plugin, sums_exactly
from penstock.ir import Model
from penstock.sealed import LoadedEntry, Seal

USES: Final = 32
"""Number of runs of a baseline after which the model is compiled again, with optimisation."""

TYPES: Final = {
    "CPU": hal.DeviceType.CPU,
    "GPU": hal.DeviceType.GPU,
    "NPU": hal.DeviceType.ACCELERATOR,
}
FAMILIES: Final = {"CPU": ("openvino",), "GPU": ("openvino", "opencl"), "NPU": ("openvino", "npu")}
FLOATS: Final = hal.PerformanceInfo(execution_time=0.15, power_usage=0.2)
"""Measured on ten float networks of up to 300 M MACs, on one thread of x86-64 with AVX-512."""

FASTER: Final = hal.PerformanceInfo(execution_time=0.1, power_usage=0.2)
UNSIGNED: Final = hal.PerformanceInfo(execution_time=0.13, power_usage=0.2)
"""Relative time of whole networks: six sevenths of the time of XNNPACK, which declares 0.15."""

DISPATCH_NS: Final = 20_000
"""Overhead of an infer request with its bindings, on one thread of an x86-64 processor."""


class OpenVinoDevice(EngineDevice):
    """The device of one *plugin* of *installation*. *seal* seals the cache files.

    Only the CPU plugin's results were compared with TFLite's. The other plugins are used only when
    the caller names them, and have the class `relaxed` at most. A model that was compiled quickly
    (the setting `openvino_compilation`) is compiled again after *uses* runs.
    """

    files = (1, 1)
    """A model file of the bytes that OpenVINO exports, and a data file of their large constants."""

    def __init__(
        self,
        plugin: Plugin,
        installation: Installation,
        *,
        seal: Seal | None = None,
        uses: int = USES,
    ) -> None:
        self.plugin, self._installation, self.uses = plugin, installation, uses
        self.measured = plugin.name == "CPU"
        claims = hal.Capabilities(
            performance={
                **dict.fromkeys(("float32", "float16"), FLOATS),
                **dict.fromkeys(("int8", "int32"), FASTER),
                "uint8": UNSIGNED,
            },
            default_performance=None,
            dynamic_outputs=False,
            only_when_named=not self.measured,
            dispatch_ns=DISPATCH_NS,
            families=FAMILIES[plugin.name],
        )
        if self.measured:
            claims = derived_with(claims, "OpenVINO", DERIVED_WITH, installation.version)
        kind = TYPES[plugin.name]
        super().__init__(plugin.device_name, kind, claims, reason=plugin.reason, seal=seal)

    def version_of_artefacts(self) -> str:
        return self._installation.version_of(self.plugin)

    def unusable(self) -> str | None:
        return engine.unusable()

    def examine(self, model: Model) -> Sequence[hal.Support]:
        from penstock.drivers.openvino.rules import examine

        best: hal.AccuracyClass = "exact" if self.measured else "relaxed"
        return examine(model, best, sums_exactly=sums_exactly())

    def compile(self, model: Model, config: hal.PrepareConfig) -> hal.PreparedModelBase:
        from penstock.drivers.openvino.preparation import prepare

        return prepare(self, model, config)

    def load(self, entry: LoadedEntry, config: hal.PrepareConfig) -> hal.PreparedModelBase:
        from penstock.drivers.openvino.loading import load

        return load(self, entry, config)
