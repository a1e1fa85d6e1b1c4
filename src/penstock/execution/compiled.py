"""`CompiledModel`: run it, from any thread, any number of times."""

# ruff: noqa: SLF001  # the friend of Gate and Variant

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

import numpy as np

from penstock.arguments import check_kind
from penstock.closing import Closing
from penstock.compilation.receipt import Receipt
from penstock.errors import InputError, StateError
from penstock.execution import gate as gates
from penstock.execution.exchange import Exchange, call_inputs, ready_inputs
from penstock.execution.gate import Gate
from penstock.execution.interface import Interface
from penstock.execution.outputs import Outputs
from penstock.execution.trace import Trace
from penstock.execution.variant import Variant
from penstock.execution.variants import Specialize, Variants
from penstock.hal import CancelToken, ExecutionConfig, Priority
from penstock.ir import Model, NDArray, Operand
from penstock.ir.types import is_static
from penstock.partitioning.plan import ExecutionPlan

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock.execution.asynchronous import Submitter
    from penstock.execution.burst import Burst
    from penstock.execution.feedback import BoundState, Feedback
    from penstock.execution.fenced import FencedRun
    from penstock.execution.shadow import Shadow
    from penstock.execution.state import State
    from penstock.hal import ExtensionAttribute, Fence, MemoryPreference
    from penstock.memory.allocation import RoleUse
    from penstock.memory.bound import Kind
    from penstock.memory.buffer import DeviceBuffer


