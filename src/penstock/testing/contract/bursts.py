"""Bursts, reusable executions and fenced executions of one prepared model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Final

from msgspec.structs import replace

from penstock import hal
from penstock.errors import GeneralFailure, InvalidArgument, MissedDeadline, PenstockError
from penstock.testing.contract.cases import dynamic_cases, static_cases, supported_cases
from penstock.testing.contract.mutations import refuse_mutations, request_mutations
from penstock.testing.contract.promise import Suite, Violation, allowed, describe, refused, require
from penstock.testing.contract.trial import (
    PLAIN,
    PreparedCase,
    Trial,
    each_prepared,
    prepare,
    ready,
)

BURST: Final = Suite("burst", "bursts-fences-and-reusable-executions", "Burst", shares=True)
FENCED: Final = Suite(
    "fenced",
    "bursts-fences-and-reusable-executions",
    "PreparedModel.execute_fenced",
    shares=True,
)

RUNS: Final = 16
PATIENCE_NS: Final = 30 * 10**9
"""Seconds after which a fence counts as never signalled, also on a loaded machine."""
A_MOMENT_S: Final = 0.02
"""How long the test watches that a driver does nothing."""


@contextmanager
def _bursting(device: hal.Device) -> Iterator[tuple[Trial, hal.Burst]]:
    with ready(device) as trial, closing(trial.on.prepared.configure_burst()) as burst:
        yield trial, burst


@BURST.values
def check_burst_gives_the_values_of_execute(device: hal.Device) -> None:
    for on in each_prepared(device, supported_cases(device)):
        with closing(on.prepared.configure_burst()) as burst:
            for _ in range(3):
                for trial in on.trials():
                    result = burst.execute(trial.request, PLAIN)
                    trial.expect(result, f"in a burst ({trial.kind})")


@BURST.values
def check_burst_reads_its_inputs_anew(device: hal.Device) -> None:
    """The same memory with other content gives other answers: a burst caches no values."""
    with _bursting(device) as (trial, burst):
        for seed in (1, 2, 0):
            trial.fill(seed)
            result = burst.execute(trial.request, PLAIN)
            trial.expect(result, "of new content in old memory", trial.on.answers(seed))


@BURST.check
def check_burst_refuses_bad_requests(device: hal.Device) -> None:
    """VTS's ValidateBurst: an invalid request is `InvalidArgument`."""
    with _bursting(device) as (trial, burst):
        refuse_mutations(trial, burst.execute, "in a burst")


@BURST.values
def check_burst_runs_one_at_a_time(device: hal.Device) -> None:
    """VTS's ValidateBurst: a second run of a busy burst is `GeneralFailure`, waits, or is right."""
    with prepare(device, anew=True) as on, closing(on.prepared.configure_burst()) as burst:

        def run(_: int) -> bool:
            with on.trial() as trial:
                try:
                    result = burst.execute(trial.request, PLAIN)
                except GeneralFailure:
                    return False
                trial.expect(result, "in a shared burst")
                return True

        with ThreadPoolExecutor(4) as pool:
            answered = list(pool.map(run, range(RUNS)))
        require(any(answered), "no run of the burst got an answer")
        require(run(0), "the burst does not run any more")


@BURST.values
def check_bursts_do_not_meet(device: hal.Device) -> None:
    """Bursts of one prepared model run concurrently, also with plain executions."""
    with prepare(device, anew=True) as on:
        bursts: list[hal.Burst] = [on.prepared.configure_burst() for _ in range(3)]

        def run(runner: hal.Burst) -> None:
            for _ in range(RUNS):
                with on.trial() as trial:
                    trial.expect(runner.execute(trial.request, PLAIN), "beside bursts")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(run, (*bursts, on.prepared)))
        for burst in bursts:
            burst.close()


@BURST.values
def check_burst_outlives_a_failed_run(device: hal.Device) -> None:
    with _bursting(device) as (trial, burst):
        for _, request in request_mutations(trial):
            with refused("a mutated request", InvalidArgument):
                burst.execute(request, PLAIN)
            result = burst.execute(trial.request, PLAIN)
            trial.expect(result, "after a failed run of the burst")


@BURST.values
def check_reusable_execution_gives_the_values_of_execute(device: hal.Device) -> None:
    """A reusable execution reads its inputs again in every run."""
    for on in each_prepared(device, supported_cases(device)):
        for trial in on.trials():
            with closing(on.prepared.create_reusable_execution(trial.request)) as execution:
                for seed in (0, 1, 0):
                    trial.fill(seed)
                    result = execution.execute(PLAIN)
                    trial.expect(result, "of a reusable execution", on.answers(seed))


