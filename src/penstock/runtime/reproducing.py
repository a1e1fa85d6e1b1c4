"""Reproduces failures: from a model into a capsule, and from a capsule on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock import errors, knobs
from penstock.arguments import check_kind
from penstock.capsules.archive import Capsule
from penstock.capsules.making import Case, FailureDetails, make
from penstock.compilation.failing import driver_message_in
from penstock.distribution import FALLBACK_DEVICE
from penstock.execution.interface import fits
from penstock.execution.state import State
from penstock.hal import AccuracyClass, Device
from penstock.ir import Model, NDArray
from penstock.loaders import load
from penstock.partitioning.plan import ExecutionPlan
from penstock.partitioning.policy import Policy
from penstock.runtime.comparison import Comparison, Departure, compare
from penstock.runtime.discovery import AnyDevice, manager
from penstock.runtime.distance import Distance, distance_of
from penstock.runtime.isolation import forgive
from penstock.runtime.operations import distance, run_alone, run_case
from penstock.runtime.session import compile_alone
from penstock.runtime.tuning import example

TRIES: Final = 3
"""Comparisons before a failure counts as not repeatable; some failures are intermittent."""


PERSISTENCE: Final = 4


class Reproduction(Struct, frozen=True, eq=False):
    """The last *comparison* of a reproduction, and the *capsule* if something failed."""

    comparison: Comparison
    capsule: Capsule | None


def reproduce(
    model: Model,
    inputs: Mapping[str, Any] | Sequence[Any],
    device: AnyDevice,
    *,
    accuracy: AccuracyClass = "faithful",
    state: State | None = None,
    timeout: float | None = None,
    tries: int = TRIES,
    names: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Reproduction:
    """Runs *model* on *device*, compares it with the reference, and captures the step that fails.

    The model first runs as in a program. It is then compared up to *tries* times, down to the step
    that fails or departs. Only that step goes into the capsule, with its inputs. A driver that can
    be isolated is isolated, so that its death is handled like any other failure. The other
    arguments are those of `comparison.compare`; *names* keeps the network's own names in the
    capsule. Raises what `compare` raises.
    """
    check_kind(model, Model, "a Model is run and compared")
    candidate = apart(device)

    def begins(part: str) -> None:
        forgive(candidate)
        if progress is not None:
            progress(part)

    plan, receipt = _as_a_program(model, inputs, candidate, accuracy, state)
    if tries < 1:
        raise errors.InputError(f"tries must be 1 or more, not {tries}")
    left = tries
    before, seen = None, False
    limits: dict[str, Any] = {"accuracy": accuracy, "timeout": timeout, "progress": begins}
    shown: dict[str, Any] = {"plan": plan, "receipt": receipt, "names": names}
    while True:
        forgive(candidate)
        own = None if state is None else state.copied()
        found = compare(model, inputs, candidate, state=own, **limits)
        if (departure := found.departure) is not None:
            return Reproduction(found, capsule_of(model, departure, candidate, accuracy, **shown))
        left -= 1
        if before is not None and found.outputs != before and not seen:
            # Results that vary from run to run need a longer search.
            seen, left = True, left + PERSISTENCE * tries
        before = found.outputs
        if not left:
            return Reproduction(found, None)


def apart(device: AnyDevice) -> Device:
    """*device* in a host process if possible. Raises as `compile_model` does for a device."""
    try:
        return manager.choose([device], True)[0]
    except (errors.NotAvailable, errors.PlacementError):
        return manager.choose([device])[0]


def capsule_of(
    model: Model,
    departure: Departure,
    device: Device,
    accuracy: AccuracyClass,
    *,
    plan: ExecutionPlan | None = None,
    receipt: str | None = None,
    names: bool = False,
) -> Capsule:
    """The capsule of *departure* in *model*; runs the device once more for its results."""
    case, found = departure.case, departure.distance
    failure = FailureDetails("execute", model, departure.operations, departure.error, "")
    results: Sequence[NDArray] = ()
    if found is not None:
        failure = replace(failure, stage="verify", distance=found.show())
        results = _got(departure, device, accuracy)
    return make(
        failure,
        device,
        accuracy=accuracy,
        plan=plan,
        receipt=receipt,
        case=Case(case.model, case.inputs, case.expected, results),
        names=names,
    )


def _as_a_program(
    model: Model,
    inputs: Mapping[str, Any] | Sequence[Any],
    device: Device,
    accuracy: AccuracyClass,
    state: State | None,
) -> tuple[ExecutionPlan | None, str | None]:
    """The plan, and the receipt of one run, as far as they could be obtained."""
    plan, receipt = None, None
    policy = Policy(accuracy=accuracy)
    try:
        with (
            knobs.override(keep_failures=False, driver_verdicts=False),
            compile_alone(model, device, policy) as compiled,
        ):
            plan, receipt = compiled.plan, compiled.receipt.to_json()
            own = None if state is None else state.copied()
            receipt = compiled.run(inputs, state=own).receipt.to_json()
    except (errors.DriverError, errors.PlacementError):
        return plan, receipt
    return plan, receipt


def _got(departure: Departure, device: Device, accuracy: AccuracyClass) -> Sequence[NDArray]:
    """The device's results for the case, of the first of a few runs that departs, if any does."""
    results: list[NDArray] = []
    for _ in range(TRIES):
        try:
            results = [np.array(a) for a in run_case(departure.case, device, accuracy)]
        except (errors.DriverError, errors.PlacementError):
            continue
        if distance(departure.case, results, accuracy).departs:
            break
    return results