class CompiledModel(Closing):
    """A model, compiled: the result of `penstock.compile`. Safe from any thread.

    `close()`, or leaving the `with` block, waits for runs in flight, at most 10 seconds; use after it raises
    `ClosedError`. After `fork` the child's copy raises `StateError` at once. Pickles as a recipe: model
    and compile arguments, compiled again where it is unpickled.
    """

    def __init__(
        self,
        interface: Interface,
        base: Variant,
        specialize: Specialize,
        recipe: tuple[Callable[..., CompiledModel], tuple[Any, ...]],
    ) -> None:
        check_kind(
            interface, Interface, "penstock.compile makes compiled models, each of an Interface"
        )
        self._base, self._recipe = base, recipe
        self._feedback: Feedback | None = None
        self._gate = Gate("compiled model")
        self._variants = Variants(specialize)
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        self._submitter: Submitter | None = None
        self._threads = f"penstock-{id(self):x}"
        self._bursts: WeakSet[Burst] = WeakSet()
        self._plain = ExecutionConfig(priority=base.priority)
        self._state = _initial_state(base.model) if base.model.entry.states else None
        self._dynamic = not all(is_static(o.shape) for o in base.model.inputs)
        self._awaited = base.absence
        self._take(interface)

    def _take(self, interface: Interface) -> None:
        """Makes *interface* what callers see."""
        self._exchange = Exchange(interface, len(self._base.model.outputs))
        self._ready = ready_inputs(interface.inputs) if self._exchange.is_in_order else None
        # Whether every run is the base's, and gives what that does.
        self._plainly = (
            not self._dynamic
            and self._awaited is None
            and self._feedback is None
            and self._exchange.has_all_outputs
        )

    @property
    def model(self) -> Model:
        """The model as it was planned: entry chosen, shapes inferred."""
        return self._base.model

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """What `run` takes: name, dtype, shape (None = any), quantization; in order."""
        return self._exchange.interface.inputs

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """What `run` returns, likewise."""
        return self._exchange.interface.outputs

    @property
    def input_memory(self) -> tuple[MemoryPreference, ...]:
        """How each input should lie in a pool, as the devices that read it prefer; `PoolLayout` lays them out so."""
        entry = self._base.model.entry
        return self._preferences(entry.ordinary_inputs, self._exchange.interface.input_positions)

    @property
    def output_memory(self) -> tuple[MemoryPreference, ...]:
        """How each output should lie in a pool, likewise."""
        entry = self._base.model.entry
        return self._preferences(entry.ordinary_outputs, self._exchange.interface.output_positions)

    @property
    def plan(self) -> ExecutionPlan:
        """Which operation runs where, and why not elsewhere."""
        return self._base.compilation.plan

    @property
    def receipt(self) -> Receipt:
        """What the compile did."""
        return self._base.compilation.receipt

    @property
    def shadow(self) -> Shadow | None:
        """What shadow verification found by now (`Shadow.report`), and how to wait for it (`Shadow.wait`); None where the
        policy asks for none.
        """
        return self._base.shadow

    def __call__(self, *args: Any, **kwargs: Any) -> Outputs:
        """Positional arrays, one mapping by name, or keywords by input name; as `run` otherwise."""
        return self.run(call_inputs(args, kwargs))

    def run(
        self,
        inputs: Mapping[str, Any] | Sequence[Any],
        out: Mapping[str, Any] | Sequence[Any] | None = None,
        state: State | None = None,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        dequantize: bool = False,
        measure: bool = False,
        priority: Priority | None = None,
        loop_timeout: float | None = None,
        extension_attributes: Sequence[ExtensionAttribute] = (),
    ) -> Outputs:
        """Runs once.

        *inputs* is a mapping by name or a sequence by position, of anything with `__dlpack__`,
        `__array__` or the buffer protocol, in the dtypes and shapes of `self.inputs`; with *dequantize*
        quantised inputs and outputs are float32 real values instead. Where a signature has several names for one
        input, all of them are given, with equal values. *out* receives outputs in
        place: writable C-contiguous arrays of the output's dtype and shape. *state* None uses the
        model's default State. *timeout* is in seconds. *measure* asks drivers to time their kernels, which
        the receipt's steps then have, where the driver can. *priority* is for this run instead of the one the model was
        compiled with: where a device takes only so many executions at a time, those of higher priority go first.
        *loop_timeout*, in seconds, bounds each evaluation of a WHILE by itself; without it a loop ends only with the run;
        past it the run raises `MissedDeadlineTransient`. *extension_attributes* are hints of vendors' extensions to every
        driver that is called; drivers ignore what they do not know.

        Raises `InputError` for what does not fit, `OutputInsufficientSize`, with the shapes that are needed, for an array
        of *out* too small for an output whose shape only the run tells; past the timeout
        `MissedDeadlinePersistent` where no driver was called yet, else `MissedDeadlineTransient`; `Cancelled` soon
        after *cancel* is set, `ClosedError`, `StateError`, or the `DriverError` of a step that nothing
        could repeat; the state is then as before, and the content of *out* undefined.
        """
        began = time.perf_counter_ns()
        # As `with gate:`, and a plan of one call as `_run` has it: behind a large network each call of Python waits for memory.
        gate = self._gate
        if gate._generation != gates._generation:
            gate.check()
        gate._inside.append(None)
        try:
            if gate._closed:
                gate.check()
            config = self._plain
            if (
                timeout is not None
                or cancel is not None
                or priority is not None
                or loop_timeout is not None
                or measure is not False
                or extension_attributes
            ):
                config = self._config(
                    timeout, cancel, measure, priority, loop_timeout, extension_attributes
                )
            ready = self._ready
            arrays = None if ready is None or dequantize else ready.arrays(inputs)
            plain = arrays is not None
            base = self._base
            alone = base._alone
            if (
                arrays is not None
                and alone is not None
                and out is None
                and state is None
                and config is self._plain
                and base.shadow is None
                and not base._pending
                and self._plainly
            ):
                own = self._state
                ran = (
                    alone.run_alone(arrays, config, None, None, began)
                    if own is None
                    else base.run_once(arrays, own, config, None, began)
                )
                if ran is not None:
                    return Outputs(ran.outputs, self._exchange.output_names, ran)
            trace = Trace()
            if arrays is None:
                arrays = self._exchange.bind(self, inputs, dequantize, trace.copies)
                plain = all(type(a) is np.ndarray for a in arrays)
                if self._dynamic:
                    ready = None
            if self._awaited is not None:
                self._welcome()
            if not self._dynamic or (
                (not plain or out is not None) and self._keeps_to_roles(arrays, out)
            ):
                results = self._run(
                    self._base, arrays, out, state, config, trace, dequantize, plain
                )
            else:
                shapes = tuple([a.shape for a in arrays])
                variant = self._variants.take(shapes, config, trace)
                try:
                    results = self._run(
                        variant, arrays, out, state, config, trace, dequantize, plain
                    )
                finally:
                    self._variants.give_back(variant)
                if ready is None and self._exchange.is_in_order:
                    # Inputs of the same kinds need not be looked at so closely again.
                    self._ready = ready_inputs(self._exchange.interface.inputs, shapes)
        finally:
            gate._inside.pop()
            if gate._closed:
                gate._leave_closed()
        make = partial(trace.receipt, began, time.perf_counter_ns())
        return Outputs(results, self._exchange.output_names, make)

    def submit(
        self,
        *args: Any,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        priority: Priority | None = None,
        **kwargs: Any,
    ) -> Future[Outputs]:
        """Runs in a thread of this model; inputs as in a call, which a mapping names where one is called as a keyword here.

        *timeout* counts from now. Runs of one *priority* begin in the order they were submitted; each priority has
        threads of its own. The future's `cancel()` keeps a run from beginning, or stops it: see
        `penstock.execution.asynchronous.RunFuture`. Raises `InputError`, `ClosedError`, and where *timeout* leaves no
        time `MissedDeadlinePersistent`; all else comes out of the future.
        """
        from penstock.execution.asynchronous import submit

        return submit(self, call_inputs(args, kwargs), timeout, cancel, priority)

    async def run_async(
        self,
        *args: Any,
        timeout: float | None = None,  # noqa: ASYNC109  # drivers get it as their deadline
        cancel: CancelToken | None = None,
        priority: Priority | None = None,
        **kwargs: Any,
    ) -> Outputs:
        """Awaits a run in a thread, as `submit` does it; cancelling the task cancels the run."""
        import asyncio

        future = self.submit(*args, timeout=timeout, cancel=cancel, priority=priority, **kwargs)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.cancel()
            raise

    def start_fenced(
        self,
        inputs: Mapping[str, Any] | Sequence[Any],
        wait_for: Sequence[Fence] = (),
        timeout_after_fence: float | None = None,
        **options: Any,
    ) -> FencedRun:
        """Starts a run that begins once every fence of *wait_for* has signalled, and has a fence of its own.

        *options* are `run`'s, but for *dequantize*: see `penstock.execution.fenced.start_fenced`.
        """
        from penstock.execution.fenced import start_fenced

        return start_fenced(
            self, inputs, wait_for, timeout_after_fence=timeout_after_fence, **options
        )

    def new_state(self) -> State:
        """A State of one's own, at the initial values. A model without state has an empty one."""
        self._gate.check()
        return _initial_state(self._base.model)

    def burst(self) -> Burst:
        """A series of runs for one thread, the fastest way to run again and again: `with compiled.burst() as burst:`.

        The outputs of its runs are views that hold until its next run.
        """
        from penstock.execution.burst import Burst

        with self._gate:
            burst = Burst(self)
            self._keep(burst)
        return burst

    def _keep(self, burst: Burst) -> None:
        with self._lock:
            self._bursts.add(burst)

    def _release(self, burst: Burst) -> None:
        with self._lock:
            self._bursts.discard(burst)

    def bind_state(self, bindings: Mapping[str, str] | None = None) -> BoundState:
        """Outputs that become inputs of the next run, by their names, and stay on the device in between; the network's
        own variables stay there, too, and with no *bindings* these alone.

        From then on `inputs` and `outputs` are what is left: `run` neither takes nor gives what is bound. It begins
        with zeros, where its size is known, or with what `BoundState.write` puts there; it belongs to the `State` of a
        run. A run that fails leaves it as it was. Where no device has memory of its own the values lie in pools, and
        receipts say so. Call it once, before the first run.

        Raises `InputError` for names that there are not, an output or input that is bound twice, and two that differ
        in type, quantisation or shape; `StateError` the second time, and where there are bursts.
        """
        from penstock.execution.feedback import BoundState, Feedback

        with self._gate, self._lock:
            if self._feedback is not None:
                raise StateError("bind_state was called already; compile again for other bindings")
            if len(self._bursts):
                raise StateError("bind_state comes before bursts; close those that there are")
            feedback = Feedback(self._base, self._exchange.interface, bindings or {})
            if feedback.names:
                self._feedback = feedback
                self._dynamic, self._awaited = False, None
                if self._state is None:
                    self._state = _initial_state(self._base.model)
                self._take(feedback.interface)
            return BoundState(self, feedback)

    def allocate(
        self,
        inputs: Sequence[str | int] = (),
        outputs: Sequence[str | int] = (),
        dimensions: Sequence[int | None] | None = None,
    ) -> DeviceBuffer:
        """Device memory that can be each of these inputs and outputs, by name or position, in runs of this model:
        `penstock.memory.allocate` with roles of this model alone.
        """
        from penstock.memory import InputRole, OutputRole, allocate
        from penstock.memory.layout import check_names

        self._gate.check()
        check_names("inputs", inputs)
        check_names("outputs", outputs)
        roles: list[InputRole | OutputRole] = [InputRole(self, name) for name in inputs]
        roles += [OutputRole(self, name) for name in outputs]
        return allocate(roles, dimensions)

    def buffer_role(self, kind: Kind, name: str | int) -> RoleUse:
        """As `penstock.memory.allocation.RoleUser`."""
        from penstock.execution.roles import role_use

        self._gate.check()
        return role_use(self._base, self._exchange.interface, kind, name)

    def close(self) -> None:
        """Waits for runs in flight and releases the drivers' models; twice is harmless.

        It returns after `closing.CLOSE_SECONDS` at the latest: a run without a timeout, on a driver that does not come back, then
        keeps what it uses, with the arrays that it was given, and the last such run releases the rest when it ends.
        A compile in the background whose driver does not stop goes on, and what it makes is closed when it ends.
        What was submitted and has not begun by then fails with `ClosedError`.
        """
        from penstock.execution.closing import close

        close(self)

    def __enter__(self) -> Self:
        self._gate.check()
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return self._recipe

    def __repr__(self) -> str:
        return f"<CompiledModel: {self.plan.summary()}>"

    def _welcome(self) -> None:
        """From when a device is there again that was not for the compile, runs are as for shapes that come with them:
        compiled anew, with that device.
        """
        if self._awaited is not None and self._awaited.is_over():
            self._dynamic, self._awaited = True, None

    def _keeps_to_roles(self, arrays: Sequence[Any], out: object) -> bool:
        from penstock.execution.roles import needs_the_steps_of_its_roles

        return needs_the_steps_of_its_roles(arrays, out)

    def _config(
        self,
        timeout: float | None,
        cancel: CancelToken | None,
        measure: bool,
        priority: Priority | None,
        loop_timeout: float | None,
        extension_attributes: Sequence[ExtensionAttribute] = (),
    ) -> ExecutionConfig:
        from penstock.execution.quality import execution_config

        config = execution_config(
            self._plain, timeout, cancel, measure, priority, loop_timeout, extension_attributes
        )
        if config.priority != self._plain.priority:
            self._base.expect(config.priority)
        return config

    def _preferences(
        self, operands: Sequence[int], positions: Sequence[int]
    ) -> tuple[MemoryPreference, ...]:
        from penstock.execution.preferences import preferences_of

        return preferences_of([operands[p] for p in positions], self._base.compilation.steps)

    def _run(
        self,
        variant: Variant,
        arrays: Sequence[NDArray],
        out: Mapping[str, Any] | Sequence[Any] | None,
        state: State | None,
        config: ExecutionConfig,
        trace: Trace,
        real: bool,
        plain: bool,
    ) -> list[NDArray]:
        if (
            plain
            and out is None
            and config is self._plain
            and variant.is_one_call
            and self._feedback is None
        ):
            ran = variant.run_once(arrays, self._state_for(state), config, trace)
            if ran is not None:
                exchange = self._exchange
                if exchange.has_all_outputs and not real:
                    return ran.outputs
                return exchange.deliver(ran.outputs, real, trace.copies)
        targets = None
        if out is not None:
            if real:
                raise InputError(
                    "out= takes stored values; it cannot be combined with dequantize=True"
                )
            from penstock.execution.targets import bind_targets, ready_targets

            outputs = variant.model.outputs
            targets = ready_targets(out, self._exchange.interface, outputs, arrays)
            if targets is None:
                targets = bind_targets(out, self._exchange.interface, outputs, arrays, self)
                plain = plain and all(t is None or type(t) is np.ndarray for t in targets)
        if self._feedback is not None and (own := self._state_for(state)) is not None:
            results = self._feedback.run(arrays, targets, own, config, trace)
            return self._exchange.deliver(results, real, trace.copies)
        bound = None if plain else variant.bound(arrays, targets)
        results = variant.run(arrays, targets, self._state_for(state), config, trace, bound)
        return self._exchange.deliver(results, real, trace.copies)

    def _state_for(self, state: State | None) -> State | None:
        if state is None:
            return self._state
        from penstock.execution.state import State

        if not isinstance(state, State):
            raise InputError(f"state must be a State of this model, not {type(state).__name__}")
        if state.model.variables != self._base.model.variables:
            raise StateError("this State was made by a model with other variables")
        return state


def _initial_state(model: Model) -> State:
    from penstock.execution.state import State

    return State(model)
