"""Bursts, reusable executions and fenced executions of one prepared model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Final

from penstock import hal
from penstock.errors import GeneralFailure, InvalidArgument, MissedDeadline, PenstockError
from penstock.testing.contract.cases import (
    dynamic_cases,
    one_case,
    static_cases,
    supported_cases,
    with_other_inputs,
)
from penstock.testing.contract.mutations import request_mutations
from penstock.testing.contract.promise import Suite, Violation, allowed, describe, refused, require
from penstock.testing.contract.trial import (
    PLAIN,
    Trial,
    each_kind,
    each_prepared,
    prepare,
    ready,
)

BURST: Final = Suite("burst", "bursts-fences-and-reusable-executions", "Burst")
FENCED: Final = Suite(
    "fenced", "bursts-fences-and-reusable-executions", "PreparedModel.execute_fenced"
)

RUNS: Final = 16
PATIENCE_NS: Final = 30 * 10**9
"""Seconds after which a fence counts as never signalled, also on a loaded machine."""
A_MOMENT_S: Final = 0.02
"""How long the test watches that a driver does nothing."""


@BURST.values
def check_burst_gives_the_values_of_execute(device: hal.Device) -> None:
    for case, prepared in each_prepared(device, supported_cases(device)):
        with closing(prepared.configure_burst()) as burst:
            for _ in range(3):
                for kind, trial in each_kind(device, case):
                    result = burst.execute(trial.request, PLAIN)
                    trial.expect(device, result, f"in a burst ({kind})")


@BURST.values
def check_burst_reads_its_inputs_anew(device: hal.Device) -> None:
    """The same memory with other content gives other answers: a burst caches no values."""
    case = one_case(device)
    with ready(device, case) as (prepared, trial), closing(prepared.configure_burst()) as burst:
        for seed in (1, 2, 0):
            trial.inputs[:] = with_other_inputs(case, seed)
            trial.fill()
            result = burst.execute(trial.request, PLAIN)
            with Trial(case, inputs=with_other_inputs(case, seed)) as other:
                wanted = other.run(prepared)
            trial.expect(device, result, "of new content in old memory", wanted)


@BURST.check
def check_burst_refuses_bad_requests(device: hal.Device) -> None:
    """VTS's ValidateBurst: an invalid request is `InvalidArgument`."""
    case = one_case(device)
    with ready(device, case) as (prepared, trial), closing(prepared.configure_burst()) as burst:
        for name, request in request_mutations(trial):
            with refused(f"{name}, in a burst", InvalidArgument):
                burst.execute(request, PLAIN)


@BURST.values
def check_burst_runs_one_at_a_time(device: hal.Device) -> None:
    """VTS's ValidateBurst: a second run of a busy burst is `GeneralFailure`, waits, or is right."""
    case = one_case(device)
    with closing(prepare(device, case)) as prepared, closing(prepared.configure_burst()) as burst:

        def run(_: int) -> bool:
            with Trial(case) as trial:
                try:
                    result = burst.execute(trial.request, PLAIN)
                except GeneralFailure:
                    return False
                trial.expect(device, result, "in a shared burst")
                return True

        with ThreadPoolExecutor(4) as pool:
            answered = list(pool.map(run, range(RUNS)))
        require(any(answered), "no run of the burst got an answer")
        require(run(0), "the burst does not run any more")


@BURST.values
def check_bursts_do_not_meet(device: hal.Device) -> None:
    """Bursts of one prepared model run concurrently, also with plain executions."""
    case = one_case(device)
    with closing(prepare(device, case)) as prepared:
        bursts: list[hal.Burst] = [prepared.configure_burst() for _ in range(3)]

        def run(index: int) -> None:
            for _ in range(RUNS):
                with Trial(case) as trial:
                    runner = prepared if index == len(bursts) else bursts[index]
                    result = runner.execute(trial.request, PLAIN)
                    trial.expect(device, result, "beside bursts")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(run, range(len(bursts) + 1)))
        for burst in bursts:
            burst.close()


