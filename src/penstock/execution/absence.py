"""Compiled forms that were made while a driver was not there: what receipts say of it, and when they are made anew."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.compilation.receipt import Failure
from penstock.errors import Cancelled, DriverError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.compilation.compilation import Compilation
    from penstock.hal import Device

DEAD: Final = "DeadObject"

NOT_ASKED: Final = f"cannot be asked: {DEAD}"

LOOK_SECONDS: Final = 1.0
"""How often it is looked whether a device is there again."""


class Absence:
    """The *devices* that had no process when a model was compiled for some shapes."""

    def __init__(self, devices: Iterable[Device]) -> None:
        self._devices = tuple(devices)
        self._next = time.monotonic() + LOOK_SECONDS

    def is_over(self) -> bool:
        """Whether one of them is there again; looks at most every `LOOK_SECONDS`."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + LOOK_SECONDS
        return any(map(_answers, self._devices))


def is_absent(reasons: Mapping[str, str]) -> bool:
    """Whether *reasons*, of devices that did not get an operation, have one that no process could be asked for."""
    return any(reason.startswith(NOT_ASKED) for reason in reasons.values())


def absence_of(
    compilation: Compilation, devices: Mapping[str, Device]
) -> tuple[Compilation, Absence | None]:
    """*compilation* with receipts of its steps that name the devices which had no process, and these; None where all had
    one.
    """
    absent: dict[str, None] = {}
    steps = []
    for step in compilation.steps:
        receipt = step.receipt
        first = step.step.operations[:1]
        reasons = compilation.plan.operations[first[0]].reasons if first else {}
        missed = tuple(
            Failure(name, reason[reason.index(DEAD) :])
            for name, reason in reasons.items()
            if reason.startswith(NOT_ASKED)
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
        failures = (*missed, *receipt.failures)
        absent.update((f.device, None) for f in failures if f.error.startswith(DEAD))
    if not absent:
        return compilation, None
    told = replace(compilation.receipt, steps=tuple(step.receipt for step in steps))
    there = [devices[name] for name in absent if name in devices]
    return replace(compilation, steps=tuple(steps), receipt=told), Absence(there)


def _answers(device: Device) -> bool:
    try:
        return device.check() is None
    except (DriverError, Cancelled):
        return False
