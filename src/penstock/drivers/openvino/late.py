"""Compiling after the preparation: at the first run, or better after some runs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from penstock.driverkit.compiling import Limits
from penstock.driverkit.postponed_write import Payloads, PostponedWrite
from penstock.drivers.openvino.executable import Executable
from penstock.drivers.openvino.loading import imported, opened
from penstock.drivers.openvino.source import Compiled, Source
from penstock.errors import CacheError, ClosedError, DriverError
from penstock.hal import CacheReport
from penstock.logs import Log

if TYPE_CHECKING:
    from penstock.drivers.openvino.device import OpenVinoDevice
    from penstock.sealed.late import LateWriter

Better: TypeAlias = tuple[Executable, CacheReport | PostponedWrite]
"""The optimised form, and what to say of its cache files: or the write that is still to be made."""

log = Log(__name__)


class Late:
    """The optimised form of *source*: at once when it is asked for, or after *uses* runs. Where
    there is a *writer*, what was compiled comes with a write through it, which runs attempt
    afterwards. Thread-safe.
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

    def now(self, interrupts: Limits) -> Better:
        """The optimised form, from the entry where another process has written it, else compiled.
        Whoever asks meanwhile waits. Raises what `Source.compile` does; the next call tries again.
        """
        with self._lock:
            if self._done is None:
                self._done = self._written() or self._compiled(interrupts)
            return self._done

    def after_a_run(self, interrupts: Limits) -> Better | None:
        """Counts a run. The optimised form when it was the last, in a run without a deadline; a
        compile that fails leaves things as they are.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            self._left = max(0, self._left - 1)
            if self._left or interrupts.deadline_ns is not None:
                return None
        finally:
            self._lock.release()
        try:
            return self.now(interrupts)
        except DriverError as error:
            log.warning("device %s keeps its baseline: %s", self._device.name, error)
            self._left = sys.maxsize
            self.close()
            return None

    def close(self) -> None:
        """Gives the handles back; what was not written by then is not. Twice is harmless."""
        writer = self._writer
        if writer is not None:
            writer.close()

    def _written(self) -> Better | None:
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

    def _compiled(self, interrupts: Limits) -> Better:
        began = time.monotonic_ns()
        compiled = self._source.compile("optimised", interrupts)
        if self._writer is None:
            return compiled.executable, CacheReport(artefact=compiled.form)
        spent = time.monotonic_ns() - began
        write = PostponedWrite(self._writer, self._payloads_of(compiled), compiled.form, spent)
        return compiled.executable, write

    def _payloads_of(self, compiled: Compiled) -> Callable[[], Payloads]:
        def made() -> Payloads:
            model, data = compiled.payloads(self._device)
            return [model], [data]

        return made
