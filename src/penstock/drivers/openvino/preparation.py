"""Preparing: compiling a model with OpenVINO, now or later."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from penstock.driverkit.artefact import Ports
from penstock.driverkit.engine import Limits, report_of
from penstock.driverkit.engine_model import EngineModel
from penstock.driverkit.postponed_write import PostponedWrite
from penstock.drivers.openvino import compiling
from penstock.drivers.openvino.compiling import Source
from penstock.drivers.openvino.engine import Executable, Manner
from penstock.drivers.openvino.loading import imported, opened, profilers_of
from penstock.errors import CacheError, ClosedError, DriverError, InputError, InvalidArgument
from penstock.hal import CacheReport, ExecutionConfig, PrepareConfig
from penstock.ir import Model, NDArray
from penstock.knobs import DriverSetting
from penstock.logs import Log
from penstock.sealed import LoadedEntry

if TYPE_CHECKING:
    from penstock.drivers.openvino.device import OpenVinoDevice
    from penstock.sealed.late import LateWriter

Better: TypeAlias = tuple[Executable, CacheReport | PostponedWrite]
"""The optimised form, and the report of its cache files, or the write that is still pending."""

log = Log(__name__)


class DeferredCompilation:
    """The optimised form of *source*, compiled on first use, or after *uses* runs.

    If there is a *writer*, the compiled form comes with a postponed cache write through it, which
    later runs attempt. Thread-safe.
    """

    def __init__(
        self, device: OpenVinoDevice, source: Source, writer: LateWriter | None, *, uses: int = 0
    ) -> None:
        self._device, self._source, self._writer = device, source, writer
        self._left = uses
        self._lock = threading.Lock()
        self._done: Better | None = None

    def now(self, limits: Limits) -> Better:
        """The optimised form: loaded from the entry if another process has written it, otherwise
        compiled.

        Other threads that call this meanwhile wait. Raises what `Source.compile` raises; the next
        call tries again.
        """
        with self._lock:
            if self._done is None:
                self._done = self._loaded() or self._compiled(limits)
            return self._done

    def after_a_run(self, limits: Limits) -> Better | None:
        """Counts a run. After *uses* runs, a run without a deadline compiles and returns the
        optimised form. If that compile fails, it is logged and the baseline stays in use.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            self._left = max(0, self._left - 1)
            if self._left or limits.deadline_ns is not None:
                return None
        finally:
            self._lock.release()
        try:
            return self.now(limits)
        except DriverError as error:
            log.warning("device %s keeps its baseline: %s", self._device.name, error)
            self._left = sys.maxsize
            self.close()
            return None

    def close(self) -> None:
        """Closes the handles, and drops a pending write. A second call does nothing."""
        if (writer := self._writer) is not None:
            writer.close()

    def _loaded(self) -> Better | None:
        if self._writer is None:
            return None
        try:
            manifest, parts = opened(self._device, self._writer.load())
            if manifest.form != "optimised":
                return None
            executable = imported(self._device, parts[0], self._source.manner)
        except (CacheError, ClosedError, DriverError):
            return None
        self._writer.close()
        self._writer = None
        return executable, CacheReport(artefact=manifest.form)

    def _compiled(self, limits: Limits) -> Better:
        began = time.monotonic_ns()
        compiled = self._source.compile("optimised", limits)
        if self._writer is None:
            return compiled.executable, CacheReport(artefact=compiled.form)
        spent = time.monotonic_ns() - began
        payloads = partial(compiled.payloads, self._device)
        write = PostponedWrite(self._writer, payloads, compiled.form, spent)
        return compiled.executable, write


class OpenVinoPreparedModel(EngineModel[Executable]):
    """The prepared model of *executable*, with the inputs and outputs of *ports*.

    *later* provides the optimised form: for the first run if there is no *executable* yet,
    otherwise once the model has run often enough.
    """

    _later: DeferredCompilation | None = None
    _write: PostponedWrite | None = None

    def improved_by(self, later: DeferredCompilation | None) -> Self:
        """The model itself, with *later*, which improves its executable."""
        self._later = later
        return self

    @property
    def cache_report(self) -> CacheReport:  # type: ignore[override]  # a late write changes it
        return self.report if self._write is None else self._write.report

    def current(self, config: ExecutionConfig) -> Executable:
        executable, later = self.executable, self._later
        if executable is None and later is not None and not self.closed:
            return self._become(later.now(config))
        return executable or super().current(config)

    def after_run(self, config: ExecutionConfig) -> None:
        if (later := self._later) is not None and (better := later.after_a_run(config)) is not None:
            self._become(better)
        if (write := self._write) is not None:
            write.attempt(config.deadline_ns)
            if write.is_over:
                self.report, self._write = write.report, None

    def close(self) -> None:
        super().close()
        for part in (self._later, self._write):
            if part is not None:
                part.close()

    def _become(self, better: Better) -> Executable:
        """Switches to the optimised form. Runs of other threads finish with the old one."""
        executable, outcome = better
        if isinstance(outcome, PostponedWrite):
            self._write = outcome
        else:
            self.report = outcome
        self._later = None
        if not self.closed:
            self.executable = executable
        return executable


compilation: Final = DriverSetting("openvino_compilation", ("now", "first_run", "staged"))
"""When a model is compiled: when it is prepared; at its first run; or staged, a baseline first and
the optimised form after some runs.
"""


def prepare(device: OpenVinoDevice, model: Model, config: PrepareConfig) -> OpenVinoPreparedModel:
    """Compiles a supported model when `compilation` says, and saves it to the cache handles."""
    try:
        mode = compilation()
    except InputError as error:
        raise InvalidArgument(str(error)) from error
    source = compiling.source_of_model(device, model, config)
    if mode == "first_run":
        return _prepare_later(device, source, config)
    compiled = source.compile("baseline" if mode == "staged" else "optimised", config)
    saved = device.save(config, partial(compiled.payloads, device))
    writer = later = None
    if mode == "staged":
        if saved is not None and saved.entry is not None:
            writer = device.seal.late_writer(config, expected=saved.entry)
        later = DeferredCompilation(device, source, writer, uses=device.uses)
    report = report_of(saved, compiled.form, later=writer is not None)
    profilers = profilers_of(device, source.manner)
    made = OpenVinoPreparedModel(device, source.ports, report, compiled.executable, profilers)
    return made.improved_by(later)


def improving(
    device: OpenVinoDevice,
    entry: LoadedEntry,
    config: PrepareConfig,
    ports: Ports,
    graph: tuple[NDArray, NDArray],
    executable: Executable,
) -> OpenVinoPreparedModel:
    """The *executable* of a verified entry that is a baseline: after `uses` runs its *graph* (XML,
    weights) is compiled again.
    """
    manner = Manner.of(config, quantized=ports.quantized)
    source = compiling.source_of_graph(device, ports, *graph, manner)
    writer = device.seal.late_writer(config, expected=entry.entry)
    report = CacheReport(later=writer is not None, artefact="baseline")
    made = OpenVinoPreparedModel(device, ports, report, executable, profilers_of(device, manner))
    return made.improved_by(DeferredCompilation(device, source, writer, uses=device.uses))


def _prepare_later(
    device: OpenVinoDevice, source: Source, config: PrepareConfig
) -> OpenVinoPreparedModel:
    """Compiles nothing yet. Empties the cache files that the first run will write, so that an older
    entry in them is not mistaken for this model's.
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
    profilers = profilers_of(device, source.manner)
    made = OpenVinoPreparedModel(device, source.ports, report, None, profilers)
    return made.improved_by(DeferredCompilation(device, source, writer))
