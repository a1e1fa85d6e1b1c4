"""Models compiled while a driver was unavailable: the receipt's note, and when to recompile."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock import errors
from penstock.compilation.failing import with_last_crash
from penstock.compilation.step_receipt import Failure
from penstock.hal.device import is_placeholder
from penstock.logs import Log
from penstock.partitioning.fallback import NOT_ALLOWED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.compilation.prepared import Compilation
    from penstock.hal import Device
    from penstock.partitioning.plan import ExecutionPlan

log = Log(__name__)

CHECK_SECONDS: Final = 1.0
"""Minimum seconds between two checks whether a device is available again."""


class UnavailableDevices:
    """The *devices* that were unavailable when a model was compiled for some shapes.

    A background thread checks them, because a check may start a host process, which would delay a
    run.
    """

    def __init__(self, devices: Iterable[Device]) -> None:
        self._devices = tuple(devices)
        self._next = time.monotonic() + CHECK_SECONDS
        self._found = False
        self._checking: threading.Thread | None = None

    def any_is_back(self) -> bool:
        """Whether a device is available again; checked in the background, each `CHECK_SECONDS`."""
        now = time.monotonic()
        checks = self._checking is not None and self._checking.is_alive()
        if not self._found and not checks and now >= self._next:
            self._next = now + CHECK_SECONDS
            name = "penstock-availability"
            self._checking = threading.Thread(target=self._check, name=name, daemon=True)
            with suppress(RuntimeError):
                self._checking.start()
        return self._found

    def _check(self) -> None:
        self._found = any(map(_is_available, self._devices))


def lists_unavailable(refusals: Mapping[str, errors.Refusal]) -> bool:
    """Whether *refusals*, by device, include one of a device whose host process was unavailable."""
    return any(map(_is_unavailable, refusals.values()))


def _is_unavailable(refusal: errors.Refusal) -> bool:
    return refusal.code is errors.RefusalCode.NO_ANSWER and refusal.is_unavailable


def with_crash_details(error: errors.PlacementError) -> errors.PlacementError:
    """*error* with `doctor --last-crash` in the reason of each device whose process died."""
    if not lists_unavailable(error.refusals):
        return error
    refusals = {
        name: why._replace(detail=with_last_crash(why.detail))
        if _is_unavailable(why) and why.status is errors.ErrorStatus.DEAD_OBJECT
        else why
        for name, why in error.refusals.items()
    }
    return errors.PlacementError(error.message, refusals, error.where)


def refuse_unavailable(plan: ExecutionPlan) -> None:
    """Raises `PlacementError` if a device that *plan* might use was unavailable: a fallback."""
    for placement in plan.operations[:1]:
        missing = {n: r for n, r in placement.refusals.items() if _is_unavailable(r)}
        if missing:
            names = " and ".join(missing)
            message = f"the host process of {names} is unavailable, and {NOT_ALLOWED}"
            raise with_crash_details(errors.PlacementError(message, missing))


def unanswered(plan: ExecutionPlan) -> dict[str, str]:
    """Devices whose process runs but did not answer for *plan*, with the driver's fault."""
    return {
        name: str(why)
        for placement in plan.operations[:1]
        for name, why in placement.refusals.items()
        if why.code is errors.RefusalCode.NO_ANSWER and not why.is_unavailable
    }


def note_unavailable(
    compilation: Compilation, devices: Mapping[str, Device]
) -> tuple[Compilation, UnavailableDevices | None]:
    """*compilation* with receipts that name unavailable devices; these devices, or None."""
    unavailable: dict[str, str] = {}
    unplaced: dict[str, str] = {}
    steps = []
    for step in compilation.steps:
        receipt = step.receipt
        first = step.step.operations[:1]
        refusals = compilation.plan.operations[first[0]].refusals if first else {}
        missed = tuple(
            Failure(name, why.detail, why.status)
            for name, why in refusals.items()
            if _is_unavailable(why)
        )
        if missed and not receipt.failures:
            made = replace(
                receipt, fallback_from=missed[0].device, error=missed[0].error, failures=missed
            )
            step = replace(step, receipt=made)  # noqa: PLW2901  # a copy with another receipt
        steps.append(step)
        unplaced |= {f.device: f.error for f in missed}
        failures = (*missed, *receipt.failures)
        unavailable |= {f.device: f.error for f in failures if f.is_unavailable}
    if not unavailable:
        return compilation, None
    for name, error in unplaced.items():
        log.warning("compiled without %s, which is unavailable: %s", name, error)
    whole = replace(compilation.receipt, steps=tuple(step.receipt for step in steps))
    found = [devices[name] for name in unavailable if name in devices]
    return replace(compilation, steps=tuple(steps), receipt=whole), UnavailableDevices(found)


def _is_available(device: Device) -> bool:
    try:
        return device.is_available() if is_placeholder(device) else device.check() is None
    except (errors.DriverError, errors.Cancelled):
        return False
