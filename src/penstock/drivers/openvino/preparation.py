"""Preparing: a model through OpenVINO's compiler, now or later, or a verified artefact past it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock import knobs
from penstock.drivers.openvino.engine import Manner
from penstock.drivers.openvino.late import Late
from penstock.drivers.openvino.loading import imported, opened, said
from penstock.drivers.openvino.prepared import OpenVinoPreparedModel
from penstock.drivers.openvino.source import Compiled, GraphSource, ModelSource, check
from penstock.errors import CacheError, DriverError, GeneralFailure, InputError, InvalidArgument
from penstock.hal import CacheReport, PrepareConfig
from penstock.ir import Model
from penstock.sealed import SaveReport

if TYPE_CHECKING:
    from penstock.drivers.openvino.device import OpenVinoDevice
    from penstock.drivers.openvino.executable import Executable
    from penstock.drivers.openvino.profiling import Profiler


def prepare(device: OpenVinoDevice, model: Model, config: PrepareConfig) -> OpenVinoPreparedModel:
    """Compiles a model whose operations are all supported, when the knob `openvino_compilation`
    says so, and saves it to the cache handles.
    """
    try:
        mode = knobs.openvino_compilation()
    except InputError as error:
        raise InvalidArgument(str(error)) from error
    source = ModelSource(device, model, config)
    if mode == "first_run":
        return _prepare_later(device, source, config)
    compiled = source.compile("baseline" if mode == "staged" else "optimised", config)
    saved = _save(device, compiled, config)
    if mode == "now":
        report = said(saved, compiled.form)
        return OpenVinoPreparedModel(
            source.ports, report, compiled.executable, profilers=_profilers(device, source.manner)
        )
    entry = None if saved is None else saved.entry
    writer = None if entry is None else device.seal.late_writer(config, expected=entry)
    report = said(saved, compiled.form, later=writer is not None)
    late = Late(device, source, writer, uses=device.uses)
    return OpenVinoPreparedModel(
        source.ports, report, compiled.executable, late, _profilers(device, source.manner)
    )


def load(device: OpenVinoDevice, config: PrepareConfig) -> OpenVinoPreparedModel:
    """Imports what the cache files hold, once it is verified and found to be of this engine. A
    baseline, which carries its graph, is improved after so many runs.

    Raises `InvalidArgument` for a wrong number of handles, `GeneralFailure` for the rest;
    OpenVINO's importer is not called for anything that is refused.
    """
    try:
        entry = device.seal.load(
            config.model_cache, config.data_cache, config.token, config.binding
        )
        manifest, parts = opened(device, entry)
    except CacheError as error:
        raise GeneralFailure(str(error)) from error
    check(config)
    manner = Manner.of(config, quantized=manifest.ports.quantized)
    executable = imported(device, parts[0], manner)
    if manifest.form == "optimised" or len(parts) == 1:
        return OpenVinoPreparedModel(
            manifest.ports,
            CacheReport(artefact=manifest.form),
            executable,
            profilers=_profilers(device, manner),
        )
    source = GraphSource(device, manifest.ports, parts[1], parts[2], manner)
    writer = device.seal.late_writer(config, expected=entry.entry)
    report = CacheReport(later=writer is not None, artefact=manifest.form)
    late = Late(device, source, writer, uses=device.uses)
    return OpenVinoPreparedModel(
        manifest.ports, report, executable, late, _profilers(device, manner)
    )


def _prepare_later(
    device: OpenVinoDevice, source: ModelSource, config: PrepareConfig
) -> OpenVinoPreparedModel:
    """Nothing is compiled; files that are to be written later are emptied, for what they hold is
    nobody's.
    """
    handles = (*config.model_cache, *config.data_cache)
    counts = len(config.model_cache), len(config.data_cache)
    writer, report = None, CacheReport()
    if handles and counts != device.cache_files_needed():
        needed = device.cache_files_needed()
        reason = f"InvalidArgument: {counts} files were given, {needed} are needed"
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
    late = Late(device, source, writer)
    return OpenVinoPreparedModel(
        source.ports, report, None, late, _profilers(device, source.manner)
    )


def _profilers(device: OpenVinoDevice, manner: Manner) -> Callable[[Executable], Profiler] | None:
    """What measures the kernels of executables; only the CPU plugin runs them one after another."""
    if device.plugin.name != "CPU":
        return None

    def make(executable: Executable) -> Profiler:
        from penstock.drivers.openvino.profiling import Profiler

        return Profiler(device, manner, executable)

    return make


def _save(device: OpenVinoDevice, compiled: Compiled, config: PrepareConfig) -> SaveReport | None:
    """Writes an artefact to the cache handles; None where there are none. Never raises."""
    if not config.model_cache and not config.data_cache:
        return None
    try:
        model, data = compiled.payloads(device)
    except DriverError as error:
        return SaveReport(reason=f"{type(error).__name__}: {error}")
    return device.seal.save(
        config.model_cache,
        config.data_cache,
        config.token,
        config.binding,
        model=[model],
        data=[data],
    )
