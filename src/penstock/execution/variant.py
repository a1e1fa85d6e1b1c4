"""One compiled form of a model, for one set of input shapes: everything a run needs, worked out before."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from penstock.compilation.compilation import Compilation, PreparedStep
from penstock.errors import (
    Cancelled,
    DriverError,
    InputError,
    MissedDeadline,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    StateError,
)
from penstock.execution.arena import NO_PLACES, Arena, slots_of
from penstock.execution.lanes import Lane, lane_of
from penstock.execution.step import StepRunner
from penstock.execution.trace import LoneStep, Trace
from penstock.execution.turns import turning_ports
from penstock.hal import Device, ExecutionConfig, PrepareConfig, Priority, check_deadline
from penstock.ir import Model, NDArray, Operand
from penstock.ir.types import is_static
from penstock.partitioning.fallback import may_run_whole

if TYPE_CHECKING:
    from penstock.compilation.receipt import CopyReceipt
    from penstock.execution.absence import Absence
    from penstock.execution.control import ControlRunner
    from penstock.execution.fallback import WholeModel
    from penstock.execution.shadow import Shadow
    from penstock.execution.state import State
    from penstock.execution.turns import Turn
    from penstock.memory.bound import BoundMemory


LONGEST_SECONDS: Final = 2_000_000.0
"""Some 23 days: what the system's calls wait at a time, in milliseconds, has 31 bits."""

NOT_COMPUTED: Final = "an input or a constant is an output, too"


