"""The devices: one a plugin of OpenVINO."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from penstock.distribution import current_origin, made_by
from penstock.driverkit.installation import derived_with
from penstock.drivers.openvino import engine
from penstock.drivers.openvino.installation import DERIVED_WITH, Installation, Plugin, sums_exactly
from penstock.errors import DeviceUnavailable
from penstock.hal import (
    AccuracyClass,
    Capabilities,
    DeviceBase,
    DeviceType,
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

if TYPE_CHECKING:
    from penstock.drivers.openvino.prepared import OpenVinoPreparedModel
    from penstock.hal import Buffer, BufferDesc, BufferRole
    from penstock.memory.domain import MemoryDomain

FILES: Final = (1, 1)
"""A model file with what OpenVINO exports, and a data file with the constants found in it."""

USES: Final = 32
"""Runs of a baseline after which it is worth to be compiled again."""

TYPES: Final = {"CPU": DeviceType.CPU, "GPU": DeviceType.GPU, "NPU": DeviceType.ACCELERATOR}
FAMILIES: Final = {"CPU": ("openvino",), "GPU": ("openvino", "opencl"), "NPU": ("openvino", "npu")}
FLOATS: Final = PerformanceInfo(execution_time=0.15, power_usage=0.2)
"""Measured over ten float networks of up to 300 M multiply-accumulates, on one thread of an x86-64
processor with AVX-512.
"""

FASTER: Final = PerformanceInfo(execution_time=0.1, power_usage=0.2)
UNSIGNED: Final = PerformanceInfo(execution_time=0.13, power_usage=0.2)
"""Whole networks take six sevenths of the time that they take on XNNPACK, which declares 0.15."""

DISPATCH_NS: Final = 20_000
"""Measured on one operation of 16 values, one thread of an x86-64 processor: an infer request and
its bindings.
"""


class OpenVinoDevice(DeviceBase):
    """One *plugin* of *installation*. *compiles* and *imports* count the calls of OpenVINO by that
    name.

    The CPU plugin is measured against TFLite's arithmetic; no other is, so that they are used only
    when they are named, and claim the class `relaxed` alone. A model that was compiled quickly (the
    knob `openvino_compilation`) is compiled again after *uses* runs. *seal* is what the cache files
    are sealed with.
    """

    def __init__(
        self,
        plugin: Plugin,
        installation: Installation,
        *,
        seal: Seal | None = None,
        uses: int = USES,
    ) -> None:
        self.plugin, self._installation, self._given_seal = plugin, installation, seal
        self._origin = current_origin()
        self.name, self.uses = plugin.device_name, uses
        self.type = TYPES[plugin.name]
        measured = plugin.name == "CPU"
        claims = Capabilities(
            performance={
                **dict.fromkeys(("float32", "float16"), FLOATS),
                **dict.fromkeys(("int8", "int32"), FASTER),
                "uint8": UNSIGNED,
            },
            default_performance=None,
            dynamic_outputs=False,
            only_when_named=not measured,
            dispatch_ns=DISPATCH_NS,
            families=FAMILIES[plugin.name],
        )
        if measured:
            claims = derived_with(claims, "OpenVINO", DERIVED_WITH, installation.version)
        self.capabilities = claims
        self.domain: MemoryDomain | None = None
        self._lock = threading.Lock()
        self._compiles = self._imports = 0

    @cached_property
    def version(self) -> str:
        """Adapter, engine, plugin and processor: everything artefacts depend on besides the model."""
        return self._installation.version_of(self.plugin)

    @property
    def compiles(self) -> int:
        """How often OpenVINO has compiled a model for this device."""
        return self._compiles

    @property
    def imports(self) -> int:
        """How often OpenVINO has imported an exported model for this device."""
        return self._imports

    def check(self) -> str | None:
        return self.plugin.reason or engine.unusable()

    def supported_operations(self, model: Model) -> Sequence[Support]:
        from penstock.drivers.openvino.support import examine

        best: AccuracyClass = "exact" if self.plugin.name == "CPU" else "relaxed"
        answers = examine(model, best, sums_exactly=sums_exactly())
        return refuse_unmapped(model, answers, self.capabilities.memory_kinds)

    def cache_files_needed(self) -> tuple[int, int]:
        return FILES

    @cached_property
    def seal(self) -> Seal:
        """What seals and verifies this device's cache files."""
        with made_by(self._origin):
            return self._given_seal or Seal(self.name, self.version, files=FILES)

    def count(self, *, compiles: int = 0, imports: int = 0) -> None:
        """Adds to the counters; called just before OpenVINO is."""
        with self._lock:
            self._compiles += compiles
            self._imports += imports

    def prepare_model(self, model: Model, config: PrepareConfig) -> PreparedModelBase:
        validate_prepare(model, config, self.capabilities.memory_kinds)
        self._refuse_unusable()
        validate_support(model, self.supported_operations(model))
        from penstock.drivers.openvino.preparation import prepare

        return self._own(prepare(self, model, config))

    def prepare_model_from_cache(self, config: PrepareConfig) -> PreparedModelBase:
        validate_prepare_config(config)
        self._refuse_unusable()
        from penstock.drivers.openvino.preparation import load

        return self._own(load(self, config))

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, Buffer]:
        """Memory of the host, aligned as OpenVINO likes it: what it computes goes there at once,
        and is read there.
        """
        from penstock.memory.domain import MemoryDomain

        with self._lock:
            if self.domain is None:
                self.domain = MemoryDomain(self._interface_of, dynamic=False)
        return self.domain.allocate(desc, roles)

    def _own(self, prepared: OpenVinoPreparedModel) -> OpenVinoPreparedModel:
        prepared.device = self
        return prepared

    def _interface_of(self, prepared: object) -> Model | None:
        from penstock.drivers.openvino.prepared import OpenVinoPreparedModel

        if isinstance(prepared, OpenVinoPreparedModel) and prepared.device is self:
            return prepared.model
        return None

    def _refuse_unusable(self) -> None:
        if (reason := self.check()) is not None:
            raise DeviceUnavailable(f"device {self.name}: {reason}")
