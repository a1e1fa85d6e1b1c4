"""`Burst`: the fastest way to run a compiled model again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from penstock.closing import Closing
from penstock.errors import ClosedError, InputError, StateError
from penstock.execution.adapters import BurstAdapter, DriverBurst
from penstock.execution.executable import CLOSE_SECONDS, Executable
from penstock.execution.inputs import call_inputs
from penstock.execution.interface import Outputs, ready_inputs
from penstock.execution.run import Run
from penstock.execution.series import Series
from penstock.execution.variants import Entry
from penstock.hal import CancelToken, PreparedModel, Priority
from penstock.ir import NDArray

if TYPE_CHECKING:
    from penstock.execution.state import State
    from penstock.hal import ExtensionAttribute


class Burst(Closing):
    """A series of runs of one compiled model, made by `CompiledModel.burst`.

    A burst keeps what the next run can reuse: the arguments of every step, the memory of outputs
    and temporaries, and the drivers' own bursts (NNAPI section 7.1). **The outputs of a run are
    read-only views that hold until the next run of the burst**, which overwrites them. To keep
    them longer, copy them (`np.array(y)`) or give `out=`. Nothing writes to them after `close`.

    Only one thread may run a burst at a time; a concurrent run raises `StateError`. Several bursts
    of one model can run in parallel. `close()`, or leaving the `with` block, frees what was kept;
    closing the model does so too.
    """

    def __init__(
        self, executable: Executable, hold: Callable[[PreparedModel], BurstAdapter] = DriverBurst
    ) -> None:
        self._executable, self._hold = executable, hold
        self._gate = executable.gate
        self._busy = threading.Lock()
        self._closed = False
        # Called once the run that was in progress at `close` has ended.
        self._last: Callable[[], None] | None = None
        self._names = executable.exchange.output_names
        # For a model with unknown dimensions: the form for the shapes of the last run.
        self._shapes: tuple[tuple[int, ...], ...] | None = None
        self._awaited = executable.awaited
        self._entry: Entry | None = None
        self._series: Series | None = None
        self._ready = executable.ready
        # The series whose last run may be repeated unchanged.
        self._settled: Series | None = None
        # The arguments of the last run, and the arrays made of them.
        self._given: tuple[Any, ...] = ()
        self._arrays: list[NDArray] = []
        # Their shapes at that time: an array's shape can be changed in place.
        self._kinds: tuple[tuple[int, ...], ...] = ()
        self._out: tuple[Any, ...] = ()
        self._targets: list[NDArray | None] = []
        self._sizes: list[tuple[int, ...] | None] = []
        self._checked: list[NDArray] | None = None
        if not executable.is_dynamic:
            self._series = Series(executable.base, hold)

    def run(
        self,
        *inputs: Any,
        out: Mapping[str, NDArray] | Sequence[NDArray | None] | None = None,
        state: State | None = None,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        dequantize: bool = False,
        measure: bool = False,
        priority: Priority | None = None,
        loop_timeout: float | None = None,
        extension_attributes: Sequence[ExtensionAttribute] = (),
        **named: Any,
    ) -> Outputs:
        """Runs once; the outputs are valid until the next run of this burst.

        *inputs* are arrays by position, or one mapping or sequence of them; *named* are inputs by
        name. Passing the same array objects as in the last run, with new content, is the fastest.
        The other arguments and errors are those of `CompiledModel.run`. Also raises `StateError` if
        another thread is in a run of this burst, `ClosedError` after `close`.
        """
        run = Run(self._executable.plain, perf_counter_ns())
        if self._gate.shut:
            self._gate.check()
        if not self._busy.acquire(False):
            raise StateError(
                "this burst is in a run of another thread; make a burst for each thread, or call "
                "run() of the model"
            )
        try:
            if self._closed:
                raise ClosedError("burst used after close()")
            if (
                timeout is not None
                or cancel is not None
                or priority is not None
                or loop_timeout is not None
                or measure is not False
                or extension_attributes
            ):
                run.config = self._executable.config_of(
                    timeout, cancel, measure, priority, loop_timeout, extension_attributes
                )
            results = None
            if self._awaited is not None and self._awaited.any_is_back():
                self._executable.welcome()
                self._awaited = self._settled = None
            settled = self._settled
            if (
                settled is not None
                and out is None
                and state is None
                and not (dequantize or named)
                and len(inputs) == len(self._arrays)
            ):
                # The lengths are equal; `strict=True` would double the time of this line.
                for array, last, shape in zip(inputs, self._arrays, self._kinds):  # noqa: B905
                    if array is not last or array.shape != shape:
                        results = self._other(settled, inputs, run)
                        break
                else:
                    results = settled.again(run)
            if results is None:
                given = call_inputs(inputs, named, (Mapping, list, tuple))
                results = self._run(run, given, out, state, dequantize)
        finally:
            self._busy.release()
            if self._last is not None:
                self._drop_late()
        run.end()
        return Outputs(results, self._names, run.receipt)

    def close(self) -> None:
        """Frees what was kept, within `CLOSE_SECONDS`. A second call does nothing."""
        self.end(_nothing, time.monotonic() + CLOSE_SECONDS)

    def end(self, last: Callable[[], None], end: float) -> None:
        """Closes the burst and waits for a run in progress until *end*. Then calls *last*."""
        if self._gate.forked:
            return
        if not self._busy.acquire(timeout=max(0.0, end - time.monotonic())):
            self._closed = True
            if self._last is None or last is not _nothing:
                self._last = last
            # The run may have ended before it could see the flag.
            self._drop_late()
            return
        try:
            self._let_go()
        finally:
            self._busy.release()
        last()

    def _drop_late(self) -> None:
        if not self._busy.acquire(blocking=False):
            return
        try:
            last, self._last = self._last, None
            if last is not None:
                self._let_go()
        finally:
            self._busy.release()
        if last is not None:
            last()

    def _let_go(self) -> None:
        self._closed = True
        self._drop()
        self._executable.bursts.discard(self)

    def __enter__(self) -> Self:
        self._gate.check()
        return self

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not self._gate.forked:
            self._drop()

    def _run(
        self,
        run: Run,
        given: Mapping[str, Any] | Sequence[Any],
        out: Mapping[str, NDArray] | Sequence[NDArray | None] | None,
        state: State | None,
        real: bool,
    ) -> list[NDArray]:
        executable = self._executable
        exchange = executable.exchange
        if executable.feedback is not None:
            arrays = exchange.bind(executable, given, real, run.copies)
            return executable.run_on(executable.base, run, arrays, out, state, real)
        self._settled = None
        arrays = self._take(given, real, run)
        series = self._series
        if executable.is_dynamic or series is None:
            series = self._series_for(arrays, run)
        targets = None if out is None else self._take_out(out, series, arrays, real)
        results = None
        plain = self._arrays is arrays and (targets is None or self._checked is arrays)
        if plain and state is None and executable.state is None:
            results = series.repeat(run, arrays, targets)
            if exchange.has_all_outputs and results is not None and series.is_settled:
                self._settled = series
        if results is None:
            apart, places = series.targets(arrays, targets, run)
            if not all(a is None or type(a) is np.ndarray for a in (*apart, *places)):
                run.bound = series.bound(apart, places)
            found = series.run(run, apart, places, executable.state_for(state))
            results = series.delivered(found, targets)
        return exchange.deliver(results, real, run.copies)

    def _other(self, settled: Series, inputs: tuple[Any, ...], run: Run) -> list[NDArray] | None:
        """Repeats the last run with other arrays; None if they need the slow path."""
        ready = self._ready
        if ready is None or (arrays := ready.arrays(inputs)) is None:
            return None
        self._given, self._arrays, self._kinds = inputs, arrays, ready.shapes
        self._settled = None
        results = settled.repeat(run, arrays, None)
        if results is not None and settled.is_settled:
            self._settled = settled
        return results

    def _take(self, given: Any, real: bool, run: Run) -> list[NDArray]:
        """The model's inputs in order. Reuses the last run's if they are the same objects."""
        known = _parts(given)
        if known and not real and len(known) == len(self._given):
            for a, b in zip(known, self._given, strict=True):
                if a is not b:
                    break
            else:
                if self._kinds == tuple([a.shape for a in self._arrays]):
                    return self._arrays
        ready = self._ready
        if ready is None or real or (arrays := ready.arrays(given)) is None:
            self._given, self._arrays, self._kinds = (), [], ()
            return self._executable.exchange.bind(self._executable, given, real, run.copies)
        self._given, self._arrays, self._kinds = known, arrays, ready.shapes
        return arrays

    def _take_out(
        self, out: Any, series: Series, arrays: list[NDArray], real: bool
    ) -> list[NDArray | None]:
        known = _parts(out)
        if known and self._checked is arrays and len(known) == len(self._out):
            for a, b in zip(known, self._out, strict=True):
                if a is not b:
                    break
            else:
                if self._sizes == _shapes(self._targets):
                    return self._targets
        if real:
            raise InputError("out= takes stored values; it cannot be combined with dequantize=True")
        from penstock.execution.targets import bind_targets

        interface = self._executable.exchange.interface
        targets = bind_targets(out, interface, series.model.outputs, arrays, self._executable)
        self._checked = None
        if known and all(a is None or type(a) is np.ndarray for a in targets):
            self._out, self._targets, self._checked = known, targets, arrays
            self._sizes = _shapes(targets)
        return targets

    def _series_for(self, arrays: Sequence[NDArray], run: Run) -> Series:
        shapes = tuple([a.shape for a in arrays])
        series = self._series
        if series is None or shapes != self._shapes:
            self._drop()
            entry = self._executable.variants.take(shapes, run)
            self._entry, self._shapes = entry, shapes
            series = self._series = Series(entry.variant, self._hold)
            exchange = self._executable.exchange
            if exchange.is_in_order:
                # The next inputs of the same dtypes and shapes can take the fast path.
                self._ready = ready_inputs(exchange.interface.inputs, shapes)
        return series

    def _drop(self) -> None:
        series, self._series, self._settled = self._series, None, None
        if series is not None:
            series.close()
        entry, self._entry = self._entry, None
        if entry is not None:
            self._executable.variants.give_back(entry)
        self._given, self._arrays, self._kinds = (), [], ()
        self._out, self._targets, self._checked = (), [], None


def _nothing() -> None:
    """Does nothing: a burst that its caller closes has nothing to do afterwards."""


def _parts(given: Any) -> tuple[Any, ...]:
    """The arrays and names in *given*, to compare them with those of the last run."""
    if type(given) is tuple:
        return given
    if type(given) is dict:
        return (*given, *given.values())
    return tuple(given) if type(given) is list else ()


def burst_of(
    executable: Executable, hold: Callable[[PreparedModel], BurstAdapter] = DriverBurst
) -> Burst:
    """A burst that ends with *executable*; with `ReusedRequests`, of reusable executions."""
    with executable.gate:
        burst = Burst(executable, hold)
        with executable.lock:
            executable.bursts.add(burst)
    return burst


def _shapes(arrays: Sequence[NDArray | None]) -> list[tuple[int, ...] | None]:
    return [None if a is None else a.shape for a in arrays]