@BURST.check
def check_reusable_execution_refuses_bad_requests(device: hal.Device) -> None:
    """The error is raised when the execution is created, or when it runs."""
    with ready(device) as trial:

        def reuse(request: hal.Request, config: hal.ExecutionConfig) -> None:
            trial.on.prepared.create_reusable_execution(request).execute(config)

        refuse_mutations(trial, reuse, "bound for reuse")


@BURST.check
def check_bursts_and_executions_close_twice(device: hal.Device) -> None:
    with ready(device) as trial:
        prepared = trial.on.prepared
        burst, execution = (
            prepared.configure_burst(),
            prepared.create_reusable_execution(trial.request),
        )
        for close in (burst.close, execution.close):
            close()
            with allowed("a second close"):
                close()


@FENCED.values
def check_fenced_gives_the_values_of_execute(device: hal.Device) -> None:
    """Without fences to wait for, and with signalled ones."""
    for on in each_prepared(device, static_cases(device)):
        for count in range(3):
            for trial in on.trials():
                fence = on.prepared.execute_fenced(trial.request, _signalled(count), PLAIN)
                _await_success(fence, f"{on.case.name} behind {count} fences")
                trial.expect(hal.ExecutionResult(), "of a fenced run")


@FENCED.values
def check_fenced_waits_for_every_fence(device: hal.Device) -> None:
    """Outputs stay unwritten while any of the fences is open."""
    fences = [hal.EventFence() for _ in range(3)]
    # execute_fenced may block, or return an open fence.
    with ready(device) as trial, ThreadPoolExecutor(1) as pool:
        launch = pool.submit(trial.on.prepared.execute_fenced, trial.request, fences, PLAIN)
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
        trial.expect(hal.ExecutionResult(), "of a fenced run")


@FENCED.values
def check_fenced_fails_with_a_failed_fence(device: hal.Device) -> None:
    """If a dependency fails, the returned fence has `GeneralFailure`, and nothing is written."""
    with ready(device) as trial:
        failed = hal.EventFence()
        failed.signal(GeneralFailure("this fence failed"))
        fences = [*_signalled(1), failed]
        fence = trial.on.prepared.execute_fenced(trial.request, fences, PLAIN)
        require(fence.wait(PATIENCE_NS), "the fence behind a failed fence never signals")
        error = fence.error()
        require(isinstance(error, GeneralFailure), f"its error is {error!r}, not GeneralFailure")
        trial.check_unwritten("behind a failed fence")
        require(trial.execute() is not None, "no run afterwards")


@FENCED.values
def check_fenced_writes_nothing_after_its_fence(device: hal.Device) -> None:
    """After the fence is signalled, the driver no longer writes: the caller's values stay."""
    with ready(device) as trial:
        fence = trial.on.prepared.execute_fenced(trial.request, [], PLAIN)
        _await_success(fence, "the fenced run")
        trial.fill()
        time.sleep(A_MOMENT_S)
        trial.check_unwritten("after its fence had signalled")


@FENCED.check
def check_fenced_refuses_outputs_of_unknown_shape(device: hal.Device) -> None:
    """`InvalidArgument`, raised or carried by the fence."""
    for case in dynamic_cases(device):
        with ready(device, case) as trial:
            _must_fail(trial.on, trial.request, "outputs of unknown shape", InvalidArgument)


@FENCED.check
def check_fenced_refuses_bad_requests(device: hal.Device) -> None:
    """As `execute` does; `InvalidArgument` is raised or carried by the fence."""
    with ready(device) as trial:
        request = replace(trial.request, outputs=())
        _must_fail(trial.on, request, "a request without outputs", InvalidArgument)


@FENCED.values
def check_fenced_past_its_deadline(device: hal.Device) -> None:
    """An unsignalled fence: the wait ends with `MissedDeadline*` or `GeneralFailure`."""
    what, kinds = "behind a fence that never signals", (MissedDeadline, GeneralFailure)
    with ready(device) as trial:
        config = hal.ExecutionConfig(deadline_ns=time.monotonic_ns() + 20_000_000)
        _must_fail(trial.on, trial.request, what, *kinds, fences=[hal.EventFence()], config=config)
        trial.check_unwritten(what)


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


def _must_fail(
    on: PreparedCase,
    request: hal.Request,
    what: str,
    *kinds: type[PenstockError],
    fences: Sequence[hal.Fence] = (),
    config: hal.ExecutionConfig = PLAIN,
) -> None:
    """A fenced run must raise one of *kinds*, or its fence must carry one."""
    with refused(f"{on.case.name}, {what}", *kinds):
        fence = on.prepared.execute_fenced(request, fences, config)
        require(fence.wait(PATIENCE_NS), "the fence of a run that must fail never signals")
        if (error := fence.error()) is not None:
            raise error


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
