"""Fenced execution: nothing runs before the fences have signalled, nothing is written after its own
has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final

from penstock.errors import GeneralFailure, InvalidArgument, MissedDeadline, PenstockError
from penstock.hal import (
    Device,
    EventFence,
    ExecutionConfig,
    ExecutionResult,
    Fence,
    PreparedModel,
    Request,
)
from penstock.testing.contract.cases import dynamic_cases, one_case, static_cases
from penstock.testing.contract.promise import Check, Violation, describe, needs_values, require
from penstock.testing.contract.trial import PLAIN, Trial, compare, kinds, prepare

PATIENCE_NS: Final = 30 * 10**9
"""How long a fence may take on a loaded machine before it counts as never signalled."""

A_MOMENT_S: Final = 0.02
"""How long a driver is watched doing nothing."""


@needs_values
def check_fenced_gives_the_values_of_execute(device: Device) -> None:
    """Without fences to wait for, and with ones that have signalled."""
    for case in static_cases(device):
        with closing(prepare(device, case)) as prepared:
            for kind in kinds(device):
                for count in range(3):
                    with Trial(case, kind) as trial:
                        fence = prepared.execute_fenced(trial.request, _signalled(count), PLAIN)
                        _await_success(fence, f"{case.name} behind {count} fences")
                        trial.check_memory()
                        found = trial.outputs(ExecutionResult())
                        compare(device, case, found, case.outputs, "of a fenced run")


@needs_values
def check_fenced_waits_for_every_fence(device: Device) -> None:
    """Outputs stay unwritten while one of the fences is open."""
    case = one_case(device)
    with closing(prepare(device, case)) as prepared, Trial(case) as trial:
        fences = [EventFence() for _ in range(3)]
        with _launched(prepared, trial.request, fences, PLAIN) as launch:
            for fence in fences:
                time.sleep(A_MOMENT_S)
                trial.check_unwritten("before every fence had signalled")
                require(not launch.done(), "the run ended before every fence had signalled")
                fence.signal()
            _await_success(launch.fence(), "the run behind fences")
        found = trial.outputs(ExecutionResult())
        compare(device, case, found, case.outputs, "of a fenced run")


@needs_values
def check_fenced_fails_with_a_failed_fence(device: Device) -> None:
    """Its fence then carries `GeneralFailure`, and nothing is written."""
    case = one_case(device)
    with closing(prepare(device, case)) as prepared, Trial(case) as trial:
        failed = EventFence()
        failed.signal(GeneralFailure("this fence failed"))
        fence = prepared.execute_fenced(trial.request, [*_signalled(1), failed], PLAIN)
        require(fence.wait(PATIENCE_NS), "the fence behind a failed fence never signals")
        error = fence.error()
        require(isinstance(error, GeneralFailure), f"its error is {error!r}, not GeneralFailure")
        trial.check_unwritten("behind a failed fence")
        require(prepared.execute(trial.request, PLAIN) is not None, "no run afterwards")


@needs_values
def check_fenced_writes_nothing_after_its_fence(device: Device) -> None:
    """What is put into the outputs once the fence has signalled stays there."""
    case = one_case(device)
    with closing(prepare(device, case)) as prepared, Trial(case) as trial:
        fence = prepared.execute_fenced(trial.request, [], PLAIN)
        _await_success(fence, "the fenced run")
        trial.fill()
        time.sleep(A_MOMENT_S)
        trial.check_unwritten("after its fence had signalled")


def check_fenced_refuses_outputs_of_unknown_shape(device: Device) -> None:
    """`InvalidArgument`, raised or carried by the fence."""
    for case in dynamic_cases(device):
        with closing(prepare(device, case)) as prepared, Trial(case) as trial:
            error = _error_of(prepared, trial.request, [], PLAIN)
            require(
                isinstance(error, InvalidArgument),
                f"{case.name}: {error!r} for outputs of unknown shape, not InvalidArgument",
            )


def check_fenced_refuses_bad_requests(device: Device) -> None:
    """As `execute` does; `InvalidArgument` is raised or carried by the fence."""
    case = one_case(device)
    with closing(prepare(device, case)) as prepared, Trial(case) as trial:
        request = Request(trial.request.inputs, (), trial.request.pools)
        error = _error_of(prepared, request, [], PLAIN)
        require(isinstance(error, InvalidArgument), f"{error!r} for a request without outputs")


@needs_values
def check_fenced_past_its_deadline(device: Device) -> None:
    """A fence that never signals: the wait ends at the deadline with `MissedDeadline*`, or
    `GeneralFailure`.
    """
    case = one_case(device)
    with closing(prepare(device, case)) as prepared, Trial(case) as trial:
        config = ExecutionConfig(deadline_ns=time.monotonic_ns() + 20_000_000)
        error = _error_of(prepared, trial.request, [EventFence()], config)
        require(
            isinstance(error, MissedDeadline | GeneralFailure),
            f"{error!r} behind a fence that never signals",
        )
        trial.check_unwritten("behind a fence that never signals")


def _signalled(count: int) -> list[Fence]:
    fences = [EventFence() for _ in range(count)]
    for fence in fences:
        fence.signal()
    return list(fences)


def _await_success(fence: Fence, what: str) -> None:
    require(fence.wait(PATIENCE_NS), f"{what}: the fence never signals")
    error = fence.error()
    require(error is None, f"{what}: the fence carries {error!r}")
    require(fence.wait(0), f"{what}: the fence is open again")


def _error_of(
    prepared: PreparedModel, request: Request, fences: Sequence[Fence], config: ExecutionConfig
) -> PenstockError | None:
    try:
        fence = prepared.execute_fenced(request, fences, config)
    except PenstockError as error:
        return error
    require(fence.wait(PATIENCE_NS), "the fence of a run that must fail never signals")
    return fence.error()


class _Launch:
    """`execute_fenced` in a thread of its own: it may block, or return a fence that is still open."""

    def __init__(self) -> None:
        self._returned = threading.Event()
        self._fence: Fence | None = None
        self._error: Exception | None = None

    def run(
        self,
        prepared: PreparedModel,
        request: Request,
        fences: Sequence[Fence],
        config: ExecutionConfig,
    ) -> None:
        try:
            self._fence = prepared.execute_fenced(request, fences, config)
        except Exception as error:  # noqa: BLE001  # reported by `fence`
            self._error = error
        self._returned.set()

    def done(self) -> bool:
        return self._error is not None or (self._fence is not None and self._fence.wait(0))

    def fence(self) -> Fence:
        require(self._returned.wait(PATIENCE_NS / 1e9), "execute_fenced never returns")
        if self._error is not None:
            raise Violation(f"execute_fenced raised {describe(self._error)}") from self._error
        if self._fence is None:
            raise Violation("execute_fenced returned no fence")
        return self._fence


@contextmanager
def _launched(
    prepared: PreparedModel,
    request: Request,
    fences: Sequence[EventFence],
    config: ExecutionConfig,
) -> Iterator[_Launch]:
    launch = _Launch()
    thread = threading.Thread(target=launch.run, args=(prepared, request, fences, config))
    thread.start()
    try:
        yield launch
    finally:
        for fence in fences:
            fence.signal()
        thread.join()


CHECKS: Final[tuple[Check, ...]] = (
    check_fenced_gives_the_values_of_execute,
    check_fenced_waits_for_every_fence,
    check_fenced_fails_with_a_failed_fence,
    check_fenced_writes_nothing_after_its_fence,
    check_fenced_refuses_outputs_of_unknown_shape,
    check_fenced_refuses_bad_requests,
    check_fenced_past_its_deadline,
)
