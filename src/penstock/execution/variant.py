"""One compiled form of a model, for one set of input shapes, and what its runs need."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from penstock.compilation.prepared import Compilation, PreparedStep
from penstock.errors import (
    FOREIGN,
    DriverError,
    MissedDeadline,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    StateError,
)
from penstock.execution.arena import Arena, StateBuffers, buffered_variables, slots_of
from penstock.execution.priority import QUEUES, DeviceQueue
from penstock.execution.run import Alternatives, Run
from penstock.execution.step import Step
from penstock.hal import Device, ExecutionConfig, PrepareConfig, Priority
from penstock.hal.device import is_isolated
from penstock.ir import NDArray
from penstock.ir.types import is_static

if TYPE_CHECKING:
    from penstock.execution.availability import UnavailableDevices
    from penstock.execution.control import ControlStep
    from penstock.execution.recovery import Recovery
    from penstock.execution.shadow import Shadow
    from penstock.execution.state import State
    from penstock.memory.bound import BoundMemory
    from penstock.memory.copies import CopyReceipt


NOT_COMPUTED: Final = "an input or a constant is an output, too"
SEVERAL: Final = "one value is several outputs"


MOST_TIMES: Final = 64
"""Runs whose times are recorded. Later runs tell nothing new."""


class Variant:
    """Runs a `Compilation`. Thread-safe. With *lends*, an output may be an input without a copy."""

    shadow: Shadow | None = None
    """Compares its runs with the reference; None without shadow verification."""

    absence: UnavailableDevices | None = None
    """The devices that were unavailable for its compile, if it is recompiled for them."""

    def __init__(
        self,
        compilation: Compilation,
        devices: Mapping[str, Device],
        config: PrepareConfig,
        allow_fallback: bool,
        *,
        lends: bool = False,
    ) -> None:
        plan = compilation.plan
        self._lends = lends
        self.compilation = compilation
        self.model = plan.model
        entry = self.model.entry
        self.config = config
        self.alternatives = Alternatives(devices, config, allow_fallback, plan)
        self.slots = slots_of(self.model, plan.temporaries)
        self._lanes: dict[str, DeviceQueue] = {}
        self.steps = [self.step_of(step) for step in compilation.steps]
        """The steps that runs execute, in order."""
        self.is_pending = any(step.pending is not None for step in compilation.steps)
        """Whether a step still runs on another device until its background compile has ended."""
        self.inputs = entry.ordinary_inputs
        self.outputs = entry.ordinary_outputs
        self._constants = {
            i: self.model.constant(entry.operands[i])
            for i in entry.outputs
            if entry.operands[i].is_constant
        }
        distinct = frozenset(self.outputs)
        self._not_computed = distinct.intersection(entry.inputs).union(self._constants)
        self.delivers_its_own = not self._not_computed and len(distinct) == len(self.outputs)
        """Whether each output is a distinct value that a step computes."""
        self._sized = all(is_static(entry.operands[i].shape) for i in self.outputs)
        self.states = entry.states
        self._turning = () if lends else buffered_variables(self.model)
        read = {i for o in entry.operations for i in o.inputs} | set(entry.ordinary_outputs)
        ports = [p.variable for p in entry.states if p.input in read]
        # The variables without an initial value that a run reads.
        self._needed = [v for v in ports if not self.model.variables[v].assigned]
        self.arena_size, self.alignment = plan.temporaries.nbytes, plan.temporaries.alignment
        # An array in a pool is not copied for isolated devices, nor for devices that accept only
        # pools.
        self._crosses = any(
            is_isolated(s.device) or not s.device.capabilities.accepts_host_memory
            for s in compilation.steps
        )
        self._arenas: list[Arena] = []
        self._plain: ExecutionConfig | None = None
        """The last configuration that `is_plain` accepted."""
        self._lone = self._lone_step()
        """The only step, if its driver may have a shorter way to run it; else None."""
        self.times: list[int] | None = None
        """Nanoseconds of the first runs, for whoever asked for them; None if nobody does."""
        self._lock = threading.Lock()
        self._whole: Recovery | None = None
        self.replaced: list[Step | ControlStep] = []
        """Steps that ran during a background compile and were then replaced."""

    @property
    def is_direct(self) -> bool:
        """Whether a run consists of driver calls with arrays only."""
        return (
            self.delivers_its_own
            and not self.states
            and all(isinstance(step, Step) and step.is_direct for step in self.steps)
        )

    def took(self, ns: int) -> None:
        """Records the time of a run, until there are `MOST_TIMES`."""
        times = self.times
        if times is not None:
            times.append(ns)
            if len(times) >= MOST_TIMES:
                self.times = None

    def run(
        self,
        run: Run,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None = None,
        state: State | None = None,
    ) -> list[NDArray]:
        """Runs; returns the ordinary outputs in order.

        *inputs* and *out* are in the model's order; those in `run.bound` (see `bound`) are no
        arrays. *state* is required if the model has state. It is locked during the run, and changes
        only if the run succeeds.
        """
        lone, compute = self._lone, None
        if lone is not None and out is None and run.bound is None:
            if run.config is self._plain or self.is_plain(run.config):
                compute = lone.compute
            if compute is not None and not self.states:
                try:
                    return lone.execute_arrays(run, inputs, compute)
                except DriverError as error:
                    return self._repeated(run, inputs, error)
        lock = arena = turn = None
        if state is not None and self.states:
            lock = state.held(run.config)
            lock.__enter__()
        else:
            state = None
        try:
            if state is not None:
                if self._needed:
                    self.check_assigned(state)
                turn = state.turn(self._turning, run.copies)
                if turn is not None and lone is not None and compute is not None:
                    arguments = turn.arguments.get(lone)
                    if arguments is None:
                        arguments = lone.arguments_of(turn.values, self.inputs, self.outputs)
                        turn.arguments[lone] = arguments
                    given = lone.execute_turn(run, arguments, inputs, compute)
                    # After a failure the run begins again as any other, which may fall back.
                    if given is not None:
                        state.end_turn(turn)
                        return given
            if out is None and state is None and run.bound is None:
                # Inlined `values`, which saves a call. No `strict=True`: it would double the time
                # of this loop.
                values = run.values = {}
                for operand, array in zip(self.inputs, inputs):  # noqa: B905  # equal lengths
                    values[operand] = array  # noqa: PERF403  # a comprehension costs a call
            else:
                values = run.values = self.values(run, inputs, out, state, turn)
            if self.slots:
                arena = self.take_arena()
                run.places = arena if turn is None else arena.joined(turn)
                values.update(arena.values)
            elif turn is not None:
                run.places = turn
            if self.is_pending:
                self.take_compiled()
            try:
                self.execute(run)
            except DriverError as error:
                run.values = self.values(run, inputs, out, state, turn)
                self.repeat_whole(run, error)
            if out is None and run.bound is None and self.delivers_its_own:
                values, results = run.values, []
                for operand in self.outputs:
                    results.append(values[operand])  # noqa: PERF401  # a comprehension costs a call
            else:
                results = self._results(run, out)
            if turn is not None and state is not None:
                state.end_turn(turn)
            elif state is not None:
                self._replace(state, run.values, run.copies)
            return results  # noqa: TRY300  # the lines before may raise too
        except BaseException:
            if run.bound is not None:
                from penstock.execution.targets import lose

                lose(self.outputs, run)
            raise
        finally:
            if arena is not None:
                self.give_back(arena)
            if lock is not None:
                lock.__exit__(None, None, None)

    def compute_into(self, inputs: Sequence[NDArray], out: Sequence[NDArray]) -> bool:
        """Computes *out* the driver's shorter way; False, with *out* undefined, if it has none now,
        or if it failed: `run` then falls back, or raises the error.

        All arrays are in the model's order, valid, and share no memory.
        """
        lone = self._lone
        compute = None if lone is None or self.states or self.shadow is not None else lone.compute
        if compute is None:
            return False
        try:
            compute(inputs, out)
        except FOREIGN:
            return False
        return True

    def is_plain(self, config: ExecutionConfig) -> bool:
        """Whether a run with *config* has no limits, attributes or times."""
        if config is self._plain:
            return True
        limits = config.deadline_ns, config.cancel, config.loop_timeout_ns
        if limits == (None, None, None) and not config.measure and not config.attributes:
            self._plain = config
            return True
        return False

    def _repeated(self, run: Run, inputs: Sequence[NDArray], error: DriverError) -> list[NDArray]:
        run.values = self.values(run, inputs, None)
        self.repeat_whole(run, error)
        return [run.values[i] for i in self.outputs]

    def _lone_step(self) -> Step | None:
        """The step, if the plan is one driver call from the model's inputs to its outputs."""
        if len(self.steps) != 1 or self.is_pending or self._lends or self.slots:
            return None
        step = self.steps[0]
        if not (isinstance(step, Step) and step.is_direct and self.delivers_its_own):
            return None
        state = {p.input for p in self._turning} | {p.output for p in self._turning}
        known = set(step.inputs) <= state.union(self.inputs)
        whole = known and state.union(self.outputs).issuperset(step.outputs)
        is_plain = step.inputs == self.inputs and step.outputs == self.outputs
        return step if (whole if self.states else is_plain) else None

    def execute(self, run: Run) -> None:
        """Executes every step. Raises a step's `DriverError`, `MissedDeadline*`, `Cancelled`."""
        config = run.config
        limited = config.deadline_ns is not None or config.cancel is not None
        try:
            for step in self.steps:
                if limited:
                    run.check()
                step.execute(run)
        except MissedDeadlinePersistent as error:
            if run.has_begun:
                raise MissedDeadlineTransient(str(error)) from error
            raise
        if limited:
            run.check_end()

    def repeat_whole(self, run: Run, error: DriverError) -> None:
        """Runs the whole model on the reference device, after a step without fallback failed.

        The values of *run* must be the initial ones (NNAPI section 4.6). Raises *error* if the
        reference device cannot run the model. Raises `MissedDeadline*`, `Cancelled`.
        """
        if isinstance(error, MissedDeadline) or not self.alternatives.allowed:
            raise error
        from penstock.execution.recovery import Recovery
        from penstock.partitioning.fallback import may_run_whole, whole_step

        plan = self.compilation.plan
        with self._lock:
            if self._whole is None:
                if not may_run_whole(plan):
                    raise error
                self._whole = Recovery(whole_step(plan.model), self.alternatives)
        if not self._whole.repeat(run, perf_counter_ns()):
            raise error
        run.check_end()

    def bound(self, inputs: Sequence[Any], out: Sequence[Any] | None) -> dict[int, BoundMemory]:
        """For `Run.bound`: every `BoundMemory`. Raises `InputError` for one with two uses."""
        from penstock.execution.targets import bound_operands

        return bound_operands(self.inputs, inputs, self.outputs, out, self._not_computed)

    @property
    def made_with(self) -> tuple[Mapping[str, Device], PrepareConfig, bool]:
        """The arguments of the constructor after the compilation, for variants that belong to this
        one.
        """
        one = self.alternatives
        return one.devices, one.config, one.allowed

    def step_of(self, prepared: PreparedStep) -> Step | ControlStep:
        """The executable step of *prepared*."""
        if prepared.branches:
            from penstock.execution.control import ControlStep

            made = self.made_with
            is_loop = prepared.step.control is not None and prepared.step.control.kind == "WHILE"
            branches = [Variant(b, *made, lends=is_loop) for b in prepared.branches]
            return ControlStep(prepared, branches, self.alternatives)
        step = Step(prepared, self.alternatives)
        name = prepared.device.name
        if name not in self._lanes:
            self._lanes[name] = QUEUES.of(prepared.device)
        self._lanes[name].join(step, self.config.priority)
        return step

    def expect(self, priority: Priority) -> None:
        """Announces a run of *priority*, which may differ from the model's."""
        for lane in list(self._lanes.values()):
            lane.expect(priority)
        for step in self.steps:
            step.expect(priority)

    def take_compiled(self) -> None:
        """Replaces steps whose background compile has ended."""
        with self._lock:
            waiting = False
            for at, step in enumerate(self.steps):
                pending = step.prepared.pending
                if pending is None:
                    continue
                if not pending.done:
                    waiting = True
                elif pending.result is not None:
                    self.replaced.append(step)
                    self.steps[at] = self.step_of(pending.result)
            self.is_pending = waiting
            self._lone = self._lone_step()

    def close(self) -> None:
        """Closes the prepared models. A second call does nothing."""
        self.close_steps()
        self.compilation.close()

    def close_steps(self) -> None:
        """Closes what runs made in addition to the compilation."""
        for step in (*self.replaced, *self.steps):
            step.close()
        self.close_whole()

    def close_whole(self) -> None:
        """Closes the whole model prepared on the reference device."""
        if self._whole is not None:
            self._whole.close()

    def _results(self, run: Run, out: Sequence[NDArray | None] | None) -> list[NDArray]:
        values = run.values
        if run.bound is not None:
            return self._bound_results(run, out, run.bound)
        if out is not None and not self._sized:
            from penstock.execution.targets import check_room

            known = {**values, **self._constants}
            results = [known[i] for i in self.outputs]
            check_room([self.model.operands[i] for i in self.outputs], results, out)
        return [self._result(i, k, values, out, run.copies) for k, i in enumerate(self.outputs)]

    def _replace(self, state: State, values: dict[int, NDArray], copies: list[CopyReceipt]) -> None:
        found: dict[int, NDArray] = {}
        for port in self.states:
            if (operand := port.output) is None:
                continue
            # It must share no memory with the caller's arrays.
            constant = operand in self._constants
            value = self._constants[operand] if constant else values[operand]
            if constant or operand in self.outputs or operand in self.model.entry.inputs:
                why = "a new state is also something else"
                value = _copied(value, operand, copies, "state", why)
            found[port.variable] = value
        state.replace(found)

    def values(
        self,
        run: Run,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
        state: State | None = None,
        turn: StateBuffers | None = None,
    ) -> dict[int, NDArray]:
        """The initial values of *run*, by operand: the caller's arrays and the state."""
        values: dict[int, NDArray] = dict(zip(self.inputs, inputs, strict=True))
        if out is not None:
            given = zip(self.outputs, out, strict=True)
            # An output that no step computes is copied at the end. Until then its operand has the
            # input's array.
            values.update({i: a for i, a in given if a is not None and i not in self._not_computed})
        if run.bound is not None:
            values = {i: a for i, a in values.items() if i not in run.bound}
        if turn is not None:
            values.update(turn.values)
        elif state is not None:
            values.update(
                {p.input: state.get(p.variable) for p in self.states if p.input is not None}
            )
        return values

    def _bound_results(
        self, run: Run, out: Sequence[NDArray | None] | None, bound: Mapping[int, BoundMemory]
    ) -> list[NDArray]:
        from penstock.execution.targets import deliver

        values = run.values
        before = frozenset(values)
        found = deliver(self.outputs, self._constants, values, out, bound, run.copies)
        # Bound memory fetched for an output is a new array, so the caller may own it.
        fresh = {i for i in bound if i in values and i not in before and bound[i].array is None}
        for memory in bound.values():
            run.notes += tuple(n for n in memory.notes() if n not in run.notes)
        results = []
        for k, i in enumerate(self.outputs):
            if k in found:
                results.append(found[k])
            elif i in fresh and (out is None or out[k] is None):
                fresh.discard(i)
                results.append(values[i])
            else:
                results.append(self._result(i, k, values, out, run.copies))
        return results

    def _result(
        self,
        operand: int,
        position: int,
        values: dict[int, NDArray],
        out: Sequence[NDArray | None] | None,
        copies: list[CopyReceipt],
    ) -> NDArray:
        """The array of an output for the caller: copied for an input, a constant, a repetition."""
        given = out[position] if out is not None else None
        if operand in self._not_computed:
            source = self._constants[operand] if operand in self._constants else values[operand]
            keeps, why = self._lends and given is None, NOT_COMPUTED
        else:
            source = values[operand]
            taken = out is not None and any(array is source for array in out)
            is_first = not taken and self.outputs.index(operand) == position
            keeps, why = given is source or (given is None and is_first), SEVERAL
        if keeps:
            return source
        if given is None:
            return _copied(source, operand, copies, "output", why)
        from penstock.execution.targets import store

        return store(given, source, self.model.operands[operand], copies, operand)

    def check_assigned(self, state: State) -> None:
        """Raises `StateError` if a run would read a variable without a value."""
        for variable in self._needed:
            if not state.is_assigned(variable):
                name = repr(self.model.variables[variable].name)
                raise StateError(f"variable {name} is read before any value was assigned to it")

    def take_arena(self) -> Arena:
        """An arena for the temporaries of one run; return it with `give_back`."""
        try:
            return self._arenas.pop()
        except IndexError:
            pass
        if self._crosses:
            from penstock.execution.arena import arena_in_a_pool

            return arena_in_a_pool(self.slots, self.arena_size, self.alignment)
        return Arena(self.slots, self.arena_size, self.alignment)

    def give_back(self, arena: Arena) -> None:
        """Makes *arena* available to later runs. It may come from any run."""
        self._arenas.append(arena)


def _copied(
    value: NDArray, operand: int, copies: list[CopyReceipt], destination: str, reason: str
) -> NDArray:
    from penstock.execution.results import copied

    return copied(value, copies, ("host", destination), reason, operand=operand)
