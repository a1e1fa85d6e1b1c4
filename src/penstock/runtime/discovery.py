"""Finding devices: the entry-point group `penstock.drivers`, each entry with its reason when unusable."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock import knobs
from penstock.errors import InputError, PlacementError
from penstock.hal import Capabilities, Device
from penstock.hal.loading import is_device, load_devices
from penstock.logs import Log
from penstock.runtime.entries import DriverEntry, installed_entries
from penstock.runtime.examination import examine

log = Log(__name__)

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
        self._found: dict[bool | None, list[_Found]] = {}

    def infos(self, isolate: bool | None = None) -> list[DeviceInfo]:
        """Every device found, usable or not, the fall-back last."""
        return [found.info for found in self._discover(isolate)]

    def choose(
        self,
        wanted: Sequence[str | DeviceInfo | Device] | None,
        isolate: bool | None = None,
    ) -> list[Device]:
        """The devices to place on, in order of preference.

        None takes every usable one that need not be named (or those the knob `devices` names). *isolate* takes them
        from processes of their own, or from this one; None as each driver's setting says.
        Raises `InputError` for something that is no device or twice the same, `PlacementError` with the
        reason for a name that is unknown or unusable, and for an object to be isolated, `NotAvailable` where nothing can be.
        """
        if wanted is None and (names := knobs.devices()):
            try:
                return self.choose([n.strip() for n in names.split(",") if n.strip()], isolate)
            except PlacementError as error:
                told = f"the knob devices (PENSTOCK_DEVICES) is {names!r}: {error.message}"
                raise PlacementError(told, error.reasons) from error
            except InputError as error:
                told = f"the knob devices (PENSTOCK_DEVICES) is {names!r}: {error}"
                raise InputError(told) from error
        if wanted is None:
            everything = self._discover(isolate)
            usable = [f for f in everything if f.info.usable and not f.info.only_when_named]
            if not usable:
                reasons = {f.info.name: f.info.reason for f in everything}
                raise PlacementError("no usable device", reasons)
            return [f.device for f in usable]
        if isinstance(wanted, str | DeviceInfo) or not isinstance(wanted, Sequence):
            raise InputError("devices must be a list of names, DeviceInfo or Device objects")
        chosen = [self._one(w, isolate) for w in wanted]
        if not chosen:
            raise InputError("devices is an empty list; None means every usable device")
        names_seen = [f.info.name for f in chosen]
        if len(set(names_seen)) != len(names_seen):
            raise InputError(f"a device is listed twice: {', '.join(names_seen)}")
        return [f.device for f in chosen]

    def by_name(self, name: str, isolate: bool | None = None) -> Device | None:
        """The usable device of that name, or None."""
        found = self._usable(name, isolate)
        return None if found is None else found.device

    def _one(self, wanted: str | DeviceInfo | Device, isolate: bool | None) -> _Found:
        if isinstance(wanted, str | DeviceInfo):
            return self._named(wanted if isinstance(wanted, str) else wanted.name, isolate)
        kind = type(wanted).__name__
        if isinstance(wanted, type):
            name = wanted.__name__
            raise InputError(f"{name} is a class; a device is an object of it: {name}()")
        if not is_device(wanted):
            raise InputError(f"{kind} is neither a device nor a device's name")
        found = _examined(wanted, kind)
        if isolate:
            name = found.info.name
            reason = "an object of this process cannot run in another; give the device's name"
            raise PlacementError(f"device {name!r} cannot be isolated", {name: reason})
        _refuse_unusable(found.info)
        return found

    def _named(self, name: str, isolate: bool | None) -> _Found:
        if (found := self._usable(name, isolate)) is not None:
            return found
        everything = self._discover(isolate)
        named = [f for f in everything if f.info.name == name]
        if not named:
            known = ", ".join(f.info.name for f in everything) or "none"
            raise PlacementError(f"no device is named {name!r}; found: {known}")
        _refuse_unusable(named[0].info)
        return named[0]

    def _usable(self, name: str, isolate: bool | None) -> _Found | None:
        """The usable device of that name, from as few drivers as can tell."""
        with self._lock:
            for driver in sorted(self._all_drivers(), key=lambda d: -d.kinship(name)):
                if not driver.kinship(name):
                    break
                for found in driver.devices(isolate):
                    if found.info.usable and found.info.name == name:
                        return found
        usable = (f for f in self._discover(isolate) if f.info.usable and f.info.name == name)
        return next(usable, None)

    def _all_drivers(self) -> list[_Driver]:
        if self._drivers is None:
            entries = sorted(self._find(), key=lambda e: (e.name == "reference", e.name))
            self._drivers = [_Driver(entry) for entry in entries]
        return self._drivers

    def _discover(self, isolate: bool | None) -> list[_Found]:
        with self._lock:
            if isolate not in self._found:
                self._found[isolate] = _named_apart(self._all_drivers(), isolate)
            return self._found[isolate]


class _Driver:
    """One entry point, and its devices once they are asked for: those of this process, and those of another."""

    def __init__(self, entry: DriverEntry) -> None:
        self._entry = entry
        self._devices: dict[bool, list[_Found]] = {}

    def kinship(self, device: str) -> int:
        """How many characters of the device's name are this driver's, which ends where a word ends there."""
        name = self._entry.name
        own = device.startswith(name) and not device[len(name) : len(name) + 1].isalnum()
        return len(name) if own else 0

    def devices(self, isolate: bool | None) -> list[_Found]:
        isolated = _is_isolated(self._entry, isolate)
        if isolated not in self._devices:
            name = self._entry.name
            if isolated:
                from penstock.runtime.isolation import isolated_devices

                made = isolated_devices(self._entry)
            else:
                made = load_devices(name, self._entry.load)
            found = [_examined(device, name, isolated=isolated) for device in made]
            self._devices[isolated] = found
            for one in found:
                if not one.info.usable:
                    _log_unusable(one.info)
        return self._devices[isolated]


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


def _named_apart(drivers: Sequence[_Driver], isolate: bool | None) -> list[_Found]:
    """Every driver's devices, in order; of usable ones with one name only the first stays usable, by
    kinship of driver and name, then by order.
    """
    every = [(driver, found) for driver in drivers for found in driver.devices(isolate)]
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


def _examined(device: Device, driver: str, *, isolated: bool = False) -> _Found:
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
    return _Found(device, info)


def _refuse_unusable(info: DeviceInfo) -> None:
    if not info.usable:
        raise PlacementError(f"device {info.name!r} cannot be used", {info.name: info.reason})


manager: Final = Manager()
"""The devices of this process."""
