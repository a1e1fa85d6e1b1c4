"""The devices, one for each execution provider of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.driverkit.engine import EngineDevice
from penstock.driverkit.installation import derived_with
from penstock.drivers.onnxruntime import engine
from penstock.drivers.onnxruntime.installation import CPU, DERIVED_WITH, Installation, Provider
from penstock.hal import Capabilities, PerformanceInfo, PrepareConfig, PreparedModelBase, Support
from penstock.ir import Model
from penstock.sealed import LoadedEntry, Seal

COSTS: Final = {"float32": 0.15, "int8": 0.1, "uint8": 0.12}
PERFORMANCE: Final = {kind: PerformanceInfo(cost, cost) for kind, cost in COSTS.items()}
"""Measured over networks of the corpus, on one thread of x86-64 with AVX-512 and VNNI."""

BRANCH: Final = PerformanceInfo(execution_time=0.3, power_usage=0.3)
"""Overhead of an IF without the operations of its branches, or of a loop without its rounds."""

OTHER: Final = PerformanceInfo(execution_time=0.9, power_usage=0.9)
DISPATCH_NS: Final = 8_000


class OnnxRuntimeDevice(EngineDevice):
    """The device of one *provider* of *installation*. *seal* seals the cache file.

    Only the CPU provider's results were compared with TFLite's. The other providers are used only
    when the caller names them, have the class `relaxed` at most, and cache nothing.
    """

    files = (1, 0)
    """One model file, with the model that ONNX Runtime has optimised."""

    def __init__(
        self, provider: Provider, installation: Installation, *, seal: Seal | None = None
    ) -> None:
        self.provider, self._installation = provider, installation
        self.measured = msgspec.structs.replace(provider, reason="") == CPU
        claims = Capabilities(
            performance=PERFORMANCE,
            default_performance=OTHER,
            if_performance=BRANCH,
            while_performance=BRANCH,
            dynamic_outputs=False,
            only_when_named=not self.measured,
            dispatch_ns=DISPATCH_NS,
            families=provider.families,
            simulated=provider.simulated,
        )
        if self.measured:
            claims = derived_with(claims, "ONNX Runtime", DERIVED_WITH, installation.version)
        super().__init__(
            provider.device_name, provider.type, claims, reason=provider.reason, seal=seal
        )

    def version_of_artefacts(self) -> str:
        return self._installation.version_of(self.provider)

    def unusable(self) -> str | None:
        return engine.unusable()

    def cache_files_needed(self) -> tuple[int, int]:
        return self.files if self.measured else (0, 0)

    def examine(self, model: Model) -> Sequence[Support]:
        from penstock.drivers.onnxruntime.rules import examine

        return examine(model, "exact" if self.measured else "relaxed")

    def compile(self, model: Model, config: PrepareConfig) -> PreparedModelBase:
        from penstock.drivers.onnxruntime.preparation import prepare

        return prepare(self, model, config)

    def load(self, entry: LoadedEntry, config: PrepareConfig) -> PreparedModelBase:
        from penstock.drivers.onnxruntime.loading import load

        return load(self, entry, config)
