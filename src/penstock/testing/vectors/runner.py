"""Runs operation vectors on one device through the HAL, and counts the outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from penstock import errors
from penstock.hal import AccuracyClass, Device, ExecutionConfig, PrepareConfig
from penstock.hal.capabilities import least_class
from penstock.hal.loading import describe, is_device
from penstock.ir import Model, NDArray, infer_shapes
from penstock.ir.types import static_shape
from penstock.nnapi.execution import DEFAULT_LOOP_TIMEOUT_NS
from penstock.nnapi.lowering import lower
from penstock.runtime.discovery import manager
from penstock.testing.contract.cases import Case as Subject
from penstock.testing.contract.promise import NotCovered, Outcome, Violation, judge, refused
from penstock.testing.contract.trial import Trial
from penstock.testing.devices import find_devices
from penstock.testing.vectors.derive import Expected, Run, runs_of
from penstock.testing.vectors.format import Case, load_directory

LOOP_TIMEOUT_NS: Final = 200_000_000
"""Time limit of cases whose loops never end."""
SPARE_BYTES: Final = 4096
"""Extra bytes for outputs of unknown shape."""
MAX_LISTED: Final = 200
"""How many lines of failures, and of runs not covered, a table prints."""


class RunResult(Struct, frozen=True):
    """One run of one case; *message* says why it failed or was not covered."""

    specification: str
    case: str
    run: str
    outcome: Outcome
    message: str = ""

    @property
    def of(self) -> tuple[str, str]:
        """The specification and case that it is a run of."""
        return self.specification, self.case


class Report(Struct, frozen=True):
    """Counts of cases and of runs.

    A case failed if any of its runs failed. It is not covered if its plain run is not; otherwise it
    passed. *uncovered* has every run that was not covered, also of passed cases.
    """

    passed: int
    failed: int
    not_covered: int
    failures: tuple[RunResult, ...]
    uncovered: tuple[RunResult, ...]
    runs: dict[str, int]

    @classmethod
    def of(cls, results: Iterable[RunResult]) -> Report:
        """The counts of *results*."""
        results = list(results)
        failures = tuple(r for r in results if r.outcome == "failed")
        uncovered = tuple(r for r in results if r.outcome == "not_covered")
        # A later entry replaces an earlier one.
        cases: dict[tuple[str, str], Outcome] = {
            **{r.of: "passed" for r in results},
            **{r.of: "not_covered" for r in uncovered if r.run == "plain"},
            **{r.of: "failed" for r in failures},
        }
        counts, runs = Counter(cases.values()), Counter(r.outcome for r in results)
        outcomes: tuple[Outcome, ...] = "passed", "failed", "not_covered"
        passed, failed, not_covered = (counts[o] for o in outcomes)
        by_run: dict[str, int] = {o: runs[o] for o in outcomes}
        return cls(passed, failed, not_covered, failures, uncovered, by_run)


def run(
    directory: Path, device: str, operations: Sequence[str] = ()
) -> tuple[list[Case], list[RunResult], Report]:
    """Runs the cases below *directory* that contain one of *operations* (none: every case).

    Raises `InputError` for a directory or operation that does not exist, `PlacementError` for such
    a device, and `VectorError` for malformed files.
    """
    if not directory.exists():
        raise errors.InputError(f"{directory}: no such directory")
    chosen = find_devices(device)[0] if ":" in device else manager.choose([device])[0]
    cases = [case for specification in load_directory(directory) for case in specification.cases]
    occurring = frozenset[str]().union(*(case.operations for case in cases))
    if absent := [name for name in operations if name not in occurring]:
        raise errors.InputError(f"{directory}: no case has the operation {absent[0]!r}")
    wanted = [c for c in cases if not operations or c.operations & set(operations)]
    results: list[RunResult] = []
    report = run_vectors(wanted, chosen, results.append)
    return wanted, results, report


def table(cases: Sequence[Case], results: Sequence[RunResult], report: Report) -> Iterator[str]:
    """A line for each operation, then failures and runs not covered, then the counts."""
    yield f"{'operation':32} {'cases':>6} {'passed':>7} {'failed':>7} {'not covered':>12}"
    operations = {(case.specification.name, case.name): case.operations for case in cases}
    for operation in sorted(frozenset[str]().union(*operations.values())):
        row = Report.of(r for r in results if operation in operations.get(r.of, ()))
        total = row.passed + row.failed + row.not_covered
        yield f"{operation:32} {total:6} {row.passed:7} {row.failed:7} {row.not_covered:12}"
    for word, listed in (("FAILED", report.failures), ("not covered", report.uncovered)):
        for result in listed[:MAX_LISTED]:
            yield f"{word}: {result.case} ({result.run}): {result.message}"
        if len(listed) > MAX_LISTED:
            yield f"{word}: {len(listed) - MAX_LISTED} more"
    yield (
        f"{report.passed} passed, {report.failed} failed, {report.not_covered} not covered "
        f"({report.runs['passed']} of {sum(report.runs.values())} runs passed)"
    )


def run_vectors(
    cases: Iterable[Case],
    device: Device,
    progress: Callable[[RunResult], None] | None = None,
    *,
    pools: bool | None = None,
) -> Report:
    """Every run of every case on *device* only.

    *pools* True puts every argument into shared memory, False into the caller's memory. None uses
    what the device accepts.
    """
    if not is_device(device):
        raise errors.InputError(f"operation vectors run on a Device, not on {describe(device)}")
    results: list[RunResult] = []
    for case in cases:
        for result in run_case(case, device, pools=pools):
            results.append(result)
            if progress is not None:
                progress(result)
    return Report.of(results)


def run_case(case: Case, device: Device, *, pools: bool | None = None) -> Iterator[RunResult]:
    """The results of the case's runs. A wrong behaviour of the device is a result, not an error."""
    in_pools = not device.capabilities.accepts_host_memory if pools is None else pools
    for each in runs_of(case):
        yield run_one(each, device, pools=in_pools)