MOST_DRAWN_BYTES: Final = 1 << 30
DRAWN: Final = "with drawn inputs, since the capsule has no input data,"


class Replay(Struct, frozen=True):
    """The outcome of running a capsule's step on *device*, of version *version*.

    *repeats* says whether it fails or departs again; *runs* counts the runs needed. *distance* is
    the error of the result, *error* the driver's error, *refused* why the device no longer supports
    the step. *same_version* says whether the version is the one that failed. *drawn* says that the
    capsule has no input data, so that each run had random inputs.
    """

    device: str
    version: str
    same_version: bool
    repeats: bool
    runs: int
    distance: Distance | None = None
    error: str = ""
    refused: str = ""
    drawn: bool = False

    def show(self) -> str:
        """The outcome in a sentence or two, without a final newline."""
        which = "the version that failed" if self.same_version else "another version than failed"
        place = f"{self.device}, version {self.version} ({which})"
        if self.refused:
            return f"does not repeat: {place} does not take the step: {self.refused}"
        fed = f" {DRAWN}" if self.drawn else ""
        if not self.repeats:
            return f"does not repeat in {self.runs} runs{fed} on {place}"
        what = self.error or (self.distance.show() if self.distance is not None else "")
        return f"repeats{fed} on {place}: {what}"


def replay(
    capsule: Capsule,
    device: AnyDevice | None = None,
    *,
    tries: int = TRIES,
    timeout: float | None = None,
) -> Replay:
    """Runs the capsule's step up to *tries* times, until it fails.

    *device* None selects the device that failed. A driver that can be isolated is isolated. The
    reference computes the expected results if the capsule does not have them. For a capsule without
    input data, each run uses other random inputs (`runtime.tuning`) of the recorded shapes.
    *timeout*, in seconds, is the deadline of each run, also of the reference's.

    Raises `CapsuleError` for a capsule without a step, and for a step that is no valid model, does
    not fit its arrays, or fails or times out on the reference. Raises `PlacementError` for a device
    that is unknown or unusable.
    """
    check_kind(capsule, Capsule, "a Capsule is replayed")
    manifest = capsule.manifest
    if manifest.case is None:
        why = manifest.no_case or "none was kept"
        raise errors.CapsuleError(f"it has no step to repeat: {why}")
    failed = manifest.failure.device
    chosen = apart(failed.name if device is None else device)
    model = _model(capsule)
    accuracy, left_out = manifest.case.accuracy, manifest.case.left_out
    inputs, expected = capsule.inputs, capsule.expected
    if left_out is None and not expected:
        expected = _expected(model, inputs, timeout)
    same = (chosen.name, chosen.version) == (failed.name, failed.version)
    outcome = partial(Replay, chosen.name, chosen.version, same, drawn=bool(left_out))
    found: Distance | None = None
    for run in range(1, tries + 1):
        forgive(chosen)
        if left_out is not None:
            inputs = _drawn(model, left_out, run - 1)
        try:
            results = run_alone(model, inputs, chosen, accuracy=accuracy, timeout=timeout)
        except errors.PlacementError as error:
            return outcome(False, run, refused=error.reasons.get(chosen.name, str(error)))
        except errors.DriverError as error:
            words = driver_message_in(error, model, [o.index for o in manifest.failure.operations])
            if left_out is not None:
                _expected(model, inputs, timeout)
            return outcome(True, run, error=words)
        if left_out is not None:
            expected = _expected(model, inputs, timeout)
        found = distance_of(model, inputs, results, expected, accuracy)
        if found.departs:
            return outcome(True, run, found)
    return outcome(False, tries, found)


