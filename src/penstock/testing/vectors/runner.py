"""Running operation vectors on one device, through the HAL: lower, ask, prepare, execute, compare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from penstock.errors import (
    FOREIGN,
    DriverError,
    InputError,
    MissedDeadline,
    ModelError,
    NotLowerable,
    PenstockError,
)
from penstock.hal import (
    ACCURACY_RANK,
    AccuracyClass,
    Device,
    ExecutionConfig,
    PrepareConfig,
)
from penstock.hal.loading import describe, is_device
from penstock.ir import NDArray, infer_shapes
from penstock.nnapi.execution import DEFAULT_LOOP_TIMEOUT_NS
from penstock.nnapi.lowering import lower
from penstock.testing.vectors.comparison import difference
from penstock.testing.vectors.derive import Run, runs_of
from penstock.testing.vectors.format import Case
from penstock.testing.vectors.report import Outcome, Report, RunResult
from penstock.testing.vectors.request import Layout

LOOP_TIMEOUT_NS: Final = 200_000_000
"""For cases whose loops never end."""

SPARE_BYTES: Final = 4096
"""Given to outputs of unknown shape beyond what the answer takes."""


class NotCovered(PenstockError):
    """The run asks for something that the device, or the IR, does not have."""


def run_vectors(
    cases: Iterable[Case],
    device: Device,
    progress: Callable[[RunResult], None] | None = None,
    *,
    pools: bool | None = None,
) -> Report:
    """Every run of every case on *device*, and on nothing else.

    *pools* True puts every argument into shared memory, False into memory of the caller; None goes
    by what the device accepts.
    """
    if not is_device(device):
        raise InputError(f"operation vectors run on a Device, not on {describe(device)}")
    results: list[RunResult] = []
    for case in cases:
        for result in run_case(case, device, pools=pools):
            results.append(result)
            if progress is not None:
                progress(result)
    return Report.of(results)


def run_case(case: Case, device: Device, *, pools: bool | None = None) -> Iterator[RunResult]:
    """The results of the case's runs; nothing is raised for what a device does wrong."""
    in_pools = not device.capabilities.accepts_host_memory if pools is None else pools
    for run in runs_of(case):
        yield run_one(run, device, pools=in_pools)


def run_one(run: Run, device: Device, *, pools: bool = False) -> RunResult:
    """One run, its outcome as a value."""
    outcome: Outcome = "passed"
    message = ""
    try:
        message = _attempt(run, device, pools=pools) or ""
        outcome = "failed" if message else "passed"
    except NotCovered as reason:
        outcome, message = "not_covered", str(reason)
    except FOREIGN as error:  # whatever a driver does is its result
        outcome, message = "failed", f"{type(error).__name__}: {error}"
    case = run.case
    return RunResult(case.specification.name, case.name, run.kind, outcome, message)


def _attempt(run: Run, device: Device, *, pools: bool) -> str | None:
    """What is wrong, None where nothing is; raises `NotCovered`."""
    if not run.case.entry.expect_failure:
        return difference(run, execute(run, device, pools=pools))
    try:
        execute(run, device, pools=pools)
    except (ModelError, DriverError, InputError) as error:
        if run.case.is_infinite_loop and not isinstance(error, MissedDeadline):
            return f"a loop without end failed otherwise than by its timeout: {error}"
        return None
    return "a failure was expected, and there was none"


def execute(run: Run, device: Device, *, pools: bool = False) -> list[NDArray]:
    """The outputs of one run. Raises `NotCovered` with the device's reasons where it does not take
    the model.
    """
    try:
        model = lower(run.model, run.feature_level, run.omitted)
    except NotLowerable as reason:
        raise NotCovered(str(reason)) from reason
    fed = run.fed
    model = infer_shapes(model, {p: a.shape for p, a in enumerate(fed)})
    answers = device.supported_operations(model)
    refused = [
        f"{operation.key}: {support.reason}"
        for operation, support in zip(model.operations, answers, strict=True)
        if not support.supported
    ]
    if refused:
        raise NotCovered("; ".join(dict.fromkeys(refused)))
    # A relaxed case allows float16's precision, which the class `relaxed` goes below: it is asked
    # for where it is claimed.
    claimed: AccuracyClass = min(
        (a.accuracy for a in answers), key=ACCURACY_RANK.__getitem__, default="faithful"
    )
    accuracy: AccuracyClass = "faithful" if claimed == "exact" else claimed
    prepared = device.prepare_model(model, PrepareConfig(accuracy=accuracy))
    alignment = device.capabilities.alignment if pools else None
    # A loop whose model was damaged may not end either.
    limit = LOOP_TIMEOUT_NS if run.case.is_infinite_loop else DEFAULT_LOOP_TIMEOUT_NS
    config = ExecutionConfig(loop_timeout_ns=limit)
    try:
        with Layout(model, fed, _room(run), alignment) as layout:
            return layout.results(prepared.execute(layout.request, config))
    finally:
        prepared.close()


def _room(run: Run) -> list[int]:
    """Bytes for each output whose shape is not known: what the answer takes, and more."""
    answers = [0 if e.values is None else e.values.nbytes for e in run.outputs]
    return [SPARE_BYTES + nbytes for nbytes in answers]
