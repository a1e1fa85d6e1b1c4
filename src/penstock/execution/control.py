"""IF and WHILE that the runtime carries out (NNAPI section 4.5). Each branch is a plan."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from msgspec.structs import replace

from penstock.compilation.failing import driver_message
from penstock.compilation.prepared import PreparedStep
from penstock.compilation.step_receipt import Failure
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import DriverError, MissedDeadline, MissedDeadlineTransient
from penstock.execution.results import Copying, copied, copy_over
from penstock.execution.run import Alternatives, InnerSteps, Run, StepTrace, fold_copies
from penstock.hal import DONE, Priority
from penstock.ir import NDArray

if TYPE_CHECKING:
    from penstock.execution.recovery import Recovery

Arrays: TypeAlias = Sequence[NDArray]
Targets: TypeAlias = Sequence[NDArray | None] | None

BETWEEN: Final = ("host", "host")

MOST_COPIES: Final = 1000
"""Copies in a loop's rounds up to which each has its own receipt; more are added up."""


class Branch(Protocol):
    """The compiled form of a branch, as a control step uses it."""

    def run(self, run: Run, inputs: Arrays, out: Targets = None) -> list[NDArray]:
        """Runs the branch; returns its outputs in order."""

    def expect(self, priority: Priority) -> None:
        """Announces a run of *priority*."""

    def close_steps(self) -> None:
        """Closes what runs made in addition to the compilation."""


class ControlStep:
    """A control-flow step. If a branch fails, the reference device runs the step, if allowed."""

    def __init__(
        self, prepared: PreparedStep, branches: Sequence[Branch], alternatives: Alternatives
    ) -> None:
        step, control = prepared.step, prepared.step.control
        if control is None:
            raise ValueError(f"step {step.index} is no control flow")
        self.prepared, self._kind, self._parts = prepared, control.kind, control.parts
        self._branches = branches
        entry = step.model.entry
        (operation,) = entry.operations
        outer = dict(
            zip((*entry.inputs, *entry.outputs), (*step.inputs, *step.outputs), strict=True)
        )
        operands = [(i, entry.operands[i]) for i in operation.inputs]
        self._inputs = [
            (-1, step.model.constant(o)) if o.is_constant else (outer[i], None) for i, o in operands
        ]
        self._outputs = [outer.get(i) for i in operation.outputs]
        self._alternatives = alternatives
        self._recovery: Recovery | None = None

    def execute(self, run: Run) -> None:
        """Executes the step on the values of *run*. See `Step.execute`."""
        began = time.perf_counter_ns()
        device, bound = self.prepared.device.name, run.bound or {}
        copying = Copying(self.prepared.step.index, device, run.copies)
        for index, constant in self._inputs:
            if constant is None and index in bound and index not in run.values:
                run.values[index] = copying.fetch(bound[index], index)
        given = [
            run.values[index] if constant is None else constant for index, constant in self._inputs
        ]
        inside, folded = Run(run.config, within=True), InnerSteps()
        try:
            if self._kind == "IF":
                out = [None if i is None else run.values.get(i) for i in self._outputs]
                branch = 0 if _first(given[0]) else 1
                results = self._run(branch, given[1:], inside, folded, out)
                pairs = zip(self._outputs, results, strict=True)
                run.values.update({index: result for index, result in pairs if index is not None})
            else:
                self._loop(given, run.values, inside, folded)
        except MissedDeadline:
            raise
        except DriverError as error:
            run.failures = inside.failures or (
                Failure(device, driver_message(error), error.status),
            )
            if not self._repeat(run, began):
                raise
            return
        finally:
            run.copies += inside.copies
            run.compiles += inside.compiles
            run.spans += inside.spans
        for output in self._outputs:
            if output is not None and output in bound:
                copying.put(bound[output], run.values[output], output)
        ended = time.perf_counter_ns()
        inner = tuple(folded.steps.values())
        run.steps.append(StepTrace(self.prepared, began, ended, DONE, (), inner))

    def expect(self, priority: Priority) -> None:
        """Announces a run of *priority* to the branches."""
        for branch in self._branches:
            branch.expect(priority)

    def close(self) -> None:
        """Closes what the branches made in addition to their compilations, and the fallback."""
        for branch in self._branches:
            branch.close_steps()
        if self._recovery is not None:
            self._recovery.close()

    def _repeat(self, run: Run, began: int) -> bool:
        """Whether the device of last resort ran the whole step."""
        if self._recovery is None:
            from penstock.execution.recovery import Recovery

            step = replace(
                self.prepared.step, device="", fallbacks=(FALLBACK_DEVICE,), control=None
            )
            self._recovery = Recovery(step, self._alternatives)
        return self._recovery.repeat(run, began)

    def _run(
        self, branch: int, given: Arrays, inside: Run, folded: InnerSteps, out: Targets = None
    ) -> list[NDArray]:
        results = self._branches[branch].run(inside, given, out)
        folded.add(self._parts[branch], inside.steps)
        inside.steps.clear()
        return results

    def _loop(
        self, given: Arrays, values: dict[int, NDArray], inside: Run, folded: InnerSteps
    ) -> None:
        limit, cancel = inside.config.loop_timeout_ns, inside.config.cancel
        began, carried = time.monotonic_ns(), given
        while _first(self._run(0, carried, inside, folded)[0]):
            if limit is not None and time.monotonic_ns() - began > limit:
                text = f"a WHILE ran longer than its timeout of {limit / 1e9:g} s"
                raise MissedDeadlineTransient(text)
            if cancel is not None:
                cancel.check()
            carried = self._run(1, carried, inside, folded)
            if len(inside.copies) > MOST_COPIES:
                fold_copies(inside.copies)
        step = self.prepared.step.index
        # A value that the body passes through unchanged may be the caller's array, a constant or a
        # duplicate, so it needs a copy.
        taken = {id(array) for array in given}
        for index, value in zip(self._outputs, carried, strict=True):
            if index is None:
                continue
            target, place = values.get(index), {"step": step, "operand": index}
            if target is not None:
                reason = "the last value of a WHILE goes where it is read"
                copy_over(target, value, inside.copies, BETWEEN, reason, **place)
            elif id(value) in taken or not value.flags.writeable:
                reason = "a WHILE hands on what is still another's"
                values[index] = copied(value, inside.copies, BETWEEN, reason, **place)
            else:
                values[index] = value
                taken.add(id(value))


def _first(array: NDArray) -> bool:
    return bool(array.reshape(-1)[0])
