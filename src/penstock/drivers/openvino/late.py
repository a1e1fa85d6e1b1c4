"""Compiling after the preparation: at the first run, or better after some runs."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from penstock.drivers.openvino.executable import Executable
from penstock.drivers.openvino.loading import imported, opened, said
from penstock.drivers.openvino.source import Interrupts, Source
from penstock.errors import CacheError, ClosedError, DriverError
from penstock.hal import CacheReport
from penstock.logs import Log
from penstock.sealed import SaveReport

if TYPE_CHECKING:
    from penstock.drivers.openvino.device import OpenVinoDevice
    from penstock.sealed.late import LateWriter

log = Log(__name__)


class Late:
    """The optimised form of *source*: at once when it is asked for, or after *uses* runs. It is written through
    *writer*, where there is one, which is then closed. Thread-safe.
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
        self._done: tuple[Executable, CacheReport] | None = None

    def now(self, interrupts: Interrupts) -> tuple[Executable, CacheReport]:
        """The optimised form, from the entry where another process has written it, else compiled. Whoever asks
        meanwhile waits. Raises what `Source.compile` does; the next call tries again.
        """
        with self._lock:
            if self._done is None:
                self._done = self._written() or self._compiled(interrupts)
                self._let_go()
            return self._done

    def after_a_run(self, interrupts: Interrupts) -> tuple[Executable, CacheReport] | None:
        """Counts a run. The optimised form when it was the last, in a run without a deadline; a compile that
        fails leaves things as they are.
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
        """Gives the handles back; a write under way that waits for its lock is dropped. Twice is harmless."""
        writer = self._writer
        if writer is not None:
            writer.close()

    def _written(self) -> tuple[Executable, CacheReport] | None:
        if self._writer is None:
            return None
        try:
            manifest, parts = opened(self._device, self._writer.load())
            if manifest.form != "optimised":
                return None
            executable = imported(self._device, parts[0], self._source.manner)
        except (CacheError, ClosedError, DriverError):
            return None
        return executable, CacheReport(artefact=manifest.form)

    def _compiled(self, interrupts: Interrupts) -> tuple[Executable, CacheReport]:
        compiled = self._source.compile("optimised", interrupts)
        saved: SaveReport | None = None
        if self._writer is not None:
            try:
                model, data = compiled.payloads(self._device)
                saved = self._writer.write(model=[model], data=[data])
            except DriverError as error:
                saved = _failure(error)
        return compiled.executable, said(saved, compiled.form)

    def _let_go(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _failure(error: DriverError) -> SaveReport:
    return SaveReport(reason=f"{type(error).__name__}: {error}")
