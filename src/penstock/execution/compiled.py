"""`CompiledModel`: a compiled model, run any number of times, from any thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Self

from penstock.arguments import check_kind
from penstock.closing import Closing
from penstock.compilation.receipt import Receipt
from penstock.execution.executable import Executable, initial_state
from penstock.execution.inputs import call_inputs
from penstock.execution.interface import Interface, Outputs
from penstock.execution.run import Run
from penstock.execution.variant import Variant
from penstock.execution.variants import Specialize
from penstock.hal import CancelToken, Priority
from penstock.ir import Model, Operand
from penstock.partitioning.plan import ExecutionPlan

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock.execution.bound_state import BoundState
    from penstock.execution.burst import Burst
    from penstock.execution.fenced import FencedRun
    from penstock.execution.shadow import Shadow
    from penstock.execution.state import State
    from penstock.execution.unprepared import Unprepared
    from penstock.hal import ExtensionAttribute, Fence, MemoryPreference
    from penstock.memory.allocation import RoleUse
    from penstock.memory.bound import Kind
    from penstock.memory.buffer import DeviceBuffer


class CompiledModel(Closing):
    """A compiled model: the result of `penstock.compile`. Thread-safe.

    `close()`, or leaving the `with` block, waits at most 10 seconds for runs in flight. Use after
    it raises `ClosedError`. After `fork`, the child's copy raises `StateError` at once. Pickling
    stores the model and the compile arguments; unpickling compiles again.
    """

    def __init__(
        self,
        interface: Interface,
        form: Variant | Unprepared,
        specialize: Specialize,
        recipe: tuple[Callable[..., CompiledModel], tuple[Any, ...]],
    ) -> None:
        check_kind(
            interface, Interface, "penstock.compile makes compiled models, each of an Interface"
        )
        self._executable, self._recipe = Executable(interface, form, specialize), recipe

    @property
    def executable(self) -> Executable:
        """What the runs share. For other parts of the runtime."""
        return self._executable

    @property
    def model(self) -> Model:
        """The model as planned: entry chosen, shapes inferred."""
        return self._executable.form.model

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The inputs of `run`, in order: name, dtype, shape (None = any), quantization."""
        return self._executable.exchange.interface.inputs

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """The outputs of `run`, in order, described as `inputs` are."""
        return self._executable.exchange.interface.outputs

    @property
    def input_memory(self) -> tuple[MemoryPreference, ...]:
        """How the devices prefer each input to be laid out in a pool: see `PoolLayout`."""
        positions = self._executable.exchange.interface.input_positions
        return self._preferences(self.model.entry.ordinary_inputs, positions)

    @property
    def output_memory(self) -> tuple[MemoryPreference, ...]:
        """How the devices prefer each output to be laid out in a pool: see `PoolLayout`."""
        positions = self._executable.exchange.interface.output_positions
        return self._preferences(self.model.entry.ordinary_outputs, positions)

    @property
    def plan(self) -> ExecutionPlan:
        """Which device runs each operation, and why other devices do not."""
        return self._executable.form.compilation.plan

    @property
    def receipt(self) -> Receipt:
        """The receipt of the compile."""
        return self._executable.form.compilation.receipt

    @property
    def shadow(self) -> Shadow | None:
        """Shadow verification, with its `report` and `wait`; None if it is off."""
        return self._executable.form.shadow

    def __call__(self, *args: Any, **kwargs: Any) -> Outputs:
        """Runs once, as `run`, on positional arrays, one mapping by name, or keywords by name."""
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
        """Runs once and returns the outputs.

        *inputs* is a mapping by name or a sequence by position. Each value is anything with
        `__dlpack__`, `__array__` or the buffer protocol, in the dtype and shape of `self.inputs`.
        If a signature has several names for one input, all of them must be given, with equal
        values. With *dequantize*, quantised inputs and outputs are float32 real values.

        *out* receives outputs in place: writable C-contiguous arrays of the output's dtype and
        shape. *state* None uses the model's default State. *timeout* is in seconds. *measure* asks
        drivers to time their kernels; the times are in the receipt's steps if the driver supports
        it.

        *priority* overrides, for this run, the priority the model was compiled with. If a device
        limits its concurrent executions, those of higher priority go first. *loop_timeout*, in
        seconds, bounds each evaluation of a WHILE; past it the run raises
        `MissedDeadlineTransient`. Without it only the end of the run ends a loop.
        *extension_attributes* are vendor hints for every driver called; a driver ignores hints that
        it does not know.

        Raises `InputError` for an argument that does not fit. Raises `OutputInsufficientSize`, with
        the required shapes, if an output's shape is known only during the run and its array in
        *out* is too small. Past the timeout, raises `MissedDeadlinePersistent` if no driver was
        called yet, else `MissedDeadlineTransient`. Raises `Cancelled` soon after *cancel* is set.
        Also raises `ClosedError`, `StateError`, and the `DriverError` of a step that no fallback
        device could run. After an error the state is as before, and the content of *out* is
        undefined.
        """
        executable = self._executable
        run = Run(executable.plain, perf_counter_ns())
        if (
            timeout is not None
            or cancel is not None
            or priority is not None
            or loop_timeout is not None
            or measure is not False
            or extension_attributes
        ):
            run.config = executable.config_of(
                timeout, cancel, measure, priority, loop_timeout, extension_attributes
            )
        return executable.run(run, inputs, out, state, dequantize)

    def submit(
        self,
        *args: Any,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        priority: Priority | None = None,
        **kwargs: Any,
    ) -> Future[Outputs]:
        """Runs in a worker thread of this model, and returns the future of the outputs.

        Inputs are as in a call of the model. Use a mapping for an input whose name is a keyword
        here. *timeout* counts from now. Runs of one *priority* begin in the order of submission;
        each priority has its own threads. The future's `cancel()` prevents the run or stops it: see
        `penstock.execution.asynchronous.RunFuture`.

        Raises `InputError`, `ClosedError`, and `MissedDeadlinePersistent` if *timeout* leaves no
        time. All other errors are raised by the future.
        """
        given = call_inputs(args, kwargs)
        return self._executable.submit(given, timeout, cancel, priority)

    async def run_async(
        self,
        *args: Any,
        timeout: float | None = None,  # noqa: ASYNC109  # drivers get it as their deadline
        cancel: CancelToken | None = None,
        priority: Priority | None = None,
        **kwargs: Any,
    ) -> Outputs:
        """Awaits a run in a worker thread, as `submit`; cancelling the task cancels the run."""
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
        """Starts a run, with a fence, that begins once every fence of *wait_for* has signalled.

        *options* are those of `run` except *dequantize*: see `execution.fenced.start_fenced`.
        """
        from penstock.execution.fenced import start_fenced

        return start_fenced(
            self._executable, inputs, wait_for, timeout_after_fence=timeout_after_fence, **options
        )

    def new_state(self) -> State:
        """A new State at the initial values. Empty for a model without state."""
        self._executable.gate.check()
        return initial_state(self._executable.form.model)

    def burst(self) -> Burst:
        """A series of runs for one thread, the fastest way to run again and again.

        Use it as `with compiled.burst() as burst:`. The outputs of a run are views that are valid
        until the next run.
        """
        from penstock.execution.burst import burst_of

        return burst_of(self._executable)

    def bind_state(self, bindings: Mapping[str, str] | None = None) -> BoundState:
        """Feeds outputs back as inputs of the next run, by name, and keeps their values on the
        device.

        The network's own variables also stay on the device; without *bindings* only these do.
        Afterwards `inputs` and `outputs` contain only the rest, and `run` neither takes nor returns
        bound values. A bound value starts as zeros if its size is known, or as written by
        `BoundState.write`. It belongs to the `State` of a run. A failed run leaves it unchanged. If
        no device has its own memory, the values are kept in pools, and receipts say so. Call it
        once, before the first run.

        Raises `InputError` for an unknown name, for an output or input that is bound twice, and for
        two that differ in type, quantisation or shape. Raises `StateError` on a second call, or if
        bursts are open.
        """
        from penstock.execution.bound_state import bind_state

        return bind_state(self._executable, bindings or {})

    def allocate(
        self,
        inputs: Sequence[str | int] = (),
        outputs: Sequence[str | int] = (),
        dimensions: Sequence[int | None] | None = None,
    ) -> DeviceBuffer:
        """Allocates device memory for these inputs and outputs, by name or position, in runs of
        this model.

        The same as `penstock.memory.allocate` with roles of this model only.
        """
        from penstock.memory import InputRole, OutputRole, allocate
        from penstock.memory.layout import check_names

        self._executable.gate.check()
        check_names("inputs", inputs)
        check_names("outputs", outputs)
        own = (InputRole(self, name) for name in inputs)
        return allocate([*own, *(OutputRole(self, name) for name in outputs)], dimensions)

    def buffer_role(self, kind: Kind, name: str | int) -> RoleUse:
        """Implements `penstock.memory.allocation.RoleUser`."""
        return self._executable.buffer_role(kind, name)

    def close(self) -> None:
        """Waits for runs in flight and releases the drivers' models. A second call does nothing.

        Returns after `closing.CLOSE_SECONDS` at the latest. A run without a timeout may still hang
        in a driver then. It keeps what it uses, including its arrays, and the last such run
        releases the rest when it ends. A background compile whose driver does not stop continues,
        and its model is closed when it ends. Submitted runs that have not begun by then fail with
        `ClosedError`.
        """
        from penstock.execution.executable import close

        close(self._executable)

    def __enter__(self) -> Self:
        self._executable.gate.check()
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return self._recipe

    def __repr__(self) -> str:
        from penstock.partitioning.show import line_of

        return line_of("CompiledModel", self.plan.summary(), self.plan.warning)

    def _repr_html_(self) -> str:
        """The plan's table of steps, for a notebook."""
        return self.plan._repr_html_()  # the protocol of notebooks

    def _preferences(
        self, operands: Sequence[int], positions: Sequence[int]
    ) -> tuple[MemoryPreference, ...]:
        from penstock.execution.feedback import preferences_of

        steps = self._executable.base.compilation.steps
        return preferences_of([operands[p] for p in positions], steps)
