"""A capsule's failing step run once more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.arguments import check_kind
from penstock.capsules.manifest import Capsule
from penstock.compilation.failing import renumbered, told
from penstock.errors import CapsuleError, DriverError, ModelError, PlacementError
from penstock.execution.inputs import fits
from penstock.hal import Device
from penstock.ir import Model, NDArray
from penstock.loaders.registry import load
from penstock.runtime.discovery import DeviceInfo
from penstock.runtime.distance import Distance, distance_of
from penstock.runtime.isolation import forgive
from penstock.runtime.operations import REFERENCE, run_alone
from penstock.runtime.reproducing import apart

TRIES: Final = 3


class Replay(Struct, frozen=True):
    """What came of running a capsule's step on *device*, of that *version*.

    *repeats* says whether it fails or departs again; *runs* counts the runs it took. *distance* is how far off the
    result is, *error* what the driver said, *refused* why the device does not take the step any more. *same_version* says
    whether it is the version that failed.
    """

    device: str
    version: str
    same_version: bool
    repeats: bool
    runs: int
    distance: Distance | None = None
    error: str = ""
    refused: str = ""

    def show(self) -> str:
        """The outcome in a sentence or two, without a line end."""
        which = "the version that failed" if self.same_version else "another version than failed"
        place = f"{self.device}, version {self.version} ({which})"
        if self.refused:
            return f"does not repeat: {place} does not take the step: {self.refused}"
        if not self.repeats:
            return f"does not repeat in {self.runs} runs on {place}"
        what = self.error or (self.distance.show() if self.distance is not None else "")
        return f"repeats on {place}: {what}"


def replay(
    capsule: Capsule,
    device: str | DeviceInfo | Device | None = None,
    *,
    tries: int = TRIES,
    timeout: float | None = None,
) -> Replay:
    """Runs the capsule's step on *device*, None for the one that failed, until it fails, *tries* times at most.

    A driver that can be isolated is. What the capsule does not say is expected is computed by the reference. *timeout*, in seconds, is each run's deadline. Raises `CapsuleError`
    for a capsule without a step, or whose step is no model or does not fit its arrays, `PlacementError` for a device that
    is unknown or cannot be used.
    """
    check_kind(capsule, Capsule, "a Capsule is replayed")
    manifest = capsule.manifest
    if manifest.case is None:
        raise CapsuleError(f"it has no step to repeat: {manifest.no_case or 'none was kept'}")
    failed = manifest.failure.device
    chosen = apart(failed.name if device is None else device)
    model = _model(capsule)
    accuracy = manifest.case.accuracy
    expected = _expected(capsule, model)
    same = (chosen.name, chosen.version) == (failed.name, failed.version)
    found: Distance | None = None
    for run in range(1, tries + 1):
        forgive(chosen)
        try:
            results = run_alone(model, capsule.inputs, chosen, accuracy=accuracy, timeout=timeout)
        except PlacementError as error:
            reason = error.reasons.get(chosen.name, str(error))
            return Replay(chosen.name, chosen.version, same, False, run, refused=reason)
        except DriverError as error:
            words = renumbered(told(error), model, [o.index for o in manifest.failure.operations])
            return Replay(chosen.name, chosen.version, same, True, run, error=words)
        found = distance_of(model, capsule.inputs, results, expected, accuracy)
        if found.departs:
            return Replay(chosen.name, chosen.version, same, True, run, found)
    return Replay(chosen.name, chosen.version, same, False, tries, found)


def _model(capsule: Capsule) -> Model:
    try:
        model = load(capsule.model)
    except ModelError as error:
        raise CapsuleError(f"its step cannot be read: {error}") from error
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


def _expected(capsule: Capsule, model: Model) -> Sequence[NDArray]:
    if capsule.expected:
        return capsule.expected
    return run_alone(model, capsule.inputs, REFERENCE, accuracy="exact")
