"""Executes one step of a plan: passes the arguments, calls the driver, falls back on failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, TypeAlias

from numpy import empty

from penstock.compilation.prepared import PreparedStep
from penstock.compilation.step_receipt import Failure
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import FOREIGN, Cancelled, DriverError, MissedDeadline
from penstock.execution.arena import NO_ARRAY, StepArguments, allocate, is_sized
from penstock.execution.priority import QueueUser
from penstock.execution.run import Alternatives, Run, StepTrace
from penstock.hal import (
    DONE,
    ExecutionConfig,
    ExecutionResult,
    HostMemory,
    ProvenRequest,
    Request,
)
from penstock.ir import DType, NDArray
from penstock.ir.types import is_static, static_shape
from penstock.partitioning.plan import ports_of

if TYPE_CHECKING:
    from penstock.execution.recovery import Recovery
    from penstock.hal import RequestArgument

Compute: TypeAlias = Callable[[Sequence[NDArray], Sequence[NDArray]], None]
"""`PreparedModelBase.compute`: computes outputs from inputs, all of them arrays."""


class Step(QueueUser):
    """A prepared step, executed any number of times, from any thread.

    The way to pass arguments is chosen once, here. Arrays are lent without a copy if the device
    shares the host's memory and accepts host memory. No operand may hold strings, and every
    output's size must be known before the run. Otherwise `transfer` passes the arguments.
    """

    def __init__(self, prepared: PreparedStep, alternatives: Alternatives) -> None:
        self.prepared, self.ports = prepared, ports_of(prepared.step)
        self._alternatives, plan = alternatives, alternatives.plan
        ports = self.ports
        self._recovery: Recovery | None = None
        every = (*ports.inputs, *ports.outputs)
        capabilities = prepared.device.capabilities
        self._lends = (
            capabilities.accepts_host_memory
            and capabilities.shares_host_memory
            and all(o.dtype is not DType.STRING for _, o in ports.inputs)
            and all(is_sized(o) for _, o in ports.outputs)
        )
        self.inputs = tuple(i for i, _ in ports.inputs)
        """The operands that it reads, in the step's order."""
        self.outputs = tuple(i for i, _ in ports.outputs)
        """The operands that it computes, in the step's order."""
        self._touched = frozenset(i for i, _ in every)
        self._kinds = tuple(
            (i, static_shape(o.shape) or (), o.dtype.numpy) for i, o in ports.outputs
        )
        self._operands = tuple(o for _, o in ports.outputs)
        self._enclosed = all(i in plan.temporaries.offsets for i in self._touched)
        states = {port.input for port in plan.model.entry.states}
        self._fed = tuple(i for i in self.inputs if i in states)
        # `ProvenRequest` skips validation. It is used after the device accepted one execution, and
        # only if every shape is known.
        self._request: type[Request] = Request
        known = all(is_static(o.shape) for _, o in every)
        self._proven = ProvenRequest if known else Request
        can_move = alternatives.allowed and FALLBACK_DEVICE in prepared.step.fallbacks
        # The inputs that may turn out to be empty.
        self._learned = tuple(i for i in self.inputs if can_move and i in plan.temporaries.dynamic)
        self.is_direct = self._lends and known and not self._learned
        """Whether each execution is one driver call with arrays of known shapes."""
        self.call: Callable[[Request, ExecutionConfig], ExecutionResult] = prepared.prepared.execute
        """Calls the driver. A faster path may replace it, unless the step is queued."""
        self.compute: Compute | None = None
        if self.is_direct:
            self.compute = getattr(prepared.prepared, "compute", None)
        """The driver's shorter way to run; None if it has none, or if the step is queued."""
        self._lock = threading.Lock()

    def queue_runs(self) -> None:
        """Queues every execution on the device from now on. See `QueueUser`."""
        from penstock.execution.adapters import scheduled

        self.compute = None
        self.prepared = scheduled(self.prepared)
        self.call = self.prepared.prepared.execute

    def execute(self, run: Run) -> None:
        """Executes the step on the values of *run*: reads its inputs and puts its outputs there.

        An output that already has an array is written in place; otherwise a new array is allocated.
        A failure starts the fallback. Raises the driver's `DriverError` if no fallback device can
        run the step; `run.failures` then lists every failure. Raises `MissedDeadline*` and
        `Cancelled`, which are never retried.
        """
        began = perf_counter_ns()
        if self._learned and self._repeat_without_elements(run, began):
            return
        try:
            if self._lends and (run.bound is None or self._touched.isdisjoint(run.bound)):
                kept = run.places.requests
                request = kept[self] if self in kept else self.request(run)
                try:
                    result = self.call(request, run.config)
                except (DriverError, Cancelled):
                    raise
                except FOREIGN as error:
                    from penstock.execution.results import breach_of

                    raise breach_of(self.prepared.device, error) from error
                if type(result) is not ExecutionResult or result.output_shapes:
                    from penstock.execution.results import check_result

                    given = [argument.array for argument in request.outputs]  # type: ignore[union-attr]  # all are HostMemory
                    check_result(result, self._operands, given)
                self._request = self._proven
            else:
                from penstock.execution.transfer import transfer

                result = transfer(self.ports, self.prepared, run)
        except MissedDeadline:
            raise
        except DriverError as error:
            self.recover(run, error, began)
            return
        if result.copies or type(result) is not ExecutionResult:
            from penstock.execution.run import note_copies

            note_copies(self.prepared, result, run)
        run.steps.append(StepTrace(self.prepared, began, perf_counter_ns(), result))

    def execute_arrays(
        self, run: Run, inputs: Sequence[NDArray], compute: Compute
    ) -> list[NDArray]:
        """As `execute`, by *compute* from *inputs* in the step's order; returns the outputs."""
        began = perf_counter_ns()
        outputs: list[NDArray] = []
        for _, shape, dtype in self._kinds:
            try:
                outputs.append(empty(shape, dtype))
            except (MemoryError, ValueError):
                outputs.append(allocate(shape, dtype))
        try:
            compute(inputs, outputs)
        except FOREIGN as error:
            if isinstance(error, MissedDeadline | Cancelled):
                raise
            if not isinstance(error, DriverError):
                from penstock.execution.results import breach_of

                error = breach_of(self.prepared.device, error)
            run.values = dict(zip(self.inputs, inputs, strict=True))
            self.recover(run, error, began)
            return [run.values[i] for i in self.outputs]
        run.steps.append(StepTrace(self.prepared, began, perf_counter_ns(), DONE))
        return outputs

    def execute_turn(
        self, run: Run, arguments: StepArguments, inputs: Sequence[NDArray], compute: Compute
    ) -> list[NDArray] | None:
        """As `execute_arrays`, with the buffers of state in *arguments*; None if the driver failed.

        *inputs* and the outputs are those of the model.
        """
        began = perf_counter_ns()
        given, wanted = [*arguments.given], [*arguments.wanted]
        for at, place in arguments.inputs:
            given[at] = inputs[place]
        try:
            for at, shape, dtype in arguments.outputs:
                wanted[at] = empty(shape, dtype)
            compute(given, wanted)
        except FOREIGN:
            return None
        run.steps.append(StepTrace(self.prepared, began, perf_counter_ns(), DONE))
        results: list[NDArray] = []
        for at in arguments.results:
            results.append(wanted[at])  # noqa: PERF401  # a comprehension costs a call
        return results

    def arguments_of(
        self, buffers: Mapping[int, NDArray], inputs: Sequence[int], outputs: Sequence[int]
    ) -> StepArguments:
        """The arguments with the *buffers* of operands. *inputs* and *outputs* are the model's."""
        return StepArguments(
            [buffers.get(i, NO_ARRAY) for i in self.inputs],
            [buffers.get(i, NO_ARRAY) for i in self.outputs],
            tuple((at, inputs.index(i)) for at, i in enumerate(self.inputs) if i not in buffers),
            tuple((at, *kind[1:]) for at, kind in enumerate(self._kinds) if kind[0] not in buffers),
            tuple(self.outputs.index(i) for i in outputs),
        )

    def request(self, run: Run) -> Request:
        """The request of one execution, kept in `run.places` if its arguments stay the same."""
        places = run.places
        values, readable, writable = run.values, places.readable, places.writable
        make = self._request
        # An input that a `State` feeds was validated only if it has a buffer in *readable*.
        if self._fed and self._fed[0] not in readable:
            make = Request
        given: list[RequestArgument] = []
        for i in self.inputs:
            if i in readable:
                given.append(readable[i])
                continue
            # Inlined `lent`, which saves a call on the hot path.
            array = values[i].view()
            array.setflags(False)  # type: ignore[call-arg]  # as in `lent`
            given.append(HostMemory(array))
        wanted: list[RequestArgument] = []
        for i, shape, dtype in self._kinds:
            if i in writable:
                wanted.append(writable[i])
                continue
            if i not in values:
                try:
                    values[i] = empty(shape, dtype)
                except (MemoryError, ValueError):
                    values[i] = allocate(shape, dtype)
            wanted.append(HostMemory(values[i]))
        request = make((*given,), (*wanted,))
        if make is self._proven and (self._enclosed or places.keeps_all):
            places.requests[self] = request
        return request

    def recover(self, run: Run, error: DriverError, began: int) -> None:
        """Runs the step, which failed with *error*, on a fallback device."""
        self._recovered().recover(run, self.prepared, error, began)

    def expect(self, _: object) -> None:
        """Does nothing: the `Variant` announces priorities for its steps."""

    def close(self) -> None:
        """Closes the models prepared on fallback devices."""
        if self._recovery is not None:
            self._recovery.close()

    def _repeat_without_elements(self, run: Run, began: int) -> bool:
        """Whether an input was empty, as no driver need take it: the reference ran the step."""
        for i in self._learned:
            if i in run.values and run.values[i].size == 0:
                why = f"not asked: operand {i} has no elements"
                run.failures = (Failure(self.prepared.device.name, why),)
                return self._recovered().repeat(run, began, FALLBACK_DEVICE)
        return False

    def _recovered(self) -> Recovery:
        from penstock.execution.recovery import Recovery

        with self._lock:
            if self._recovery is None:
                self._recovery = Recovery(self.prepared.step, self._alternatives)
            return self._recovery
