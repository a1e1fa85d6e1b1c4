"""The device: examines, compiles, saves and loads models."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock import hal
from penstock.driverkit import installation as kit
from penstock.driverkit.engine import EngineDevice, report_of
from penstock.drivers.llvm import artefact, processor
from penstock.errors import DeviceUnavailable, OtherVersion
from penstock.ir import DType, Model
from penstock.knobs import DriverSetting
from penstock.sealed import LoadedEntry, Seal
from penstock.threads import allowed_threads

if TYPE_CHECKING:
    from penstock.driverkit.site import Site
    from penstock.drivers.llvm.isa.record import Isa
    from penstock.drivers.llvm.prepared import LlvmPreparedModel

PACKAGE: Final = "llvmlite"
INSTALL: Final = "pip install llvmlite"
ADAPTER_VERSION: Final = 1

COSTS: Final = {"float32": 0.1, "float16": 0.1, "int8": 0.025, "uint8": 0.05, "int16": 0.2}
PERFORMANCE: Final = {kind: hal.PerformanceInfo(cost, cost) for kind, cost in COSTS.items()}
"""Measured on one thread of an x86-64 processor with AVX-512, on networks."""

OTHER: Final = hal.PerformanceInfo(execution_time=0.05, power_usage=0.05)
BRANCH: Final = hal.PerformanceInfo(execution_time=0.01, power_usage=0.01)
"""The overhead of an IF or WHILE, without its branches: a jump."""

DISPATCH_NS: Final = 2_000

RULES: Final = (
    "compiler", "compiler/checks", "compiler/legalise", "driverkit", "drivers/llvm", "ir",
)  # fmt: skip
"""The folders whose code decides which operations are supported."""

STEADY: Final = frozenset([
    "ADD", "CONCATENATION", "CONV_2D", "CUSTOM:MaxPoolingWithArgmax2D", "CUSTOM:MaxUnpooling2D",
    "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "MAXIMUM", "MAX_POOL_2D", "MINIMUM", "MUL", "PAD",
    "PRELU", "RELU", "RELU6", "RELU_N1_TO_1", "RESHAPE", "SLICE", "SPLIT", "STRIDED_SLICE", "SUB",
    "TRANSPOSE",
])  # fmt: skip
"""Operations whose results are rounded once, or added in the order that `penstock.ir.rounding` asks
for.
"""

code: Final = DriverSetting("llvm_code", ("compile", "load"))
"""Where code comes from. "load": also a machine without llvmlite offers the device, for models that
another machine has compiled into its cache.
"""


class LlvmDevice(EngineDevice):
    """The processor, by code that Penstock generates. *seal* seals the cache files."""

    files = (1, 1)
    """A model file of object code, and a data file of the constants that it reads."""

    stages = ("legalise", "fuse", "layout", "memory", "llvm", "asm")

    def __init__(self, *, seal: Seal | None = None) -> None:
        claims = hal.Capabilities(
            performance=PERFORMANCE,
            default_performance=OTHER,
            if_performance=BRANCH,
            while_performance=BRANCH,
            dynamic_outputs=False,
            dispatch_ns=DISPATCH_NS,
            baselines=tuple(processor.BASELINES),
            any_threads=True,
            support_basis=kit.files_of(RULES) if type(self) is LlvmDevice else "",
            families=("llvm",),
        )
        super().__init__("llvm", hal.DeviceType.CPU, claims, seal=seal)

    def version_of_artefacts(self) -> str:
        """The driver, its generator, and the system, whose calls code uses. Instruction sets and
        llvmlite's version are in the artefact: it may be of another machine.
        """
        return f"{ADAPTER_VERSION} (schema {artefact.SCHEMA}, {sys.platform})"

    def unusable(self) -> str | None:
        if processor.best() is None:
            return processor.no_record()
        if engine_version() or code() == "load":
            return None
        return f"llvmlite is not installed: {INSTALL}"

    def examine(self, model: Model) -> Sequence[hal.Support]:
        from penstock.driverkit.site import make_sites
        from penstock.driverkit.support import answered

        return answered(make_sites(model), judge, "exact", is_steady)

    def compile(self, model: Model, config: hal.PrepareConfig) -> LlvmPreparedModel:
        from penstock.drivers.llvm.compiling import compile_model

        if not (engine := engine_version()):
            raise DeviceUnavailable(f"llvmlite is not installed: {INSTALL}")
        self.count(compiles=1)
        made = compile_model(model, processor.chosen(hal.portable_of(config)), engine, config)
        saved = self.save(config, lambda: artefact.pack(made.manifest, made.code, made.constants))
        # Another client of this process may hold equal constants already.
        kept = saved.payloads[-1] if saved is not None and saved.saved else made.constants
        constants = np.frombuffer(kept, np.uint8)
        report = report_of(saved, form_of(made.manifest))
        if processor.lacking(made.manifest.features):
            return self._elsewhere(made.manifest, report)
        return self._prepared(made.manifest, made.code, constants, report, config)

    def dump(self, model: Model, config: hal.PrepareConfig, stage: str) -> str:
        from penstock.drivers.llvm import stages

        hal.validate_prepare(model, config)
        return stages.dump(model, processor.chosen(), stage, config)

    def explain(self, model: Model, config: hal.PrepareConfig) -> Sequence[str]:
        from penstock.drivers.llvm import stages

        hal.validate_prepare(model, config)
        return stages.explain(model, processor.chosen(), config)

    def load(self, entry: LoadedEntry, config: hal.PrepareConfig) -> LlvmPreparedModel:
        model, data = entry.model[0], entry.data[0]
        manifest, code = artefact.unpack(model, data)
        portable = hal.portable_of(config)
        check_instructions(manifest, processor.chosen(portable))
        # A portable artefact may be of a machine with another llvmlite.
        if not portable and (own := engine_version()) and manifest.engine != own:
            raise OtherVersion(f"the artefact is of llvmlite {manifest.engine}, and this is {own}")
        self.count(loads=1)
        constants = np.frombuffer(data, np.uint8)
        report = hal.CacheReport(artefact=form_of(manifest))
        return self._prepared(manifest, code, constants, report, config)

    def _elsewhere(self, manifest: artefact.Manifest, report: hal.CacheReport) -> LlvmPreparedModel:
        """The prepared model of code for other processors than this one."""
        from penstock.drivers.llvm.prepared import ElsewhereModel

        return ElsewhereModel(self, manifest.ports, report, None, why=elsewhere(manifest))

    def _prepared(
        self,
        manifest: artefact.Manifest,
        code: bytes | memoryview,
        constants: np.ndarray,
        report: hal.CacheReport,
        config: hal.PrepareConfig,
    ) -> LlvmPreparedModel:
        from penstock.drivers.llvm.load import load
        from penstock.drivers.llvm.prepared import LlvmPreparedModel, profiler_of
        from penstock.drivers.llvm.run.code import Code
        from penstock.drivers.llvm.run.running import Executable

        loaded = Code(manifest, load(code), constants, allowed_threads(config.num_threads))
        return LlvmPreparedModel(self, manifest.ports, report, Executable(loaded), profiler_of)


def judge(site: Site) -> hal.AccuracyClass:
    """The class of *site*; raises `Refused` if there are no kernels for it."""
    from penstock.compiler import legalise

    legalise.judge(site)
    return "exact"


def is_steady(site: Site) -> bool:
    """Whether the floats of *site* are those of XNNPACK to the last bit, given the same inputs: its
    sums are added in order where positions depend on them (`penstock.ir.rounding`).
    """
    operands = (*site.inputs, *site.outputs)
    whole = all(o is None or not o.dtype.is_float or o.dtype is DType.FLOAT32 for o in operands)
    return whole and site.operation.key in STEADY


def elsewhere(manifest: artefact.Manifest) -> str:
    """Why this processor cannot run an artefact."""
    names = ", ".join(processor.lacking(manifest.features))
    return f"the artefact is for {manifest.instructions}, and the processor lacks {names}"


def form_of(manifest: artefact.Manifest) -> str:
    """How a batch is computed; empty for one part, or for images that are not independent."""
    return f"one part of the batch, {manifest.images} times" if manifest.images > 1 else ""


def check_instructions(manifest: artefact.Manifest, isa: Isa) -> None:
    """Raises `OtherVersion` for an artefact that this processor cannot run, or of another
    instruction set than *isa*.
    """
    if processor.lacking(manifest.features):
        raise OtherVersion(elsewhere(manifest))
    if manifest.instructions != isa.name:
        raise OtherVersion(f"the artefact is for {manifest.instructions}, and not for {isa.name}")


@cache
def engine_version() -> str:
    """The version of the installed llvmlite, from its metadata; "" if it is not installed."""
    folder = kit.package_folder(PACKAGE)
    return "" if folder is None else kit.version_of(PACKAGE, folder)
