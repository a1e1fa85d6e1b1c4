"""The devices: one an execution provider of ONNX Runtime."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import msgspec

from penstock.distribution import current_origin, made_by
from penstock.driverkit.installation import derived_with
from penstock.drivers.onnxruntime import engine
from penstock.drivers.onnxruntime.installation import CPU, DERIVED_WITH, Installation, Provider
from penstock.errors import DeviceUnavailable
from penstock.hal import (
    Capabilities,
    DeviceBase,
    PerformanceInfo,
    PrepareConfig,
    PreparedModelBase,
    Support,
    refuse_unmapped,
    validate_prepare,
    validate_prepare_config,
    validate_support,
)
from penstock.ir import Model
from penstock.sealed import Seal

FILES: Final = (1, 0)
"""A model file with the model that ONNX Runtime has optimised."""

PERFORMANCE: Final = {
    "float32": PerformanceInfo(execution_time=0.15, power_usage=0.15),
    "int8": PerformanceInfo(execution_time=0.1, power_usage=0.1),
    "uint8": PerformanceInfo(execution_time=0.12, power_usage=0.12),
}
"""Measured on one thread of an x86-64 processor with AVX-512 and VNNI, over networks of the
corpus.
"""

BRANCH: Final = PerformanceInfo(execution_time=0.3, power_usage=0.3)
"""An IF beside what its branches compute, or a loop beside its rounds."""

OTHER: Final = PerformanceInfo(execution_time=0.9, power_usage=0.9)
DISPATCH_NS: Final = 8_000


class OnnxRuntimeDevice(DeviceBase):
    """One *provider* of *installation*. *compiles* and *loads* count the models that ONNX Runtime
    has optimised, and those that it has taken optimised.

    The CPU provider is measured against TFLite's arithmetic; no other is, so that they are used
    only when they are named, and claim the class `relaxed` alone. *seal* is what the cache file is
    sealed with.
    """

    def __init__(
        self, provider: Provider, installation: Installation, *, seal: Seal | None = None
    ) -> None:
        self.provider, self._installation, self._given_seal = provider, installation, seal
        self._origin = current_origin()
        self.name, self.type = provider.device_name, provider.type
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
        self.capabilities = claims
        self._lock = threading.Lock()
        self._compiles = self._loads = 0

    @cached_property
    def version(self) -> str:
        """Adapter, engine, provider and processor: everything artefacts depend on besides the
        model.
        """
        return self._installation.version_of(self.provider)

    @property
    def compiles(self) -> int:
        """How often ONNX Runtime has optimised a model for this device."""
        return self._compiles

    @property
    def loads(self) -> int:
        """How often ONNX Runtime has taken an optimised model for this device."""
        return self._loads

    def check(self) -> str | None:
        return self.provider.reason or engine.unusable()

    def supported_operations(self, model: Model) -> Sequence[Support]:
        from penstock.drivers.onnxruntime.support import examine

        answers = examine(model, "exact" if self.measured else "relaxed")
        return refuse_unmapped(model, answers, self.capabilities.memory_kinds)

    def cache_files_needed(self) -> tuple[int, int]:
        return FILES if self.measured else (0, 0)

    @cached_property
    def seal(self) -> Seal:
        """What seals and verifies this device's cache file."""
        with made_by(self._origin):
            return self._given_seal or Seal(self.name, self.version, files=FILES)

    def count(self, *, compiles: int = 0, loads: int = 0) -> None:
        """Adds to the counters; called just before ONNX Runtime is."""
        with self._lock:
            self._compiles += compiles
            self._loads += loads

    def prepare_model(self, model: Model, config: PrepareConfig) -> PreparedModelBase:
        validate_prepare(model, config, self.capabilities.memory_kinds)
        self._refuse_unusable()
        validate_support(model, self.supported_operations(model))
        from penstock.drivers.onnxruntime.preparation import prepare

        return prepare(self, model, config)

    def prepare_model_from_cache(self, config: PrepareConfig) -> PreparedModelBase:
        validate_prepare_config(config)
        self._refuse_unusable()
        from penstock.drivers.onnxruntime.preparation import load

        return load(self, config)

    def _refuse_unusable(self) -> None:
        if (reason := self.check()) is not None:
            raise DeviceUnavailable(f"device {self.name}: {reason}")
