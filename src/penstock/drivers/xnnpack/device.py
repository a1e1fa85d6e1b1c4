"""The devices, and the installation of LiteRT that they use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

import msgspec

from penstock import hal
from penstock.distribution import install_command
from penstock.driverkit import installation as kit
from penstock.driverkit.engine import CompilingDevice
from penstock.sealed import LoadedEntry, Seal

if TYPE_CHECKING:
    from penstock.drivers.xnnpack.engine import Kernels
    from penstock.drivers.xnnpack.prepared import XnnpackPreparedModel
    from penstock.ir import Model

COSTS: Final = {"float32": 0.15, "int8": 0.05, "uint8": 0.15, "int16": 1.75, "int32": 0.05}
PERFORMANCE: Final = {kind: hal.PerformanceInfo(cost, cost) for kind, cost in COSTS.items()}
"""Measured on one thread of an x86-64 processor with AVX-512: int16 and int32 on single operations,
other types on networks. LiteRT's int16 layers are plain loops, up to 8 times slower.
"""

BRANCH: Final = hal.PerformanceInfo(execution_time=0.1, power_usage=0.1)
"""The overhead of an IF, without its branches."""

OTHER: Final = hal.PerformanceInfo(execution_time=0.9, power_usage=0.9)
BUILTIN: Final = hal.PerformanceInfo(execution_time=0.5, power_usage=0.5)
"""A rough figure for LiteRT's own kernels. Callers name that device for its results."""
DISPATCH_NS: Final = 3_000


PACKAGE: Final = "ai_edge_litert"
INSTALL: Final = install_command("xnnpack")
DERIVED_WITH: Final = "2.3"
"""The release of LiteRT that the accuracy classes of the rules were measured with."""
ADAPTER_VERSION: Final = 5
"""Increased when this driver writes another file for the same model, or chooses other kernels."""


class Installation(msgspec.Struct, frozen=True):
    """The installed LiteRT. If it is not installed, *reason* says so."""

    version: str
    reason: str = ""

    def describe(self) -> str:
        """What results depend on besides the model: driver, engine and processor features."""
        return kit.described(ADAPTER_VERSION, "litert", self.version)


@cache
def find_installation() -> Installation:
    """The installed LiteRT, read from its package's files. The engine is not imported."""
    folder = kit.package_folder(PACKAGE)
    if folder is None:
        return Installation("", f"LiteRT is not installed: {INSTALL}")
    version = kit.version_of(PACKAGE, folder)
    if not version:
        return Installation("", f"{folder} has no package metadata: {INSTALL}")
    return Installation(version)


class XnnpackDevice(CompilingDevice):
    """The processor, through XNNPACK and the kernels of LiteRT's *installation* (None: found).
    *seal* seals the cache files.
    """

    name = "xnnpack"
    files = (1, 0)
    """A model file of the TFLite file that LiteRT reads."""

    claims = hal.Capabilities(
        performance=PERFORMANCE,
        default_performance=OTHER,
        if_performance=BRANCH,
        while_performance=BRANCH,
        dispatch_ns=DISPATCH_NS,
        any_threads=True,
        families=("xnnpack", "litert"),
    )

    kernels: tuple[Kernels, ...] = ("xnnpack", "builtin")
    """The kernel sets that the device chooses from."""

    def __init__(
        self, installation: Installation | None = None, *, seal: Seal | None = None
    ) -> None:
        found = installation or find_installation()
        claims = kit.derived_with(self.claims, "LiteRT", DERIVED_WITH, found.version)
        super().__init__(self.name, hal.DeviceType.CPU, claims, reason=found.reason, seal=seal)
        self._installation = found

    def version_of_artefacts(self) -> str:
        """Versions of driver and engine, and the processor."""
        return self._installation.describe()

    def unusable(self) -> str | None:
        from penstock.drivers.xnnpack.engine import unusable

        return unusable()

    def examine(self, model: Model) -> Sequence[hal.Support]:
        from penstock.drivers.xnnpack.support import examine

        return examine(model, self.kernels)

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> XnnpackPreparedModel:
        hal.validate_prepare(model, config, self.capabilities.memory_kinds)
        self._refuse_unusable()
        # A refusal has the name of its operation here, so that support is not examined twice.
        return self.compile(model, config)

    def compile(self, model: Model, config: hal.PrepareConfig) -> XnnpackPreparedModel:
        from penstock.drivers.xnnpack.preparing import prepare

        self.count(compiles=1)
        return prepare(self, model, config)

    def load(self, entry: LoadedEntry, config: hal.PrepareConfig) -> XnnpackPreparedModel:
        from penstock.drivers.xnnpack.artefact import load

        return load(self, entry, config)


class BuiltinDevice(XnnpackDevice):
    """The processor, through LiteRT's kernels alone: its `BUILTIN_WITHOUT_DEFAULT_DELEGATES`."""

    name = "xnnpack-builtin"
    claims = hal.Capabilities(
        default_performance=BUILTIN,
        dispatch_ns=DISPATCH_NS,
        any_threads=True,
        families=("litert",),
        only_when_named=True,
    )
    kernels = ("builtin",)
