"""One step of a run: bind its arguments, execute, fall back."""

from __future__ import annotations

import threading
from collections.abc import Container, Mapping, Sequence
from time import monotonic_ns, perf_counter_ns
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import numpy as np
from numpy import empty

from penstock.compilation.calls import describe
from penstock.compilation.compilation import FALLBACK_DEVICE, PreparedStep
from penstock.compilation.receipt import CopyReceipt, Failure
from penstock.errors import FOREIGN, Cancelled, DriverError, MissedDeadline
from penstock.execution.arena import NO_PLACES, Places
from penstock.execution.lanes import LaneUser
from penstock.execution.results import allocate, check_result, is_sized
from penstock.execution.trace import LoneStep, StepTrace, Trace
from penstock.execution.transfer import call_execute, execute, lent, not_agreed, ports_of
from penstock.hal import (
    Device,
    ExecutionConfig,
    ExecutionResult,
    HostMemory,
    PrepareConfig,
    ProvenRequest,
    Request,
)
from penstock.ir import DType, NDArray
from penstock.ir.types import is_static, static_shape

if TYPE_CHECKING:
    from penstock.capsules.evidence import StepFailure
    from penstock.execution.fallback import Fallbacks
    from penstock.execution.turns import Tail, Turn
    from penstock.hal import RequestArgument
    from penstock.memory.bound import BoundMemory
    from penstock.partitioning.plan import ExecutionPlan


KEEPING_NS: Final = 200_000_000
"""Nanoseconds that must be left for a failure to be kept."""

KEPT: Final = "kept for a capsule of the failure"


