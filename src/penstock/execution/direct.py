"""The fast path of a run without options: one function from the caller's arrays to the outputs.

A small network takes less time than the calls between the runtime's layers. Where a plan is a
single driver call on arrays of known shapes, this does what `Executable.run`, `Variant.run` and
`Step.execute_arrays` do, in one function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, TypeAlias

from numpy import empty, ndarray

from penstock.compilation.prepared import PreparedStep
from penstock.compilation.receipt import Receipt
from penstock.errors import FOREIGN, Cancelled, MissedDeadline
from penstock.execution.interface import Outputs, Ready
from penstock.execution.run import Run, StepTrace
from penstock.execution.step import Compute, Step
from penstock.execution.variant import Variant
from penstock.hal import DONE, ExecutionConfig
from penstock.ir import NDArray

if TYPE_CHECKING:
    from penstock.execution.executable import Executable
    from penstock.execution.state import State

Direct: TypeAlias = Callable[[object], Outputs | None]
"""Runs once on the caller's inputs; None if they need the slow path, and then nothing was done."""


def direct_of(executable: Executable) -> Direct | None:
    """The fast path of *executable*; None if its runs are not one plain driver call."""
    variant, exchange, ready = executable.base, executable.exchange, executable.ready
    if type(variant) is not Variant or not variant.is_plain(executable.plain):
        return None
    step = variant.lone
    if step is None or step.compute is None or ready is None or not exchange.has_all_outputs:
        return None
    if not variant.outputs:
        return None
    if executable.is_dynamic or executable.awaited is not None or executable.feedback is not None:
        return None
    if executable.state is None:
        return _without_state(executable, ready, step, step.compute)
    if not variant.buffered or variant.needed:
        return None
    return _with_state(executable, ready, step, step.compute, executable.state)


def _without_state(executable: Executable, ready: Ready, step: Step, compute: Compute) -> Direct:
    gate = executable.gate
    enter, leave, clock = gate.inside.append, gate.inside.pop, perf_counter_ns
    names, kinds, count = executable.exchange.output_names, ready.kinds, len(ready.kinds)
    made = [(shape, dtype) for _, shape, dtype in step.kinds]
    # Small networks have one input and one output: loops would take a tenth of their time.
    single, several = count == 1, len(made) > 1
    first_dtype, first_shape = kinds[0] if single else (None, ())
    (made_shape, made_dtype), *others = made

    def direct(inputs: object) -> Outputs | None:
        # Another thread may have queued the step's runs, or have bound the model's state.
        if step.compute is not compute or executable.direct is not direct:
            return None
        began = clock()
        enter(None)
        try:
            if gate.shut:
                gate.check()
            if type(inputs) is list or type(inputs) is tuple:
                # A copy: the caller's list may change meanwhile.
                arrays = [*inputs]
            elif (found := ready.arrays(inputs)) is not None:
                arrays = found
            else:
                return None
            if len(arrays) != count:
                return None
            if single:
                value = arrays[0]
                if (
                    type(value) is not ndarray
                    or (value.dtype is not first_dtype and value.dtype != first_dtype)
                    or value.shape != first_shape
                    or not value.flags.c_contiguous
                ):
                    return None
            else:
                for value, (dtype, shape) in zip(arrays, kinds):  # noqa: B905  # equal lengths
                    if (
                        type(value) is not ndarray
                        or (value.dtype is not dtype and value.dtype != dtype)
                        or value.shape != shape
                        or not value.flags.c_contiguous
                    ):
                        return None
            try:
                outputs = [empty(made_shape, made_dtype)]
                if several:
                    for shape, dtype in others:
                        outputs.append(empty(shape, dtype))  # this is faster
            except (MemoryError, ValueError):
                return None
            try:
                compute(arrays, outputs)
            except FOREIGN as error:
                return failed(error, arrays, began)
            ended = clock()
        finally:
            leave()
            if gate.shut:
                gate.leave_shut()
        return Outputs(outputs, names, (receipt, began, ended))

    def failed(error: BaseException, arrays: list[NDArray], began: int) -> Outputs:
        """The outputs of the run that begins again after *error*, as any other that failed."""
        if isinstance(error, MissedDeadline | Cancelled):
            raise error
        run = Run(executable.plain, began)
        results = executable.base.recovered(run, step, arrays, error)
        run.end()
        return Outputs(results, names, run.receipt)

    receipt = partial(_receipt, executable.plain, step.prepared)
    return direct


def _with_state(
    executable: Executable, ready: Ready, step: Step, compute: Compute, state: State
) -> Direct:
    gate, ports = executable.gate, executable.base.buffered
    enter, leave, clock = gate.inside.append, gate.inside.pop, perf_counter_ns
    names, variant = executable.exchange.output_names, executable.base
    receipt = partial(_receipt, executable.plain, step.prepared)
    lock, unlock = state.lock.acquire, state.lock.release

    def direct(inputs: object) -> Outputs | None:
        if step.compute is not compute or executable.direct is not direct:
            return None
        began = clock()
        enter(None)
        try:
            if gate.shut:
                gate.check()
            arrays = ready.arrays(inputs)
            if arrays is None:
                return None
            lock()
            try:
                turn = state.turn(ports, None)
                if turn is None:
                    return None
                calls = turn.calls
                if calls is None:
                    calls = turn.calls = Calls(step, variant, turn.values)
                given, wanted = calls.given.copy(), calls.wanted.copy()
                try:
                    for at, place in calls.own:
                        given[at] = arrays[place]
                    for at, shape, dtype in calls.fresh:
                        wanted[at] = empty(shape, dtype)
                    compute(given, wanted)
                except FOREIGN:
                    # The state is as before: the run begins again as any other, and may fall back.
                    return None
                state.end_turn(turn)
            finally:
                unlock()
            outputs: list[NDArray] = []
            for at in calls.results:
                outputs.append(wanted[at])  # noqa: PERF401  # a comprehension costs a call
            ended = clock()
        finally:
            leave()
            if gate.shut:
                gate.leave_shut()
        return Outputs(outputs, names, (receipt, began, ended))

    return direct


class Calls:
    """The arguments of *step* for runs of *variant* on the buffers *values* of its state.

    *given* and *wanted* have the buffers. *own* are the places of the model's inputs there, with
    their places among these; *fresh* those of outputs, with their shapes and types. *results* are
    the places of the model's outputs among what the step computes.
    """

    __slots__ = ("fresh", "given", "own", "results", "wanted")

    def __init__(self, step: Step, variant: Variant, values: Mapping[int, NDArray]) -> None:
        places = {operand: at for at, operand in enumerate(variant.inputs)}
        # What a run fills in may be anything until then.
        anything = next(iter(values.values()))
        self.given = [values.get(operand, anything) for operand in step.inputs]
        self.own = [(at, places[i]) for at, i in enumerate(step.inputs) if i not in values]
        self.wanted = [values.get(operand, anything) for operand in step.outputs]
        kinds = enumerate(step.kinds)
        self.fresh = [(at, shape, dtype) for at, (i, shape, dtype) in kinds if i not in values]
        computed = {operand: at for at, operand in enumerate(step.outputs)}
        self.results = [computed[operand] for operand in variant.outputs]


def _receipt(plain: ExecutionConfig, prepared: PreparedStep, began: int, ended: int) -> Receipt:
    trace = StepTrace(prepared, began, ended, DONE)
    return Run(plain, began, ended, steps=[trace]).receipt()