@BURST.values
def check_burst_outlives_a_failed_run(device: hal.Device) -> None:
    case = one_case(device)
    with ready(device, case) as (prepared, trial), closing(prepared.configure_burst()) as burst:
        for _, request in request_mutations(trial):
            with refused("a mutated request", InvalidArgument):
                burst.execute(request, PLAIN)
            result = burst.execute(trial.request, PLAIN)
            trial.expect(device, result, "after a failed run of the burst")


@BURST.values
def check_reusable_execution_gives_the_values_of_execute(device: hal.Device) -> None:
    """A reusable execution reads its inputs again in every run."""
    for case, prepared in each_prepared(device, supported_cases(device)):
        for _, trial in each_kind(device, case):
            with closing(prepared.create_reusable_execution(trial.request)) as execution:
                for seed in (0, 1, 0):
                    trial.inputs[:] = with_other_inputs(case, seed)
                    trial.fill()
                    result = execution.execute(PLAIN)
                    with Trial(case, inputs=with_other_inputs(case, seed)) as other:
                        wanted = other.run(prepared)
                    trial.expect(device, result, "of a reusable execution", wanted)


@BURST.check
def check_reusable_execution_refuses_bad_requests(device: hal.Device) -> None:
    """The error is raised when the execution is created, or when it runs."""
    with ready(device, one_case(device)) as (prepared, trial):
        for name, request in request_mutations(trial):
            with refused(f"{name}, bound for reuse", InvalidArgument):
                prepared.create_reusable_execution(request).execute(PLAIN)


@BURST.check
def check_bursts_and_executions_close_twice(device: hal.Device) -> None:
    with ready(device, one_case(device)) as (prepared, trial):
        closers: list[Callable[[], None]] = [
            prepared.configure_burst().close,
            prepared.create_reusable_execution(trial.request).close,
        ]
        for close in closers:
            close()
            with allowed("a second close"):
                close()


@FENCED.values
def check_fenced_gives_the_values_of_execute(device: hal.Device) -> None:
    """Without fences to wait for, and with signalled ones."""
    for case, prepared in each_prepared(device, static_cases(device)):
        for count in range(3):
            for _, trial in each_kind(device, case):
                fence = prepared.execute_fenced(trial.request, _signalled(count), PLAIN)
                _await_success(fence, f"{case.name} behind {count} fences")
                trial.expect(device, hal.ExecutionResult(), "of a fenced run")


@FENCED.values
def check_fenced_waits_for_every_fence(device: hal.Device) -> None:
    """Outputs stay unwritten while any of the fences is open."""
    fences = [hal.EventFence() for _ in range(3)]
    with (
        ready(device, one_case(device)) as (prepared, trial),
        ThreadPoolExecutor(1) as pool,  # execute_fenced may block, or return an open fence
    ):
        launch = pool.submit(prepared.execute_fenced, trial.request, fences, PLAIN)
        try:
            for fence in fences:
                time.sleep(A_MOMENT_S)
                trial.check_unwritten("before every fence had signalled")
                require(not _ended(launch), "the run ended before every fence had signalled")
                fence.signal()
            _await_success(_fence_of(launch), "the run behind fences")
        finally:
            for fence in fences:
                fence.signal()
        trial.expect(device, hal.ExecutionResult(), "of a fenced run")


@FENCED.values
def check_fenced_fails_with_a_failed_fence(device: hal.Device) -> None:
    """If a dependency fails, the returned fence has `GeneralFailure`, and nothing is written."""
    with ready(device, one_case(device)) as (prepared, trial):
        failed = hal.EventFence()
        failed.signal(GeneralFailure("this fence failed"))
        fence = prepared.execute_fenced(trial.request, [*_signalled(1), failed], PLAIN)
        require(fence.wait(PATIENCE_NS), "the fence behind a failed fence never signals")
        error = fence.error()
        require(isinstance(error, GeneralFailure), f"its error is {error!r}, not GeneralFailure")
        trial.check_unwritten("behind a failed fence")
        require(prepared.execute(trial.request, PLAIN) is not None, "no run afterwards")


