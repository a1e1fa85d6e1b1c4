"""Preparing and closing models: what drivers accept and reject, and which resources stay open."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any, Final, get_args

import numpy as np
from msgspec.structs import replace

from penstock import errors, hal
from penstock.hal.capabilities import least_class
from penstock.ir import Model
from penstock.testing.contract.cases import supported_cases
from penstock.testing.contract.mutations import cycles, model_mutations, refuse_mutations
from penstock.testing.contract.promise import (
    NotCovered,
    Suite,
    Violation,
    allowed,
    describe,
    refused,
    require,
)
from penstock.testing.contract.trial import PLAIN, PreparedCase, each_prepared, prepare, ready
from penstock.testing.resources import Resources

SUITE: Final = Suite("prepare", "preparing", "Device.prepare_model")
LIFETIME: Final = Suite("lifetime", "letting-go", "PreparedModel.close")
ROUNDS: Final = 5
MODEL_ROUNDS: Final = 2
"""Rounds of every supported case. A leak of any case shows in one round."""

BAD_CONFIGS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("preference 'quickly'", {"preference": "quickly"}),
    ("priority 'urgent'", {"priority": "urgent"}),
    ("accuracy 'perfect'", {"accuracy": "perfect"}),
    ("a token of 31 bytes", {"token": bytes(31)}),
    ("a token of 33 bytes", {"token": bytes(33)}),
    ("an empty binding", {"binding": b""}),
    ("0 threads", {"num_threads": 0}),
    ("-1 threads", {"num_threads": -1}),
)


@SUITE.check
def check_prepare_leaves_the_model_alone(device: hal.Device) -> None:
    for case in supported_cases(device):
        digest, listing = case.model.digest, case.model.show()
        prepare(device, case).close()
        require(replace(case.model).digest == digest, f"{case.name}: the model was changed")
        require(case.model.show() == listing, f"{case.name}: the model's listing was changed")


@SUITE.values
def check_prepare_from_two_threads(device: hal.Device) -> None:
    """Concurrent compiles, of one model and of others, do not interfere."""
    cases = supported_cases(device)
    with ThreadPoolExecutor(4) as pool:
        everything = list(pool.map(partial(prepare, device), cases * 2))
    for on in everything:
        _run(on, "after preparing in threads")
        on.close()


@SUITE.values
def check_prepare_accepts_every_preference_and_priority(device: hal.Device) -> None:
    for preference in hal.PREFERENCES:
        for priority in hal.PRIORITIES:
            config = hal.PrepareConfig(preference=preference, priority=priority)
            _check_prepared(device, config, f"with {preference}, {priority}")


@SUITE.values
def check_prepare_accepts_any_number_of_threads(device: hal.Device) -> None:
    """num_threads None and 1 to 64 give the same answers."""
    for count in (None, 1, 2, 64):
        _check_prepared(device, hal.PrepareConfig(num_threads=count), f"with {count} threads")


@SUITE.values
def check_prepare_keeps_the_class_that_is_asked_for(device: hal.Device) -> None:
    """Quantised results are within one step in `stepwise` and each stricter claimed class."""
    cases = [c for c in supported_cases(device) if all(o.quantization for o in c.model.inputs)]
    tried = 0
    for case in filter(lambda case: case.model.inputs, cases):
        best = hal.ACCURACY_RANK[least_class(device.supported_operations(case.model))]
        for accuracy in get_args(hal.AccuracyClass):
            if not hal.ACCURACY_RANK["stepwise"] <= hal.ACCURACY_RANK[accuracy] <= best:
                continue
            tried += 1
            config = hal.PrepareConfig(accuracy=accuracy)
            with ready(device, case, config=config) as trial:
                for found, wanted in zip(trial.run(trial.on.prepared), case.outputs, strict=True):
                    require(found.shape == wanted.shape, f"{case.name}: shape {found.shape}")
                    off = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
                    apart = f"{case.name} in {accuracy}: off by {off.max(initial=0):g} steps"
                    require(float(off.max(initial=0)) <= (accuracy != "exact"), apart)
    if not tried:
        raise NotCovered("it claims no quantised model of this suite in `stepwise` or better")


@SUITE.check
def check_prepare_refuses_bad_configurations(device: hal.Device) -> None:
    for name, fields in BAD_CONFIGS:
        with refused(name, errors.InvalidArgument):
            prepare(device, None, replace(hal.PrepareConfig(), **fields)).close()


@SUITE.check
def check_prepare_refuses_what_is_no_model(device: hal.Device) -> None:
    for thing in (None, b"bytes", 7, object()):
        with refused(f"a {type(thing).__name__} for a model", errors.InvalidArgument):
            device.prepare_model(thing, hal.PrepareConfig())  # type: ignore[arg-type]  # the point


@SUITE.check
def check_cycle(device: hal.Device) -> None:
    """BasicTests.CycleTest: operations that read their own or each other's results are rejected."""
    for case in supported_cases(device):
        for name, mutate in cycles(case.model):
            _refuses_model(device, f"{case.name}, {name}", mutate)


@SUITE.check
def check_prepare_refuses_every_mutation(device: hal.Device) -> None:
    """VTS's ValidateModel: each single mutation of a valid model is rejected.

    It cannot be built, or the driver raises `InvalidArgument`. Nothing crashes.
    """
    for case in supported_cases(device):
        for name, mutate in model_mutations(case.model):
            _refuses_model(device, f"{case.name}, {name}", mutate)


def _refuses_model(device: hal.Device, what: str, mutate: Callable[[], Model]) -> None:
    with allowed(what, errors.ModelError) as refusals:
        model = mutate()
    if refusals:
        return
    with refused(what, errors.InvalidArgument):
        device.prepare_model(model, hal.PrepareConfig()).close()