class Variant:
    """Runs a `Compilation`. Thread-safe: each run works in an arena of its own. One that *lends* gives outputs that
    are inputs or constants as they are, not as copies.
    """

    shadow: Shadow | None = None
    """What compares its runs with the reference, if anything does."""

    absence: Absence | None = None
    """The devices that were not there when it was compiled, if it is to be compiled anew when they are."""

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
        self._devices, self._config, self._allow_fallback = devices, config, allow_fallback
        self._fed = frozenset(p.input for p in entry.states if p.input is not None)
        self._slots = slots_of(self.model, plan.temporaries)
        self._lanes: dict[str, Lane] = {}
        self._runners = [self._runner(step) for step in compilation.steps]
        self._pending = any(step.pending is not None for step in compilation.steps)
        self._inputs = entry.ordinary_inputs
        self.outputs = entry.ordinary_outputs
        self._constants = {
            i: self.model.constant(entry.operands[i])
            for i in entry.outputs
            if entry.operands[i].is_constant
        }
        self._forwarded = frozenset(self.outputs).intersection(entry.inputs)
        self._not_computed = self._forwarded.union(self._constants)
        self._delivers_its_own = not self._not_computed and len(set(self.outputs)) == len(
            self.outputs
        )
        self._sized = all(is_static(entry.operands[i].shape) for i in self.outputs)
        # Whether its runs are parts of others, which have begun by then.
        self.within = False
        self._states = entry.states
        self._turning = () if lends else turning_ports(self.model)
        self._needed = _variables_read(self.model)
        self._arena_size, self._alignment = plan.temporaries.nbytes, plan.temporaries.alignment
        # What lies in a pool is not copied to devices of other processes, nor to those that take pools only.
        self._crosses = any(
            getattr(s.device, "isolated", False) is True
            or not s.device.capabilities.accepts_host_memory
            for s in compilation.steps
        )
        self._arenas: list[Arena] = []
        self._lock = threading.Lock()
        self._whole: WholeModel | None = None
        self._replaced: list[StepRunner | ControlRunner] = []
        self._alone = self._one_call()

    @property
    def priority(self) -> Priority:
        """What the model was compiled with, and its runs have unless they ask for another."""
        return self._config.priority

    def run(
        self,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
        state: State | None,
        config: ExecutionConfig,
        trace: Trace,
        bound: Mapping[int, BoundMemory] | None = None,
    ) -> list[NDArray]:
        """The ordinary outputs, in order; *inputs* and *out* are in the model's order, and those of *bound* (see
        `bound`) no arrays.

        With state ports *state* is needed; it is locked for the run and changed only by success.
        """
        try:
            if state is None or not self._states:
                return self._run(inputs, out, None, config, trace, bound)
            with state.held(config):
                return self._run(inputs, out, state, config, trace, bound)
        except BaseException:
            if bound is not None:
                from penstock.execution.binding import lose

                lose(self.outputs, bound, trace)
            raise

    @property
    def is_one_call(self) -> bool:
        """Whether a run is one call of a device with the model's own inputs and outputs, which `run_once` makes."""
        return self._alone is not None and not self._pending and self.shadow is None

    def run_once(
        self,
        inputs: Sequence[NDArray],
        state: State | None,
        config: ExecutionConfig,
        trace: Trace | None = None,
        began: int = 0,
    ) -> LoneStep | None:
        """As `run`, where `is_one_call`, of arrays that nothing is bound to, without a deadline and a cancel token; None,
        with nothing run, where the new values of *state* must have arrays of their own. Without a *trace* what it returns
        tells of all of the run, which *began* then; None where the values of *state* must be copied from a device before.
        A step that fails is all of the plan: where nothing repeats it, nothing repeats the whole model.
        """
        alone = self._alone
        assert alone is not None
        if state is None or not self._states:
            return alone.run_alone(inputs, config, trace, None, began)
        with state.lock:
            if self._needed:
                self.check_assigned(state)
            turn = state.turn(self._turning, None if trace is None else trace.copies)
            if turn is None:
                return None
            ran = alone.run_alone(inputs, config, trace, turn, began)
            state.end_turn(turn)
            return ran

    def bound(self, inputs: Sequence[Any], out: Sequence[Any] | None) -> dict[int, BoundMemory]:
        """For `run`, the operands among *inputs* and *out* that are a `BoundMemory`.

        Raises `InputError` for one that is written and used otherwise.
        """
        from penstock.execution.binding import bound_operands

        return bound_operands(self._inputs, inputs, self.outputs, out, self._not_computed)

    def _runner(self, step: PreparedStep) -> StepRunner | ControlRunner:
        if step.branches:
            from penstock.execution.control import ControlRunner

            return ControlRunner(step, self._devices, self._config, self._allow_fallback)
        temporaries = self.compilation.plan.temporaries
        runner = StepRunner(
            step,
            self._devices,
            self._config,
            self._allow_fallback,
            temporaries.offsets,
            temporaries.dynamic,
            self._fed,
        )
        runner.plan = self.compilation.plan
        lane = self._lanes.get(step.device.name)
        if lane is None:
            lane = self._lanes[step.device.name] = lane_of(step.device)
        lane.join(runner, self.priority)
        return runner

    def expect(self, priority: Priority) -> None:
        """A run of *priority* is to come, which need not be the model's."""
        for lane in list(self._lanes.values()):
            lane.expect(priority)
        for runner in self._runners:
            if not isinstance(runner, StepRunner):
                runner.expect(priority)

    def _one_call(self) -> StepRunner | None:
        """The one step, where it takes the model's inputs and gives its outputs as they are, and behind them its state."""
        runner = self._runners[0] if len(self._runners) == 1 else None
        if not isinstance(runner, StepRunner) or not runner.is_direct or not self._delivers_its_own:
            return None
        if self._states and not self._turning:
            return None
        read = {p.input for p in self._turning} - {None}
        made = {p.output for p in self._turning} - {None}
        inputs, outputs = len(self._inputs), len(self.outputs)
        whole = (
            runner.inputs[:inputs] == self._inputs
            and runner.outputs[:outputs] == self.outputs
            and read.issuperset(runner.inputs[inputs:])
            and made == set(runner.outputs[outputs:])
        )
        return runner if whole else None

    def _take_compiled(self) -> None:
        """Puts steps whose compile has ended in the place of those that ran meanwhile."""
        with self._lock:
            waiting = False
            for at, runner in enumerate(self._runners):
                pending = runner.prepared.pending
                if pending is None:
                    continue
                if not pending.done:
                    waiting = True
                elif pending.result is not None:
                    self._replaced.append(runner)
                    self._runners[at] = self._runner(pending.result)
            self._alone = self._one_call()
            self._pending = waiting

    def close(self) -> None:
        """Closes the prepared models; twice is harmless."""
        for runner in self._replaced:
            runner.close()
        for runner in self._runners:
            runner.close()
        if self._whole is not None:
            self._whole.close()
        self.compilation.close()

    def _run(
        self,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
        state: State | None,
        config: ExecutionConfig,
        trace: Trace,
        bound: Mapping[int, BoundMemory] | None,
    ) -> list[NDArray]:
        turn = None
        if state is not None:
            if self._needed:
                self.check_assigned(state)
            turn = state.turn(self._turning, trace.copies)
        values = self._values(inputs, out, state, turn, bound)
        places = turn or NO_PLACES
        arena = None
        if self._slots:
            arena = self._take_arena()
            places = arena if turn is None else arena.joined(turn)
            values.update(arena.values)
        if bound is not None:
            places = places.binding(bound)
        if self._pending:
            self._take_compiled()
        try:
            for runner in self._runners:
                if config.cancel is not None:
                    config.cancel.check()
                if config.deadline_ns is not None:
                    check_time(config.deadline_ns, begun=self.within or len(trace.steps) > 0)
                runner.run(values, config, trace, places)
        except MissedDeadlinePersistent as error:
            if self.within or trace.steps:
                raise MissedDeadlineTransient(str(error)) from error
            raise
        except (MissedDeadline, Cancelled):
            raise
        except DriverError:
            values = self._values(inputs, out, state, turn, bound)
            if not self._repeat_whole(values, config, trace, bound):
                raise
        finally:
            if arena is not None:
                self._arenas.append(arena)
        if config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns:
            raise MissedDeadlineTransient("the run took longer than its timeout")
        if bound is not None:
            results = self._bound_results(values, out, bound, trace)
        elif out is None and self._delivers_its_own:
            results = [values[i] for i in self.outputs]
        else:
            if out is not None and not self._sized:
                self._check_room(values, out)
            copies = trace.copies
            results = [self._result(i, k, values, out, copies) for k, i in enumerate(self.outputs)]
        if state is not None:
            if turn is not None:
                state.end_turn(turn)
            else:
                self._replace(state, values, trace.copies)
        return results

    def _replace(self, state: State, values: dict[int, NDArray], copies: list[CopyReceipt]) -> None:
        state.replace(
            {
                p.variable: self._owned(p.output, values, copies)
                for p in self._states
                if p.output is not None
            }
        )

    def _values(
        self,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
        state: State | None,
        turn: Turn | None,
        bound: Mapping[int, BoundMemory] | None,
    ) -> dict[int, NDArray]:
        """What a run begins with: the caller's arrays and the state, by operand."""
        values: dict[int, NDArray] = dict(zip(self._inputs, inputs, strict=True))
        if out is not None:
            given = zip(self.outputs, out, strict=True)
            # What no step computes is copied at the end; its place here is the input's.
            values.update({i: a for i, a in given if a is not None and i not in self._not_computed})
        if bound is not None:
            values = {i: a for i, a in values.items() if i not in bound}
        if turn is not None:
            values.update(turn.values)
        elif state is not None:
            values.update(
                {p.input: state.get(p.variable) for p in self._states if p.input is not None}
            )
        return values

    def _repeat_whole(
        self,
        values: dict[int, NDArray],
        config: ExecutionConfig,
        trace: Trace,
        bound: Mapping[int, BoundMemory] | None,
    ) -> bool:
        """Whether the reference device could run the whole model instead (NNAPI section 4.6)."""
        with self._lock:
            if self._whole is None:
                plan = self.compilation.plan
                if not self._allow_fallback or not may_run_whole(plan):
                    return False
                from penstock.execution.fallback import WholeModel

                self._whole = WholeModel(plan, self._devices, self._config)
        return self._whole.repeat(values, config, trace, bound)

    def _bound_results(
        self,
        values: dict[int, NDArray],
        out: Sequence[NDArray | None] | None,
        bound: Mapping[int, BoundMemory],
        trace: Trace,
    ) -> list[NDArray]:
        from penstock.execution.binding import deliver

        before = frozenset(values)
        found = deliver(self.outputs, self._constants, values, out, bound, trace.copies)
        # What was fetched for its output is the caller's already.
        fresh = {i for i in bound if i in values and i not in before and bound[i].array is None}
        for memory in bound.values():
            trace.notes += tuple(n for n in memory.notes() if n not in trace.notes)
        results = []
        for k, i in enumerate(self.outputs):
            if k in found:
                results.append(found[k])
            elif i in fresh and (out is None or out[k] is None):
                fresh.discard(i)
                results.append(values[i])
            else:
                results.append(self._result(i, k, values, out, trace.copies))
        return results

    def _check_room(self, values: dict[int, NDArray], out: Sequence[NDArray | None]) -> None:
        from penstock.execution.targets import check_room

        results = [self._constants[i] if i in self._constants else values[i] for i in self.outputs]
        check_room([self._operand(i) for i in self.outputs], results, out)

    def _stored(
        self, given: NDArray, result: NDArray, operand: int, copies: list[CopyReceipt]
    ) -> NDArray:
        from penstock.execution.targets import store

        return store(given, result, self._operand(operand), copies, operand)

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
        """Raises `StateError` where a run would read a variable of *state* that has no value yet."""
        for variable in self._needed:
            if not state.is_assigned(variable):
                raise StateError(
                    f"variable {self.model.variables[variable].name!r} is read before any value was assigned to it"
                )

    def _operand(self, index: int) -> Operand:
        return self.model.operands[index]

    def _owned(
        self, operand: int, values: dict[int, NDArray], copies: list[CopyReceipt]
    ) -> NDArray:
        """A state value apart from what the caller gets or gave."""
        constant = operand in self._constants
        value = self._constants[operand] if constant else values[operand]
        if constant or operand in self.outputs or operand in self.model.entry.inputs:
            return _copied(value, operand, copies, "state", "a new state is also something else")
        return value

    def _take_arena(self) -> Arena:
        try:
            return self._arenas.pop()
        except IndexError:
            pass
        if self._crosses:
            from penstock.execution.shared import arena_in_a_pool

            return arena_in_a_pool(self._slots, self._arena_size, self._alignment)
        return Arena(self._slots, self._arena_size, self._alignment)