@FENCED.values
def check_fenced_writes_nothing_after_its_fence(device: hal.Device) -> None:
    """After the fence is signalled, the driver no longer writes: the caller's values stay."""
    with ready(device, one_case(device)) as (prepared, trial):
        fence = prepared.execute_fenced(trial.request, [], PLAIN)
        _await_success(fence, "the fenced run")
        trial.fill()
        time.sleep(A_MOMENT_S)
        trial.check_unwritten("after its fence had signalled")


@FENCED.check
def check_fenced_refuses_outputs_of_unknown_shape(device: hal.Device) -> None:
    """`InvalidArgument`, raised or carried by the fence."""
    for case in dynamic_cases(device):
        with ready(device, case) as (prepared, trial):
            error = _error_of(prepared, trial.request, [], PLAIN)
            require(
                isinstance(error, InvalidArgument),
                f"{case.name}: {error!r} for outputs of unknown shape, not InvalidArgument",
            )


@FENCED.check
def check_fenced_refuses_bad_requests(device: hal.Device) -> None:
    """As `execute` does; `InvalidArgument` is raised or carried by the fence."""
    with ready(device, one_case(device)) as (prepared, trial):
        request = hal.Request(trial.request.inputs, (), trial.request.pools)
        error = _error_of(prepared, request, [], PLAIN)
        require(isinstance(error, InvalidArgument), f"{error!r} for a request without outputs")


@FENCED.values
def check_fenced_past_its_deadline(device: hal.Device) -> None:
    """An unsignalled fence: the wait ends with `MissedDeadline*` or `GeneralFailure`."""
    with ready(device, one_case(device)) as (prepared, trial):
        config = hal.ExecutionConfig(deadline_ns=time.monotonic_ns() + 20_000_000)
        error = _error_of(prepared, trial.request, [hal.EventFence()], config)
        require(
            isinstance(error, MissedDeadline | GeneralFailure),
            f"{error!r} behind a fence that never signals",
        )
        trial.check_unwritten("behind a fence that never signals")


def _signalled(count: int) -> list[hal.Fence]:
    fences = [hal.EventFence() for _ in range(count)]
    for fence in fences:
        fence.signal()
    return list(fences)


def _await_success(fence: hal.Fence, what: str) -> None:
    require(fence.wait(PATIENCE_NS), f"{what}: the fence never signals")
    error = fence.error()
    require(error is None, f"{what}: the fence carries {error!r}")
    require(fence.wait(0), f"{what}: the fence is open again")


def _error_of(
    prepared: hal.PreparedModel,
    request: hal.Request,
    fences: Sequence[hal.Fence],
    config: hal.ExecutionConfig,
) -> PenstockError | None:
    try:
        fence = prepared.execute_fenced(request, fences, config)
    except PenstockError as error:
        return error
    require(fence.wait(PATIENCE_NS), "the fence of a run that must fail never signals")
    return fence.error()


def _ended(launch: Future[hal.Fence]) -> bool:
    if not launch.done():
        return False
    return launch.exception() is not None or _fence_of(launch).wait(0)


def _fence_of(launch: Future[hal.Fence]) -> hal.Fence:
    """The fence that `execute_fenced` returned. `Violation` if it raised or did not return."""
    try:
        error = launch.exception(PATIENCE_NS / 1e9)
    except TimeoutError:
        raise Violation("execute_fenced never returns") from None
    if error is not None:
        raise Violation(f"execute_fenced raised {describe(error)}") from error
    fence: hal.Fence | None = launch.result()
    if fence is None:
        raise Violation("execute_fenced returned no fence")
    return fence
