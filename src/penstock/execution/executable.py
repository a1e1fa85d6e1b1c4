"""What the runs of one compiled model share: compiled forms, gate, exchange with callers."""

from __future__ import annotations

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
    from penstock.hal import ExtensionAttribute
    from penstock.memory.allocation import RoleUse
    from penstock.memory.bound import Kind


_gates: WeakSet[Gate] = WeakSet()


def _forked() -> None:
    for gate in list(_gates):
        gate.forked = gate.shut = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Gate:
    """A context manager around each run.

    `close` lets no new run in and waits for those inside, for a while; the last of them does then
    what is left to do. In a child process after `fork`, entering raises `StateError` without
    touching the lock, which another thread may have held.
    """

    __slots__ = (
        "__weakref__",
        "_closed",
        "_idle",
        "_last",
        "_lock",
        "_subject",
        "forked",
        "inside",
        "shut",
    )

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self.inside: list[None] = []
        """One entry a run, changed without the lock: each change is atomic."""
        self.shut = self.forked = False
        """Whether no new run may enter; and whether because this process was forked since."""
        self._closed = False
        self._last: Callable[[], None] | None = None
        _gates.add(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed, in this process or, before a fork, in its parent."""
        return self._closed

    def check(self) -> None:
        """Raises what entering would raise."""
        if self.forked:
            raise StateError(
                f"this {self._subject} was made before a fork; compile again in the child process"
            )
        if self._closed:
            raise ClosedError(f"{self._subject} used after close()")

    def __enter__(self) -> None:
        self.inside.append(None)
        # Looked at behind that: `close` either finds who enters, or was before.
        if self.shut:
            self.__exit__()
            self.check()

    def __exit__(self, *_: object) -> None:
        self.inside.pop()
        if self.shut:
            self.leave_shut()

    def leave_shut(self) -> None:
        """What leaving does once it is shut: the last run inside does what is left to do."""
        if self.forked:
            return
        last = None
        with self._lock:
            if not self.inside:
                self._idle.notify_all()
                last, self._last = self._last, None
        if last is not None:
            last()

    def close(self, last: Callable[[], None], end: float) -> int:
        """Closes and waits until *end*, of `time.monotonic`; how many are still inside. *last* is
        called once none is: here, or by the last of those. A gate that is closed already, or
        forked, is left as it is.
        """
        if self.forked:
            return 0
        with self._idle:
            if self._closed:
                return len(self.inside)
            self._closed = self.shut = True
            while self.inside and (left := end - time.monotonic()) > 0:
                self._idle.wait(left)
            if self.inside:
                self._last = last
                return len(self.inside)
        last()
        return 0


class Executable:
    """The compiled forms of a model: *base*, and those that *specialize* makes. Thread-safe."""

    def __init__(self, interface: Interface, base: Variant, specialize: Specialize) -> None:
        self.base = base
        self.feedback: Feedback | None = None
        """What goes round on devices, if anything does."""
        self.gate = Gate("compiled model")
        self.variants = Variants(specialize)
        self.lock = threading.Lock()
        """Held where what follows changes."""
        self.bursts: WeakSet[Any] = WeakSet()
        """Those that are open, which are ended with it."""
        self.submitter: Submitter | None = None
        """The threads of runs that were submitted, if any were."""
        self.thread_name = f"penstock-{id(self):x}"
        """How the names of its threads begin."""
        self.closing = threading.Lock()
        """Held by who closes it."""
        self.plain = ExecutionConfig(priority=base.priority)
        """Of a run for which nothing is asked."""
        self.state = initial_state(base.model) if base.model.entry.states else None
        """The default `State`."""
        self.is_dynamic = not all(is_static(o.shape) for o in base.model.inputs)
        self.awaited = base.absence
        self.take(interface)

    def take(self, interface: Interface) -> None:
        """Makes *interface* what callers see."""
        self.exchange = Exchange(interface, len(self.base.model.outputs))
        self.ready = ready_inputs(interface.inputs) if self.exchange.is_in_order else None
        """Recognises inputs that need not be looked at closely."""

    def run(
        self,
        run: Run,
        inputs: Mapping[str, Any] | Sequence[Any],
        out: Mapping[str, Any] | Sequence[Any] | None = None,
        state: State | None = None,
        dequantize: bool = False,
    ) -> Outputs:
        """Does *run* from the caller's values to his outputs: see `CompiledModel.run`."""
        gate, exchange = self.gate, self.exchange
        # As `with gate:`, with two calls less.
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
            if not self.is_dynamic or self._keeps_to_roles(arrays, out):
                if plain and out is None and state is None and self.feedback is None:
                    results = self.base.run(run, arrays, None, self.state)
                    if not exchange.has_all_outputs:
                        results = exchange.deliver(results, False, run.copies)
                else:
                    results = self.run_on(self.base, run, arrays, out, state, dequantize)
            else:
                shapes = tuple([a.shape for a in arrays])
                variant = self.variants.take(shapes, run)
                try:
                    results = self.run_on(variant, run, arrays, out, state, dequantize)
                finally:
                    self.variants.give_back(variant)
                if ready is None and exchange.is_in_order:
                    # Inputs of the same kinds need not be looked at so closely again.
                    self.ready = ready_inputs(exchange.interface.inputs, shapes)
        finally:
            gate.inside.pop()
            if gate.shut:
                gate.leave_shut()
        run.end()
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

        config = self.config_of(timeout, cancel, False, priority, None)
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
        """The caller's outputs of *arrays*, the model's inputs in order, by *variant*."""
        targets = None
        if out is not None:
            if real:
                raise InputError(
                    "out= takes stored values; it cannot be combined with dequantize=True"
                )
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

    def config_of(
        self,
        timeout: float | None,
        cancel: CancelToken | None,
        measure: bool,
        priority: Priority | None,
        loop_timeout: float | None,
        extension_attributes: Sequence[ExtensionAttribute] = (),
    ) -> ExecutionConfig:
        """The configuration of one run. Raises `InputError`, `MissedDeadlinePersistent`."""
        self.gate.check()
        config = execution_config(
            self.plain, timeout, cancel, measure, priority, loop_timeout, extension_attributes
        )
        if config.priority != self.plain.priority:
            self.base.expect(config.priority)
        return config

    def welcome(self) -> None:
        """Recompiles for each run's shapes once an awaited device is available."""
        if self.awaited is not None and self.awaited.any_is_back():
            self.is_dynamic, self.awaited = True, None

    def state_for(self, state: State | None) -> State | None:
        """The State of a run that was given *state*. Raises `InputError`, `StateError`."""
        if state is None:
            return self.state
        from penstock.execution.state import State

        if not isinstance(state, State):
            raise InputError(f"state must be a State of this model, not {type(state).__name__}")
        if state.model.variables != self.base.model.variables:
            raise StateError("this State was made by a model with other variables")
        return state

    def buffer_role(self, kind: Kind, name: str | int) -> RoleUse:
        """As `penstock.memory.allocation.RoleUser`."""
        from penstock.execution.feedback import role_use

        self.gate.check()
        return role_use(self.base.compilation, self.exchange.interface, kind, name, self)

    def _keeps_to_roles(self, arrays: Sequence[Any], out: object) -> bool:
        """Whether a run of unknown shapes uses memory that was allocated for the base's steps."""
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
"""How long `close` waits for runs in flight, and for compiles in the background."""


def close(executable: Executable) -> None:
    """`CompiledModel.close`."""
    if executable.gate.forked:
        return
    # Who closes already may wait for this thread, where it is one of the model's own.
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
    """Once no other run is in flight: the last burst to end releases the rest."""
    with executable.lock:
        bursts = list(executable.bursts)
    left = Countdown(len(bursts) + 1, partial(_release, executable, end))
    for burst in bursts:
        burst.end(left, end)
    left()


def _release(executable: Executable, end: float) -> None:
    executable.base.compilation.stop_compiling(end)
    executable.variants.stop_compiling(end)
    if executable.feedback is not None:
        executable.feedback.close()
    executable.variants.close()
    executable.base.close()


class Countdown:
    """Calls *done* when it has been called *count* times. From any thread."""

    def __init__(self, count: int, done: Callable[[], None]) -> None:
        self._left, self._done = count, done
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            self._done()