def _copied(
    value: NDArray, operand: int, copies: list[CopyReceipt], destination: str, reason: str
) -> NDArray:
    from penstock.execution.copying import copied

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


def check_time(deadline_ns: int, *, begun: bool) -> None:
    """Raises where the deadline has passed: `MissedDeadlinePersistent` before the run's first driver call,
    `MissedDeadlineTransient` once it has *begun* (NNAPI section 7.3).
    """
    if not begun:
        check_deadline(deadline_ns)
    elif time.monotonic_ns() >= deadline_ns:
        raise MissedDeadlineTransient("the run took longer than its timeout")


def is_number(value: object) -> TypeGuard[float]:
    """Whether *value* is one, NaN and truth values not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # noqa: PLR0124  # NaN is not


def deadline_of(timeout: object, now_ns: int) -> int | None:
    """A monotonic deadline *timeout* seconds from now; a timeout of more than `LONGEST_SECONDS` has none.

    Raises `InputError` for what is no number, `MissedDeadlinePersistent` where no time is left.
    """
    if timeout is None:
        return None
    if not is_number(timeout):
        raise InputError(f"timeout must be a number of seconds, not {timeout!r}")
    if timeout <= 0:
        raise MissedDeadlinePersistent(f"a timeout of {timeout} s leaves no time")
    return None if timeout > LONGEST_SECONDS else now_ns + int(timeout * 1e9)
