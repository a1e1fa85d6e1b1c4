"""A failure brought about once more, and put into a capsule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from penstock import knobs
from penstock.arguments import check_kind
from penstock.capsules.making import Case, Told, make
from penstock.capsules.manifest import Capsule
from penstock.errors import DriverError, InputError, NotAvailable, PlacementError
from penstock.execution.state import State
from penstock.hal import AccuracyClass, Device
from penstock.ir import Model, NDArray
from penstock.partitioning.plan import ExecutionPlan
from penstock.partitioning.policy import Policy
from penstock.runtime.comparison import Comparison, compare
from penstock.runtime.departures import Departure
from penstock.runtime.discovery import DeviceInfo, manager
from penstock.runtime.isolation import forgive
from penstock.runtime.operations import distance, run_case
from penstock.runtime.session import compile_model

TRIES: Final = 3
"""Comparisons before a failure counts as not repeated: some come only now and then."""


PERSISTENCE: Final = 4


class Reproduction(Struct, frozen=True, eq=False):
    """What came of bringing a failure about: the last *comparison*, and where something failed its
    *capsule*.
    """

    comparison: Comparison
    capsule: Capsule | None


def reproduce(
    model: Model,
    inputs: Mapping[str, Any] | Sequence[Any],
    device: str | DeviceInfo | Device,
    *,
    accuracy: AccuracyClass = "faithful",
    state: State | None = None,
    timeout: float | None = None,
    tries: int = TRIES,
    names: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Reproduction:
    """Runs *model* on *device* as a program would, then compares it with the reference, up to
    *tries* times, down to the step that fails or departs; that step alone goes into the capsule,
    with its inputs.

    A driver that can be isolated is, so that its death is a failure like others. The other
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
        raise InputError(f"tries must be 1 or more, not {tries}")
    left = tries
    before, seen = None, False
    while True:
        forgive(candidate)
        found = compare(
            model,
            inputs,
            candidate,
            accuracy=accuracy,
            state=None if state is None else state.copied(),
            timeout=timeout,
            progress=begins,
        )
        if found.departure is not None:
            capsule = capsule_of(
                model,
                found.departure,
                candidate,
                accuracy,
                plan=plan,
                receipt=receipt,
                names=names,
            )
            return Reproduction(found, capsule)
        left -= 1
        if before is not None and found.outputs != before and not seen:
            # What gives something else each time takes more looking.
            seen, left = True, left + PERSISTENCE * tries
        before = found.outputs
        if not left:
            return Reproduction(found, None)


def apart(device: str | DeviceInfo | Device) -> Device:
    """*device* from a process of its own, where that can be. Raises as `compile_model` does for a
    device.
    """
    try:
        return manager.choose([device], True)[0]
    except (NotAvailable, PlacementError):
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
    """The capsule of *departure* in *model*; the device is run once more for what it gives."""
    failed = departure.distance is None
    return make(
        Told(
            "execute" if failed else "verify",
            model,
            departure.operations,
            departure.error,
            "" if departure.distance is None else departure.distance.show(),
        ),
        device,
        accuracy=accuracy,
        plan=plan,
        receipt=receipt,
        case=Case(
            departure.case.model,
            departure.case.inputs,
            departure.case.expected,
            () if failed else _got(departure, device, accuracy),
        ),
        names=names,
    )


def _as_a_program(
    model: Model,
    inputs: Mapping[str, Any] | Sequence[Any],
    device: Device,
    accuracy: AccuracyClass,
    state: State | None,
) -> tuple[ExecutionPlan | None, str | None]:
    """The plan, and the receipt of one run; what of them could be had."""
    plan, receipt = None, None
    policy = Policy(accuracy=accuracy)
    try:
        with (
            knobs.override(keep_failures=False, driver_verdicts=False),
            compile_model(model, devices=[device], cache=None, policy=policy) as compiled,
        ):
            plan, receipt = compiled.plan, compiled.receipt.to_json()
            own = None if state is None else state.copied()
            receipt = compiled.run(inputs, state=own).receipt.to_json()
    except (DriverError, PlacementError):
        return plan, receipt
    return plan, receipt


def _got(departure: Departure, device: Device, accuracy: AccuracyClass) -> Sequence[NDArray]:
    """What the device makes of the case: of a few runs the first that departs; none where no run
    succeeds.
    """
    results: list[NDArray] = []
    for _ in range(TRIES):
        try:
            results = [np.array(a) for a in run_case(departure.case, device, accuracy)]
        except (DriverError, PlacementError):
            continue
        if distance(departure.case, results, accuracy).departs:
            break
    return results