def run_one(run: Run, device: Device, *, pools: bool = False) -> RunResult:
    """One run, its outcome as a value."""
    outcome, message = judge(partial(_attempt, run, device, pools=pools))
    case = run.case
    return RunResult(case.specification.name, case.name, run.kind, outcome, message)


def _attempt(run: Run, device: Device, *, pools: bool) -> None:
    """Raises `Violation` for a defect, and `NotCovered`."""
    if not run.case.entry.expect_failure:
        if (defect := difference(run, execute(run, device, pools=pools))) is not None:
            raise Violation(defect)
        return
    failures = errors.ModelError, errors.DriverError, errors.InputError
    must_fail = refused("a run that must fail", *failures)
    if run.case.is_infinite_loop:
        must_fail = refused("a loop without end", errors.MissedDeadline)
    with must_fail:
        execute(run, device, pools=pools)


def execute(run: Run, device: Device, *, pools: bool = False) -> list[NDArray]:
    """The outputs of one run. Raises `NotCovered` with the device's reasons if it does not support
    the model.
    """
    try:
        model = lower(run.model, run.feature_level, run.omitted)
    except errors.NotLowerable as reason:
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
    # A relaxed case allows the precision of float16, which is stricter than the class `relaxed`. It
    # requests `relaxed` if the device claims it.
    claimed = least_class(answers)
    accuracy: AccuracyClass = "faithful" if claimed == "exact" else claimed
    # If its model was damaged, a loop may not end either.
    limit = LOOP_TIMEOUT_NS if run.case.is_infinite_loop else DEFAULT_LOOP_TIMEOUT_NS
    config = ExecutionConfig(loop_timeout_ns=limit)
    subject = Subject(run.case.name, model, tuple(fed), ())
    with (
        closing(device.prepare_model(model, PrepareConfig(accuracy=accuracy))) as prepared,
        Trial(
            subject,
            "pool" if pools else "host",
            capacities=_capacities(run, model),
            alignment=device.capabilities.alignment,
        ) as trial,
    ):
        return trial.outputs(prepared.execute(trial.request, config))


def _capacities(run: Run, model: Model) -> list[int]:
    """Bytes of each output: its shape's size, or more than the answer's size if its shape is
    unknown.
    """
    sizes = []
    for index, expected in zip(model.entry.outputs, run.outputs, strict=True):
        operand, answer = model.operands[index], expected.values
        shape = static_shape(operand.shape)
        unknown = SPARE_BYTES + (0 if answer is None else answer.nbytes)
        sizes.append(unknown if shape is None else prod(shape) * operand.dtype.numpy.itemsize)
    return sizes


def difference(run: Run, outputs: list[NDArray]) -> str | None:
    """The defect of *outputs*; None if there is none."""
    for place, (expected, got) in enumerate(zip(run.outputs, outputs, strict=True)):
        entry = expected.entry
        found: str | None = None
        if entry.compare == "near":
            found = _near(expected, got)
        elif entry.compare == "multinomial":
            found = _multinomial(run, got)
        if found is not None:
            return f"output {place} ({entry.name}): {found}"
    return None


def _near(expected: Expected, got: NDArray) -> str | None:
    """|got - want| <= atol + rtol * |want|, shapes equal; infinities and NaN must be the same."""
    want, entry = expected.values, expected.entry
    if want is None:
        return None
    open_shape = want.ndim != len(entry.dims)
    if got.size != want.size if open_shape else got.shape != want.shape:
        return f"shape {got.shape}, where {want.shape} is expected"
    if want.size == 0:
        return None
    a = got.astype(np.float64).reshape(want.shape)
    b = want.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.abs(a - b) <= entry.atol + entry.rtol * np.abs(b)
    good = (close & np.isfinite(b)) | (a == b)
    good |= np.isnan(a) & np.isnan(b)
    if good.all():
        return None
    at = tuple(int(i) for i in np.argwhere(~good)[0])
    return (
        f"{int((~good).sum())} of {good.size} values differ, first at {list(at)}: {a[at]:.9g}, "
        f"where {b[at]:.9g} is expected (tolerance {entry.atol:g} + {entry.rtol:g} of it)"
    )


def _multinomial(run: Run, got: NDArray) -> str | None:
    """Checks that the share of each class among the samples is close to the softmax of its
    logits.
    """
    logits = run.fed[0].astype(np.float64)
    tolerance = run.case.entry.multinomial_tolerance
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    if got.ndim != 2 or got.shape[0] != shares.shape[0]:
        return f"shape {got.shape} for logits of shape {logits.shape}"
    for row, (samples, wanted) in enumerate(zip(got, shares, strict=True)):
        if samples.size and not 0 <= samples.min() <= samples.max() < wanted.size:
            return f"row {row} has a class outside [0, {wanted.size})"
        found = np.bincount(samples, minlength=wanted.size) / max(samples.size, 1)
        worst = int(np.abs(found - wanted).argmax())
        if abs(found[worst] - wanted[worst]) > tolerance:
            return (
                f"row {row}: class {worst} has a share of {found[worst]:.4f}, "
                f"where {wanted[worst]:.4f} is expected (tolerance {tolerance:g})"
            )
    return None
