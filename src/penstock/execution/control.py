"""IF and WHILE that the runtime carries out itself (NNAPI section 4.5): their branches run as plans of their own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.compilation.compilation import FALLBACK_DEVICE, PreparedStep
from penstock.compilation.failing import told
from penstock.compilation.receipt import Failure
from penstock.errors import Cancelled, DriverError, MissedDeadline, MissedDeadlineTransient
from penstock.execution.arena import NO_PLACES, Places
from penstock.execution.copying import copied, copy_over
from penstock.execution.fallback import Fallbacks
from penstock.execution.trace import InnerSteps, StepTrace, Trace, fold_copies
from penstock.execution.transfer import ports_of
from penstock.execution.variant import Variant
from penstock.hal import DONE, Device, ExecutionConfig, PrepareConfig, Priority
from penstock.ir import NDArray

if TYPE_CHECKING:
    from penstock.memory.bound import BoundMemory

BETWEEN: Final = ("host", "host")

MOST_COPIES: Final = 1000
"""Copies of the rounds of a loop that are kept one by one: a loop may have any number of rounds."""


class ControlRunner:
    """Runs one prepared step of control flow, as `StepRunner` does others.

    An error of a branch is the step's; where *fallback* lets it, the step's own device then runs it as a whole.
    """

    def __init__(
        self,
        prepared: PreparedStep,
        devices: Mapping[str, Device],
        config: PrepareConfig,
        fallback: bool,
    ) -> None:
        step, control = prepared.step, prepared.step.control
        if control is None:
            raise ValueError(f"step {step.index} is no control flow")
        self.prepared, self._kind, self._parts = prepared, control.kind, control.parts
        loop = control.kind == "WHILE"
        self._branches = [
            Variant(branch, devices, config, fallback, lends=loop) for branch in prepared.branches
        ]
        for branch in self._branches:
            branch.within = True
        entry = step.model.entry
        (operation,) = entry.operations
        outer = dict(
            zip((*entry.inputs, *entry.outputs), (*step.inputs, *step.outputs), strict=True)
        )
        self._inputs = [
            (outer.get(i), step.model.constant(o) if o.is_constant else None)
            for i in operation.inputs
            for o in [entry.operands[i]]
        ]
        self._outputs = [outer.get(i) for i in operation.outputs]
        self._fallbacks = None
        if fallback:
            whole = replace(step, device="", fallbacks=(FALLBACK_DEVICE,), control=None)
            self._fallbacks = Fallbacks(whole, ports_of(whole), devices, config)

    def run(
        self,
        values: dict[int, NDArray],
        config: ExecutionConfig,
        trace: Trace,
        places: Places = NO_PLACES,
    ) -> None:
        """As `StepRunner.run`."""
        began = time.perf_counter_ns()
        if places.bound is not None:
            self._fetch(places.bound, values, trace)
        given = [_value(i, constant, values) for i, constant in self._inputs]
        inside = Trace()
        folded = InnerSteps()
        try:
            if self._kind == "IF":
                self._choose(given, values, config, inside, folded)
            else:
                self._loop(given, values, config, inside, folded)
        except (MissedDeadline, Cancelled):
            raise
        except DriverError as error:
            trace.failures = inside.failures or (Failure(self.prepared.device.name, told(error)),)
            if self._fallbacks is None or not self._fallbacks.repeat(
                values, config, trace, began, bound=places.bound
            ):
                raise
            return
        finally:
            trace.copies += inside.copies
            trace.compiles += inside.compiles
            trace.spans += inside.spans
        if places.bound is not None:
            from penstock.execution.binding import put_all

            name = self.prepared.device.name
            put_all(
                self._outputs, self.prepared.step.index, values, places.bound, trace.copies, name
            )
        ended = time.perf_counter_ns()
        trace.steps.append(
            StepTrace(self.prepared, began, ended, DONE, (), tuple(folded.steps.values()))
        )

    def expect(self, priority: Priority) -> None:
        """As `Variant.expect`, of what is in the branches."""
        for branch in self._branches:
            branch.expect(priority)

    def close(self) -> None:
        """Closes what the branches made beside their compilations, and the fall-back."""
        for branch in self._branches:
            branch.close()
        if self._fallbacks is not None:
            self._fallbacks.close()

    def _fetch(
        self, bound: Mapping[int, BoundMemory], values: dict[int, NDArray], trace: Trace
    ) -> None:
        """What is *bound* and read by this step, which the runtime carries out itself, as arrays."""
        from penstock.execution.binding import fetch_all

        needed = [i for i, _ in self._inputs if i is not None]
        step = self.prepared.step.index
        fetch_all(needed, step, values, bound, trace.copies, self.prepared.device.name)

    def _run(
        self,
        branch: int,
        given: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
        config: ExecutionConfig,
        trace: Trace,
        folded: InnerSteps,
    ) -> list[NDArray]:
        results = self._branches[branch].run(given, out, None, config, trace)
        folded.add(self._parts[branch], trace.steps)
        trace.steps.clear()
        return results

    def _choose(
        self,
        given: Sequence[NDArray],
        values: dict[int, NDArray],
        config: ExecutionConfig,
        trace: Trace,
        folded: InnerSteps,
    ) -> None:
        out = [None if i is None else values.get(i) for i in self._outputs]
        branch = 0 if _first(given[0]) else 1
        results = self._run(branch, given[1:], out, config, trace, folded)
        pairs = zip(self._outputs, results, strict=True)
        values.update({index: result for index, result in pairs if index is not None})

    def _loop(
        self,
        given: Sequence[NDArray],
        values: dict[int, NDArray],
        config: ExecutionConfig,
        trace: Trace,
        folded: InnerSteps,
    ) -> None:
        limit = config.loop_timeout_ns
        began, carried = time.monotonic_ns(), given
        while _first(self._run(0, carried, None, config, trace, folded)[0]):
            if limit is not None and time.monotonic_ns() - began > limit:
                raise MissedDeadlineTransient(
                    f"a WHILE ran longer than its timeout of {limit / 1e9:g} s"
                )
            if config.cancel is not None:
                config.cancel.check()
            carried = self._run(1, carried, None, config, trace, folded)
            if len(trace.copies) > MOST_COPIES:
                fold_copies(trace.copies)
        step = self.prepared.step.index
        # Whatever the body only hands through is still the caller's, a constant, or there twice.
        taken = {id(array) for array in given}
        for index, value in zip(self._outputs, carried, strict=True):
            if index is None:
                continue
            target = values.get(index)
            if target is not None:
                reason = "the last value of a WHILE goes where it is read"
                copy_over(target, value, trace.copies, BETWEEN, reason, step=step, operand=index)
            elif id(value) in taken or not value.flags.writeable:
                reason = "a WHILE hands on what is still another's"
                values[index] = copied(
                    value, trace.copies, BETWEEN, reason, step=step, operand=index
                )
            else:
                values[index] = value
                taken.add(id(value))


def _value(index: int | None, constant: NDArray | None, values: dict[int, NDArray]) -> NDArray:
    if constant is not None:
        return constant
    if index is None:
        raise ValueError("an input of control flow has no value")
    return values[index]


def _first(array: NDArray) -> bool:
    return bool(array.reshape(-1)[0])
