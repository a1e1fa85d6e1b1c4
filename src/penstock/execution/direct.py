"""Runs of a series that are calls with arrays and nothing else."""

# ruff: noqa: SLF001  # the friend of Series and of StepRunner

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic_ns, perf_counter_ns
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.compilation.receipt import CopyReceipt
from penstock.errors import (
    FOREIGN,
    Cancelled,
    DriverError,
    GeneralFailure,
    MissedDeadline,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
)
from penstock.execution.carried import note_carried
from penstock.execution.holding import InBurst
from penstock.execution.lanes import LaneUser
from penstock.execution.results import allocate, check_result
from penstock.execution.step import StepRunner
from penstock.execution.trace import StepTrace, Trace
from penstock.execution.variant import check_time
from penstock.hal import ExecutionConfig, ExecutionResult, HostMemory, ProvenRequest, Request
from penstock.ir import NDArray

if TYPE_CHECKING:
    from penstock.execution.series import Series

ALIASED: Final = "the input lies in an output of the series"


class _Call(LaneUser):
    """One step of a `Direct`: its request, and what it is made of."""

    __slots__ = ("execute", "inputs", "operands", "outputs", "request", "runner", "writable")

    def __init__(self, runner: StepRunner) -> None:
        self.runner = runner
        runner.hold(self)
        self.inputs, self.operands = runner._inputs, runner._outputs
        self.outputs = tuple(i for i, _ in runner._kinds)
        self.writable: tuple[HostMemory, ...] = ()
        self.request = Request((), ())

    def take_turns(self) -> None:
        """As `LaneUser`: executes as its runner does now."""
        prepared = self.runner.prepared.prepared
        self.execute = prepared.executor if isinstance(prepared, InBurst) else prepared.execute


