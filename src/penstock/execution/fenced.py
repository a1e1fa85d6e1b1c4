"""Runs that begin once fences have signalled (NNAPI section 7.2)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from penstock import errors, hal
from penstock.arguments import LONGEST_SECONDS, check_kind, deadline_of, is_number
from penstock.compilation.failing import failure_of
from penstock.execution.arena import is_sized
from penstock.execution.asynchronous import LinkedToken
from penstock.execution.inputs import is_bindable
from penstock.execution.interface import Outputs
from penstock.execution.relay import CallersFenceFailed, Relay, RunFence, result_of
from penstock.execution.run import Run, StepTrace, note_copies, note_lost
from penstock.execution.step import Step
from penstock.execution.variant import Variant
from penstock.hal.fence import is_fence, remaining_ns, remaining_seconds, signals_in_time
from penstock.hal.prepared import await_fences
from penstock.ir import NDArray
from penstock.memory.buffer import DeviceBuffer

if TYPE_CHECKING:
    from penstock.execution.executable import Executable, Gate
    from penstock.execution.state import State


class Chain:
    """A run of which each step waits for the step before; *after_ns* limits the first one."""

    def __init__(self, variant: Variant, run: Run, after_ns: int | None) -> None:
        self._variant, self._run, self._after_ns = variant, run, after_ns
        self._steps = [step for step in variant.steps if isinstance(step, Step)]
        if len(self._steps) != len(variant.steps):
            raise errors.GeneralFailure("a step of control flow cannot be launched behind a fence")

    def run(
        self,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
        wait_for: Sequence[hal.Fence],
    ) -> list[NDArray]:
        """The ordinary outputs. Raises as `Variant.run`, and if a fence of *wait_for* failed."""
        variant, run, config = self._variant, self._run, self._run.config
        began = perf_counter_ns()
        run.values = variant.values(run, inputs, out)
        arena = variant.take_arena()
        run.values.update(arena.values)
        run.places = arena
        launched: list[Launched] = []
        try:
            try:
                self._launch(wait_for, launched)
            finally:
                # Drivers may write until their fences have signalled, even if the run has failed.
                left = self._settle(launched, into_callers=out is not None)
                if not left:
                    variant.give_back(arena)
            if left:
                if config.cancel is not None:
                    config.cancel.check()
                text = "a driver's fence did not signal before the deadline"
                raise errors.MissedDeadlineTransient(text)
            self._check(launched)
        except errors.MissedDeadline:
            raise
        except errors.DriverError as error:
            # The error of the caller's fence is the cause to report. No fallback device could help.
            await_fences(wait_for, config)
            run.values = variant.values(run, inputs, out)
            if len(self._steps) == 1:
                self._steps[0].recover(run, error, began)
            else:
                variant.repeat_whole(run, error)
        run.check_end()
        return [run.values[i] for i in variant.outputs]

    def _settle(self, launched: Sequence[Launched], *, into_callers: bool) -> bool:
        """Waits for the steps, without a limit *into_callers* arrays; whether one was abandoned."""
        for one in launched:
            try:
                if into_callers or signals_in_time(one.fence, self._run.config):
                    one.fence.wait()
                    continue
            except errors.Cancelled:
                pass
            return True
        return False

    def _launch(self, wait_for: Sequence[hal.Fence], launched: list[Launched]) -> None:
        run, fences = self._run, list(wait_for)
        for step in self._steps:
            if not launched:
                run.check()
            elif run.config.cancel is not None:
                run.config.cancel.check()
            kept = run.places.requests
            request = kept[step] if step in kept else step.request(run)
            began = perf_counter_ns()
            after_ns = None if launched else self._after_ns
            prepared = step.prepared
            try:
                fence = prepared.prepared.execute_fenced(request, fences, run.config, after_ns)
                if not is_fence(fence):
                    raise errors.GeneralFailure(f"execute_fenced returned {type(fence).__name__}")
            except (errors.MissedDeadline, errors.Cancelled):
                raise
            except errors.DriverError as error:
                self._note(step, error)
                note_lost(prepared, error, run)
                # `note_lost` has recorded them.
                error.copies = ()
                raise
            except errors.FOREIGN as error:
                name = prepared.device.name
                failure = errors.GeneralFailure(
                    f"device {name} failed in execute_fenced: {error!r}"
                )
                self._note(step, failure)
                raise failure from error
            launched.append(Launched(step, fence, began))
            fences = [fence]

    def _check(self, launched: Sequence[Launched]) -> None:
        """Raises the error of the first step that failed; the receipt records the others."""
        ended = perf_counter_ns()
        for one in launched:
            prepared = one.step.prepared
            note_copies(prepared, result_of(one.fence), self._run)
            if (error := one.fence.error()) is not None:
                self._note(one.step, error)
                raise error
            self._run.steps.append(StepTrace(prepared, one.began_ns, ended, hal.DONE))

    def _note(self, step: Step, error: errors.DriverError) -> None:
        prepared = step.prepared
        self._run.failures = (failure_of(prepared.device.name, error, prepared.step),)


class Launched(NamedTuple):
    """A step that was launched, and the fence of its driver."""

    step: Step
    fence: hal.Fence
    began_ns: int


CALLBACK_SECONDS: Final = 1.0
"""Most seconds that `result` waits for callbacks of the fence, which may call it themselves."""

APART: Final = "a run that may be left to its driver does not write to the caller's arrays"


class FencedRun:
    """A run that waits for fences.

    *fence* signals the end of the run, with its error if it failed. Any other run may wait for it,
    and `penstock.hal.as_descriptor` exports it to another process.
    """

    def __init__(self) -> None:
        self.fence = RunFence()
        self._outputs: Outputs | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._ender = 0

    def result(self, timeout: float | None = None) -> Outputs:
        """Waits for the end of the run; returns its outputs or raises its error.

        Raises `MissedDeadlineTransient` after *timeout* seconds; the run continues. Raises
        `InputError` for a timeout that is no number.
        """
        if timeout is not None and not is_number(timeout):
            raise errors.InputError(f"timeout must be a number of seconds, not {timeout!r}")
        forever = timeout is None or timeout > LONGEST_SECONDS
        end = None if forever else time.monotonic_ns() + int((timeout or 0) * 1e9)
        if not self.fence.wait(remaining_ns(end)):
            raise errors.MissedDeadlineTransient(f"the fenced run has not ended within {timeout} s")
        # Waits for the fence's other callbacks, such as a descriptor's, unless one of them called
        # `result`.
        if threading.get_ident() != self._ender:
            left = remaining_seconds(end)
            self._ended.wait(CALLBACK_SECONDS if left is None else min(left, CALLBACK_SECONDS))
        if self._error is not None:
            raise self._error
        if self._outputs is None:
            raise errors.GeneralFailure("the fenced run has no outputs")
        return self._outputs

    def end(self, outputs: Outputs | None, error: BaseException | None) -> None:
        """Sets the result of the run. Called once."""
        self._outputs, self._error = outputs, error
        self._ender = threading.get_ident()
        try:
            if error is None or isinstance(error, errors.DriverError):
                self.fence.signal(error)
            else:
                self.fence.signal(errors.GeneralFailure(str(error) or type(error).__name__))
        finally:
            self._ended.set()


class BeginToken(LinkedToken):
    """Set through *other*, or if *gate* closes before every fence of *wait_for* has signalled."""

    __slots__ = ("_begun", "_gate", "_wait_for")

    def __init__(
        self, other: hal.CancelToken | None, gate: Gate, wait_for: Sequence[hal.Fence]
    ) -> None:
        super().__init__(other)
        self._gate, self._wait_for, self._begun = gate, wait_for, False

    @property
    def is_closed(self) -> bool:
        """Whether the model was closed before the run began."""
        return hal.CancelToken.is_set(self)

    def is_set(self) -> bool:
        """Whether the run must end."""
        if super().is_set():
            return True
        if self._gate.closed and not self._begun:
            # Checked only until the run begins; a run that has begun continues.
            self._begun = all(fence.wait(0) for fence in self._wait_for)
            if not self._begun:
                self.set()
                return True
        return False


class Start(NamedTuple):
    """The checked arguments of a fenced run. *after* are seconds after the last signal."""

    executable: Executable
    inputs: Mapping[str, Any] | Sequence[Any]
    wait_for: Sequence[hal.Fence]
    out: Mapping[str, Any] | Sequence[Any] | None
    state: State | None
    config: hal.ExecutionConfig
    after: float | None


def start_fenced(
    executable: Executable,
    inputs: Mapping[str, Any] | Sequence[Any],
    wait_for: Sequence[hal.Fence] = (),
    **options: Any,
) -> FencedRun:
    """Starts a run that begins once every fence of *wait_for* has signalled, and returns at once.

    The arrays of *inputs* are read, and those of *out* written, until the run's fence has
    signalled. *timeout* seconds count from now, *timeout_after_fence* seconds from the last signal
    of *wait_for*. If a fence failed, the run fails with `GeneralFailure` and writes nothing. The
    other *options* are those of `CompiledModel.run`. Closing the model before all fences have
    signalled ends the run with `ClosedError`.

    With *timeout* or *cancel*, a run may end while a driver that ignores both still executes. So
    that nothing writes to *out* afterwards, such a run of fenced drivers uses private outputs. They
    are copied to *out* on success, and the receipt records the copies.

    Raises `InputError` for a model with an output of unknown shape, and for invalid arguments. The
    result of the run has all other errors.
    """
    start, run = _checked(executable, inputs, wait_for, **options), FencedRun()

    def work() -> None:
        try:
            run.end(_run(start, run.fence.launch), None)
        except BaseException as error:  # noqa: BLE001  # reported by the fence and by `result`
            run.end(None, error)

    # A daemon thread: a fence that never signals must not keep the process from ending.
    threading.Thread(target=work, name=f"{executable.thread_name}-fenced", daemon=True).start()
    return run


def run_fenced(
    executable: Executable,
    inputs: Mapping[str, Any] | Sequence[Any],
    wait_for: Sequence[hal.Fence] = (),
    **options: Any,
) -> Outputs:
    """Runs as `start_fenced` does, in the calling thread, until the run has ended."""
    return _run(_checked(executable, inputs, wait_for, **options))


def _checked(
    executable: Executable,
    inputs: Mapping[str, Any] | Sequence[Any],
    wait_for: Sequence[hal.Fence],
    *,
    out: Mapping[str, Any] | Sequence[Any] | None = None,
    state: State | None = None,
    timeout_after_fence: float | None = None,
    **options: Any,
) -> Start:
    executable.gate.check()
    check_kind(wait_for, Sequence, "wait_for takes a list of fences")
    for fence in wait_for:
        if not is_fence(fence):
            raise errors.InputError(f"wait_for takes fences, not {type(fence).__name__}")
    after = timeout_after_fence
    if after is not None and not (is_number(after) and after > 0):
        text = f"timeout_after_fence must be a number of seconds above 0, not {after!r}"
        raise errors.InputError(text)
    for position, operand in enumerate(executable.form.model.outputs):
        if not is_sized(operand):
            text = f"output {position} ({operand.name}) has an unknown shape"
            raise errors.InputError(f"{text}; a fenced run needs it known")
    config = executable.config_of(**options)
    after = None if after is None or after > LONGEST_SECONDS else after
    return Start(executable, inputs, wait_for, out, state, config, after)


def _run(start: Start, launched: Callable[[hal.Fence], None] | None = None) -> Outputs:
    token = BeginToken(start.config.cancel, start.executable.gate, start.wait_for)
    try:
        return _run_behind(start, token, perf_counter_ns(), launched)
    except errors.Cancelled as error:
        if not token.is_closed:
            raise
        text = "the compiled model was closed before the fences of the run had signalled"
        raise errors.ClosedError(text) from error


def _run_behind(
    start: Start, token: BeginToken, began: int, launched: Callable[[hal.Fence], None] | None
) -> Outputs:
    executable, config, after, out = start.executable, start.config, start.after, start.out
    behind = replace(config, cancel=token)
    if _may_relay(start):
        return _relayed(start, behind, launched)
    if not _may_chain(start):
        await_fences(start.wait_for, behind)
        left = remaining_ns(config.deadline_ns)
        seconds = [s for s in (after, None if left is None else left / 1e9) if s is not None]
        until = deadline_of(min(seconds, default=None), time.monotonic_ns())
        run = Run(replace(config, deadline_ns=until), perf_counter_ns())
        return executable.run(run, start.inputs, out, start.state)
    with executable.gate:
        run, exchange = Run(behind, began), executable.exchange
        arrays = exchange.bind(executable, start.inputs, False, run.copies)
        targets = None
        if out is not None:
            from penstock.execution.targets import bind_targets

            outputs = executable.form.model.outputs
            targets = bind_targets(out, exchange.interface, outputs, arrays)
        chain = Chain(executable.base, run, None if after is None else int(after * 1e9))
        # A run that may be abandoned must not write to the caller's arrays.
        apart = config.deadline_ns is not None or config.cancel is not None
        found = chain.run(arrays, None if apart else targets, start.wait_for)
        if apart and targets is not None:
            from penstock.execution.results import copy_over

            for at, target in enumerate(targets):
                if target is not None:
                    copy_over(target, found[at], run.copies, ("host", "caller"), APART)
                    found[at] = target
        results = exchange.deliver(found, False, run.copies)
    run.end()
    return Outputs(results, exchange.output_names, run.receipt)


def _relayed(
    start: Start, behind: hal.ExecutionConfig, launched: Callable[[hal.Fence], None] | None
) -> Outputs:
    """A run whose only step its driver gets behind the fences of other drivers."""
    relay = Relay(start.wait_for, launched)
    relay.await_others(behind)
    run = Run(start.config, perf_counter_ns(), relay=relay)
    try:
        outputs = start.executable.run(run, start.inputs, start.out)
        relay.check(start.config)
    except CallersFenceFailed as failed:
        raise failed.error from failed
    return outputs


def _may_relay(start: Start) -> bool:
    """Whether the plan is a single step with device buffers, which a driver may launch before the
    fences have signalled.

    False where a run that is abandoned at its limits would write to the caller's arrays later.
    """
    executable, config = start.executable, start.config
    if executable.is_dynamic or executable.state is not None or executable.feedback is not None:
        return False
    base = executable.base
    if not (len(base.steps) == 1 and isinstance(step := base.steps[0], Step)):
        return False
    inputs, out = _listed(start.inputs), _listed(start.out)
    device = step.prepared.device.name

    def lies_there(value: object) -> bool:
        return isinstance(value, DeviceBuffer) and value.device == device

    bound = [value for value in (*inputs, *out) if is_bindable(value)]
    limited = config.deadline_ns is not None or config.cancel is not None
    return (
        bool(bound)
        and all(map(lies_there, bound))
        and base.delivers_its_own
        and base.shadow is None
        and not base.is_pending
        and not config.measure
        and start.after is None
        and not (limited and not (out and all(map(lies_there, out))))
    )


def _listed(given: object) -> list[Any]:
    """The values of a mapping or a sequence."""
    if isinstance(given, Mapping):
        return [*given.values()]
    return [*given] if isinstance(given, Sequence) else []


def _may_chain(start: Start) -> bool:
    """Whether steps can be launched before the fences that they wait for have signalled.

    False for a plan with values of unknown size between its steps or with control flow: the host
    must read these. False with a state, which would be locked while fences are pending. False if
    drivers must measure times, if the run is compared by shadow verification, or if an argument is
    memory that is no array.
    """
    if start.executable.is_dynamic:
        return False
    base = start.executable.base
    given = [*_listed(start.inputs), *_listed(start.out)]
    return not (
        start.state is not None
        or start.executable.feedback is not None
        or start.config.measure
        or base.shadow is not None
        or base.is_pending
        or not base.is_direct
        # Only a single step can take the time limit that begins after the fences.
        or (start.after is not None and len(base.steps) > 1 and len(start.wait_for) > 0)
        or any(map(is_bindable, given))
    )
