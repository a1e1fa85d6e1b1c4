"""One installed driver and its devices, as they were found."""

from __future__ import annotations

import time
from typing import Final

from msgspec import Struct

from penstock import knobs
from penstock.hal import Capabilities, Device
from penstock.hal.loading import load_devices
from penstock.logs import Log
from penstock.runtime.entries import DriverEntry
from penstock.runtime.examination import examine

log = Log("penstock.runtime.discovery")

OWN_DISTRIBUTION: Final = "penstock"
"""Drivers of other distributions run in processes of their own unless it is said otherwise."""


class DeviceInfo(Struct, frozen=True):
    """One device as users see it; *reason* says why it is not *usable* and is empty when it is.

    What a device does not tell, or tells wrongly, has a default here: its driver's name, the version
    "invalid", the type "other".
    """

    name: str
    type: str
    version: str
    usable: bool
    reason: str
    feature_level: int
    capabilities: Capabilities
    only_when_named: bool
    driver: str
    isolated: bool = False
    """Whether it runs in a process of its own."""


class Found(Struct, frozen=True):
    device: Device
    info: DeviceInfo


LOOK_SECONDS: Final = 1.0
LOOK_SHARE: Final = 10.0
"""How long a driver whose process is not there is left alone: a second, or so many times as long as it was waited for."""


class DriverDevices:
    """One entry point, and its devices once they are asked for: those of this process, and those of another, which are
    looked for again where the process was not there.
    """

    def __init__(self, entry: DriverEntry) -> None:
        self._entry = entry
        self._devices: dict[bool, list[Found]] = {}
        self._look_at = 0.0
        self._absent: Found | None = None

    def kinship(self, device: str) -> int:
        """How many characters of the device's name are this driver's, which ends where a word ends there."""
        name = self._entry.name
        own = device.startswith(name) and not device[len(name) : len(name) + 1].isalnum()
        return len(name) if own else 0

    def devices(self, isolate: bool | None, deadline_ns: int | None = None) -> list[Found]:
        """Its devices; a process that has to be started has until half of the time to the deadline is gone."""
        isolated = _is_isolated(self._entry, isolate)
        known = self._devices.get(isolated)
        if known is not None and (
            not isolated or self._absent is None or time.monotonic() < self._look_at
        ):
            return known
        if isolated:
            found = self._elsewhere(deadline_ns)
        else:
            name = self._entry.name
            found = [examined(device, name) for device in load_devices(name, self._entry.load)]
        self._devices[isolated] = found
        for one in found:
            if not one.info.usable and not (isolated and self._absent):
                log_unusable(one.info)
        return found

    def absent(self, isolate: bool | None) -> Found | None:
        """What stands in for a device of a process that was not there when it was looked for last."""
        return self._absent if _is_isolated(self._entry, isolate) else None

    def _elsewhere(self, deadline_ns: int | None) -> list[Found]:
        from penstock.runtime.isolation import isolated_devices, present

        began, before = time.monotonic(), self._absent
        name = self._entry.name
        found = [
            present(examined(device, name, isolated=True))
            for device in isolated_devices(self._entry, deadline_ns)
        ]
        self._absent = next((one for one in found if is_absent(one.device)), None)
        if self._absent is not None:
            now = time.monotonic()
            self._look_at = now + max(LOOK_SECONDS, LOOK_SHARE * (now - began))
            if before is None:
                log.warning("driver %s is not there: %s", name, self._absent.info.reason)
        return found


def is_absent(device: Device) -> bool:
    """Whether *device* only stands in for one of a process that is not there."""
    return getattr(device, "absent", False) is True


def _is_isolated(entry: DriverEntry, isolate: bool | None) -> bool:
    if isolate is False or (
        isolate is None
        and getattr(entry, "distribution", None) == OWN_DISTRIBUTION
        and not knobs.isolate()
    ):
        # The ordinary case, without an import.
        return False
    from penstock.runtime.isolation import is_isolated

    return is_isolated(entry, isolate)


def log_unusable(info: DeviceInfo) -> None:
    log.info("device %s is not usable: %s", info.name, info.reason)


def examined(device: Device, driver: str, *, isolated: bool = False) -> Found:
    told, reason = examine(device, driver)
    info = DeviceInfo(
        name=told.name,
        type=told.type.value,
        version=told.version,
        usable=not reason,
        reason=reason,
        feature_level=told.feature_level,
        capabilities=told.capabilities,
        only_when_named=told.capabilities.only_when_named,
        driver=driver,
        isolated=isolated,
    )
    return Found(device, info)