class Direct:
    """The runs of a series whose steps take arrays as they are: requests are made again only where an array is another.

    Every array between steps lies in one arena, and drivers look at a request once.
    """

    def __init__(self, series: Series) -> None:
        self._series = series
        self._operands = series._inputs
        self._bound: list[NDArray | None] = [None] * len(series._inputs)
        self._own = frozenset(map(id, series._own))
        self._out: Sequence[NDArray | None] | None = None
        self._values: dict[int, NDArray] = {}
        if series._slots:
            self._values.update(series._take_arena().values)
        self._readable = {i: _lent(array) for i, array in self._values.items()}
        self._calls = [_Call(r) for r in series._runners if isinstance(r, StepRunner)]
        self._accepted, self._stale, self._aliased = False, True, False
        self._results: list[NDArray] = []
        self._put(None)

    def run(
        self,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
        config: ExecutionConfig,
        trace: Trace,
    ) -> list[NDArray]:
        """See `Series.repeat`."""
        if out is not self._out and (out is None or not self._same_targets(out)):
            self._put(out)
        if self._stale:
            self._take(inputs, trace)
        else:
            for array, bound in zip(inputs, self._bound, strict=True):
                if array is not bound:
                    self._take(inputs, trace)
                    break
        return self.again(config, trace)

    @property
    def settled(self) -> bool:
        """Whether `again` runs on the inputs of the last run, with outputs that are the series' own."""
        return self._out is None and not self._aliased and self._accepted

    def again(self, config: ExecutionConfig, trace: Trace) -> list[NDArray]:
        """As `run` on what is bound."""
        interrupts = config.cancel is not None or config.deadline_ns is not None
        began = perf_counter_ns()
        steps = trace.steps
        for call in self._calls:
            if interrupts:
                self._check(config, begun=len(steps) > 0)
            try:
                result = call.execute(call.request, config)
                if type(result) is not ExecutionResult or result.output_shapes:
                    given = [argument.array for argument in call.writable]
                    check_result(result, call.operands, given)
                    note_carried(call.runner.prepared, result, trace)
            except MissedDeadlinePersistent as error:
                if steps:
                    raise MissedDeadlineTransient(str(error)) from error
                raise
            except (MissedDeadline, Cancelled):
                raise
            except FOREIGN as error:  # a driver may raise anything
                if not self._repeated(call, error, config, trace, began):
                    break
                began = perf_counter_ns()
            else:
                ended = perf_counter_ns()
                steps.append(StepTrace(call.runner.prepared, began, ended, result, ()))
                began = ended
        else:
            if not self._accepted:
                self._accept()
        if interrupts and config.deadline_ns is not None and monotonic_ns() >= config.deadline_ns:
            raise MissedDeadlineTransient("the run took longer than its timeout")
        return list(self._results)

    def _check(self, config: ExecutionConfig, *, begun: bool) -> None:
        if config.cancel is not None:
            config.cancel.check()
        if config.deadline_ns is not None:
            check_time(config.deadline_ns, begun=begun)

    def _same_targets(self, out: Sequence[NDArray | None]) -> bool:
        return self._out is not None and all(a is b for a, b in zip(out, self._out, strict=True))

    def _put(self, out: Sequence[NDArray | None] | None) -> None:
        """Takes the outputs where they are to go from now on."""
        series = self._series
        self._out = out
        self._results = []
        for k, (index, own, view) in enumerate(
            zip(series.outputs, series._own, series._views, strict=True)
        ):
            given = None if out is None else out[k]
            if given is None and own is not None and view is not None:
                self._values[index] = own
                self._results.append(view)
            elif given is not None:
                self._values[index] = given
                self._results.append(given)
            self._readable[index] = _lent(self._values[index])
        for call in self._calls:
            call.writable = tuple([HostMemory(self._array(call, i)) for i in call.outputs])
        # Every request is made again with the inputs.
        self._bound = [None] * len(self._bound)
        self._stale = True

    def _array(self, call: _Call, operand: int) -> NDArray:
        array = self._values.get(operand)
        if array is None:
            shape, dtype = dict(call.runner._kinds)[operand]
            array = self._values[operand] = allocate(shape, dtype)
            self._readable[operand] = _lent(array)
        return array

    def _take(self, inputs: Sequence[NDArray], trace: Trace) -> None:
        """Takes *inputs* in the place of those bound."""
        bound, readable, values = self._bound, self._readable, self._values
        calls = self._calls
        whole, self._stale = self._stale or len(calls) == 1, False
        self._aliased = False
        changed: list[int] = []
        for k, operand in enumerate(self._operands):
            array = inputs[k]
            if array is bound[k]:
                continue
            if (array.base is not None or id(array) in self._own) and self._series.owns(array):
                # It changes with every run, and is looked at anew.
                bound[k] = None
                self._aliased = True
                kept = np.array(array)
                trace.copies.append(CopyReceipt(array.nbytes, "caller", "input", ALIASED))
            else:
                bound[k] = kept = array
            values[operand] = kept
            view = kept.view()
            view.setflags(write=False)
            readable[operand] = HostMemory(view)
            changed.append(operand)
        make = ProvenRequest if self._accepted else Request
        for call in calls:
            if whole or any(i in changed for i in call.inputs):
                call.request = make(tuple([readable[i] for i in call.inputs]), call.writable)

    def _accept(self) -> None:
        """Every driver has accepted such requests and need not look at them again."""
        self._accepted = True
        for call in self._calls:
            call.request = ProvenRequest(call.request.inputs, call.request.outputs)

    def _repeated(
        self, call: _Call, error: BaseException, config: ExecutionConfig, trace: Trace, began: int
    ) -> bool:
        """Whether another device ran the step, so that the run goes on; else the reference device ran the whole model.

        Raises what `StepRunner.run` does where neither could.
        """
        failure = error
        if not isinstance(failure, DriverError):
            name = call.runner.prepared.device.name
            failure = GeneralFailure(f"device {name} failed in execute: {error!r}")
            failure.__cause__ = error
        # Results go to the arrays that are there.
        values = dict(self._values)
        try:
            call.runner.failed(failure, values, config, trace, began)
        except (MissedDeadline, Cancelled):
            raise
        except DriverError:
            if not self._series._repeat_whole(values, config, trace, None):
                raise
            return False
        return True


def read_only(array: NDArray) -> NDArray:
    """A view of *array* that nobody writes through."""
    view = array.view()
    view.setflags(write=False)
    return view


def _lent(array: NDArray) -> HostMemory:
    return HostMemory(read_only(array))
