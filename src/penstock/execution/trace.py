"""What one run does, as it happens; `execution.reporting` makes the run's receipt of it."""

from __future__ import annotations

from msgspec import Struct

from penstock.compilation.compilation import PreparedStep
from penstock.compilation.receipt import CopyReceipt, Failure, Span
from penstock.hal import ExecutionResult


class StepTrace(Struct, frozen=True):
    """One step that ran: where, when (`time.perf_counter_ns`), and which devices had failed at it before."""

    prepared: PreparedStep
    began_ns: int
    ended_ns: int
    result: ExecutionResult
    failures: tuple[Failure, ...]


class Trace:
    """What one run has done so far."""

    __slots__ = ("compiles", "copies", "failures", "spans", "steps")

    def __init__(self) -> None:
        self.steps: list[StepTrace] = []
        self.copies: list[CopyReceipt] = []
        self.compiles = 0
        self.spans: tuple[Span, ...] = ()
        self.failures: tuple[Failure, ...] = ()
        """Of the step that nothing could repeat by itself."""
