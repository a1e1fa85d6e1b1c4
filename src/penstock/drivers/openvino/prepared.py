"""The prepared model, which may compile at its first run, or compile better after some runs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from penstock.driverkit.artefact import Ports
from penstock.driverkit.engine import Limits
from penstock.driverkit.engine_model import EngineModel, Profiler
from penstock.driverkit.postponed_write import PostponedWrite
from penstock.drivers.openvino.compiling import Source, imported, opened
from penstock.drivers.openvino.engine import Executable
from penstock.errors import CacheError, ClosedError, DriverError
from penstock.hal import CacheReport, ExecutionConfig
from penstock.logs import Log

if TYPE_CHECKING:
    from penstock.drivers.openvino.device import OpenVinoDevice
    from penstock.sealed.late import LateWriter

Better: TypeAlias = tuple[Executable, CacheReport | PostponedWrite]
"""The optimised form, and the report of its cache files, or the write that is still to be made."""

log = Log(__name__)


class DeferredCompilation:
    """The optimised form of *source*: compiled when it is asked for, or after *uses* runs.

    Where there is a *writer*, the compiled form comes with a write through it, which later runs
    attempt. Thread-safe.
    """

    def __init__(
        self,
        device: OpenVinoDevice,
        source: Source,
        writer: LateWriter | None,
        *,
        uses: int = 0,
    ) -> None:
        self._device, self._source, self._writer = device, source, writer
        self._left = uses
        self._lock = threading.Lock()
        self._done: Better | None = None

    def now(self, limits: Limits) -> Better:
        """The optimised form: from the entry if another process has written it, else compiled.

        Other threads that ask meanwhile wait. Raises what `Source.compile` does; the next call
        tries again.
        """
        with self._lock:
            if self._done is None:
                self._done = self._loaded() or self._compiled(limits)
            return self._done

    def after_a_run(self, limits: Limits) -> Better | None:
        """Counts a run. Returns the optimised form after the last of *uses*, in a run without a
        deadline. A compile that fails is logged, and the baseline stays.
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
        """Closes the handles; what was not written by then never is. Twice is harmless."""
        writer = self._writer
        if writer is not None:
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

        write = PostponedWrite(
            self._writer, lambda: compiled.payloads(self._device), compiled.form, spent
        )
        return compiled.executable, write


class OpenVinoPreparedModel(EngineModel[Executable]):
    """*executable* with the inputs and outputs that *ports* say.

    *later* has the optimised form: for the first run where there is no *executable* yet, else once
    the model has run often enough.
    """

    def __init__(
        self,
        device: OpenVinoDevice,
        ports: Ports,
        report: CacheReport,
        executable: Executable | None,
        later: DeferredCompilation | None = None,
        profilers: Callable[[Executable], Profiler] | None = None,
    ) -> None:
        super().__init__(device, ports, report, executable, profilers)
        self._later = later
        self._write: PostponedWrite | None = None

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
        """Goes on with the optimised form; runs of other threads end with the old one."""
        executable, outcome = better
        if isinstance(outcome, PostponedWrite):
            self._write = outcome
        else:
            self.report = outcome
        self._later = None
        if not self.closed:
            self.executable = executable
        return executable
