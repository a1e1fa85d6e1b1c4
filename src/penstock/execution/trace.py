"""What one run does, as it happens; `execution.reporting` makes the run's receipt of it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from penstock.compilation.compilation import PreparedStep
from penstock.compilation.receipt import CopyReceipt, Failure, Receipt, Span
from penstock.hal import ExecutionResult
from penstock.ir import NDArray


class StepTrace(Struct, frozen=True):
    """One step that ran: where, when (`time.perf_counter_ns`), and which devices had failed at it before."""

    prepared: PreparedStep
    began_ns: int
    ended_ns: int
    result: ExecutionResult
    failures: tuple[Failure, ...]
    inner: tuple[InnerStep, ...] = ()


class InnerStep(Struct):
    """A step of a branch of control flow: its *first* run, how many *runs* it had, and what they took together."""

    part: str
    first: StepTrace
    runs: int
    wall_ns: int


class InnerSteps:
    """The steps of branches, those that ran again and again as one."""

    def __init__(self) -> None:
        self.steps: dict[tuple[object, ...], InnerStep] = {}

    def add(self, part: str, steps: Sequence[StepTrace]) -> None:
        """Adds one run of the branch *part*."""
        for step in steps:
            prepared = step.prepared
            key = (part, prepared.step.index, prepared.device.name, step.failures)
            spent = step.ended_ns - step.began_ns
            known = self.steps.get(key)
            if known is None:
                self.steps[key] = InnerStep(part, step, 1, spent)
            else:
                known.runs += 1
                known.wall_ns += spent


class FoldedCopy(CopyReceipt, frozen=True):
    """Equal copies of several rounds of a loop as one: *nbytes* and *wall_ns* are sums, *start_ns* is that of the first."""

    def __post_init__(self) -> None:
        """Each of the copies was told of when it was made."""


def fold_copies(copies: list[CopyReceipt]) -> None:
    """Replaces the copies of one reason between the same places by their sum, in place."""
    groups: dict[tuple[object, ...], list[CopyReceipt]] = {}
    for copy in copies:
        key = (copy.source, copy.destination, copy.reason, copy.step, copy.operand)
        groups.setdefault(key, []).append(copy)
    copies.clear()
    for first, *others in groups.values():
        if not others:
            copies.append(first)
            continue
        nbytes, wall_ns = first.nbytes, first.wall_ns
        for other in others:
            nbytes, wall_ns = nbytes + other.nbytes, wall_ns + other.wall_ns
        folded = FoldedCopy(
            nbytes=nbytes,
            source=first.source,
            destination=first.destination,
            reason=first.reason,
            step=first.step,
            operand=first.operand,
            start_ns=first.start_ns,
            wall_ns=wall_ns,
        )
        copies.append(folded)


class Trace(Struct):
    """What one run has done so far. *failures* are those at the step that nothing could repeat by itself; *notes* are put
    into the receipt as they read when it is made.
    """

    steps: list[StepTrace] = []
    copies: list[CopyReceipt] = []
    compiles: int = 0
    spans: tuple[Span, ...] = ()
    failures: tuple[Failure, ...] = ()
    notes: tuple[object, ...] = ()

    def receipt(self, began_ns: int, ended_ns: int) -> Receipt:
        """The receipt of the run, which lasted from *began_ns* to *ended_ns*."""
        from penstock.execution.reporting import run_receipt

        return run_receipt(self, began_ns, ended_ns)


class LoneStep(Struct):
    """What a run did that was one call: its *outputs*, and its receipt once somebody asks for it. *trace* is there where there
    is more to tell than that the step ran.
    """

    outputs: list[NDArray]
    prepared: PreparedStep
    run_began_ns: int
    began_ns: int
    ended_ns: int
    result: ExecutionResult
    trace: Trace | None = None

    def __call__(self) -> Receipt:
        trace = self.trace
        if trace is None:
            trace = Trace()
            trace.steps.append(
                StepTrace(self.prepared, self.began_ns, self.ended_ns, self.result, ())
            )
        return trace.receipt(self.run_began_ns, self.ended_ns)
