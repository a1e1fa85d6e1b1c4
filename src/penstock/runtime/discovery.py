"""Finding devices: the entry-point group `penstock.drivers`, each entry with its reason when unusable."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock import knobs
from penstock.errors import InputError, PlacementError
from penstock.hal import Capabilities, Device
from penstock.logs import Log
from penstock.runtime.entries import DriverEntry, installed_entries
from penstock.runtime.examination import describe, examine, is_device

log = Log(__name__)

MAX_DEVICES: Final = 256
"""Devices one driver may bring; it bounds what a driver that never stops can do."""


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


class _Found(Struct, frozen=True):
    device: Device
    info: DeviceInfo


class Manager:
    """The devices of this process. *find* gives the entry points; tests give their own.

    A driver is loaded when all devices are asked for, or one that may be its own by name: of devices of
    one name, that of the driver whose name it begins with goes first (`openvino` before others for
    `openvino-gpu`), then the first in order.

    Safe from any thread. A child process made by `fork` finds its devices anew: those of its parent may
    hold threads and handles that it does not have.
    """

    def __init__(self, find: Callable[[], Sequence[DriverEntry]] = installed_entries) -> None:
        self._find = find
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_Renewal(self))

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._drivers: list[_Driver] | None = None
        self._found: list[_Found] | None = None

    def infos(self) -> list[DeviceInfo]:
        """Every device found, usable or not, the fall-back last."""
        return [found.info for found in self._discover()]

    def choose(self, wanted: Sequence[str | DeviceInfo | Device] | None) -> list[Device]:
        """The devices to place on, in order of preference.

        None takes every usable one that need not be named (or those the knob `devices` names).
        Raises `InputError` for something that is no device or twice the same, `PlacementError` with the
        reason for a name that is unknown or unusable.
        """
        if wanted is None and (names := knobs.devices()):
            try:
                return self.choose([n.strip() for n in names.split(",") if n.strip()])
            except PlacementError as error:
                told = f"the knob devices (PENSTOCK_DEVICES) is {names!r}: {error.message}"
                raise PlacementError(told, error.reasons) from error
            except InputError as error:
                told = f"the knob devices (PENSTOCK_DEVICES) is {names!r}: {error}"
                raise InputError(told) from error
        if wanted is None:
            everything = self._discover()
            usable = [f for f in everything if f.info.usable and not f.info.only_when_named]
            if not usable:
                reasons = {f.info.name: f.info.reason for f in everything}
                raise PlacementError("no usable device", reasons)
            return [f.device for f in usable]
        if isinstance(wanted, str | DeviceInfo) or not isinstance(wanted, Sequence):
            raise InputError("devices must be a list of names, DeviceInfo or Device objects")
        chosen = [self._one(w) for w in wanted]
        if not chosen:
            raise InputError("devices is an empty list; None means every usable device")
        names_seen = [f.info.name for f in chosen]
        if len(set(names_seen)) != len(names_seen):
            raise InputError(f"a device is listed twice: {', '.join(names_seen)}")
        return [f.device for f in chosen]

    def by_name(self, name: str) -> Device | None:
        """The usable device of that name, or None."""
        found = self._usable(name)
        return None if found is None else found.device

    def _one(self, wanted: str | DeviceInfo | Device) -> _Found:
        if isinstance(wanted, str | DeviceInfo):
            return self._named(wanted if isinstance(wanted, str) else wanted.name)
        kind = type(wanted).__name__
        if isinstance(wanted, type):
            name = wanted.__name__
            raise InputError(f"{name} is a class; a device is an object of it: {name}()")
        if not is_device(wanted):
            raise InputError(f"{kind} is neither a device nor a device's name")
        found = _examined(wanted, kind)
        _refuse_unusable(found.info)
        return found

    def _named(self, name: str) -> _Found:
        if (found := self._usable(name)) is not None:
            return found
        everything = self._discover()
        named = [f for f in everything if f.info.name == name]
        if not named:
            known = ", ".join(f.info.name for f in everything) or "none"
            raise PlacementError(f"no device is named {name!r}; found: {known}")
        _refuse_unusable(named[0].info)
        return named[0]

    def _usable(self, name: str) -> _Found | None:
        """The usable device of that name, from as few drivers as can tell."""
        with self._lock:
            for driver in sorted(self._all_drivers(), key=lambda d: -d.kinship(name)):
                if not driver.kinship(name):
                    break
                for found in driver.devices():
                    if found.info.usable and found.info.name == name:
                        return found
        usable = (f for f in self._discover() if f.info.usable and f.info.name == name)
        return next(usable, None)

    def _all_drivers(self) -> list[_Driver]:
        if self._drivers is None:
            entries = sorted(self._find(), key=lambda e: (e.name == "reference", e.name))
            self._drivers = [_Driver(entry) for entry in entries]
        return self._drivers

    def _discover(self) -> list[_Found]:
        with self._lock:
            if self._found is None:
                self._found = _named_apart(self._all_drivers())
            return self._found


class _Driver:
    """One entry point, and its devices once they are asked for."""

    def __init__(self, entry: DriverEntry) -> None:
        self._entry = entry
        self._devices: list[_Found] | None = None

    def kinship(self, device: str) -> int:
        """How many characters of the device's name are this driver's, which ends where a word ends there."""
        name = self._entry.name
        own = device.startswith(name) and not device[len(name) : len(name) + 1].isalnum()
        return len(name) if own else 0

    def devices(self) -> list[_Found]:
        if self._devices is None:
            name = self._entry.name
            self._devices = [_examined(device, name) for device in _load_entry(self._entry)]
            for found in self._devices:
                if not found.info.usable:
                    _log_unusable(found.info)
        return self._devices


def _named_apart(drivers: Sequence[_Driver]) -> list[_Found]:
    """Every driver's devices, in order; of usable ones with one name only the first stays usable, by
    kinship of driver and name, then by order.
    """
    every = [(driver, found) for driver in drivers for found in driver.devices()]
    first: dict[str, _Found] = {}
    for _, found in sorted(every, key=lambda pair: -pair[0].kinship(pair[1].info.name)):
        if found.info.usable:
            first.setdefault(found.info.name, found)
    return [
        found if not found.info.usable or first[found.info.name] is found else _unnamed(found)
        for _, found in every
    ]


def _unnamed(found: _Found) -> _Found:
    reason = "another driver has a device of this name"
    info = replace(found.info, usable=False, reason=reason)
    _log_unusable(info)
    return _Found(found.device, info)


def _log_unusable(info: DeviceInfo) -> None:
    log.info("device %s is not usable: %s", info.name, info.reason)


class _Renewal:
    """Called in a child process: a lock that another thread held at the fork is never released there."""

    def __init__(self, owner: Manager) -> None:
        self._owner = weakref.ref(owner)

    def __call__(self) -> None:
        if (owner := self._owner()) is not None:
            owner._begin()  # noqa: SLF001  # the manager's own way to begin again


def _load_entry(entry: DriverEntry) -> list[Device]:
    """The driver's devices; what is no device is stood in for by one that gives the reason."""
    try:
        made: Any = entry.load()()
        if isinstance(made, type):
            reason = f"its driver made the class {made.__name__}; a device is an object of it"
            return [_invalid(entry.name, reason)]
        if is_device(made):
            return [made]
        if isinstance(made, str | bytes | Mapping) or not isinstance(made, Iterable):
            return [_no_device(entry.name, made)]
        several = list(islice(made, MAX_DEVICES + 1))
        if len(several) > MAX_DEVICES:
            reason = f"brings more than {MAX_DEVICES} devices"
            return [_invalid(entry.name, reason)]
        return [d if is_device(d) else _no_device(entry.name, d) for d in several]
    except (Exception, SystemExit) as error:  # noqa: BLE001  # a broken driver is a reason, never a crash
        return [_invalid(entry.name, f"failed to load: {describe(error)}")]


def _invalid(driver: str, reason: str) -> Device:
    from penstock.hal import InvalidDevice

    return InvalidDevice(driver, reason)


def _no_device(driver: str, made: object) -> Device:
    return _invalid(driver, f"its driver made {describe(made)}, which is no device and no devices")


def _examined(device: Device, driver: str) -> _Found:
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
    )
    return _Found(device, info)


def _refuse_unusable(info: DeviceInfo) -> None:
    if not info.usable:
        raise PlacementError(f"device {info.name!r} cannot be used", {info.name: info.reason})


manager: Final = Manager()
"""The devices of this process."""
