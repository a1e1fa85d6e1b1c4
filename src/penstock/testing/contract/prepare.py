"""Preparing models: what is accepted, what is refused, and what is left behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final, get_args

import msgspec
import numpy as np
from msgspec.structs import replace

from penstock.errors import (
    Cancelled,
    InvalidArgument,
    MissedDeadline,
    ModelError,
    PenstockError,
)
from penstock.hal import (
    ACCURACY_RANK,
    PREFERENCES,
    PRIORITIES,
    AccuracyClass,
    CancelToken,
    Device,
    PrepareConfig,
    PreparedModel,
    ProgressEvent,
)
from penstock.ir import Model
from penstock.testing.contract.cases import Case, one_case, supported_cases
from penstock.testing.contract.mutations import cycles, model_mutations
from penstock.testing.contract.promise import (
    Check,
    NotCovered,
    Violation,
    allowed,
    describe,
    needs_values,
    refused,
    require,
)
from penstock.testing.contract.trial import Trial, compare, kinds, prepare
from penstock.testing.resources import Resources

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


def check_prepare_leaves_the_model_alone(device: Device) -> None:
    for case in supported_cases(device):
        digest, listing = case.model.digest, case.model.show()
        prepare(device, case).close()
        require(replace(case.model).digest == digest, f"{case.name}: the model was changed")
        require(case.model.show() == listing, f"{case.name}: the model's listing was changed")


@needs_values
def check_prepare_from_two_threads(device: Device) -> None:
    """Two compiles of one model at once, and compiles of others meanwhile, do not disturb each
    other.
    """
    cases = supported_cases(device)
    with ThreadPoolExecutor(4) as pool:
        prepared = list(pool.map(lambda c: prepare(device, c), cases * 2))
    for case, each in zip(cases * 2, prepared, strict=True):
        _run(device, case, each, "after preparing in threads")
        each.close()


@needs_values
def check_prepare_accepts_every_preference_and_priority(device: Device) -> None:
    case = one_case(device)
    for preference in PREFERENCES:
        for priority in PRIORITIES:
            config = PrepareConfig(preference=preference, priority=priority)
            with closing(prepare(device, case, config)) as each:
                _run(device, case, each, f"with {preference}, {priority}")


@needs_values
def check_prepare_accepts_any_number_of_threads(device: Device) -> None:
    """None and 1 to 64 give the same answers."""
    case = one_case(device)
    for count in (None, 1, 2, 64):
        with closing(prepare(device, case, PrepareConfig(num_threads=count))) as each:
            _run(device, case, each, f"with {count} threads")


@needs_values
def check_prepare_keeps_the_class_that_is_asked_for(device: Device) -> None:
    """Quantised results are within a step in `stepwise` and each stricter class that the device
    answers.
    """
    cases = [c for c in supported_cases(device) if all(o.quantization for o in c.model.inputs)]
    tried = 0
    for case in filter(lambda case: case.model.inputs, cases):
        answers = [answer.accuracy for answer in device.supported_operations(case.model)]
        best = min(ACCURACY_RANK[answer] for answer in answers)
        for accuracy in get_args(AccuracyClass):
            if not ACCURACY_RANK["stepwise"] <= ACCURACY_RANK[accuracy] <= best:
                continue
            tried += 1
            with (
                closing(prepare(device, case, PrepareConfig(accuracy=accuracy))) as each,
                Trial(case, kinds(device)[0]) as trial,
            ):
                for found, wanted in zip(trial.run(each), case.outputs, strict=True):
                    require(found.shape == wanted.shape, f"{case.name}: shape {found.shape}")
                    off = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
                    told = f"{case.name} in {accuracy}: off by {off.max(initial=0):g} steps"
                    require(float(off.max(initial=0)) <= (accuracy != "exact"), told)
    if not tried:
        raise NotCovered("it claims no quantised model of this suite in `stepwise` or better")


def check_prepare_refuses_bad_configurations(device: Device) -> None:
    case = one_case(device)
    for name, fields in BAD_CONFIGS:
        config = msgspec.structs.replace(PrepareConfig(), **fields)
        with refused(name, InvalidArgument):
            prepare(device, case, config).close()


def check_prepare_refuses_what_is_no_model(device: Device) -> None:
    for thing in (None, b"bytes", 7, object()):
        with refused(f"a {type(thing).__name__} for a model", InvalidArgument):
            device.prepare_model(thing, PrepareConfig())  # type: ignore[arg-type]  # the point


def check_cycle(device: Device) -> None:
    """BasicTests.CycleTest: operations that read each other's results, or one its own, are refused."""
    for case in supported_cases(device):
        for name, mutate in cycles(case.model):
            _refuses_model(device, f"{case.name}, {name}", mutate)


