"""What all runs of one compiled model share: its compiled forms, gate, inputs and outputs."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import numpy as np
from msgspec.structs import replace

from penstock.arguments import check_kind
from penstock.errors import Cancelled, ClosedError, InputError, StateError, counted
from penstock.execution.inputs import Exchange
from penstock.execution.interface import Interface, Outputs, ready_inputs
from penstock.execution.run import Run, execution_config
from penstock.execution.variant import Variant
from penstock.execution.variants import Specialize, Variants
from penstock.hal import CancelToken, ExecutionConfig, Priority
from penstock.ir import Model, NDArray
from penstock.ir.types import is_static
from penstock.logs import Log

if TYPE_CHECKING:
    from penstock.execution.asynchronous import RunFuture, Submitter
    from penstock.execution.feedback import Feedback
    from penstock.execution.state import State
    from penstock.execution.unprepared import Unprepared
    from penstock.memory.allocation import RoleUse
    from penstock.memory.bound import Kind


_gates: WeakSet[Gate] = WeakSet()


def _forked() -> None:
    for gate in list(_gates):
        gate.forked = gate.shut = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Gate:
    """Counts the runs in flight of a model, and refuses new ones once closed. A context manager.

    `close` waits for the runs inside until a deadline. If some are left, the last of them calls the
    clean-up on leaving. In a child process after `fork`, entering raises `StateError` without
    taking the lock, which another thread may have held at the fork.
    """

    __slots__ = ("__weakref__", "_idle", "_last", "closed", "forked", "inside", "shut")

    def __init__(self) -> None:
        self._idle = threading.Condition(threading.Lock())
        self.inside: list[None] = []
        """One entry for each run inside. Changed without the lock: append and pop are atomic."""
        self.shut = self.forked = self.closed = False
        """*shut*: new runs are refused. *forked*: they are refused because this process is a fork.
        *closed*: `close` was called, in this process or in its parent before the fork.
        """
        self._last: Callable[[], None] | None = None
        _gates.add(self)

    def check(self) -> None:
        """Raises the error that entering raises; returns if the gate is open."""
        if self.forked:
            text = "this compiled model was made before a fork; compile again in the child process"
            raise StateError(text)
        if self.closed:
            raise ClosedError("compiled model used after close()")

    def __enter__(self) -> None:
        self.inside.append(None)
        # Checked after the append: `close` either sees this run, or set *shut* before this check.
        if self.shut:
            self.__exit__()
            self.check()

    def __exit__(self, *_: object) -> None:
        self.inside.pop()
        if self.shut:
            self.leave_shut()

    def leave_shut(self) -> None:
        """Leaves a gate that is shut; the last run calls the clean-up that `close` left to it."""
        if self.forked:
            return
        last = None
        with self._idle:
            if not self.inside:
                self._idle.notify_all()
                last, self._last = self._last, None
        if last is not None:
            last()

    def close(self, last: Callable[[], None], end: float) -> int:
        """Closes the gate, waits for the runs inside, and returns how many are left.

        The wait ends at *end*, of `time.monotonic`. *last* is called once no run is inside: by this
        call, or by the last run that leaves. Does nothing if the gate is already closed or forked.
        """
        if self.forked:
            return 0
        with self._idle:
            if self.closed:
                return len(self.inside)
            self.closed = self.shut = True
            while self.inside and (left := end - time.monotonic()) > 0:
                self._idle.wait(left)
            if self.inside:
                self._last = last
                return len(self.inside)
        last()
        return 0


class Executable:
    """The compiled forms of a model: *form*, and those that *specialize* makes. Thread-safe."""

    def __init__(
        self, interface: Interface, form: Variant | Unprepared, specialize: Specialize
    ) -> None:
        self.form = form
        """The form of the shapes that the compile was given."""
        self.prepared = form if isinstance(form, Variant) else None
        """The form if it is prepared."""
        self.feedback: Feedback | None = None
        """The values fed back from run to run on devices; None if there are none."""
        self.gate = Gate()
        self.variants = Variants(specialize)
        self.lock = threading.Lock()
        """Guards the attributes that follow."""
        self.bursts: WeakSet[Any] = WeakSet()
        """The open bursts, which closing the model ends."""
        self.submitter: Submitter | None = None
        """The worker threads of submitted runs; None before the first `submit`."""
        self.thread_name = f"penstock-{id(self):x}"
        """Prefix of the names of this model's threads."""
        self.closing = threading.Lock()
        """Held by the thread that closes the model."""
        self.preparing = threading.Lock()
        """Held by the thread that prepares the form."""
        self.plain = ExecutionConfig(priority=form.config.priority)
        """The configuration of a run without options."""
        self.state = initial_state(form.model) if form.model.entry.states else None
        """The default `State`; None for a model without state."""
        self.is_dynamic = not all(is_static(o.shape) for o in form.model.inputs)
        self.awaited = form.absence
        self.take(interface)

    @property
    def base(self) -> Variant:
        """The form of the shapes that the compile was given, prepared.

        Raises as a compile if it is prepared here and a driver fails.
        """
        if self.prepared is not None:
            return self.prepared
        with self.preparing:
            if not isinstance(form := self.form, Variant):
                self.gate.check()
                self.form = self.prepared = form = form.prepare()
                self.awaited = form.absence
        return form

    def take(self, interface: Interface) -> None:
        """Makes *interface* the inputs and outputs that callers see."""
        self.exchange = Exchange(interface, len(self.form.model.outputs))
        self.ready = ready_inputs(interface.inputs) if self.exchange.is_in_order else None
        """The fast path for inputs; None if it does not apply."""

    def run(
        self,
        run: Run,
        inputs: Mapping[str, Any] | Sequence[Any],
        out: Mapping[str, Any] | Sequence[Any] | None = None,
        state: State | None = None,
        dequantize: bool = False,
    ) -> Outputs:
        """Executes *run* on the caller's inputs and returns the outputs: `CompiledModel.run`."""
        gate, exchange = self.gate, self.exchange
        # Inlined `with gate:`, which saves two calls on the hot path.
        gate.inside.append(None)
        try:
            if gate.shut:
                gate.check()
            ready = self.ready
            arrays = None if ready is None or dequantize else ready.arrays(inputs)
            plain = arrays is not None
            if arrays is None:
                arrays = exchange.bind(self, inputs, dequantize, run.copies)
                if self.is_dynamic:
                    ready = None
            if self.awaited is not None:
                self.welcome()
            plain = plain and out is None and state is None and self.feedback is None
            variant, entry, shapes = self.prepared, None, None
            if self.is_dynamic and (plain or not self._keeps_to_roles(arrays, out)):
                shapes = ready.shapes if ready is not None else tuple([a.shape for a in arrays])
                entry = self.variants.take(shapes, run)
                variant = entry.variant
            elif variant is None:
                variant = self.base
            try:
                if plain:
                    results = variant.run(run, arrays, None, self.state)
                    if not exchange.has_all_outputs:
                        results = exchange.deliver(results, False, run.copies)
                else:
                    results = self.run_on(variant, run, arrays, out, state, dequantize)
            finally:
                if entry is not None:
                    self.variants.give_back(entry)
            if shapes is not None and ready is None and exchange.is_in_order:
                # The next inputs of the same dtypes and shapes can take the fast path.
                self.ready = ready_inputs(exchange.interface.inputs, shapes)
        finally:
            gate.inside.pop()
            if gate.shut:
                gate.leave_shut()
        run.end()
        if variant.times is not None:
            variant.took(run.ended_ns - run.began_ns)
        return Outputs(results, exchange.output_names, run.receipt)

    def submit(
        self,
        inputs: Mapping[str, Any] | Sequence[Any],
        timeout: float | None,
        cancel: CancelToken | None,
        priority: Priority | None,
    ) -> RunFuture:
        """See `CompiledModel.submit`."""
        from penstock.execution.asynchronous import LinkedToken, Submitter, check_in_time

        config = self.config_of(timeout, cancel, priority=priority)
        token = LinkedToken(cancel)
        config = replace(config, cancel=token)
        with self.lock:
            if self.submitter is None:
                self.submitter = Submitter(self.thread_name)
            submitter = self.submitter

        def begin() -> Outputs:
            check_in_time(config)
            try:
                return self.run(Run(config, perf_counter_ns()), inputs)
            except Cancelled as error:
                if not token.is_set():
                    raise
                raise token.cancelled() from error

        return submitter.submit(begin, token, config.priority, config.deadline_ns)

    def run_on(
        self,
        variant: Variant,
        run: Run,
        arrays: Sequence[NDArray],
        out: Mapping[str, Any] | Sequence[Any] | None,
        state: State | None,
        real: bool,
    ) -> list[NDArray]:
        """Runs *variant* on the model's inputs in order; returns the caller's outputs."""
        targets = None
        if out is not None:
            if real:
                text = "out= takes stored values; it cannot be combined with dequantize=True"
                raise InputError(text)
            from penstock.execution.targets import bind_targets, ready_targets

            outputs, interface = variant.model.outputs, self.exchange.interface
            targets = ready_targets(out, interface, outputs, arrays)
            if targets is None:
                targets = bind_targets(out, interface, outputs, arrays, self)
        own = self.state if state is None else self.state_for(state)
        if self.feedback is not None and own is not None:
            results = self.feedback.run(run, arrays, targets, own)
        else:
            for array in arrays if targets is None else (*arrays, *targets):
                if type(array) is not np.ndarray and array is not None:
                    run.bound = variant.bound(arrays, targets)
                    break
            results = variant.run(run, arrays, targets, own)
        return self.exchange.deliver(results, real, run.copies)

    def config_of(self, *options: Any, **named: Any) -> ExecutionConfig:
        """The configuration of one run, by the options of `execution_config`. Raises as it does."""
        self.gate.check()
        config = execution_config(self.plain, *options, **named)
        if config.priority != self.plain.priority and self.prepared is not None:
            self.prepared.expect(config.priority)
        return config

    def welcome(self) -> None:
        """Recompiles for each run's shapes once an unavailable device is available again."""
        if self.awaited is not None and self.awaited.any_is_back():
            self.is_dynamic, self.awaited = True, None

    def state_for(self, state: State | None) -> State | None:
        """The `State` for a run: *state*, or the default one. Raises `InputError`, `StateError`."""
        if state is None:
            return self.state
        from penstock.execution.state import State

        check_kind(state, State, "state must be a State of this model")
        if state.model.variables != self.form.model.variables:
            raise StateError("this State was made by a model with other variables")
        return state

    def buffer_role(self, kind: Kind, name: str | int) -> RoleUse:
        """Implements `penstock.memory.allocation.RoleUser`."""
        from penstock.execution.feedback import role_use

        self.gate.check()
        return role_use(self.base.compilation, self.exchange.interface, kind, name, self)

    def _keeps_to_roles(self, arrays: Sequence[Any], out: object) -> bool:
        """Whether the run must use the base form, for whose steps its memory was allocated."""
        if out is None and all(type(a) is np.ndarray for a in arrays):
            return False
        from penstock.execution.feedback import needs_the_steps_of_its_roles

        return needs_the_steps_of_its_roles(arrays, out)


