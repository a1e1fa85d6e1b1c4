"""The fast path of a run without options: one function from the caller's arrays to the outputs.

A small network takes less time than the calls between the runtime's layers. Where a plan is a
single driver call on arrays of known shapes, this does what `Executable.run`, `Variant.run` and
`Step.execute_arrays` do, in one function.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, TypeAlias

from numpy import empty, ndarray

from penstock.compilation.receipt import Receipt
from penstock.errors import FOREIGN, Cancelled, MissedDeadline
from penstock.execution.interface import Outputs, Ready
from penstock.execution.run import Run, StepTrace
from penstock.execution.step import Compute, Step
from penstock.execution.variant import Variant
from penstock.hal import DONE
from penstock.ir import NDArray

if TYPE_CHECKING:
    from penstock.execution.executable import Executable

Direct: TypeAlias = Callable[[object], Outputs | None]
"""Runs once on the caller's inputs; None if they need the slow path, and then nothing was done."""


def direct_of(executable: Executable) -> Direct | None:
    """The fast path of *executable*; None if its runs are not one plain driver call."""
    variant, exchange, ready = executable.base, executable.exchange, executable.ready
    if type(variant) is not Variant or variant.states or not variant.is_plain(executable.plain):
        return None
    step = variant.lone
    if step is None or step.compute is None or ready is None or not exchange.has_all_outputs:
        return None
    if executable.is_dynamic or executable.awaited is not None or executable.feedback is not None:
        return None
    return _written(executable, ready, step, step.compute)


def _written(executable: Executable, ready: Ready, step: Step, compute: Compute) -> Direct:
    gate = executable.gate
    enter, leave, clock = gate.inside.append, gate.inside.pop, perf_counter_ns
    names, kinds, count = executable.exchange.output_names, ready.kinds, len(ready.kinds)
    made, prepared = [(shape, dtype) for _, shape, dtype in step.kinds], step.prepared
    # Small networks have one input and one output: loops would take a tenth of their time.
    single = count == len(made) == 1
    first_dtype, first_shape = kinds[0] if single else (None, ())
    made_shape, made_dtype = made[0] if single else ((), None)

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
            elif ready.arrays(arrays) is None:
                return None
            try:
                if single:
                    outputs = [empty(made_shape, made_dtype)]
                else:
                    outputs = [empty(shape, dtype) for shape, dtype in made]
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

    def receipt(began: int, ended: int) -> Receipt:
        trace = StepTrace(prepared, began, ended, DONE)
        return Run(executable.plain, began, ended, steps=[trace]).receipt()

    return direct