@SUITE.values
def check_prepare_past_its_deadline(device: hal.Device) -> None:
    """Preparing finishes, or raises `MissedDeadline*` and leaves no resources open."""
    prepare(device).close()
    with Resources.unchanged("a prepare that misses its deadline"):
        config = hal.PrepareConfig(deadline_ns=time.monotonic_ns() - 1)
        with allowed("a deadline in the past", errors.MissedDeadline):
            _check_prepared(device, config, "prepared past the deadline")


@SUITE.values
def check_prepare_before_a_far_deadline(device: hal.Device) -> None:
    """A distant deadline changes nothing."""
    config = hal.PrepareConfig(deadline_ns=time.monotonic_ns() + 600 * 10**9)
    _check_prepared(device, config, "with a far deadline")


@SUITE.values
def check_prepare_cancelled(device: hal.Device) -> None:
    """If its token is cancelled, preparing raises `Cancelled` or finishes."""
    token = hal.CancelToken()
    token.set()
    with allowed("a cancelled prepare", errors.Cancelled):
        _check_prepared(device, hal.PrepareConfig(cancel=token), "prepared with its token set")


@SUITE.check
def check_progress_is_plausible(device: hal.Device) -> None:
    """Progress events count up to their totals."""
    events: list[hal.ProgressEvent] = []
    prepare(device, None, hal.PrepareConfig(progress=events.append)).close()
    if not events:
        raise NotCovered("it reports no progress")
    for event in events:
        require(isinstance(event, hal.ProgressEvent), f"progress reported as {event!r}")
        require(0 <= event.done <= event.total, f"{event.done} of {event.total} units done")


def _check_prepared(device: hal.Device, config: hal.PrepareConfig, what: str) -> None:
    """One case, prepared with *config*, gives the right answer."""
    with prepare(device, None, config) as on:
        _run(on, what)


def _run(on: PreparedCase, what: str) -> None:
    try:
        on.check(what)
    except errors.PenstockError as error:
        raise Violation(f"{on.case.name} {what}: {describe(error)}") from error


def _check_leaves_nothing(work: Callable[[], None], what: str, rounds: int = 1) -> None:
    """*rounds* more calls of *work* leave no more resources open than the first call."""
    work()
    with Resources.unchanged(what):
        for _ in range(rounds):
            work()


@LIFETIME.check
def check_runs_leave_nothing_behind(device: hal.Device) -> None:
    """Preparing, running and closing leave no descriptor, thread, child process or mapped pool."""
    cases = supported_cases(device)

    def work() -> None:
        for on in each_prepared(device, cases):
            for trial in on.trials():
                trial.execute()

    with allowed("resources"):
        _check_leaves_nothing(work, f"preparing and running {MODEL_ROUNDS} times", MODEL_ROUNDS)


@LIFETIME.check
def check_failed_runs_leave_nothing_behind(device: hal.Device) -> None:
    with ready(device) as trial:
        refuse = partial(refuse_mutations, trial, trial.on.prepared.execute, "a mutated request")
        _check_leaves_nothing(refuse, "refusing requests")


@LIFETIME.check
def check_failed_mappings_leave_nothing_behind(device: hal.Device) -> None:
    """Also if one of several pools cannot be mapped."""
    with ready(device) as trial:
        good = trial.request.pools[0]
        request = replace(trial.request, pools=(good, good, hal.Memory("no_such_memory", 0, 1)))

        def work() -> None:
            with allowed("a pool of an unknown name beside good ones", errors.GeneralFailure):
                trial.execute(request)

        _check_leaves_nothing(work, "failing to map pools", ROUNDS)


@LIFETIME.check
def check_bursts_and_executions_leave_nothing_behind(device: hal.Device) -> None:
    def work() -> None:
        with ready(device) as trial:
            prepared = trial.on.prepared
            with closing(prepared.configure_burst()) as burst:
                burst.execute(trial.request, PLAIN)
            with closing(prepared.create_reusable_execution(trial.request)) as execution:
                execution.execute(PLAIN)
            prepared.execute_fenced(trial.request, [], PLAIN).wait()

    with allowed("resources"):
        _check_leaves_nothing(work, f"bursts and executions, {ROUNDS} times", ROUNDS)


@LIFETIME.check
def check_prepared_models_close_twice(device: hal.Device) -> None:
    for case in supported_cases(device):
        prepared = prepare(device, case)
        prepared.close()
        with allowed(f"{case.name}: a second close"):
            prepared.close()


@LIFETIME.values
def check_runs_after_close_have_a_name(device: hal.Device) -> None:
    """After closing, a run, burst or execution is `DriverError`, `ClosedError`, or right."""
    closed = errors.DriverError, errors.ClosedError
    with ready(device) as trial:
        prepared = trial.on.prepared
        burst = prepared.configure_burst()
        execution = prepared.create_reusable_execution(trial.request)
        prepared.close()
        with allowed("a run after close()", *closed):
            trial.check("after close()")
        with allowed("a burst after close()", *closed):
            trial.expect(burst.execute(trial.request, PLAIN), "in a burst after close()")
        with allowed("a reusable execution after close()", *closed):
            trial.expect(execution.execute(PLAIN), "of an execution after close()")
        with allowed("a burst made after close()", *closed):
            prepared.configure_burst().close()
        burst.close()
        execution.close()


@LIFETIME.values
def check_closing_one_model_leaves_the_others(device: hal.Device) -> None:
    first = prepare(device)
    with prepare(device) as second:
        first.close()
        second.check("after another model was closed")
