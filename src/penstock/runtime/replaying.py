"""A capsule's failing step run once more."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.arguments import check_kind
from penstock.capsules.manifest import Capsule
from penstock.compilation.failing import driver_message_in
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import CapsuleError, DriverError, MissedDeadline, ModelError, PlacementError
from penstock.execution.interface import fits
from penstock.hal import Device
from penstock.ir import Model, NDArray
from penstock.loaders.registry import load
from penstock.runtime.discovery import DeviceInfo
from penstock.runtime.distance import Distance, distance_of
from penstock.runtime.examples import example
from penstock.runtime.isolation import forgive
from penstock.runtime.operations import run_alone
from penstock.runtime.reproducing import apart

TRIES: Final = 3
MOST_DRAWN_BYTES: Final = 1 << 30
DRAWN: Final = "with drawn inputs, since the capsule has no input data,"


class Replay(Struct, frozen=True):
    """What came of running a capsule's step on *device*, of that *version*.

    *repeats* says whether it fails or departs again; *runs* counts the runs it took. *distance* is
    how far off the result is, *error* what the driver said, *refused* why the device does not take
    the step any more. *same_version* says whether it is the version that failed, *drawn* that the
    capsule has no input data and each run had inputs drawn for it.
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
        """The outcome in a sentence or two, without a line end."""
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
    device: str | DeviceInfo | Device | None = None,
    *,
    tries: int = TRIES,
    timeout: float | None = None,
) -> Replay:
    """Runs the capsule's step on *device*, None for the one that failed, until it fails, *tries*
    times at most.

    A driver that can be isolated is. The reference computes what is expected where the capsule does
    not say it. For a capsule without input data each run draws other inputs (`runtime.examples`),
    of the shapes that failed. *timeout*, in seconds, is each run's deadline, the reference's too.
    Raises `CapsuleError` for a capsule without a step, or whose step is no model, does not fit its
    arrays, fails on the reference too or takes it longer, `PlacementError` for a device that is
    unknown or cannot be used.
    """
    check_kind(capsule, Capsule, "a Capsule is replayed")
    manifest = capsule.manifest
    if manifest.case is None:
        raise CapsuleError(f"it has no step to repeat: {manifest.no_case or 'none was kept'}")
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
        except PlacementError as error:
            return outcome(False, run, refused=error.reasons.get(chosen.name, str(error)))
        except DriverError as error:
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
    except ModelError as error:
        raise CapsuleError(f"its step cannot be read: {error}") from error
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
            raise CapsuleError(f"it has {len(arrays)} {kind}, its step {len(operands)}")
        for position, (array, operand) in enumerate(zip(arrays, operands, strict=True)):
            if not fits(array.shape, operand.shape):
                raise CapsuleError(
                    f"number {position} of its {kind}, of shape {array.shape}, does not fit its step's {operand.shape}"
                )
            if operand.dtype.numpy != array.dtype:
                raise CapsuleError(
                    f"number {position} of its {kind} is of {array.dtype}, its step's of {operand.dtype.value}"
                )
    return model


def _check_shapes(shapes: Sequence[tuple[int, ...]], model: Model) -> None:
    """Raises `CapsuleError` unless arrays of *shapes* fit the inputs of *model*, and can be drawn."""
    if len(shapes) != len(model.inputs):
        raise CapsuleError(f"it has {len(shapes)} shapes of inputs, its step {len(model.inputs)}")
    for position, (shape, operand) in enumerate(zip(shapes, model.inputs, strict=True)):
        if not fits(shape, operand.shape):
            raise CapsuleError(
                f"the shape {shape} of input {position} does not fit its step's {operand.shape}"
            )
    nbytes = sum(
        prod(s) * o.dtype.numpy.itemsize for s, o in zip(shapes, model.inputs, strict=True)
    )
    if nbytes > MOST_DRAWN_BYTES:
        raise CapsuleError(f"its inputs would have {nbytes} bytes, {MOST_DRAWN_BYTES} at most")


def _drawn(model: Model, shapes: Sequence[tuple[int, ...]], number: int) -> list[NDArray]:
    """Example *number* of each input of *model*, of these *shapes*."""
    return [
        example(replace(operand, shape=tuple(shape)), number)
        for operand, shape in zip(model.inputs, shapes, strict=True)
    ]


def _expected(model: Model, inputs: Sequence[NDArray], timeout: float | None) -> Sequence[NDArray]:
    """What the reference makes of *inputs*. Raises `CapsuleError` where it fails, or takes longer
    than *timeout*.
    """
    try:
        return run_alone(model, inputs, FALLBACK_DEVICE, accuracy="exact", timeout=timeout)
    except MissedDeadline as error:
        raise CapsuleError(
            f"the reference does not compute its step in {timeout:g} s, so that there is nothing to compare with; "
            f"give it longer (timeout=): {error}"
        ) from error
    except DriverError as error:
        raise CapsuleError(f"the reference fails at its step: {error}") from error
