"""Steps launched behind each other's fences (NNAPI section 7.2)."""

# ruff: noqa: SLF001  # the friend of Variant

from __future__ import annotations

import time
from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

from penstock.compilation.calls import describe
from penstock.compilation.receipt import Failure
from penstock.errors import (
    FOREIGN,
    Cancelled,
    DriverError,
    GeneralFailure,
    MissedDeadline,
    MissedDeadlineTransient,
)
from penstock.execution.carried import note_carried, note_lost
from penstock.execution.step import StepRunner
from penstock.execution.trace import StepTrace, Trace
from penstock.execution.variant import Variant
from penstock.hal import DONE, ExecutionConfig, Fence, check_deadline
from penstock.hal.fence import is_fence, signals_in_time
from penstock.ir import NDArray

if TYPE_CHECKING:
    from penstock.execution.arena import Arena


class Chain:
    """One run of a plan, each step launched behind the fence of the one before it."""

    def __init__(
        self, variant: Variant, config: ExecutionConfig, trace: Trace, after_ns: int | None
    ) -> None:
        self._variant, self._config, self._trace = variant, config, trace
        self._after_ns = after_ns

    def run(
        self,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
        wait_for: Sequence[Fence],
    ) -> list[NDArray]:
        """The ordinary outputs, once the last fence has signalled. Raises as `Variant.run`; `GeneralFailure` for a fence
        of *wait_for* that failed.
        """
        variant, config = self._variant, self._config
        began = perf_counter_ns()
        values = variant._values(inputs, out, None, None, None)
        arena = variant._take_arena()
        values.update(arena.values)
        launched: list[Launched] = []
        try:
            try:
                self._launch(values, arena, wait_for, launched)
            finally:
                # Drivers may write until their fences have signalled, whatever has become of the run.
                left = self._settle(launched, into_callers=out is not None)
                if not left:
                    variant._arenas.append(arena)
            if left:
                if config.cancel is not None:
                    config.cancel.check()
                raise MissedDeadlineTransient("a driver's fence did not signal before the deadline")
            self._check(launched)
        except (MissedDeadline, Cancelled):
            raise
        except DriverError as error:
            # What a fence of the caller's failed with is the reason that counts, and no other device could help.
            await_fences(wait_for, config)
            values = variant._values(inputs, out, None, None, None)
            (runner, *others) = variant._runners
            if not others and isinstance(runner, StepRunner):
                runner.failed(error, values, config, self._trace, began)
            elif not variant._repeat_whole(values, config, self._trace, None):
                raise
        if config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns:
            raise MissedDeadlineTransient("the run took longer than its timeout")
        return [values[i] for i in variant.outputs]

    def _settle(self, launched: Sequence[Launched], *, into_callers: bool) -> bool:
        """Waits for what was launched to end. Whether it was left to itself, past the deadline of the run or cancelled:
        only where it writes no memory of the caller's.
        """
        for one in launched:
            try:
                if into_callers or signals_in_time(one.fence, self._config):
                    one.fence.wait()
                    continue
            except Cancelled:
                pass
            return True
        return False

    def _launch(
        self,
        values: dict[int, NDArray],
        arena: Arena,
        wait_for: Sequence[Fence],
        launched: list[Launched],
    ) -> None:
        config, fences = self._config, list(wait_for)
        if config.deadline_ns is not None:
            check_deadline(config.deadline_ns)
        for runner in self._variant._runners:
            if not isinstance(runner, StepRunner):
                raise GeneralFailure("a step of control flow cannot be launched behind a fence")
            if config.cancel is not None:
                config.cancel.check()
            request = runner.request(values, arena)
            began = perf_counter_ns()
            after_ns = None if launched else self._after_ns
            name = runner.prepared.device.name
            try:
                fence = runner.prepared.prepared.execute_fenced(request, fences, config, after_ns)
                if not is_fence(fence):
                    raise GeneralFailure(f"execute_fenced returned {type(fence).__name__}")
            except (MissedDeadline, Cancelled):
                raise
            except DriverError as error:
                self._note(runner, error)
                note_lost(runner.prepared, error, self._trace)
                # Told.
                error.copies = ()
                raise
            except FOREIGN as error:
                failure = GeneralFailure(f"device {name} failed in execute_fenced: {error!r}")
                self._note(runner, failure)
                raise failure from error
            launched.append(Launched(runner, fence, began))
            fences = [fence]

    def _check(self, launched: Sequence[Launched]) -> None:
        """Raises the error of the first step that failed; the others have their place in the trace."""
        ended = perf_counter_ns()
        for one in launched:
            prepared = one.runner.prepared
            note_carried(prepared, getattr(one.fence, "result", DONE), self._trace)
            if (error := one.fence.error()) is not None:
                self._note(one.runner, error)
                raise error
            step = StepTrace(prepared, one.began_ns, ended, DONE, ())
            self._trace.steps.append(step)

    def _note(self, runner: StepRunner, error: DriverError) -> None:
        from penstock.compilation.failing import in_model

        words = in_model(runner.prepared.step, describe(error))
        self._trace.failures = (Failure(runner.prepared.device.name, words),)


class Launched(NamedTuple):
    """A step behind a fence of its driver's."""

    runner: StepRunner
    fence: Fence
    began_ns: int


def await_fences(wait_for: Sequence[Fence], config: ExecutionConfig) -> None:
    """Waits for every fence, under the deadline and the cancel token of *config*.

    Raises `GeneralFailure` for one that failed, `MissedDeadlineTransient`, `Cancelled`.
    """
    for fence in wait_for:
        if not signals_in_time(fence, config):
            raise MissedDeadlineTransient("a fence did not signal before the deadline")
        if (failure := fence.error()) is not None:
            raise GeneralFailure(f"a fence this run waits for failed: {failure}")
