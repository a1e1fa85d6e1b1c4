"""A series of runs, one at a time, with everything kept from one to the next: arguments, outputs, drivers' bursts."""

# ruff: noqa: SLF001  # the friend of Variant and of StepRunner

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns, perf_counter_ns
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec.structs import replace

from penstock.compilation.compilation import PreparedStep
from penstock.compilation.receipt import CopyReceipt
from penstock.errors import (
    Cancelled,
    DriverError,
    GeneralFailure,
    MissedDeadline,
    MissedDeadlineTransient,
)
from penstock.execution.carried import note_carried
from penstock.execution.holding import InBurst
from penstock.execution.results import allocate, check_result, is_sized
from penstock.execution.step import StepRunner
from penstock.execution.trace import StepTrace, Trace
from penstock.execution.variant import Variant, check_time
from penstock.hal import (
    Device,
    ExecutionConfig,
    ExecutionResult,
    HostMemory,
    ProvenRequest,
    Request,
)
from penstock.hal.prepared import PreparedModel
from penstock.ir import NDArray
from penstock.ir.types import static_shape

if TYPE_CHECKING:
    from penstock.execution.arena import Arena
    from penstock.execution.control import ControlRunner
    from penstock.execution.state import State
    from penstock.memory.bound import BoundMemory

ALIASED = "the input lies in an output of the series"