class StepRunner(LaneUser):
    """Runs one prepared step, any number of times, from any thread.

    *devices* maps names to those that may repeat it, where *fallback* lets them. *placed* holds the operands
    that have a place in the arena, *dynamic* those between steps whose size only a run tells, *states* those that a
    State feeds. With the *plan* that it is of, its first failure is kept (`penstock.capsules.evidence`).
    """

    def __init__(
        self,
        prepared: PreparedStep,
        devices: Mapping[str, Device],
        config: PrepareConfig,
        fallback: bool,
        placed: Container[int] = (),
        dynamic: Container[int] = (),
        states: Container[int] = (),
    ) -> None:
        self.prepared = prepared
        self._devices, self._config = devices, config
        self._ports = ports = ports_of(prepared.step)
        capabilities = prepared.device.capabilities
        self._lends = (
            capabilities.accepts_host_memory
            and capabilities.shares_host_memory
            and all(o.dtype is not DType.STRING for _, o in ports.inputs)
            and all(is_sized(o) for _, o in ports.outputs)
        )
        self._inputs = tuple(i for i, _ in ports.inputs)
        self._outputs = tuple(o for _, o in ports.outputs)
        self._touched = frozenset(i for i, _ in (*ports.inputs, *ports.outputs))
        self._kinds = tuple(
            (i, (static_shape(o.shape) or (), o.dtype.numpy)) for i, o in ports.outputs
        )
        self._enclosed = all(i in placed for i, _ in (*ports.inputs, *ports.outputs))
        known = all(is_static(o.shape) for _, o in (*ports.inputs, *ports.outputs))
        self._fed = tuple(i for i in self._inputs if i in states)
        # Before the first execution that the device accepted, or never.
        self._request: type[Request] = Request
        self._proven = ProvenRequest if known else Request
        self._allowed = fallback
        self._may_fall_back = fallback and bool(prepared.step.fallbacks)
        self._learned = tuple(
            i
            for i in self._inputs
            if i in dynamic and fallback and FALLBACK_DEVICE in prepared.step.fallbacks
        )
        self._lock = threading.Lock()
        self._fallbacks: Fallbacks | None = None
        self.plan: ExecutionPlan | None = None
        self._told = False
        self._holders: WeakSet[LaneUser] = WeakSet()

    @property
    def inputs(self) -> tuple[int, ...]:
        """The operands that it reads, in the step's order."""
        return self._inputs

    @property
    def outputs(self) -> tuple[int, ...]:
        """The operands that it computes, likewise."""
        return tuple([i for i, _ in self._kinds])

    @property
    def is_direct(self) -> bool:
        """Whether a run of it is one call with arrays of known shapes, whatever they hold."""
        return self._lends and self._proven is ProvenRequest and not self._learned

    def hold(self, holder: LaneUser) -> None:
        """*holder* keeps the way in which this step executes, and takes turns from when it does."""
        with self._lock:
            self._holders.add(holder)
        holder.take_turns()

    def take_turns(self) -> None:
        """As `LaneUser`."""
        from penstock.execution.scheduler import scheduled

        self.prepared = scheduled(self.prepared)
        with self._lock:
            holders = list(self._holders)
        for holder in holders:
            holder.take_turns()

    def run(
        self,
        values: dict[int, NDArray],
        config: ExecutionConfig,
        trace: Trace,
        places: Places = NO_PLACES,
    ) -> None:
        """Reads its inputs from *values* (operand index -> array) and puts its outputs there.

        Arrays already there for outputs are written in place; others are made here. *places* are those of this
        run's own values. Raises the device's `DriverError` where no other device could repeat
        the step, with every failure in `trace.failures`.
        """
        began = perf_counter_ns()
        bound = places.bound
        if self._learned and self._repeat_without_elements(values, config, trace, began, bound):
            return
        try:
            if bound is not None and not self._touched.isdisjoint(bound):
                result = execute(self._ports, self.prepared, values, config, trace.copies, bound)
            elif self._lends:
                result = self._execute(values, config, places)
            else:
                result = execute(self._ports, self.prepared, values, config, trace.copies)
        except (MissedDeadline, Cancelled):
            raise
        except DriverError as error:
            self.failed(error, values, config, trace, began, bound)
            return
        if type(result) is not ExecutionResult:
            from penstock.execution.carried import note_carried

            note_carried(self.prepared, result, trace)
        trace.steps.append(StepTrace(self.prepared, began, perf_counter_ns(), result, ()))

    def run_alone(
        self,
        inputs: Sequence[NDArray],
        config: ExecutionConfig,
        trace: Trace | None = None,
        turn: Turn | None = None,
        run_began: int = 0,
    ) -> LoneStep:
        """As `run` where it is all of a plan: outputs of *inputs*, both in the order of the step's own; what the step has
        behind them is in *turn*. Without a *trace* what it returns tells of all of the run, which began at *run_began*.
        Only where `is_direct`.
        """
        began = perf_counter_ns()
        kinds = self._kinds
        outputs: list[NDArray] = []
        wanted: list[HostMemory] = []
        every: list[RequestArgument] = []
        for array in inputs:
            # As `lent`; calls that can be done without are, see `CompiledModel.run`.
            readable = array.view()
            readable.setflags(False)  # type: ignore[call-arg]  # as there
            every.append(HostMemory(readable))
        tail = None
        if turn is not None:
            tail = turn.tails.get(self) or self._tail(len(inputs), turn)
            kinds = tail.kinds
        try:
            for _, (shape, dtype) in kinds:
                try:
                    made = empty(shape, dtype)
                except (MemoryError, ValueError):
                    made = allocate(shape, dtype)
                outputs.append(made)
                wanted.append(HostMemory(made))
            if tail is None:
                request = self._request(tuple(every), tuple(wanted))
            else:
                request = self._request(tuple(every) + tail.inputs, tuple(wanted) + tail.outputs)
            prepared = self.prepared
            try:
                result = prepared.prepared.execute(request, config)
            except (DriverError, Cancelled):
                raise
            except FOREIGN as error:
                raise not_agreed(prepared, error) from error
            if type(result) is not ExecutionResult or result.output_shapes:
                given = [argument.array for argument in request.outputs]  # type: ignore[union-attr]  # all are HostMemory
                check_result(result, self._outputs, given)
        except (MissedDeadline, Cancelled):
            raise
        except DriverError as error:
            values = {} if turn is None else dict(turn.values)
            values.update(zip(self._inputs, inputs, strict=False))
            values.update(zip(self.outputs, outputs, strict=False))
            if trace is None:
                trace = Trace()
            self.failed(error, values, config, trace, began)
            outputs = [values[i] for i, _ in kinds]
            ran = trace.steps[-1]
            return LoneStep(
                outputs, ran.prepared, run_began, began, perf_counter_ns(), ran.result, trace
            )
        self._request = self._proven
        ended = perf_counter_ns()
        if trace is not None or type(result) is not ExecutionResult:
            if trace is None:
                trace = Trace()
            if type(result) is not ExecutionResult:
                from penstock.execution.carried import note_carried

                note_carried(self.prepared, result, trace)
            trace.steps.append(StepTrace(self.prepared, began, ended, result, ()))
        return LoneStep(outputs, self.prepared, run_began, began, ended, result, trace)

    def failed(
        self,
        error: DriverError,
        values: dict[int, NDArray],
        config: ExecutionConfig,
        trace: Trace,
        began: int,
        bound: Mapping[int, BoundMemory] | None = None,
    ) -> None:
        """Repeats the step, at which its device has failed by *error*, on another, as `run` does; raises what it does."""
        from penstock.compilation.failing import in_model

        words = in_model(self.prepared.step, describe(error))
        failures = trace.failures = (Failure(self.prepared.device.name, words),)
        if error.copies:
            from penstock.execution.carried import note_lost

            note_lost(self.prepared, error, trace)
        noted = self._noted(words, values, trace)
        lost = bound is not None and self._has_lost(bound)
        if (
            not lost
            and self._may_fall_back
            and self._others().repeat(values, config, trace, began, bound=bound)
        ):
            self._keep(noted, trace, config, began)
            return
        self._keep(noted, trace, config, began)
        from penstock.compilation.failing import final

        others = trace.failures[len(failures) :]
        name = self.prepared.device.name
        raise final(
            error, self.prepared.step, name, others, allowed=self._allowed, lost=lost
        ) from error

    def _has_lost(self, bound: Mapping[int, BoundMemory]) -> bool:
        """Whether memory that the step reads or writes ended with the device that had it."""
        mine = (i for i, _ in (*self._ports.inputs, *self._ports.outputs) if i in bound)
        return any(bound[i].gone() is not None for i in mine)

    def _noted(
        self, error: str, values: Mapping[int, NDArray], trace: Trace
    ) -> tuple[StepFailure, ...]:
        """What is to be kept of the first failure."""
        if self.plan is None or self._told:
            return ()
        self._told = True
        from penstock.capsules.evidence import noted

        began = perf_counter_ns()
        found = noted("execute", self.prepared.step, self.prepared.device, error, values)
        spent = perf_counter_ns() - began
        for failure in found:
            for operand, array in zip(self._inputs, failure.inputs or (), strict=False):
                route, at = ("host", "capsule"), self._ports.step
                trace.copies.append(
                    CopyReceipt(array.nbytes, *route, KEPT, at, operand, began, spent)
                )
        return found

    def _keep(
        self,
        failures: tuple[StepFailure, ...],
        trace: Trace,
        config: ExecutionConfig,
        began: int,
    ) -> None:
        """Keeps what was noted, where that cannot make the run miss its deadline."""
        in_haste = (
            config.deadline_ns is not None and config.deadline_ns - monotonic_ns() < KEEPING_NS
        )
        if failures and self.plan is not None and not in_haste:
            from penstock.capsules.evidence import keep

            receipt = trace.receipt(began, perf_counter_ns()).to_json()
            keep(failures[0], self.plan, receipt, self._config.accuracy)

    def close(self) -> None:
        """Closes the fall-backs, if there are any."""
        if self._fallbacks is not None:
            self._fallbacks.close()

    def request(self, values: dict[int, NDArray], places: Places) -> Request:
        """What the device is asked, where `is_direct`: as `run`, with arrays made for outputs that have none."""
        found = places.requests.get(self)
        if found is not None:
            return found
        readable, writable = places.readable, places.writable
        make = self._request
        # What a State feeds has been looked at where it has a place.
        if self._fed and self._fed[0] not in readable:
            make = Request
        request = make(
            tuple(
                [
                    readable[i] if i in readable else HostMemory(lent(values[i]))
                    for i in self._inputs
                ]
            ),
            tuple(
                [
                    writable[i]
                    if i in writable
                    else HostMemory(values[i] if i in values else _new(values, i, *kind))
                    for i, kind in self._kinds
                ]
            ),
        )
        if self._enclosed and make is self._proven:
            places.requests[self] = request
        return request

    def _tail(self, inputs: int, turn: Turn) -> Tail:
        """The arguments behind the first *inputs* that *turn* has, kept there."""
        from penstock.execution.turns import Tail

        read = tuple([turn.readable[i] for i in self._inputs[inputs:]])
        written = [HostMemory(turn.values[i]) for i, _ in self._kinds if i in turn.writable]
        kinds = self._kinds[: len(self._kinds) - len(written)]
        tail = turn.tails[self] = Tail(read, tuple(written), kinds)
        return tail

    def _execute(
        self, values: dict[int, NDArray], config: ExecutionConfig, places: Places
    ) -> ExecutionResult:
        request = self.request(values, places)
        result = call_execute(self.prepared, request, config)
        if type(result) is not ExecutionResult or result.output_shapes:
            given = [argument.array for argument in request.outputs]  # type: ignore[union-attr]  # all are HostMemory
            check_result(result, self._outputs, given)
        self._request = self._proven
        return result

    def _repeat_without_elements(
        self,
        values: dict[int, NDArray],
        config: ExecutionConfig,
        trace: Trace,
        began: int,
        bound: Mapping[int, BoundMemory] | None,
    ) -> bool:
        """Runs the step on the last fall-back where the run made an input empty, which no driver need take."""
        empty = [i for i in self._learned if i in values and values[i].size == 0]
        if not empty:
            return False
        name = self.prepared.device.name
        trace.failures = (Failure(name, f"not asked: operand {empty[0]} has no elements"),)
        others = self._others()
        return others.repeat(values, config, trace, began, only=FALLBACK_DEVICE, bound=bound)

    def _others(self) -> Fallbacks:
        with self._lock:
            if self._fallbacks is None:
                from penstock.execution.fallback import Fallbacks

                step = self.prepared.step
                self._fallbacks = Fallbacks(step, self._ports, self._devices, self._config)
            return self._fallbacks


def _new(
    values: dict[int, NDArray], index: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]
) -> NDArray:
    """`transfer.target` of an output that has no array yet, by what was worked out before."""
    array = values[index] = allocate(shape, dtype)
    return array
