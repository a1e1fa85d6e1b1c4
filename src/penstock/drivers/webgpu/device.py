"""The devices: an adapter of hardware, and one of software."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock import hal
from penstock.driverkit import installation as kit
from penstock.driverkit.engine import EngineDevice, report_of
from penstock.drivers.webgpu import installation
from penstock.errors import OtherVersion
from penstock.ir import Model, NDArray
from penstock.sealed import LoadedEntry, SaveReport, Seal

if TYPE_CHECKING:
    from penstock.driverkit.engine_model import Profiler, RunPool
    from penstock.drivers.webgpu.artefact import Manifest
    from penstock.drivers.webgpu.profiling import TimedRun
    from penstock.drivers.webgpu.running import Executable, ShaderModel
    from penstock.memory.domain import MemoryDomain

SPEED: Final = hal.PerformanceInfo(execution_time=0.5, power_usage=0.5)
"""A guess: no device of hardware was measured."""

DISPATCH_NS: Final = 400_000
"""Upload, submit and readback of a small run, on Mesa's software adapter."""

RULES: Final = (
    "compiler", "compiler/legalise", "driverkit", "drivers/webgpu", "drivers/webgpu/emit", "ir",
)  # fmt: skip
"""The folders whose code decides which operations are supported."""


class WebGpuDevice(EngineDevice):
    """The first adapter of hardware, or of software. Both are used only when they are named.

    Results of hardware were never measured: they have the class `relaxed`. *seal* seals the cache
    files.
    """

    files = (1, 1)
    """A model file of shaders with the plan of their runs, and a data file of the constants."""

    own_process = True
    """wgpu ends the process when a submit fails."""

    stages = ("legalise", "fuse", "memory", "wgsl")

    uses = 8
    """Runs of a model after which the shapes of its threads are measured."""

    def __init__(self, name: str, *, seal: Seal | None = None) -> None:
        self.is_software = name == installation.SOFTWARE
        claims = hal.Capabilities(
            performance=dict.fromkeys(("float32", "float16", "int8", "uint8"), SPEED),
            default_performance=SPEED,
            dynamic_outputs=False,
            only_when_named=True,
            dispatch_ns=DISPATCH_NS,
            families=("webgpu", "vulkan", *(("software-gpu",) if self.is_software else ())),
            simulated=self.is_software,
            support_basis=kit.files_of(RULES) if type(self) is WebGpuDevice else "",
        )
        kind = hal.DeviceType.CPU if self.is_software else hal.DeviceType.GPU
        super().__init__(name, kind, claims, seal=seal)

    def version_of_artefacts(self) -> str:
        return installation.version_of(self.name)

    def unusable(self) -> str | None:
        return installation.missing(self.name)

    def examine(self, model: Model) -> Sequence[hal.Support]:
        from penstock.driverkit.site import make_sites
        from penstock.driverkit.support import answered
        from penstock.drivers.webgpu.rules import judge

        best: hal.AccuracyClass = "exact" if self.is_software else "relaxed"
        return answered(make_sites(model), judge, best)

    def compile(self, model: Model, config: hal.PrepareConfig) -> ShaderModel:
        from penstock.drivers.webgpu import artefact
        from penstock.drivers.webgpu.compiling import compile_model

        self.count(compiles=1)
        manifest, constants = compile_model(model, config)
        saved = self.save(config, lambda: artefact.pack(manifest, constants.data))
        entry = None if saved is None else saved.entry
        return self._prepared(manifest, constants, config, saved, entry)

    def load(self, entry: LoadedEntry, config: hal.PrepareConfig) -> ShaderModel:
        import numpy as np

        from penstock.drivers.webgpu import artefact

        manifest = artefact.unpack(entry.model[0], entry.data[0])
        if manifest.engine != (own := installation.engine_version()):
            raise OtherVersion(f"the artefact is of wgpu {manifest.engine}, and this is {own}")
        self.count(loads=1)
        constants = np.frombuffer(entry.data[0], np.uint8)
        return self._prepared(manifest, constants, config, None, entry.entry)

    def make_domain(self) -> MemoryDomain:
        from penstock.drivers.webgpu.values import DeviceMemory

        return DeviceMemory(self.interface_of, self.name)

    def dump(self, model: Model, config: hal.PrepareConfig, stage: str) -> str:
        from penstock.drivers.webgpu import stages

        hal.validate_prepare(model, config)
        return stages.dump(model, stage, config)

    def explain(self, model: Model, config: hal.PrepareConfig) -> Sequence[str]:
        from penstock.drivers.webgpu import stages

        hal.validate_prepare(model, config)
        return stages.explain(model, config)

    def _prepared(
        self,
        manifest: Manifest,
        constants: NDArray,
        config: hal.PrepareConfig,
        saved: SaveReport | None,
        entry: bytes | None,
    ) -> ShaderModel:
        """The model of *manifest*, which lies in the cache entry *entry* if that is not None."""
        from penstock.drivers.webgpu import engine, staging
        from penstock.drivers.webgpu.running import Code, Executable, ShaderModel

        gpu, later = engine.opened(self.name), None
        code = Code(gpu, manifest, constants, config)
        if entry is not None and gpu.ns_a_tick and staging.is_wanted(manifest, gpu.adapter):
            writer = self.seal.late_writer(config, expected=entry)
            later = None if writer is None else staging.Staging(code, writer, self.uses)
        report = report_of(saved, staging.form_of(manifest), later=later is not None)
        model = ShaderModel(self, manifest.ports, report, Executable(code), _profiler)
        return model.improved_by(later)


def _profiler(executable: Executable) -> Profiler[RunPool[TimedRun]]:
    from penstock.drivers.webgpu.profiling import profiler

    return profiler(executable)
