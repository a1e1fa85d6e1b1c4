"""Steps launched behind each other's fences (NNAPI section 7.2)."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import NamedTuple

from penstock.compilation.failing import failure_of
from penstock.errors import (
    FOREIGN,
    Cancelled,
    DriverError,
    GeneralFailure,
    MissedDeadline,
    MissedDeadlineTransient,
)
from penstock.execution.remote_copies import note_lost, note_remote
from penstock.execution.run import Run, StepTrace
from penstock.execution.step import Step
from penstock.execution.variant import Variant
from penstock.hal import DONE, ExecutionConfig, Fence
from penstock.hal.fence import is_fence, signals_in_time
from penstock.ir import NDArray


class Chain:
    """One run of a plan, each step launched behind the fence of the one before it. Every step of
    *variant* `is_direct`; *after_ns* bounds the first one from when its fences have signalled.
    """

    def __init__(self, variant: Variant, run: Run, after_ns: int | None) -> None:
        self._variant, self._run, self._after_ns = variant, run, after_ns
        self._steps = [step for step in variant.steps if isinstance(step, Step)]
        if len(self._steps) != len(variant.steps):
            raise GeneralFailure("a step of control flow cannot be launched behind a fence")

    def run(
        self,
        inputs: Sequence[NDArray],
        out: Sequence[NDArray | None] | None,
        wait_for: Sequence[Fence],
    ) -> list[NDArray]:
        """The ordinary outputs, once the last fence has signalled. Raises as `Variant.run`;
        `GeneralFailure` for a fence of *wait_for* that failed.
        """
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
                # Drivers may write until their fences have signalled, whatever has become of the
                # run.
                left = self._settle(launched, into_callers=out is not None)
                if not left:
                    variant.give_back(arena)
            if left:
                if config.cancel is not None:
                    config.cancel.check()
                raise MissedDeadlineTransient("a driver's fence did not signal before the deadline")
            self._check(launched)
        except MissedDeadline:
            raise
        except DriverError as error:
            # What a fence of the caller's failed with is the reason that counts, and no other
            # device could help.
            await_fences(wait_for, config)
            run.values = variant.values(run, inputs, out)
            if len(self._steps) == 1:
                self._steps[0].recover(run, error, began)
            else:
                variant.repeat_whole(run, error)
        run.check_end()
        return [run.values[i] for i in variant.outputs]

    def _settle(self, launched: Sequence[Launched], *, into_callers: bool) -> bool:
        """Waits for what was launched to end. Whether it was left to itself, past the deadline of
        the run or cancelled: only where it writes no memory of the caller's.
        """
        for one in launched:
            try:
                if into_callers or signals_in_time(one.fence, self._run.config):
                    one.fence.wait()
                    continue
            except Cancelled:
                pass
            return True
        return False

    def _launch(self, wait_for: Sequence[Fence], launched: list[Launched]) -> None:
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
                    raise GeneralFailure(f"execute_fenced returned {type(fence).__name__}")
            except (MissedDeadline, Cancelled):
                raise
            except DriverError as error:
                self._note(step, error)
                note_lost(prepared, error, run)
                # Told.
                error.copies = ()
                raise
            except FOREIGN as error:
                name = prepared.device.name
                failure = GeneralFailure(f"device {name} failed in execute_fenced: {error!r}")
                self._note(step, failure)
                raise failure from error
            launched.append(Launched(step, fence, began))
            fences = [fence]

    def _check(self, launched: Sequence[Launched]) -> None:
        """Raises the error of the first step that failed; the others have their place in the
        receipt.
        """
        ended = perf_counter_ns()
        for one in launched:
            prepared = one.step.prepared
            note_remote(prepared, getattr(one.fence, "result", DONE), self._run)
            if (error := one.fence.error()) is not None:
                self._note(one.step, error)
                raise error
            self._run.steps.append(StepTrace(prepared, one.began_ns, ended, DONE))

    def _note(self, step: Step, error: DriverError) -> None:
        prepared = step.prepared
        self._run.failures = (failure_of(prepared.device.name, error, prepared.step),)


class Launched(NamedTuple):
    """A step behind a fence of its driver's."""

    step: Step
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
