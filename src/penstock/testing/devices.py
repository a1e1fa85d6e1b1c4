"""Finds the devices to test by a driver's entry point, a device's name, or `module:callable`."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from itertools import islice
from typing import Any, Final

from penstock.errors import FOREIGN, PlacementError
from penstock.hal import Device
from penstock.hal.loading import MAX_DEVICES, describe, is_device
from penstock.runtime.discovery import manager

ENTRY_POINT_GROUP: Final = "penstock.drivers"


def find_devices(driver: str) -> list[Device]:
    """The devices of one driver, or one device.

    *driver* is an entry point of `penstock.drivers`, `module:callable` for a driver that is not
    installed, or the name of an installed driver's device. Raises `PlacementError` if none has that
    name, if the driver cannot be loaded, or if the callable makes no device.
    """
    found = {e.name: e for e in entry_points(group=ENTRY_POINT_GROUP)}
    entry = found.get(driver)
    if entry is None and ":" in driver:
        entry = EntryPoint(driver, driver, ENTRY_POINT_GROUP)
    if entry is None:
        return [_named(driver, found)]
    try:
        made: Any = entry.load()()
    except FOREIGN as error:
        raise PlacementError(f"driver {driver!r} cannot be loaded: {error!r}") from error
    is_one = is_device(made) or not isinstance(made, Iterable)
    devices = [made] if is_one else list(islice(made, MAX_DEVICES))
    for device in devices:
        if not is_device(device):
            raise PlacementError(
                f"driver {driver!r} made {describe(device)}, which is no device: it has no "
                "supported_operations and prepare_model"
            )
    if not devices:
        raise PlacementError(f"driver {driver!r} made no device")
    return devices


def usable_devices(driver: str) -> tuple[list[Device], list[tuple[str, str]]]:
    """The usable devices of *driver*, and (name, reason) of the unusable ones."""
    usable, reasons = [], []
    for device in find_devices(driver):
        try:
            reason = device.check()
        except FOREIGN as error:  # whatever a driver raises is its reason
            reason = f"check() raised {error!r}"
        if reason is None:
            usable.append(device)
        else:
            reasons.append((device.name, f"{device.name} cannot work here: {reason}"))
    return usable, reasons


def some_usable_devices(driver: str) -> tuple[list[Device], list[tuple[str, str]]]:
    """The usable devices; raises `PlacementError` with the reasons if there are none."""
    devices, unusable = usable_devices(driver)
    if not devices:
        raise PlacementError("; ".join(sentence for _, sentence in unusable))
    return devices, unusable


def _named(name: str, drivers: Iterable[str]) -> Device:
    try:
        (device,) = manager.choose([name])
    except PlacementError as error:
        if any(info.name == name for info in manager.infos()):
            raise
        known = ", ".join(sorted(drivers)) or "none"
        raise PlacementError(
            f"no driver is named {name!r}; installed: {known}. "
            "A driver that is not installed is named module:callable"
        ) from error
    return device
