"""Preparing: compiling a model with OpenVINO, now or later, or importing a verified artefact."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.driverkit.engine import check_limits, report_of
from penstock.drivers.openvino.compiling import GraphSource, ModelSource, imported, opened
from penstock.drivers.openvino.engine import Manner
from penstock.drivers.openvino.prepared import DeferredCompilation, OpenVinoPreparedModel
from penstock.errors import InputError, InvalidArgument
from penstock.hal import CacheReport, PrepareConfig
from penstock.ir import Model
from penstock.knobs import DriverSetting
from penstock.sealed import LoadedEntry

if TYPE_CHECKING:
    from penstock.drivers.openvino.device import OpenVinoDevice
    from penstock.drivers.openvino.engine import Executable
    from penstock.drivers.openvino.profiling import Profiler


compilation: Final = DriverSetting("openvino_compilation", ("now", "first_run", "staged"))
"""When a model is compiled: when it is prepared; when it first runs; or staged, a baseline first
and the optimised form after some runs.
"""


def prepare(device: OpenVinoDevice, model: Model, config: PrepareConfig) -> OpenVinoPreparedModel:
    """Compiles a model whose operations are all supported, at the time that `compilation` says, and
    saves it to the cache handles.
    """
    try:
        mode = compilation()
    except InputError as error:
        raise InvalidArgument(str(error)) from error
    source = ModelSource(device, model, config)
    if mode == "first_run":
        return _prepare_later(device, source, config)
    compiled = source.compile("baseline" if mode == "staged" else "optimised", config)
    saved = device.save(config, lambda: compiled.payloads(device))
    profilers = _profilers(device, source.manner)
    if mode == "now":
        report = report_of(saved, compiled.form)
        return OpenVinoPreparedModel(
            device, source.ports, report, compiled.executable, profilers=profilers
        )
    entry = None if saved is None else saved.entry
    writer = None if entry is None else device.seal.late_writer(config, expected=entry)
    report = report_of(saved, compiled.form, later=writer is not None)
    later = DeferredCompilation(device, source, writer, uses=device.uses)
    return OpenVinoPreparedModel(
        device, source.ports, report, compiled.executable, later, profilers
    )


def load(
    device: OpenVinoDevice, entry: LoadedEntry, config: PrepareConfig
) -> OpenVinoPreparedModel:
    """Imports a verified entry of this build of OpenVINO. A baseline, which has its graph with it,
    is compiled again after `uses` runs.
    """
    manifest, parts = opened(device, entry)
    check_limits(config)
    manner = Manner.of(config, quantized=manifest.ports.quantized)
    executable = imported(device, parts[0], manner)
    report, later = CacheReport(artefact=manifest.form), None
    if manifest.form != "optimised" and len(parts) > 1:
        source = GraphSource(device, manifest.ports, parts[1], parts[2], manner)
        writer = device.seal.late_writer(config, expected=entry.entry)
        report = CacheReport(later=writer is not None, artefact=manifest.form)
        later = DeferredCompilation(device, source, writer, uses=device.uses)
    profilers = _profilers(device, manner)
    return OpenVinoPreparedModel(device, manifest.ports, report, executable, later, profilers)


def _prepare_later(
    device: OpenVinoDevice, source: ModelSource, config: PrepareConfig
) -> OpenVinoPreparedModel:
    """Compiles nothing. Cache files that the first run is to write are emptied now, so that no
    older entry in them is taken for this model's.
    """
    handles = (*config.model_cache, *config.data_cache)
    counts = len(config.model_cache), len(config.data_cache)
    writer, report = None, CacheReport()
    if handles and counts != device.files:
        reason = f"InvalidArgument: {counts} files were given, {device.files} are needed"
        report = CacheReport("failed", reason)
    elif handles and config.lock is None:
        reason = "NotYetWritten: without the entry's lock nothing is written later"
        report = CacheReport("failed", reason)
    elif handles:
        with suppress(OSError):
            for handle in handles:
                device.seal.file_system.truncate(handle.fd, 0)
        writer = device.seal.late_writer(config, expected=None)
        report = CacheReport(later=True)
    later = DeferredCompilation(device, source, writer)
    profilers = _profilers(device, source.manner)
    return OpenVinoPreparedModel(device, source.ports, report, None, later, profilers)


def _profilers(device: OpenVinoDevice, manner: Manner) -> Callable[[Executable], Profiler] | None:
    """Makes profilers for executables. Only the CPU plugin runs kernels one after another."""
    if not device.measured:
        return None

    def make(executable: Executable) -> Profiler:
        from penstock.drivers.openvino.profiling import Profiler

        return Profiler(device, manner, executable)

    return make
