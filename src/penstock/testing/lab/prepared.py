"""A prepared model of the lab device, and the three moments at which it compiles."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.driverkit.postponed_write import PostponedWrite
from penstock.errors import CacheError, ClosedError, GeneralFailure
from penstock.hal import (
    CacheReport,
    ExecutionConfig,
    ExecutionResult,
    PreparedModelBase,
    Request,
    validate_request,
)
from penstock.ir import Model
from penstock.memory.domain import has_tokens
from penstock.sealed import SaveReport
from penstock.testing.lab.compiler import interface
from penstock.testing.lab.execution import execute
from penstock.testing.lab.machine import LaidOut
from penstock.testing.lab.program import Program

if TYPE_CHECKING:
    from penstock.sealed.late import LateWriter
    from penstock.testing.lab.device import Compiled, LabDevice


class LabPreparedModel(PreparedModelBase):
    """Executes *program*, which was deserialised from the three payloads of an entry.

    Without one yet, it reads or compiles *model* at its first run. One that is *improving* does the
    same for the optimised form once it has run often enough. Both write through *writer*, where
    they have one, at the end of that run or of a later one, and then let go of the handles.
    """

    def __init__(
        self,
        device: LabDevice,
        report: CacheReport,
        *,
        program: Program | None = None,
        model: Model | None = None,
        writer: LateWriter | None = None,
        improving: bool = False,
    ) -> None:
        if program is not None:
            model = interface(program)
        assert model is not None
        self._device, self.model, self._report = device, model, report
        self._program, self._writer = program, writer
        self._write: PostponedWrite | None = None
        self._uses_left = device.uses if improving else 0
        self._changing = threading.Lock()
        self._laid_out: tuple[Program | None, LaidOut] = None, LaidOut()

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        validate_request(self.model, request, config)
        program = self._program or self._first()
        self._device.engine("execute")
        result = self._run(program, request, config)
        if self._uses_left:
            self._count_use()
        if (write := self._write) is not None:
            self._attempt(write, config)
        return result

    @property
    def device(self) -> LabDevice:
        """Whose it is."""
        return self._device

    def _run(self, program: Program, request: Request, config: ExecutionConfig) -> ExecutionResult:
        laid_out = self._laid_out
        if laid_out[0] is not program:
            laid_out = self._laid_out = program, LaidOut()
        machine, domain = self._device.machine, self._device.domain
        if domain is None or not has_tokens(request):
            return execute(program, request, config, machine, laid_out[1])
        with domain.claim(self, request) as claim:
            return execute(program, request, config, machine, laid_out[1], claim)

    @property
    def cache_report(self) -> CacheReport:  # type: ignore[override]  # it changes with what becomes of a late write
        return self._report if self._write is None else self._write.report

    def close(self) -> None:
        with self._changing:
            for part in (self._writer, self._write):
                if part is not None:
                    part.close()

    def _first(self) -> Program:
        """The program, compiled just in time unless another process has written it meanwhile."""
        with self._changing:
            if self._program is None:
                self._program = self._written() or self._late(
                    lambda: self._device.compile(self.model, "optimised")
                )
            return self._program

    def _count_use(self) -> None:
        """Goes on to the optimised form at the last use; runs of other threads go on with the old
        one.
        """
        if not self._changing.acquire(blocking=False):
            return
        try:
            self._uses_left = max(0, self._uses_left - 1)
            if not self._uses_left and (baseline := self._program) is not None:
                self._program = self._written() or self._late(
                    lambda: self._device.improve(baseline)
                )
        finally:
            self._changing.release()

    def _written(self) -> Program | None:
        """The optimised form, where the entry has it by now."""
        writer = self._writer
        if writer is None:
            return None
        try:
            loaded = writer.load()
            program = self._device.deserialise(loaded.model, loaded.data)
        except (CacheError, ClosedError, GeneralFailure):
            return None
        if program.artefact != "optimised":
            return None
        self._device.count("loads")
        self._report = CacheReport(artefact=program.artefact)
        writer.close()
        return program

    def _late(self, compile_now: Callable[[], Compiled]) -> Program:
        """The program; runs write it to the entry as soon as they can without waiting."""
        began = time.monotonic_ns()
        compiled = compile_now()
        spent = time.monotonic_ns() - began
        form = compiled.program.artefact
        self._report = CacheReport(artefact=form)
        if self._writer is not None:
            self._write = PostponedWrite(
                self._writer, lambda: (compiled.model, compiled.data), form, spent
            )
        return compiled.program

    def _attempt(self, write: PostponedWrite, config: ExecutionConfig) -> None:
        if write.attempt(config.deadline_ns) and write.report.save == "saved":
            self._device.count("saves")


def said(report: SaveReport | None, artefact: str, *, later: bool = False) -> CacheReport:
    """What a driver says of a save; None is one that was not asked for."""
    if report is None:
        return CacheReport(later=later, artefact=artefact)
    return CacheReport("saved" if report.saved else "failed", report.reason or "", later, artefact)
