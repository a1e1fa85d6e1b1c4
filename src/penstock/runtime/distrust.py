"""Devices held to what shadow verification found: an operation that one computes wrongly is refused
on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from penstock import knobs
from penstock.cache.driver_verdicts import DriverVerdict, DriverVerdicts
from penstock.errors import CacheError, Refusal, RefusalCode
from penstock.hal import ACCURACY_RANK, AccuracyClass, Device, Support
from penstock.ir import Model
from penstock.ir.digest import form_of
from penstock.logs import Log
from penstock.partitioning.support import refused

log = Log(__name__)

NOT_NAMED: Final = (
    "it was not named, and takes only what shadow verification keeps from those that were"
)


class HeldToVerdicts:
    """*device* as a plan sees it: it refuses the operations that *verdicts* name, with the reason.
    In all else it is that device.
    """

    def __init__(self, device: Device, verdicts: Sequence[DriverVerdict]) -> None:
        self._device, self._verdicts = device, verdicts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def supported_operations(self, model: Model) -> Sequence[Support]:
        """The device's own answers, but for what it is known to compute wrongly."""
        return self._held(model)[0]

    def kept_from(self, model: Model) -> dict[int, str]:
        """The operations of *model* that it says it can run and is not given, with the reasons."""
        return self._held(model)[1]

    def _held(self, model: Model) -> tuple[list[Any], dict[int, str]]:
        answers: list[Any] = list(self._device.supported_operations(model))
        kept: dict[int, str] = {}
        forms = [form_of(model, operation) for operation in model.operations]
        if len(answers) != len(forms):
            return answers, kept
        for verdict in self._verdicts:
            reason = f"{verdict.show()} ('penstock doctor --forget {verdict.short}' lifts this)"
            for at in verdict.covered(forms):
                answer = answers[at]
                if isinstance(answer, Support) and answer.supported:
                    kept[at] = reason
                    refusal = Refusal(RefusalCode.WRONG_RESULTS, reason)
                    answers[at] = refused(refusal, answer.accuracy)
        return answers, kept


class InTheirPlace:
    """*device*, which nobody named, as a plan sees it: it takes only operations that one of *held*
    is kept from. In all else it is that device.
    """

    def __init__(self, device: Device, held: Sequence[HeldToVerdicts]) -> None:
        self._device, self._theirs = device, tuple(held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def supported_operations(self, model: Model) -> Sequence[Support]:
        """The device's own answers, where they count."""
        kept = {at for one in self._theirs for at in one.kept_from(model)}
        answers = self._device.supported_operations(model)
        return [a if at in kept else Support(False, NOT_NAMED) for at, a in enumerate(answers)]


def in_their_place(
    device: Device | None, named: Sequence[Device], accuracy: AccuracyClass
) -> Device | None:
    """*device* for what verdicts keep from those that were *named*; None where there are no
    verdicts against them.
    """
    held = [d for d in held_to_verdicts(named, accuracy) if isinstance(d, HeldToVerdicts)]
    return cast("Device", InTheirPlace(device, held)) if held and device is not None else None


def held_to_verdicts(devices: Sequence[Device], accuracy: AccuracyClass) -> list[Device]:
    """*devices*, those with verdicts against their version held to them. A verdict of a stricter
    class than *accuracy* says nothing here. Verdicts that cannot be read are none, as with the knob
    `driver_verdicts` off.
    """
    if not knobs.driver_verdicts():
        return list(devices)
    try:
        verdicts = DriverVerdicts().every()
    except CacheError as error:
        log.warning("what drivers compute wrongly is not known: %s", error)
        return list(devices)
    counting = [v for v in verdicts if ACCURACY_RANK[v.accuracy] <= ACCURACY_RANK[accuracy]]
    return [_held(device, counting) for device in devices]


def _held(device: Device, verdicts: Iterable[DriverVerdict]) -> Device:
    against = [v for v in verdicts if (v.device, v.version) == (device.name, device.version)]
    return cast("Device", HeldToVerdicts(device, against)) if against else device
