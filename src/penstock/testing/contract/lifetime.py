"""What is opened is closed: nothing is left behind, closing twice is harmless, use after it has a
name.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from penstock.errors import (
    ClosedError,
    DriverError,
    GeneralFailure,
    InvalidArgument,
    PenstockError,
)
from penstock.hal import Device, Memory
from penstock.testing.contract.cases import one_case, supported_cases
from penstock.testing.contract.mutations import request_mutations
from penstock.testing.contract.promise import Check, allowed, needs_values, refused
from penstock.testing.contract.trial import PLAIN, Trial, compare, kinds, prepare
from penstock.testing.resources import Resources

ROUNDS: Final = 5


def check_runs_leave_nothing_behind(device: Device) -> None:
    """No descriptor, thread, child process or mapped pool is left by preparing, running and
    closing.
    """
    cases = supported_cases(device)

    def work() -> None:
        for case in cases:
            with closing(prepare(device, case)) as prepared:
                for kind in kinds(device):
                    with Trial(case, kind) as trial:
                        prepared.execute(trial.request, PLAIN)

    work()
    with allowed("resources"), Resources.unchanged(f"preparing and running {ROUNDS} times"):
        for _ in range(ROUNDS):
            work()


def check_failed_runs_leave_nothing_behind(device: Device) -> None:
    case = one_case(device)
    with closing(prepare(device, case)) as prepared, Trial(case) as trial:

        def work() -> None:
            for _, request in request_mutations(trial):
                with refused("a mutated request", InvalidArgument):
                    prepared.execute(request, PLAIN)

        work()
        with Resources.unchanged("refusing requests"):
            work()


def check_failed_mappings_leave_nothing_behind(device: Device) -> None:
    """Also when one pool of several cannot be mapped."""
    case = one_case(device)
    with closing(prepare(device, case)) as prepared, Trial(case) as trial:
        good = trial.request.pools[0]
        pools = (good, good, Memory("no_such_memory", 0, 1))
        request = type(trial.request)(trial.request.inputs, trial.request.outputs, pools)

        def work() -> None:
            with allowed("a pool of an unknown name beside good ones", GeneralFailure):
                prepared.execute(request, PLAIN)

        work()
        with Resources.unchanged("failing to map pools"):
            for _ in range(ROUNDS):
                work()


def check_bursts_and_executions_leave_nothing_behind(device: Device) -> None:
    case = one_case(device)

    def work() -> None:
        with closing(prepare(device, case)) as prepared, Trial(case) as trial:
            with closing(prepared.configure_burst()) as burst:
                burst.execute(trial.request, PLAIN)
            with closing(prepared.create_reusable_execution(trial.request)) as execution:
                execution.execute(PLAIN)
            prepared.execute_fenced(trial.request, [], PLAIN).wait()

    work()
    with allowed("resources"), Resources.unchanged(f"bursts and executions, {ROUNDS} times"):
        for _ in range(ROUNDS):
            work()


def check_prepared_models_close_twice(device: Device) -> None:
    for case in supported_cases(device):
        prepared = prepare(device, case)
        prepared.close()
        with allowed(f"{case.name}: a second close"):
            prepared.close()


@needs_values
def check_runs_after_close_have_a_name(device: Device) -> None:
    """A run, burst or execution of a closed model raises a `DriverError` or `ClosedError`, or is
    right.
    """
    case = one_case(device)
    prepared = prepare(device, case)
    burst = prepared.configure_burst()
    with Trial(case) as trial:
        execution = prepared.create_reusable_execution(trial.request)
        prepared.close()
        kinds_of_error: tuple[type[PenstockError], ...] = (DriverError, ClosedError)
        with allowed("a run after close()", *kinds_of_error):
            compare(device, case, trial.run(prepared), case.outputs, "after close()")
        with allowed("a burst after close()", *kinds_of_error):
            found = trial.outputs(burst.execute(trial.request, PLAIN))
            compare(device, case, found, case.outputs, "in a burst after close()")
        with allowed("a reusable execution after close()", *kinds_of_error):
            found = trial.outputs(execution.execute(PLAIN))
            compare(device, case, found, case.outputs, "of an execution after close()")
        with allowed("a burst made after close()", *kinds_of_error):
            prepared.configure_burst().close()
        burst.close()
        execution.close()


@needs_values
def check_closing_one_model_leaves_the_others(device: Device) -> None:
    case = one_case(device)
    first, second = prepare(device, case), prepare(device, case)
    first.close()
    with closing(second), Trial(case) as trial:
        compare(device, case, trial.run(second), case.outputs, "after another model was closed")


CHECKS: Final[tuple[Check, ...]] = (
    check_runs_leave_nothing_behind,
    check_failed_runs_leave_nothing_behind,
    check_failed_mappings_leave_nothing_behind,
    check_bursts_and_executions_leave_nothing_behind,
    check_prepared_models_close_twice,
    check_runs_after_close_have_a_name,
    check_closing_one_model_leaves_the_others,
)
