"""One compiled form of a model, for one set of input shapes, with all that a run needs."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.compilation.prepared import Compilation, PreparedStep
from penstock.errors import (
    DriverError,
    MissedDeadline,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    StateError,
)
from penstock.execution.arena import Arena, StateBuffers, buffered_variables, slots_of
from penstock.execution.priority import DeviceQueue, queue_of
from penstock.execution.run import Run
from penstock.execution.step import Alternatives, Step
from penstock.hal import Device, PrepareConfig, Priority
from penstock.hal.device import is_isolated
from penstock.ir import Model, NDArray
from penstock.ir.types import is_static
from penstock.partitioning.fallback import may_run_whole

if TYPE_CHECKING:
    from penstock.execution.availability import UnavailableDevices
    from penstock.execution.control import ControlStep
    from penstock.execution.recovery import WholeModel
    from penstock.execution.shadow import Shadow
    from penstock.execution.state import State
    from penstock.memory.bound import BoundMemory
    from penstock.memory.copies import CopyReceipt


NOT_COMPUTED: Final = "an input or a constant is an output, too"


class Variant:
    """Runs a `Compilation`. Thread-safe. If it *lends*, inputs may be outputs without a copy."""

    shadow: Shadow | None = None
    """What compares its runs with the reference, if anything does."""

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
        self.devices, self.config, self.allow_fallback = devices, config, allow_fallback
        self._alternatives = Alternatives(devices, config, allow_fallback, plan)
        self._fed = frozenset(p.input for p in entry.states if p.input is not None)
        self.slots = slots_of(self.model, plan.temporaries)
        self._lanes: dict[str, DeviceQueue] = {}
        self.steps = [self.step_of(step) for step in compilation.steps]
        """As runs execute them, in order."""
        self.is_pending = any(step.pending is not None for step in compilation.steps)
        """Whether a step runs elsewhere until its own compile has ended."""
        self.inputs = entry.ordinary_inputs
        self.outputs = entry.ordinary_outputs
        self._constants = {
            i: self.model.constant(entry.operands[i])
            for i in entry.outputs
            if entry.operands[i].is_constant
        }
        self._not_computed = (
            frozenset(self.outputs).intersection(entry.inputs).union(self._constants)
        )
        self.delivers_its_own = not self._not_computed and len(set(self.outputs)) == len(
            self.outputs
        )
        """Whether each output is a value of its own, which a step computes."""
        self._sized = all(is_static(entry.operands[i].shape) for i in self.outputs)
        self.states = entry.states
        self._turning = () if lends else buffered_variables(self.model)
        self._needed = _variables_read(self.model)
        self.arena_size, self.alignment = plan.temporaries.nbytes, plan.temporaries.alignment
        # What lies in a pool is not copied to devices of other processes, nor to those that take
        # pools only.
        self._crosses = any(
            is_isolated(s.device) or not s.device.capabilities.accepts_host_memory
            for s in compilation.steps
        )
        self._arenas: list[Arena] = []
        self._lock = threading.Lock()
        self._whole: WholeModel | None = None
        self.replaced: list[Step | ControlStep] = []
        """Steps that ran until those of the plan were compiled."""

    @property
    def priority(self) -> Priority:
        """What the model was compiled with, and its runs have unless they ask for another."""
        return self.config.priority

    @property
    def is_direct(self) -> bool:
        """Whether a run is calls of devices with arrays, and nothing else."""
        return (
            self.delivers_its_own
            and not self.states
            and all(isinstance(step, Step) and step.is_direct for step in self.steps)
        )

    def run(
        self,
        run: Run,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None = None,
        state: State | None = None,
    ) -> list[NDArray]:
        """The ordinary outputs, in order; *inputs* and *out* are in the model's order, and those in
        `run.bound` (see `bound`) no arrays.

        With state ports *state* is needed; it is locked for the run and changed only by success.
        """
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
            if out is None and state is None and run.bound is None:
                # As `values`, without a call: `strict` takes as long as all else.
                values = run.values = {}
                for operand, array in zip(self.inputs, inputs):  # noqa: B905  # as many
                    values[operand] = array  # noqa: PERF403  # a comprehension is a call
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
                    results.append(values[operand])  # noqa: PERF401  # a comprehension is a call
            else:
                results = self._results(run, out)
            if turn is not None and state is not None:
                state.end_turn(turn)
            elif state is not None:
                self._replace(state, run.values, run.copies)
            return results  # noqa: TRY300  # what comes before may raise, too
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

    def execute(self, run: Run) -> None:
        """Executes every step on the values of *run*.

        Raises the `DriverError` of a step that no other device could repeat, `MissedDeadline*`,
        `Cancelled`.
        """
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
        """Runs the whole model on the reference device, on the values of *run*, which are as they
        were at first, after *error* of a step that nothing could repeat (NNAPI section 4.6).

        Raises *error* where that cannot be; `MissedDeadline*`, `Cancelled`.
        """
        if isinstance(error, MissedDeadline) or not self.allow_fallback:
            raise error
        from penstock.execution.recovery import WholeModel

        plan = self.compilation.plan
        with self._lock:
            if self._whole is None:
                if not may_run_whole(plan):
                    raise error
                self._whole = WholeModel(plan, self.devices, self.config)
        if not self._whole.repeat(run):
            raise error
        run.check_end()

    def bound(self, inputs: Sequence[Any], out: Sequence[Any] | None) -> dict[int, BoundMemory]:
        """For `Run.bound`, the operands among *inputs* and *out* that are a `BoundMemory`.

        Raises `InputError` for one that is written and used otherwise.
        """
        from penstock.execution.targets import bound_operands

        return bound_operands(self.inputs, inputs, self.outputs, out, self._not_computed)

    def step_of(self, prepared: PreparedStep) -> Step | ControlStep:
        """*prepared* as runs execute it."""
        if prepared.branches:
            from penstock.execution.control import ControlStep

            made = (self.devices, self.config, self.allow_fallback)
            is_loop = prepared.step.control is not None and prepared.step.control.kind == "WHILE"
            branches = [Variant(b, *made, lends=is_loop) for b in prepared.branches]
            return ControlStep(prepared, branches, self._alternatives)
        temporaries = self.compilation.plan.temporaries
        step = Step(
            prepared, self._alternatives, temporaries.offsets, temporaries.dynamic, self._fed
        )
        lane = self._lanes.get(prepared.device.name)
        if lane is None:
            lane = self._lanes[prepared.device.name] = queue_of(prepared.device)
        lane.join(step, self.priority)
        return step

    def expect(self, priority: Priority) -> None:
        """A run of *priority* is to come, which need not be the model's."""
        for lane in list(self._lanes.values()):
            lane.expect(priority)
        for step in self.steps:
            step.expect(priority)

    def take_compiled(self) -> None:
        """Puts steps whose compile has ended in the place of those that ran meanwhile."""
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

    def close(self) -> None:
        """Closes the prepared models; twice is harmless."""
        self.close_steps()
        self.compilation.close()

    def close_steps(self) -> None:
        """Closes what runs made beside the compilation."""
        for step in (*self.replaced, *self.steps):
            step.close()
        self.close_whole()

    def close_whole(self) -> None:
        """Closes what the reference device made of the whole model."""
        if self._whole is not None:
            self._whole.close()

    def _results(self, run: Run, out: Sequence[NDArray | None] | None) -> list[NDArray]:
        values = run.values
        if run.bound is not None:
            return self._bound_results(run, out, run.bound)
        if out is not None and not self._sized:
            self._check_room(values, out)
        return [self._result(i, k, values, out, run.copies) for k, i in enumerate(self.outputs)]

    def _replace(self, state: State, values: dict[int, NDArray], copies: list[CopyReceipt]) -> None:
        state.replace(
            {
                p.variable: self._owned(p.output, values, copies)
                for p in self.states
                if p.output is not None
            }
        )

    def values(
        self,
        run: Run,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
        state: State | None = None,
        turn: StateBuffers | None = None,
    ) -> dict[int, NDArray]:
        """What *run* begins with: the caller's arrays and the state, by operand."""
        values: dict[int, NDArray] = dict(zip(self.inputs, inputs, strict=True))
        if out is not None:
            given = zip(self.outputs, out, strict=True)
            # What no step computes is copied at the end; its place here is the input's.
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
        # What was fetched for its output is the caller's already.
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

    def _check_room(self, values: dict[int, NDArray], out: Sequence[NDArray | None]) -> None:
        from penstock.execution.targets import check_room

        results = [self._constants[i] if i in self._constants else values[i] for i in self.outputs]
        check_room([self.model.operands[i] for i in self.outputs], results, out)

    def _stored(
        self, given: NDArray, result: NDArray, operand: int, copies: list[CopyReceipt]
    ) -> NDArray:
        from penstock.execution.targets import store

        return store(given, result, self.model.operands[operand], copies, operand)

    def _result(
        self,
        operand: int,
        position: int,
        values: dict[int, NDArray],
        out: Sequence[NDArray | None] | None,
        copies: list[CopyReceipt],
    ) -> NDArray:
        """An array the caller owns: inputs, constants and repeated outputs are copied out."""
        given = out[position] if out is not None else None
        if operand in self._not_computed:
            source = self._constants[operand] if operand in self._constants else values[operand]
            if self._lends and given is None:
                return source
            if given is not None:
                return self._stored(given, source, operand, copies)
            return _copied(source, operand, copies, "output", NOT_COMPUTED)
        result = values[operand]
        if given is result:
            return result
        if given is not None:
            return self._stored(given, result, operand, copies)
        taken = out is not None and any(array is result for array in out)
        if not taken and self.outputs.index(operand) == position:
            return result
        return _copied(result, operand, copies, "output", "one value is several outputs")

    def check_assigned(self, state: State) -> None:
        """Raises `StateError` if a run would read a variable without a value."""
        for variable in self._needed:
            if not state.is_assigned(variable):
                raise StateError(
                    f"variable {self.model.variables[variable].name!r} is read before any value "
                    "was assigned to it"
                )

    def _owned(
        self, operand: int, values: dict[int, NDArray], copies: list[CopyReceipt]
    ) -> NDArray:
        """A state value apart from what the caller gets or gave."""
        constant = operand in self._constants
        value = self._constants[operand] if constant else values[operand]
        if constant or operand in self.outputs or operand in self.model.entry.inputs:
            return _copied(value, operand, copies, "state", "a new state is also something else")
        return value

    def take_arena(self) -> Arena:
        """Memory for what lies between the steps of one run, until `give_back`."""
        try:
            return self._arenas.pop()
        except IndexError:
            pass
        if self._crosses:
            from penstock.execution.arena import arena_in_a_pool

            return arena_in_a_pool(self.slots, self.arena_size, self.alignment)
        return Arena(self.slots, self.arena_size, self.alignment)

    def give_back(self, arena: Arena) -> None:
        """*arena* may be another run's."""
        self._arenas.append(arena)


def _copied(
    value: NDArray, operand: int, copies: list[CopyReceipt], destination: str, reason: str
) -> NDArray:
    from penstock.execution.results import copied

    return copied(value, copies, ("host", destination), reason, operand=operand)


def _variables_read(model: Model) -> tuple[int, ...]:
    """The variables without an initial value that a run of the main subgraph reads."""
    entry = model.entry
    read = {i for o in entry.operations for i in o.inputs} | set(entry.ordinary_outputs)
    return tuple(
        p.variable
        for p in entry.states
        if p.input in read and not model.variables[p.variable].assigned
    )
