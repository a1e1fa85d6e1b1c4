"""Devices held to what shadow verification found: an operation that one computes wrongly is refused on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from penstock import knobs
from penstock.cache.driver_verdicts import DriverVerdict, DriverVerdicts
from penstock.errors import CacheError
from penstock.hal import ACCURACY_RANK, AccuracyClass, Device, Support
from penstock.ir import Model
from penstock.ir.digest import form_of
from penstock.logs import Log

log = Log(__name__)


class HeldToVerdicts:
    """*device* as a plan sees it: it refuses the operations that *verdicts* name, with the reason. In all else it is
    that device.
    """

    def __init__(self, device: Device, verdicts: Sequence[DriverVerdict]) -> None:
        self._device, self._verdicts = device, verdicts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def supported_operations(self, model: Model) -> Sequence[Support]:
        """The device's own answers, but for what it is known to compute wrongly."""
        answers: list[Any] = list(self._device.supported_operations(model))
        forms = [form_of(model, operation) for operation in model.operations]
        if len(answers) != len(forms):
            return answers
        for verdict in self._verdicts:
            reason = f"{verdict.show()} ('penstock doctor --forget {verdict.short}' lifts this)"
            for at in verdict.covered(forms):
                answer = answers[at]
                if isinstance(answer, Support) and answer.supported:
                    answers[at] = Support(supported=False, reason=reason, accuracy=answer.accuracy)
        return answers


def held_to_verdicts(devices: Sequence[Device], accuracy: AccuracyClass) -> list[Device]:
    """*devices*, those with verdicts against their version held to them. A verdict of a stricter class than *accuracy*
    says nothing here. Verdicts that cannot be read are none, as with the knob `driver_verdicts` off.
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
