"""`CompiledModel`: run it, from any thread, any number of times."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Final, NoReturn, Self

import numpy as np

from penstock.compilation.compilation import PreparedStep
from penstock.compilation.receipt import CopyReceipt, Receipt, StepReceipt
from penstock.errors import ClosedError, InputError, NotAvailable, StateError
from penstock.execution.gate import Gate
from penstock.execution.inputs import arrange, as_array, dequantize, fits, quantize
from penstock.execution.interface import Interface
from penstock.execution.outputs import Outputs
from penstock.execution.state import State
from penstock.execution.step import Trace
from penstock.execution.variant import Variant, deadline_of
from penstock.hal import CancelToken, ExecutionConfig
from penstock.ir import DType, Model, NDArray, Operand
from penstock.ir.types import is_static
from penstock.partitioning.plan import ExecutionPlan

MAX_VARIANTS: Final = 8
"""Shapes kept compiled for a model with unknown dimensions; the one used longest ago goes first."""

DEFAULT_EXECUTION: Final = ExecutionConfig()

Specialize = Callable[[dict[int, tuple[int, ...]]], Variant]
"""Compiles the model for full input shapes, by input position."""


class CompiledModel:
    """A model, compiled: the result of `penstock.compile`. Safe from any thread.

    `close()`, or leaving the `with` block, waits for runs in flight; use after it raises
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
        self._interface, self._base, self._specialize, self._recipe = (
            interface,
            base,
            specialize,
            recipe,
        )
        self._gate = Gate("compiled model")
        self._variants: OrderedDict[tuple[tuple[int, ...], ...], Variant] = OrderedDict()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._state = State(base.model) if base.model.entry.states else None
        self._dynamic = not all(is_static(o.shape) for o in base.model.inputs)
        self._input_names, self._output_names = interface.input_names, interface.output_names
        self._in_order = interface.input_positions == tuple(range(len(base.model.inputs)))
        self._all_outputs = interface.output_positions == tuple(range(len(base.model.outputs)))

    @property
    def model(self) -> Model:
        """The model as it was planned: entry chosen, shapes inferred."""
        return self._base.model

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """What `run` takes: name, dtype, shape (None = any), quantization; in order."""
        return self._interface.inputs

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """What `run` returns, likewise."""
        return self._interface.outputs

    @property
    def plan(self) -> ExecutionPlan:
        """Which operation runs where, and why not elsewhere."""
        return self._base.compilation.plan

    @property
    def receipt(self) -> Receipt:
        """What the compile did."""
        return self._base.compilation.receipt

    def __call__(self, *args: Any, **kwargs: Any) -> Outputs:
        """Positional arrays, one mapping by name, or keywords by input name; as `run` otherwise."""
        return self.run(_call_inputs(args, kwargs))

    def run(
        self,
        inputs: Mapping[str, Any] | Sequence[Any],
        out: Mapping[str, NDArray] | Sequence[NDArray | None] | None = None,
        state: State | None = None,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        dequantize: bool = False,
    ) -> Outputs:
        """Runs once.

        *inputs* is a mapping by name or a sequence by position, of anything with `__dlpack__`,
        `__array__` or the buffer protocol, in the dtypes and shapes of `self.inputs`; with *dequantize*
        quantised inputs and outputs are float32 real values instead. *out* receives outputs in
        place: writable C-contiguous arrays of the output's dtype and shape. *state* None uses the
        model's default State. *timeout* is in seconds.

        Raises `InputError` for what does not fit, `MissedDeadline*` past the timeout, `Cancelled` soon
        after *cancel* is set, `ClosedError`, `StateError`, or the `DriverError` of a step that nothing
        could repeat; the state is then as before, and the content of *out* undefined.
        """
        began = time.perf_counter_ns()
        with self._gate:
            trace = Trace()
            arrays = self._bind(inputs, dequantize, trace.copies)
            variant = self._base if not self._dynamic else self._variant(arrays, trace)
            config = DEFAULT_EXECUTION
            if timeout is not None or cancel is not None:
                deadline = deadline_of(timeout, time.monotonic_ns())
                config = ExecutionConfig(deadline_ns=deadline, cancel=cancel)
            targets = None if out is None else self._targets(out, variant, dequantize)
            results = variant.run(arrays, targets, self._state_for(state), config, trace)
            results = self._deliver(results, variant, dequantize, trace.copies)
        make = partial(_receipt, trace, time.perf_counter_ns() - began)
        return Outputs(results, self._output_names, make)

    def submit(self, *args: Any, **kwargs: Any) -> Future[Outputs]:
        """Runs in a thread of this model's pool; arguments as in a call."""
        return self._submit(_call_inputs(args, kwargs), None)

    async def run_async(self, *args: Any, **kwargs: Any) -> Outputs:
        """Awaits a run in a thread; cancelling the task cancels the run."""
        import asyncio

        token = CancelToken()
        future = self._submit(_call_inputs(args, kwargs), token)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            token.set()
            raise

    def new_state(self) -> State:
        """A State of one's own, at the initial values. A model without state has an empty one."""
        self._gate.check()
        return State(self._base.model)

    def burst(self) -> NoReturn:
        """Not available yet."""
        raise NotAvailable("bursts are not available yet; call run()")

    def bind_state(self, bindings: Mapping[str, str]) -> NoReturn:
        """Not available yet."""
        raise NotAvailable("bind_state is not available yet; feed the outputs back through run()")

    def allocate(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not available yet."""
        raise NotAvailable("device buffers are not available yet; use arrays")

    def close(self) -> None:
        """Waits for runs in flight and releases the drivers' models; twice is harmless."""
        if self._gate.forked:
            return
        with self._lock:
            pool = self._pool
        if pool is not None:
            pool.shutdown(wait=True)
        if not self._gate.close():
            return
        for variant in (self._base, *self._variants.values()):
            variant.close()

    def __enter__(self) -> Self:
        self._gate.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._recipe

    def __repr__(self) -> str:
        return f"<CompiledModel: {self.plan.summary()}>"

    def _bind(
        self, given: Mapping[str, Any] | Sequence[Any], real: bool, copies: list[CopyReceipt]
    ) -> list[NDArray]:
        values = arrange(given, self._input_names)
        if real:
            values = [
                _to_stored(v, o, copies)
                for v, o in zip(values, self._interface.inputs, strict=True)
            ]
        arrays = [
            as_array(v, o, i, copies)
            for i, (v, o) in enumerate(zip(values, self._interface.inputs, strict=True))
        ]
        if self._in_order:
            return arrays
        ordered = sorted(
            zip(self._interface.input_positions, arrays, strict=True), key=lambda pair: pair[0]
        )
        return [array for _, array in ordered]

    def _variant(self, arrays: Sequence[NDArray], trace: Trace) -> Variant:
        key = tuple([a.shape for a in arrays])
        with self._lock:
            if (found := self._variants.get(key)) is not None:
                self._variants.move_to_end(key)
                return found
            made = self._specialize(dict(enumerate(key)))
            trace.compiles += made.compilation.receipt.compiles
            self._variants[key] = made
            if len(self._variants) > MAX_VARIANTS:
                # A run on another thread may be using it; its prepared models close with its last reference.
                self._variants.popitem(last=False)
            return made

    def _targets(
        self, out: Mapping[str, NDArray] | Sequence[NDArray | None], variant: Variant, real: bool
    ) -> list[NDArray | None]:
        if real:
            raise InputError("out= takes stored values; it cannot be combined with dequantize=True")
        values = (
            [out.get(n) for n in self._output_names]
            if isinstance(out, Mapping) and set(out) <= set(self._output_names)
            else arrange(out, self._output_names, "output")
        )
        targets: list[NDArray | None] = [None] * len(variant.outputs)
        for position, value in zip(self._interface.output_positions, values, strict=True):
            operand = variant.model.outputs[position]
            if value is not None:
                targets[position] = _checked_target(value, operand, position)
        return targets

    def _state_for(self, state: State | None) -> State | None:
        if state is None:
            return self._state
        if state.model.variables != self._base.model.variables:
            raise StateError("this State was made by a model with other variables")
        return state

    def _deliver(
        self, results: list[NDArray], variant: Variant, real: bool, copies: list[CopyReceipt]
    ) -> list[NDArray]:
        if not self._all_outputs:
            results = [results[p] for p in self._interface.output_positions]
        if not real:
            return results
        delivered = []
        for result, operand in zip(results, self._interface.outputs, strict=True):
            if operand.quantization is not None and operand.dtype.is_integer:
                copies.append(
                    CopyReceipt(result.nbytes, "output", "caller", f"{operand.name!r} dequantised")
                )
                result = dequantize(result, operand.quantization)  # noqa: PLW2901  # the delivered form
            delivered.append(result)
        return delivered

    def _submit(
        self, inputs: Mapping[str, Any] | Sequence[Any], cancel: CancelToken | None
    ) -> Future[Outputs]:
        self._gate.check()
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(thread_name_prefix="penstock")
            try:
                return self._pool.submit(self.run, inputs, cancel=cancel)
            except RuntimeError as error:
                raise ClosedError("compiled model used after close()") from error


def _call_inputs(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Mapping[str, Any] | Sequence[Any]:
    if kwargs:
        if args:
            raise InputError("give inputs by position or by keyword, not both")
        return kwargs
    if len(args) == 1 and isinstance(args[0], Mapping):
        return args[0]
    return args


def _to_stored(value: Any, operand: Operand, copies: list[CopyReceipt]) -> Any:
    if operand.quantization is None or not operand.dtype.is_integer:
        return value
    array = np.asarray(value)
    if array.dtype.kind != "f":
        raise InputError(
            f"input {operand.name!r} takes real values with dequantize=True, not {array.dtype}"
        )
    copies.append(CopyReceipt(array.nbytes, "caller", "host", f"{operand.name!r} quantised"))
    return quantize(array, operand.quantization, operand.dtype)


def _checked_target(value: object, operand: Operand, position: int) -> NDArray:
    if (
        isinstance(value, np.ndarray)
        and value.dtype == operand.dtype.numpy
        and fits(value.shape, operand.shape)
        and value.flags.c_contiguous
        and value.flags.writeable
        and operand.dtype is not DType.STRING
    ):
        return value
    given = (
        f"{value.dtype}{list(value.shape)}"
        if isinstance(value, np.ndarray)
        else type(value).__name__
    )
    raise InputError(
        f"out for output {position} ({operand.name}) must be a writable C-contiguous "
        f"{operand.dtype.value} array of shape {operand.shape}, not {given}"
    )


def _receipt(trace: Trace, wall_ns: int) -> Receipt:
    steps = tuple(_step_receipt(*step) for step in trace.steps)
    return Receipt(steps, trace.compiles, tuple(trace.copies), wall_ns)


def _step_receipt(
    prepared: PreparedStep,
    wall_ns: int,
    driver_ns: int | None,
    fallback_from: str | None,
    error: str | None,
) -> StepReceipt:
    return StepReceipt(
        prepared.device.name,
        prepared.step.operations,
        wall_ns,
        driver_ns,
        prepared.receipt.cache,
        fallback_from,
        error,
    )
