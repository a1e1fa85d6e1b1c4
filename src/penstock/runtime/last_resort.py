"""What comes after a reference device in a process of its own: the reference device of this
process.
"""

from __future__ import annotations

from typing import Any, Final, cast

from penstock.distribution import FALLBACK_DEVICE
from penstock.hal import Device
from penstock.partitioning.support import LAST_RESORT
from penstock.runtime.discovery import Manager


def last_resort(manager: Manager) -> Device | None:
    """The reference device of *manager* in this process, under the name `LAST_RESORT`; None where
    it cannot be used.
    """
    device = manager.by_name(FALLBACK_DEVICE, isolate=False)
    return None if device is None else cast("Device", _InThisProcess(device))


class _InThisProcess:
    """A device under a name of its own, so that receipts tell it from the one that has failed."""

    name: Final = LAST_RESORT

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)
