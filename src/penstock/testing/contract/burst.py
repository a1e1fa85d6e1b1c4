"""Bursts and reusable executions: many runs on one prepared model."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Final

from penstock.errors import GeneralFailure, InvalidArgument
from penstock.hal import Burst, Device
from penstock.testing.contract.cases import one_case, supported_cases, with_other_inputs
from penstock.testing.contract.mutations import request_mutations
from penstock.testing.contract.promise import Check, allowed, needs_values, refused, require
from penstock.testing.contract.trial import PLAIN, Trial, compare, kinds, prepare

RUNS: Final = 16


@needs_values
def check_burst_gives_the_values_of_execute(device: Device) -> None:
    for case in supported_cases(device):
        with (
            closing(prepare(device, case)) as prepared,
            closing(prepared.configure_burst()) as burst,
        ):
            for kind in kinds(device):
                for _ in range(3):
                    with Trial(case, kind) as trial:
                        result = burst.execute(trial.request, PLAIN)
                        trial.check_memory()
                        found = trial.outputs(result)
                        compare(device, case, found, case.outputs, f"in a burst ({kind})")


@needs_values
def check_burst_reads_its_inputs_anew(device: Device) -> None:
    """The same memory with other content gives other answers: nothing of a run is kept."""
    case = one_case(device)
    with (
        closing(prepare(device, case)) as prepared,
        closing(prepared.configure_burst()) as burst,
        Trial(case) as trial,
    ):
        for seed in (1, 2, 0):
            trial.inputs[:] = with_other_inputs(case, seed)
            trial.fill()
            found = trial.outputs(burst.execute(trial.request, PLAIN))
            with Trial(case, inputs=with_other_inputs(case, seed)) as other:
                compare(device, case, found, other.run(prepared), "of new content in old memory")


def check_burst_refuses_bad_requests(device: Device) -> None:
    """VTS's ValidateBurst: `InvalidArgument`."""
    case = one_case(device)
    with (
        closing(prepare(device, case)) as prepared,
        closing(prepared.configure_burst()) as burst,
        Trial(case) as trial,
    ):
        for name, request in request_mutations(trial):
            with refused(f"{name}, in a burst", InvalidArgument):
                burst.execute(request, PLAIN)


@needs_values
def check_burst_runs_one_at_a_time(device: Device) -> None:
    """VTS's ValidateBurst: a run beside another of the same burst is `GeneralFailure`, or waits; no
    answer is wrong.
    """
    case = one_case(device)
    with closing(prepare(device, case)) as prepared, closing(prepared.configure_burst()) as burst:

        def run(_: int) -> bool:
            with Trial(case) as trial:
                try:
                    result = burst.execute(trial.request, PLAIN)
                except GeneralFailure:
                    return False
                compare(device, case, trial.outputs(result), case.outputs, "in a shared burst")
                return True

        with ThreadPoolExecutor(4) as pool:
            answered = list(pool.map(run, range(RUNS)))
        require(any(answered), "no run of the burst got an answer")
        require(run(0), "the burst does not run any more")


@needs_values
def check_bursts_do_not_meet(device: Device) -> None:
    """Bursts of one prepared model run side by side, also beside plain executions."""
    case = one_case(device)
    with closing(prepare(device, case)) as prepared:
        bursts: list[Burst] = [prepared.configure_burst() for _ in range(3)]

        def run(index: int) -> None:
            for _ in range(RUNS):
                with Trial(case) as trial:
                    runner = prepared if index == len(bursts) else bursts[index]
                    result = runner.execute(trial.request, PLAIN)
                    compare(device, case, trial.outputs(result), case.outputs, "beside bursts")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(run, range(len(bursts) + 1)))
        for burst in bursts:
            burst.close()


@needs_values
def check_burst_outlives_a_failed_run(device: Device) -> None:
    case = one_case(device)
    with (
        closing(prepare(device, case)) as prepared,
        closing(prepared.configure_burst()) as burst,
        Trial(case) as trial,
    ):
        for _, request in request_mutations(trial):
            with refused("a mutated request", InvalidArgument):
                burst.execute(request, PLAIN)
            found = trial.outputs(burst.execute(trial.request, PLAIN))
            compare(device, case, found, case.outputs, "after a failed run of the burst")


@needs_values
def check_reusable_execution_gives_the_values_of_execute(device: Device) -> None:
    """However often it runs, reading its inputs anew each time."""
    for case in supported_cases(device):
        for kind in kinds(device):
            with (
                closing(prepare(device, case)) as prepared,
                Trial(case, kind) as trial,
                closing(prepared.create_reusable_execution(trial.request)) as execution,
            ):
                for seed in (0, 1, 0):
                    trial.inputs[:] = with_other_inputs(case, seed)
                    trial.fill()
                    found = trial.outputs(execution.execute(PLAIN))
                    trial.check_memory()
                    with Trial(case, inputs=with_other_inputs(case, seed)) as other:
                        wanted = other.run(prepared)
                    compare(device, case, found, wanted, "of a reusable execution")


def check_reusable_execution_refuses_bad_requests(device: Device) -> None:
    """When it is created, or when it runs."""
    case = one_case(device)
    with closing(prepare(device, case)) as prepared, Trial(case) as trial:
        for name, request in request_mutations(trial):
            with refused(f"{name}, bound for reuse", InvalidArgument):
                prepared.create_reusable_execution(request).execute(PLAIN)


def check_bursts_and_executions_close_twice(device: Device) -> None:
    case = one_case(device)
    with closing(prepare(device, case)) as prepared, Trial(case) as trial:
        closers: list[Callable[[], None]] = [
            prepared.configure_burst().close,
            prepared.create_reusable_execution(trial.request).close,
        ]
        for close in closers:
            close()
            with allowed("a second close"):
                close()


CHECKS: Final[tuple[Check, ...]] = (
    check_burst_gives_the_values_of_execute,
    check_burst_reads_its_inputs_anew,
    check_burst_refuses_bad_requests,
    check_burst_runs_one_at_a_time,
    check_bursts_do_not_meet,
    check_burst_outlives_a_failed_run,
    check_reusable_execution_gives_the_values_of_execute,
    check_reusable_execution_refuses_bad_requests,
    check_bursts_and_executions_close_twice,
)
