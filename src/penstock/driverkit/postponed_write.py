"""Writing a compiled model into its cache entry at the end of a run, without delaying the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from msgspec.structs import replace

from penstock.errors import NotYetWritten, PenstockError
from penstock.hal import CacheReport
from penstock.sealed import SaveReport

if TYPE_CHECKING:
    from penstock.sealed.late import LateWriter


Payloads: TypeAlias = tuple[Sequence[bytes | memoryview], Sequence[bytes | memoryview]]
"""The contents of a cache entry's model files, and of its data files."""

LEAST_NS: Final = 1_000_000_000
"""Least time that must remain until a run's deadline for the run to write."""

IN_USE: Final = "another process uses the entry; a later run writes it"
NO_TIME: Final = "no run has had time for it before its deadline; a later run writes it"
NO_RUN: Final = "the run that compiles it writes it"
CLOSED: Final = "the model was closed first"


class PostponedWrite:
    """A postponed cache write through *writer* that never waits for the entry's lock.

    A driver calls `attempt` at the end of each run, after the outputs are written. An attempt
    writes if the lock is free and the run has time. Otherwise the next attempt tries again.
    *payloads* is called once the lock is taken. *compile_ns* is the longest time that a write may
    take. *form* names the artefact. Nothing is written after `close`.

    Thread-safe: of several concurrent attempts one writes, and the others return at once.
    """

    def __init__(
        self, writer: LateWriter, payloads: Callable[[], Payloads], form: str, compile_ns: int = 0
    ) -> None:
        self._writer = writer
        self._payloads: Callable[[], Payloads] | None = payloads
        self._form, self._needed_ns = form, max(LEAST_NS, compile_ns)
        self._lock = threading.Lock()
        self._why = NO_RUN
        self._saved: SaveReport | None = None

    @property
    def is_over(self) -> bool:
        """Whether the write succeeded, failed, or was closed. Further attempts do nothing."""
        return self._saved is not None

    @property
    def report(self) -> CacheReport:
        """The current save report of a prepared model. `later` is True while an attempt may still
        succeed, and the reason then says why the write is pending.
        """
        if (saved := self._saved) is not None:
            outcome: Literal["saved", "failed"] = "saved" if saved.saved else "failed"
            return CacheReport(outcome, saved.reason or "", artefact=self._form)
        return CacheReport("none", str(NotYetWritten(self._why)), True, self._form)

    def attempt(self, deadline_ns: int | None = None) -> bool:
        """Writes if the entry's lock is free and enough time remains until *deadline_ns* (monotonic
        clock), the deadline of the calling run. Returns whether this call finished the write, with
        success or not. Never raises.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._saved is None and self._payloads is not None:
                self._attempt(self._payloads, deadline_ns)
                return self.is_over
            return False
        finally:
            self._lock.release()

    def close(self) -> None:
        """Drops a pending write and closes the handles. A second call does nothing."""
        self._writer.close()
        with self._lock:
            if self._saved is None:
                self._saved = SaveReport(reason=str(NotYetWritten(f"{CLOSED}: {self._why}")))
            self._payloads = None

    def _attempt(self, payloads: Callable[[], Payloads], deadline_ns: int | None) -> None:
        if deadline_ns is not None and deadline_ns - time.monotonic_ns() < self._needed_ns:
            self._why = NO_TIME
            return
        if not self._writer.is_free():
            self._why = IN_USE
            return
        try:
            model, data = payloads()
            saved = self._writer.write(model=model, data=data)
        except PenstockError as error:
            saved = SaveReport(reason=f"{type(error).__name__}: {error}")
        if saved.in_use:
            self._why = IN_USE
            return
        # A report that kept the payloads would hold their memory as long as the model.
        self._saved, self._payloads = replace(saved, payloads=()), None
        self._writer.close()