def check_prepare_refuses_every_mutation(device: Device) -> None:
    """VTS's ValidateModel: each single mutation of a valid model is refused: it cannot be built, or
    the driver says `InvalidArgument`; nothing crashes.
    """
    for case in supported_cases(device):
        for name, mutate in model_mutations(case.model):
            _refuses_model(device, f"{case.name}, {name}", mutate)


def _refuses_model(device: Device, what: str, mutate: Callable[[], Model]) -> None:
    with allowed(what, ModelError) as refusals:
        model = mutate()
    if refusals:
        return
    with refused(what, InvalidArgument):
        device.prepare_model(model, PrepareConfig()).close()


@needs_values
def check_prepare_past_its_deadline(device: Device) -> None:
    """It finishes, or raises `MissedDeadline*`, and leaves nothing behind."""
    case = one_case(device)
    prepare(device, case).close()
    with Resources.unchanged("a prepare that misses its deadline"):
        config = PrepareConfig(deadline_ns=time.monotonic_ns() - 1)
        with (
            allowed("a deadline in the past", MissedDeadline),
            closing(prepare(device, case, config)) as each,
        ):
            _run(device, case, each, "prepared past the deadline")


@needs_values
def check_prepare_before_a_far_deadline(device: Device) -> None:
    """A deadline that is far away changes nothing."""
    case = one_case(device)
    config = PrepareConfig(deadline_ns=time.monotonic_ns() + 600 * 10**9)
    with closing(prepare(device, case, config)) as each:
        _run(device, case, each, "with a far deadline")


@needs_values
def check_prepare_cancelled(device: Device) -> None:
    """With its token set it raises `Cancelled`, or finishes."""
    case = one_case(device)
    token = CancelToken()
    token.set()
    with (
        allowed("a cancelled prepare", Cancelled),
        closing(prepare(device, case, PrepareConfig(cancel=token))) as each,
    ):
        _run(device, case, each, "prepared with its token set")


def check_progress_is_plausible(device: Device) -> None:
    """Progress events count up to their totals."""
    events: list[ProgressEvent] = []
    prepare(device, one_case(device), PrepareConfig(progress=events.append)).close()
    if not events:
        raise NotCovered("it reports no progress")
    for event in events:
        require(isinstance(event, ProgressEvent), f"progress reported as {event!r}")
        require(0 <= event.done <= event.total, f"{event.done} of {event.total} units done")


def _run(device: Device, case: Case, model: PreparedModel, what: str) -> None:
    with Trial(case, kinds(device)[0]) as trial:
        try:
            found = trial.run(model)
        except PenstockError as error:
            raise Violation(f"{case.name} {what}: {describe(error)}") from error
        compare(device, case, found, case.outputs, what)


CHECKS: Final[tuple[Check, ...]] = (
    check_prepare_leaves_the_model_alone,
    check_prepare_from_two_threads,
    check_prepare_accepts_every_preference_and_priority,
    check_prepare_accepts_any_number_of_threads,
    check_prepare_keeps_the_class_that_is_asked_for,
    check_prepare_refuses_bad_configurations,
    check_prepare_refuses_what_is_no_model,
    check_cycle,
    check_prepare_refuses_every_mutation,
    check_prepare_past_its_deadline,
    check_prepare_before_a_far_deadline,
    check_prepare_cancelled,
    check_progress_is_plausible,
)
