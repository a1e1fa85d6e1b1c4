"""The blocklist of shadow verification: a device rejects operations that it computes wrongly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from penstock import knobs
from penstock.cache.verdicts import DriverVerdict, DriverVerdicts
from penstock.errors import CacheError, Refusal, RefusalCode
from penstock.hal import ACCURACY_RANK, AccuracyClass, Device, Support
from penstock.ir import Model
from penstock.ir.digest import form_of
from penstock.logs import Log
from penstock.partitioning.support import refused

log = Log(__name__)

NOT_NAMED: Final = (
    "it was not named: it runs only operations that the blocklist takes from the named devices"
)


class BlocklistedDevice:
    """*device*, but it rejects the operations that *verdicts* name, with the reason."""

    def __init__(self, device: Device, verdicts: Sequence[DriverVerdict]) -> None:
        self._device, self._verdicts = device, verdicts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def supported_operations(self, model: Model) -> Sequence[Support]:
        """The answers of the device, with the blocklisted operations rejected."""
        return self._answers(model)[0]

    def blocked_operations(self, model: Model) -> dict[int, str]:
        """The operations that the device accepts and the blocklist rejects, with reasons."""
        return self._answers(model)[1]

    def _answers(self, model: Model) -> tuple[list[Any], dict[int, str]]:
        answers: list[Any] = list(self._device.supported_operations(model))
        blocked: dict[int, str] = {}
        forms = [form_of(model, operation) for operation in model.operations]
        if len(answers) != len(forms):
            return answers, blocked
        for verdict in self._verdicts:
            reason = (
                f"{verdict.show()} ('penstock doctor --forget {verdict.short}' removes it "
                "from the blocklist)"
            )
            for at in verdict.covered(forms):
                answer = answers[at]
                if isinstance(answer, Support) and answer.supported:
                    blocked[at] = reason
                    refusal = Refusal(RefusalCode.WRONG_RESULTS, reason)
                    answers[at] = refused(refusal, answer.accuracy)
        return answers, blocked


class SubstituteDevice:
    """*device*, which the caller did not name, for what is blocklisted on *blocklisted*."""

    def __init__(self, device: Device, blocklisted: Sequence[BlocklistedDevice]) -> None:
        self._device, self._blocklisted = device, tuple(blocklisted)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def supported_operations(self, model: Model) -> Sequence[Support]:
        """The answers of the device for the blocklisted operations; it rejects all others."""
        blocked = {at for one in self._blocklisted for at in one.blocked_operations(model)}
        answers = self._device.supported_operations(model)
        return [a if at in blocked else Support(False, NOT_NAMED) for at, a in enumerate(answers)]


def substitute_for(
    device: Device | None, named: Sequence[Device], accuracy: AccuracyClass
) -> Device | None:
    """*device* as the substitute for operations blocklisted on *named*; None if there are none."""
    blocklisted = [d for d in with_blocklist(named, accuracy) if isinstance(d, BlocklistedDevice)]
    if not blocklisted or device is None:
        return None
    return cast("Device", SubstituteDevice(device, blocklisted))


def with_blocklist(devices: Sequence[Device], accuracy: AccuracyClass) -> list[Device]:
    """*devices*, each with the operations rejected that a verdict names for its version."""
    if not knobs.driver_verdicts():
        return list(devices)
    try:
        verdicts = DriverVerdicts().every()
    except CacheError as error:
        log.warning("the blocklist of operations cannot be read: %s", error)
        return list(devices)
    counting = [v for v in verdicts if ACCURACY_RANK[v.accuracy] <= ACCURACY_RANK[accuracy]]
    return [_blocklisted(device, counting) for device in devices]


def _blocklisted(device: Device, verdicts: Iterable[DriverVerdict]) -> Device:
    against = [v for v in verdicts if (v.device, v.version) == (device.name, device.version)]
    return cast("Device", BlocklistedDevice(device, against)) if against else device