def _model(capsule: Capsule) -> Model:
    try:
        model = load(capsule.model)
    except errors.ModelError as error:
        raise errors.CapsuleError(f"its step cannot be read: {error}") from error
    case = capsule.manifest.case
    if case is not None and case.left_out is not None:
        _check_shapes(case.left_out, model)
        return model
    for kind, arrays, operands in (
        ("inputs", capsule.inputs, model.inputs),
        ("expected results", capsule.expected, model.outputs),
    ):
        if kind != "inputs" and not arrays:
            continue
        if len(arrays) != len(operands):
            raise errors.CapsuleError(f"it has {len(arrays)} {kind}, its step {len(operands)}")
        for position, (array, operand) in enumerate(zip(arrays, operands, strict=True)):
            if not fits(array.shape, operand.shape):
                misfit = f"of shape {array.shape}, does not fit its step's {operand.shape}"
                raise errors.CapsuleError(f"number {position} of its {kind}, {misfit}")
            if operand.dtype.numpy != array.dtype:
                misfit = f"is of {array.dtype}, its step's of {operand.dtype.value}"
                raise errors.CapsuleError(f"number {position} of its {kind} {misfit}")
    return model


def _check_shapes(shapes: Sequence[tuple[int, ...]], model: Model) -> None:
    """Raises `CapsuleError` unless *shapes* fit *model*'s inputs and may be filled at random."""
    if len(shapes) != len(model.inputs):
        text = f"it has {len(shapes)} shapes of inputs, its step {len(model.inputs)}"
        raise errors.CapsuleError(text)
    nbytes = 0
    for position, (shape, operand) in enumerate(zip(shapes, model.inputs, strict=True)):
        if not fits(shape, operand.shape):
            raise errors.CapsuleError(
                f"the shape {shape} of input {position} does not fit its step's {operand.shape}"
            )
        nbytes += prod(shape) * operand.dtype.numpy.itemsize
    if nbytes > MOST_DRAWN_BYTES:
        text = f"its inputs would have {nbytes} bytes, {MOST_DRAWN_BYTES} at most"
        raise errors.CapsuleError(text)


def _drawn(model: Model, shapes: Sequence[tuple[int, ...]], number: int) -> list[NDArray]:
    """Random example *number* of each input of *model*, with these *shapes*."""
    return [
        example(replace(operand, shape=tuple(shape)), number)
        for operand, shape in zip(model.inputs, shapes, strict=True)
    ]


def _expected(model: Model, inputs: Sequence[NDArray], timeout: float | None) -> Sequence[NDArray]:
    """The reference's results. Raises `CapsuleError` if it fails or exceeds *timeout*."""
    try:
        return run_alone(model, inputs, FALLBACK_DEVICE, accuracy="exact", timeout=timeout)
    except errors.MissedDeadline as error:
        raise errors.CapsuleError(
            f"the reference does not compute its step in {timeout:g} s, so that there is nothing "
            f"to compare with; give it longer (timeout=): {error}"
        ) from error
    except errors.DriverError as error:
        raise errors.CapsuleError(f"the reference fails at its step: {error}") from error