class Series(Variant):
    """The runs of one caller, one at a time, on an *origin* that others use too.

    *hold* makes of a step's prepared model the one that executes for this series, and is closed with it. Outputs
    lie in arrays of the series, each run's over the last one's, unless the caller gives others.
    """

    def __init__(self, origin: Variant, hold: Callable[[PreparedModel], PreparedModel]) -> None:
        self._origin, self._hold = origin, hold
        self._held: list[PreparedModel] = []
        # What a device in another process can reach need not be copied there and back.
        self._elsewhere = any(is_isolated(step.device) for step in origin.compilation.steps)
        super().__init__(
            origin.compilation, origin._devices, origin._config, origin._allow_fallback
        )
        self._own = self._outputs_of_its_own()
        self._owners = frozenset(
            id(own if own.base is None else own.base) for own in self._own if own is not None
        )
        self._views = [None if a is None else read_only(a) for a in self._own]
        self._given: Sequence[NDArray | None] | None = None
        # None is not known, False not possible.
        self._direct: Direct | Literal[False] | None = None

    def _outputs_of_its_own(self) -> list[NDArray | None]:
        """An array for each output of known size."""
        operands = [self._operand(i) for i in self.outputs]
        if self._elsewhere:
            from penstock.execution.shared import in_a_pool

            return in_a_pool(operands)
        return [
            allocate(static_shape(o.shape) or (), o.dtype.numpy) if is_sized(o) else None
            for o in operands
        ]

    def _take_arena(self) -> Arena:
        if self._elsewhere and not self._arenas:
            from penstock.execution.shared import arena_in_a_pool

            return arena_in_a_pool(self._slots, self._arena_size, self._alignment)
        return super()._take_arena()

    def _runner(self, step: PreparedStep) -> StepRunner | ControlRunner:
        if step.branches:
            # Its branches are plans of their own, which have no series.
            return next(r for r in self._origin._runners if r.prepared is step)
        prepared = self._hold(step.prepared)
        self._held.append(prepared)
        return super()._runner(replace(step, prepared=prepared))

    def _take_compiled(self) -> None:
        super()._take_compiled()
        self._direct = None

    def run(
        self,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
        state: State | None,
        config: ExecutionConfig,
        trace: Trace,
        bound: Mapping[int, BoundMemory] | None = None,
    ) -> list[NDArray]:
        """As of `Variant`; what is compared in the shadow is a run of the origin."""
        if self._origin.shadow is not None:
            return self._origin.run(inputs, out, state, config, trace, bound)
        return super().run(inputs, out, state, config, trace, bound)

    def repeat(
        self,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
        config: ExecutionConfig,
        trace: Trace,
    ) -> list[NDArray] | None:
        """As `run`, where that is a matter of calling drivers with arrays alone; None where it is more.

        What is in *inputs* and *out* was checked; results that are not the caller's own are read-only.
        """
        if self._pending:
            self._take_compiled()
        direct = self._direct
        if direct is None:
            direct = self._direct = Direct(self) if self._is_direct() else False
        return direct.run(inputs, out, config, trace) if direct else None

    @property
    def settled(self) -> Direct | None:
        """What repeats the last run as it was, by `Direct.again`; None where that cannot be."""
        direct = self._direct
        return direct if direct and direct.settled and not self._pending else None

    def targets(
        self, inputs: Sequence[NDArray], out: Sequence[NDArray | None] | None, trace: Trace
    ) -> tuple[list[NDArray], list[NDArray | None]]:
        """For `run`: *inputs*, copied where they lie in an output of this series; and where all outputs go."""
        apart = list(inputs)
        for k, array in enumerate(inputs):
            if type(array) is np.ndarray and self.owns(array):
                apart[k] = np.array(array)
                trace.copies.append(CopyReceipt(array.nbytes, "caller", "input", ALIASED))
        given = out or [None] * len(self._own)
        return apart, [own if a is None else a for a, own in zip(given, self._own, strict=True)]

    def delivered(
        self, results: Sequence[NDArray], out: Sequence[NDArray | None] | None
    ) -> list[NDArray]:
        """*results* of `run` as the caller gets them: read-only, but for those he gave the arrays of in *out*."""
        given = out or [None] * len(results)
        return [
            r if type(r) is not np.ndarray or (g is not None and r is g) else read_only(r)
            for r, g in zip(results, given, strict=True)
        ]

    def owns(self, array: NDArray) -> bool:
        """Whether *array* lies in an output of this series."""
        base = array.base
        if id(array if base is None else base) not in self._owners and (
            base is None or (type(base) is np.ndarray and base.base is None)
        ):
            return False
        return any(own is not None and np.may_share_memory(array, own) for own in self._own)

    def close(self) -> None:
        """Closes what this series made; the origin stays open. Twice is harmless."""
        for runner in (*self._replaced, *self._runners):
            if isinstance(runner, StepRunner):
                runner.close()
        if self._whole is not None:
            self._whole.close()
        for held in self._held:
            held.close()
        self._direct = None

    def _is_direct(self) -> bool:
        return (
            self._origin.shadow is None
            and not self._states
            and self._delivers_its_own
            and all(own is not None for own in self._own)
            and all(isinstance(r, StepRunner) and r.is_direct for r in self._runners)
        )


class _Call:
    """One step of a `Direct`: its request, and what it is made of."""

    __slots__ = ("execute", "inputs", "operands", "outputs", "request", "runner", "writable")

    def __init__(self, runner: StepRunner) -> None:
        self.runner = runner
        prepared = runner.prepared.prepared
        self.execute = prepared.executor if isinstance(prepared, InBurst) else prepared.execute
        self.inputs, self.operands = runner._inputs, runner._outputs
        self.outputs = tuple(i for i, _ in runner._kinds)
        self.writable: tuple[HostMemory, ...] = ()
        self.request = Request((), ())


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
            except (MissedDeadline, Cancelled):
                raise
            except Exception as error:  # noqa: BLE001  # a driver may raise anything
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
        self, call: _Call, error: Exception, config: ExecutionConfig, trace: Trace, began: int
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


def is_isolated(device: Device) -> bool:
    """Whether *device* says that its driver lives in another process."""
    return getattr(device, "isolated", False) is True


def read_only(array: NDArray) -> NDArray:
    """A view of *array* that nobody writes through."""
    view = array.view()
    view.setflags(write=False)
    return view


def _lent(array: NDArray) -> HostMemory:
    return HostMemory(read_only(array))
