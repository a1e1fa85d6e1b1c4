"""A prepared model of the lab device, and the three moments at which it compiles."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

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

    Without one yet, it reads or compiles *model* at its first run. One that is *improving* does the same for the
    optimised form once it has run often enough. Both write through *writer*, where they have one, in the
    thread of the run that has come so far, and then let go of the handles.
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
        self._device, self.model, self.cache_report = device, model, report
        self._program, self._writer = program, writer
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

    def close(self) -> None:
        with self._changing:
            self._let_go()

    def _first(self) -> Program:
        """The program, compiled just in time unless another process has written it meanwhile."""
        with self._changing:
            if self._program is None:
                self._program = self._written() or self._late(
                    self._device.compile(self.model, "optimised")
                )
                self._let_go()
            return self._program

    def _count_use(self) -> None:
        """Goes on to the optimised form at the last use; runs of other threads go on with the old one."""
        if not self._changing.acquire(blocking=False):
            return
        try:
            self._uses_left = max(0, self._uses_left - 1)
            if not self._uses_left and (baseline := self._program) is not None:
                self._program = self._written() or self._late(self._device.improve(baseline))
                self._let_go()
        finally:
            self._changing.release()

    def _written(self) -> Program | None:
        """The optimised form, where the entry has it by now."""
        if self._writer is None:
            return None
        try:
            loaded = self._writer.load()
            program = self._device.deserialise(loaded.model, loaded.data)
        except (CacheError, ClosedError, GeneralFailure):
            return None
        if program.artefact != "optimised":
            return None
        self._device.count("loads")
        self.cache_report = CacheReport(artefact=program.artefact)
        return program

    def _late(self, compiled: Compiled) -> Program:
        """The program, which is written to the entry."""
        report = None
        if self._writer is not None:
            report = self._writer.write(model=compiled.model, data=compiled.data)
        self.cache_report = self._device.report(report, compiled.program.artefact)
        return compiled.program

    def _let_go(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def said(report: SaveReport | None, artefact: str, *, later: bool = False) -> CacheReport:
    """What a driver says of a save; None is one that was not asked for."""
    if report is None:
        return CacheReport(later=later, artefact=artefact)
    return CacheReport("saved" if report.saved else "failed", report.reason or "", later, artefact)
