"""`CompiledModel`: run it, from any thread, any number of times."""

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
    from penstock.hal import ExtensionAttribute, Fence, MemoryPreference
    from penstock.memory.allocation import RoleUse
    from penstock.memory.bound import Kind
    from penstock.memory.buffer import DeviceBuffer


class CompiledModel(Closing):
    """A model, compiled: the result of `penstock.compile`. Safe from any thread.

    `close()`, or leaving the `with` block, waits for runs in flight, at most 10 seconds; use after
    it raises `ClosedError`. After `fork` the child's copy raises `StateError` at once. Pickles as a
    recipe: model and compile arguments, compiled again where it is unpickled.
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
        self._executable, self._recipe = Executable(interface, base, specialize), recipe

    @property
    def executable(self) -> Executable:
        """What its runs share, for the other parts of the runtime."""
        return self._executable

    @property
    def model(self) -> Model:
        """The model as it was planned: entry chosen, shapes inferred."""
        return self._executable.base.model

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """What `run` takes: name, dtype, shape (None = any), quantization; in order."""
        return self._executable.exchange.interface.inputs

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """What `run` returns, likewise."""
        return self._executable.exchange.interface.outputs

    @property
    def input_memory(self) -> tuple[MemoryPreference, ...]:
        """How the devices prefer each input to lie in a pool: see `PoolLayout`."""
        entry = self._executable.base.model.entry
        return self._preferences(
            entry.ordinary_inputs, self._executable.exchange.interface.input_positions
        )

    @property
    def output_memory(self) -> tuple[MemoryPreference, ...]:
        """How each output should lie in a pool, likewise."""
        entry = self._executable.base.model.entry
        return self._preferences(
            entry.ordinary_outputs, self._executable.exchange.interface.output_positions
        )

    @property
    def plan(self) -> ExecutionPlan:
        """Which operation runs where, and why not elsewhere."""
        return self._executable.base.compilation.plan

    @property
    def receipt(self) -> Receipt:
        """What the compile did."""
        return self._executable.base.compilation.receipt

    @property
    def shadow(self) -> Shadow | None:
        """Shadow verification: its `report` and `wait`; None without it."""
        return self._executable.base.shadow

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
        `__array__` or the buffer protocol, in the dtypes and shapes of `self.inputs`; with
        *dequantize* quantised inputs and outputs are float32 real values instead. Where a signature
        has several names for one input, all of them are given, with equal values. *out* receives
        outputs in place: writable C-contiguous arrays of the output's dtype and shape. *state* None
        uses the model's default State. *timeout* is in seconds. *measure* asks drivers to time
        their kernels, which the receipt's steps then have, where the driver can. *priority* is for
        this run instead of the one the model was compiled with: where a device takes only so many
        executions at a time, those of higher priority go first. *loop_timeout*, in seconds, bounds
        each evaluation of a WHILE by itself; without it a loop ends only with the run; past it the
        run raises `MissedDeadlineTransient`. *extension_attributes* are hints of vendors'
        extensions to every driver that is called; drivers ignore what they do not know.

        Raises `InputError` for what does not fit, `OutputInsufficientSize`, with the shapes that
        are needed, for an array of *out* too small for an output whose shape only the run tells;
        past the timeout `MissedDeadlinePersistent` where no driver was called yet, else
        `MissedDeadlineTransient`; `Cancelled` soon after *cancel* is set, `ClosedError`,
        `StateError`, or the `DriverError` of a step that nothing could repeat; the state is then as
        before, and the content of *out* undefined.
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
        """Runs in a thread of this model; inputs as in a call, which a mapping names where one is
        called as a keyword here.

        *timeout* counts from now. Runs of one *priority* begin in the order they were submitted;
        each priority has threads of its own. The future's `cancel()` keeps a run from beginning, or
        stops it: see `penstock.execution.asynchronous.RunFuture`. Raises `InputError`,
        `ClosedError`, and where *timeout* leaves no time `MissedDeadlinePersistent`; all else comes
        out of the future.
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
        """Starts a run that begins once every fence of *wait_for* has signalled, and has a fence of
        its own.

        *options* are `run`'s, but for *dequantize*: see `penstock.execution.fenced.start_fenced`.
        """
        from penstock.execution.fenced import start_fenced

        return start_fenced(
            self._executable, inputs, wait_for, timeout_after_fence=timeout_after_fence, **options
        )

    def new_state(self) -> State:
        """A State of one's own, at the initial values. A model without state has an empty one."""
        self._executable.gate.check()
        return initial_state(self._executable.base.model)

    def burst(self) -> Burst:
        """A series of runs for one thread, the fastest way to run again and again: `with
        compiled.burst() as burst:`.

        The outputs of its runs are views that hold until its next run.
        """
        from penstock.execution.burst import burst_of

        return burst_of(self._executable)

    def bind_state(self, bindings: Mapping[str, str] | None = None) -> BoundState:
        """Outputs that become inputs of the next run, by their names, and stay on the device in
        between; the network's own variables stay there, too, and with no *bindings* these alone.

        From then on `inputs` and `outputs` are what is left: `run` neither takes nor gives what is
        bound. It begins with zeros, where its size is known, or with what `BoundState.write` puts
        there; it belongs to the `State` of a run. A run that fails leaves it as it was. Where no
        device has memory of its own the values lie in pools, and receipts say so. Call it once,
        before the first run.

        Raises `InputError` for names that there are not, an output or input that is bound twice,
        and two that differ in type, quantisation or shape; `StateError` the second time, and where
        there are bursts.
        """
        from penstock.execution.bound_state import bind_state

        return bind_state(self._executable, bindings or {})

    def allocate(
        self,
        inputs: Sequence[str | int] = (),
        outputs: Sequence[str | int] = (),
        dimensions: Sequence[int | None] | None = None,
    ) -> DeviceBuffer:
        """Device memory that can be each of these inputs and outputs, by name or position, in runs
        of this model: `penstock.memory.allocate` with roles of this model alone.
        """
        from penstock.memory import InputRole, OutputRole, allocate
        from penstock.memory.layout import check_names

        self._executable.gate.check()
        check_names("inputs", inputs)
        check_names("outputs", outputs)
        roles: list[InputRole | OutputRole] = [InputRole(self, name) for name in inputs]
        roles += [OutputRole(self, name) for name in outputs]
        return allocate(roles, dimensions)

    def buffer_role(self, kind: Kind, name: str | int) -> RoleUse:
        """As `penstock.memory.allocation.RoleUser`."""
        return self._executable.buffer_role(kind, name)

    def close(self) -> None:
        """Waits for runs in flight and releases the drivers' models; twice is harmless.

        It returns after `closing.CLOSE_SECONDS` at the latest: a run without a timeout, on a driver
        that does not come back, then keeps what it uses, with the arrays that it was given, and the
        last such run releases the rest when it ends. A compile in the background whose driver does
        not stop goes on, and what it makes is closed when it ends. What was submitted and has not
        begun by then fails with `ClosedError`.
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

        return line_of("CompiledModel", self.plan.summary())

    def _repr_html_(self) -> str:
        """The plan's table of steps, for a notebook."""
        return self.plan._repr_html_()  # the protocol of notebooks

    def _preferences(
        self, operands: Sequence[int], positions: Sequence[int]
    ) -> tuple[MemoryPreference, ...]:
        from penstock.execution.feedback import preferences_of

        steps = self._executable.base.compilation.steps
        return preferences_of([operands[p] for p in positions], steps)
