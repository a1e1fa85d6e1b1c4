"""Compiled forms that were made while a driver was not there: what receipts say of it, and when
they are made anew.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.compilation.failing import with_last_crash
from penstock.compilation.receipt import Failure
from penstock.errors import (
    Cancelled,
    DriverError,
    ErrorStatus,
    PlacementError,
    Refusal,
    RefusalCode,
)
from penstock.logs import Log
from penstock.partitioning.fallback import NOT_ALLOWED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.compilation.prepared import Compilation
    from penstock.hal import Device
    from penstock.partitioning.plan import ExecutionPlan

log = Log(__name__)

LOOK_SECONDS: Final = 1.0
"""How often it is looked whether a device is there again."""


class Absence:
    """The *devices* that had no process when a model was compiled for some shapes. They are looked
    for in a thread: that may start their processes, for which no run waits.
    """

    def __init__(self, devices: Iterable[Device]) -> None:
        self._devices = tuple(devices)
        self._next = time.monotonic() + LOOK_SECONDS
        self._over = False
        self._looking: threading.Thread | None = None

    def is_over(self) -> bool:
        """Whether one of them is there again; has it looked for at most every `LOOK_SECONDS`."""
        now = time.monotonic()
        looks = self._looking is not None and self._looking.is_alive()
        if not self._over and not looks and now >= self._next:
            self._next = now + LOOK_SECONDS
            self._looking = threading.Thread(target=self._look, name="penstock-look", daemon=True)
            with suppress(RuntimeError):
                self._looking.start()
        return self._over

    def _look(self) -> None:
        self._over = any(map(_answers, self._devices))


def is_absent(refusals: Mapping[str, Refusal]) -> bool:
    """Whether *refusals*, of devices that did not get an operation, have one that no process could
    be asked for.
    """
    return any(map(_is_unasked, refusals.values()))


def _is_unasked(refusal: Refusal) -> bool:
    return refusal.code is RefusalCode.NO_ANSWER and refusal.is_absence


def explained(error: PlacementError) -> PlacementError:
    """*error*, whose reasons say of devices that had no process where more is said of their end."""
    if not is_absent(error.refusals):
        return error
    refusals = {
        name: why._replace(detail=with_last_crash(why.detail))
        if _is_unasked(why) and why.status is ErrorStatus.DEAD_OBJECT
        else why
        for name, why in error.refusals.items()
    }
    return PlacementError(error.message, refusals)


def refuse_absent(plan: ExecutionPlan) -> None:
    """Raises `PlacementError` where a device that *plan* could place on had no process: without it
    others got the work.
    """
    for placement in plan.operations[:1]:
        unasked = {n: r for n, r in placement.refusals.items() if _is_unasked(r)}
        if unasked:
            names = " and ".join(unasked)
            message = f"the process of {names} is not there, and {NOT_ALLOWED}"
            raise explained(PlacementError(message, unasked))


def mute(plan: ExecutionPlan) -> dict[str, str]:
    """Why devices that are there, and that *plan* could place on, could not be asked: their drivers
    are at fault.
    """
    return {
        name: str(why)
        for placement in plan.operations[:1]
        for name, why in placement.refusals.items()
        if why.code is RefusalCode.NO_ANSWER and not why.is_absence
    }


def absence_of(
    compilation: Compilation, devices: Mapping[str, Device]
) -> tuple[Compilation, Absence | None]:
    """*compilation* with receipts of its steps that name the devices which had no process, and
    these; None where all had one.
    """
    absent: dict[str, str] = {}
    unasked: dict[str, str] = {}
    steps = []
    for step in compilation.steps:
        receipt = step.receipt
        first = step.step.operations[:1]
        refusals = compilation.plan.operations[first[0]].refusals if first else {}
        missed = tuple(
            Failure(name, why.detail, why.status)
            for name, why in refusals.items()
            if _is_unasked(why)
        )
        if missed and not receipt.failures:
            made = replace(
                receipt,
                fallback_from=missed[0].device,
                error=missed[0].error,
                failures=missed,
            )
            step = replace(step, receipt=made)  # noqa: PLW2901  # the same with another receipt
        steps.append(step)
        unasked |= {f.device: f.error for f in missed}
        failures = (*missed, *receipt.failures)
        absent |= {f.device: f.error for f in failures if f.is_absence}
    if not absent:
        return compilation, None
    for name, error in unasked.items():
        log.warning("compiled without %s, which is not there: %s", name, error)
    told = replace(compilation.receipt, steps=tuple(step.receipt for step in steps))
    there = [devices[name] for name in absent if name in devices]
    return replace(compilation, steps=tuple(steps), receipt=told), Absence(there)


def _answers(device: Device) -> bool:
    there: Callable[[], bool] | None = getattr(device, "there", None)
    try:
        return device.check() is None if there is None else there()
    except (DriverError, Cancelled):
        return False
