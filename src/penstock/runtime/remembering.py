"""Devices whose answers about support are kept in the cache directory, between starts.

Rules that decide about operations take longer to import and to ask than a compiled model takes to
load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from penstock import hal
from penstock.cache.ingredients import answers_key
from penstock.cache.verdicts import Answers, KeptAnswers
from penstock.errors import CacheError
from penstock.hal.device import mappable_kinds
from penstock.ir import Model
from penstock.logs import Log

log = Log(__name__)


class RememberingDevice:
    """*device*, whose answers for a model are looked up in the cache directory first.

    Only for a device that declares `Capabilities.support_basis`.
    """

    def __init__(self, device: hal.Device, directory: str) -> None:
        self._device, self._kept = device, KeptAnswers(directory)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def supported_operations(self, model: Model) -> Sequence[hal.Support]:
        """The kept answers; without them the device's, which are then kept."""
        device = self._device
        key = answers_key(model, device)
        found = self._kept.load(key)
        if found is not None and len(found.answers) == len(model.operations):
            return found.answers
        given = device.supported_operations(model)
        if self._is_steady(model, given):
            try:
                self._kept.save(Answers(key=key, device=device.name, answers=tuple(given)))
            except CacheError as error:
                log.info("the answers of device %s are not kept: %s", device.name, error)
        return given

    def _is_steady(self, model: Model, given: Sequence[hal.Support]) -> bool:
        """Whether *given* depends on the content of *model* alone, and not on where it lies."""
        if len(given) != len(model.operations) or not all(type(a) is hal.Support for a in given):
            return False
        everywhere: Final = [hal.Support(True)] * len(given)
        kinds = mappable_kinds(self._device)
        return hal.refuse_unmapped(model, everywhere, kinds) is everywhere


def with_kept_answers(
    devices: Sequence[hal.Device], directory: str, chosen: Callable[[hal.Device], bool]
) -> list[hal.Device]:
    """*devices*, those that are *chosen* as `RememberingDevice`."""
    return [
        cast("hal.Device", RememberingDevice(d, directory)) if chosen(d) else d for d in devices
    ]