def initial_state(model: Model) -> State:
    """A State at the initial values of *model*."""
    from penstock.execution.state import State

    return State(model)


log = Log(__name__)

CLOSE_SECONDS: Final = 10.0
"""Seconds that `close` waits for runs in flight and for background compiles."""


def close(executable: Executable) -> None:
    """Implements `CompiledModel.close`."""
    if executable.gate.forked:
        return
    # A thread of the model itself must not block here: the closing thread may wait for it.
    inside = threading.current_thread().name.startswith(executable.thread_name)
    if not executable.closing.acquire(blocking=not inside):
        return
    try:
        end = time.monotonic() + CLOSE_SECONDS
        with executable.lock:
            submitter = executable.submitter
        if submitter is not None:
            submitter.close(end)
        if late := executable.gate.close(partial(_end_bursts, executable, end), end):
            runs = f"{counted(late, 'run')} that {'has' if late == 1 else 'have'}"
            log.warning("a compiled model was closed with %s not ended", runs)
    finally:
        executable.closing.release()


def _end_bursts(executable: Executable, end: float) -> None:
    """Ends all bursts once no other run is in flight; the last burst releases the model."""
    with executable.lock:
        bursts = list(executable.bursts)
    left = countdown(len(bursts) + 1, partial(_release, executable, end))
    for burst in bursts:
        burst.end(left, end)
    left()


def _release(executable: Executable, end: float) -> None:
    executable.form.compilation.stop_compiling(end)
    executable.variants.stop_compiling(end)
    if executable.feedback is not None:
        executable.feedback.close()
    executable.variants.close()
    executable.form.close()


def countdown(count: int, done: Callable[[], None]) -> Callable[[], None]:
    """A function that calls *done* on its call number *count*. Safe from any thread."""
    calls = itertools.count(1)

    def call() -> None:
        if next(calls) == count:
            done()

    return call
