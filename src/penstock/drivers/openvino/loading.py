"""Importing a verified artefact. What only compiling needs is not imported for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from penstock.driverkit import artefact as kit
from penstock.driverkit.engine import check_limits
from penstock.driverkit.engine_model import EngineModel, Profiler
from penstock.drivers.openvino import artefact, engine
from penstock.drivers.openvino.engine import Executable, Manner
from penstock.errors import GeneralFailure
from penstock.hal import CacheReport, PrepareConfig
from penstock.ir import NDArray
from penstock.sealed import LoadedEntry

if TYPE_CHECKING:
    from penstock.drivers.openvino.device import OpenVinoDevice

Form: TypeAlias = Literal["baseline", "optimised"]
FORMS: Final[tuple[Form, ...]] = ("baseline", "optimised")


def load(
    device: OpenVinoDevice, entry: LoadedEntry, config: PrepareConfig
) -> EngineModel[Executable]:
    """Imports a verified entry. A baseline that has its graph is compiled again later."""
    manifest, parts = opened(device, entry)
    check_limits(config)
    manner = Manner.of(config, quantized=manifest.ports.quantized)
    executable = imported(device, parts[0], manner)
    if manifest.form != "optimised" and len(parts) > 1:
        from penstock.drivers.openvino.preparation import improving

        graph = parts[1], parts[2]
        return improving(device, entry, config, manifest.ports, graph, executable)
    report = CacheReport(artefact=manifest.form)
    return EngineModel(device, manifest.ports, report, executable, profilers_of(device, manner))


def opened(
    device: OpenVinoDevice, entry: LoadedEntry
) -> tuple[artefact.Manifest, Sequence[NDArray]]:
    """The manifest and parts of a verified entry. Releases the entry's private copies. Raises
    `OtherVersion` for another build of OpenVINO, `GeneralFailure` for an unknown form.
    """
    build = partial(engine.build_of, device.plugin.name)
    manifest, parts = kit.opened(entry, artefact.unpack, build)
    if manifest.form not in FORMS:
        raise GeneralFailure(f"the artefact is of the form {manifest.form!r}, which is not known")
    return manifest, parts


def imported(device: OpenVinoDevice, exported: NDArray, manner: engine.Manner) -> Executable:
    """OpenVINO's compiled model of exported bytes. Increases the counter of loads."""
    chosen = engine.settings(device.plugin.name, manner)
    device.count(loads=1)
    compiled = engine.import_model(exported, device.plugin.name, chosen)
    return Executable(compiled, exported, exported)


def profilers_of(
    device: OpenVinoDevice, manner: Manner
) -> Callable[[Executable], Profiler[Any]] | None:
    """Makes profilers for executables. Only the CPU plugin runs kernels one at a time."""

    def profiler_of(executable: Executable) -> Profiler[Any]:
        from penstock.drivers.openvino.profiling import profiler

        return profiler(device, manner, executable)

    return profiler_of if device.measured else None
