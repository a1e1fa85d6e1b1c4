"""Finds devices through the entry points `penstock.drivers`; unusable ones have a reason."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeAlias

from msgspec.structs import replace

from penstock import knobs
from penstock.distribution import DISTRIBUTION, FALLBACK_DEVICE, remember_origin
from penstock.errors import BadSetting, InputError, MissedDeadlinePersistent, PlacementError
from penstock.hal import Device
from penstock.hal.device import is_isolated, is_placeholder
from penstock.hal.loading import is_device, load_devices
from penstock.logs import Log
from penstock.runtime.entries import (
    DriverEntry,
    Source,
    holder,
    installed_entries,
    named_sources,
    source_of,
    why_refused,
)
from penstock.runtime.examination import DeviceInfo, Found, examined

__all__ = ["AnyDevice", "DeviceInfo", "Manager", "devices", "manager"]

log = Log(__name__)

AnyDevice: TypeAlias = str | DeviceInfo | Device
"""A device, or its name, or its description."""

LOOK_SECONDS: Final = 1.0
LOOK_SHARE: Final = 10.0
"""Backoff for an unavailable driver: one second, or this many times the last wait for it."""


class Manager:
    """The devices of this process. *find* returns the entry points; tests pass their own.

    A driver is loaded when all devices are requested, or a device that may be its own by name. If
    several drivers have a device of one name, the driver whose name is a prefix of it comes first
    (`openvino` for `openvino-gpu`), then the first in order. If several distributions provide a
    driver or device of one name, Penstock's is used. Of other distributions none is used, unless
    the knob `driver_sources` assigns the name.

    Thread-safe. A child process made by `fork` discovers its devices again, because the parent's
    devices may hold threads and handles that the child lacks.
    """

    def __init__(self, find: Callable[[], Sequence[DriverEntry]] = installed_entries) -> None:
        self._find = find
        self._begin()
        if hasattr(os, "register_at_fork"):
            begin = weakref.WeakMethod(self._begin)
            os.register_at_fork(after_in_child=partial(_call, begin))

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._drivers: list[_Driver] | None = None
        self._found: dict[bool | None, list[Found]] = {}
        self._warned: set[str] = set()

    def infos(self, isolate: bool | None = None) -> list[DeviceInfo]:
        """Every device found, usable or not, the fallback device last."""
        return [found.info for found in self._discover(isolate)]

    def choose(
        self,
        wanted: Sequence[AnyDevice] | None,
        isolate: bool | None = None,
        deadline_ns: int | None = None,
        *,
        absent: bool = False,
    ) -> list[Device]:
        """The devices to place operations on, in order of preference.

        *wanted* None selects every usable device that may be used unnamed, or those of the knob
        `devices`. *isolate* selects devices in host processes or in this process; None uses each
        driver's setting. With *absent*, a named device whose host process is unavailable becomes a
        `PlaceholderDevice`. Starting host processes may take half of the time to the deadline.

        Raises `InputError` for something that is no device, for a duplicate, and for an invalid
        isolation knob, whichever devices are chosen. Raises `PlacementError`, with the reason, for
        a name that is unknown or unusable, and for an object that cannot be isolated. Raises
        `NotAvailable` if this system cannot isolate.
        """
        if isolate is not False:
            self._check_settings(deadline_ns)
        if wanted is None and (names := knobs.devices()):
            knob = f"knob devices (PENSTOCK_DEVICES) is {names!r}"
            if not (named := [n.strip() for n in names.split(",") if n.strip()]):
                raise BadSetting(
                    f"{knob}, which names no device: give names with commas between them, or "
                    "nothing for every usable device"
                )
            try:
                return self.choose(named, isolate, deadline_ns, absent=absent)
            except PlacementError as error:
                raise PlacementError(f"the {knob}: {error.message}", error.refusals) from error
            except InputError as error:
                raise InputError(f"the {knob}: {error}") from error
        if wanted is None:
            everything = self._discover(isolate, deadline_ns)
            usable = [f for f in everything if f.info.usable and not f.info.only_when_named]
            if not usable:
                reasons = {f.info.name: f.info.reason for f in everything}
                raise PlacementError("no usable device", reasons)
            return [self._apart(f, isolate, deadline_ns).device for f in usable]
        if isinstance(wanted, str | DeviceInfo) or not isinstance(wanted, Sequence):
            raise InputError("devices must be a list of names, DeviceInfo or Device objects")
        chosen = [self._one(w, isolate, deadline_ns, absent=absent) for w in wanted]
        if not chosen:
            raise InputError("devices is an empty list; None means every usable device")
        names_seen = [f.info.name for f in chosen]
        if len(set(names_seen)) != len(names_seen):
            raise InputError(f"a device is listed twice: {', '.join(names_seen)}")
        return [f.device for f in chosen]

    def drivers(self, deadline_ns: int | None = None) -> list[str]:
        """The names of all drivers, without discovering their devices."""
        with self._held(deadline_ns):
            return [driver.name for driver in self._all_drivers()]

    def built_in(self, deadline_ns: int | None = None) -> list[Found]:
        """The devices of Penstock's own drivers in this process, usable or not. No other driver is
        loaded.
        """
        with self._held(deadline_ns):
            drivers = [d for d in self._all_drivers() if d.distribution == DISTRIBUTION]
            return [found for driver in drivers for found in driver.devices(False, deadline_ns)]

    def absent(self, isolate: bool | None = None) -> dict[str, str]:
        """The drivers whose host processes were unavailable at the last check, with reasons."""
        found = (driver.absent(isolate) for driver in self._drivers or ())
        return {f.info.driver: f.info.reason for f in found if f is not None}

    def by_name(self, name: str, isolate: bool | None = None) -> Device | None:
        """The usable device of that name, or None."""
        found = self._usable_by_name(name, isolate)
        return None if found is None else found.device

    def driver_of(self, name: str, isolate: bool | None = None) -> str | None:
        """The name of the driver whose usable device has that name, or None."""
        found = self._usable_by_name(name, isolate)
        return None if found is None else found.info.driver

    def found(self, name: str, isolate: bool | None = None) -> Found | None:
        """The usable device of that name with its description, or None."""
        return self._usable_by_name(name, isolate)

    def of_driver(
        self, driver: str, name: str, isolate: bool | None = None, deadline_ns: int | None = None
    ) -> Found | None:
        """The usable device *name* of *driver*, or None. No other driver is loaded.

        Other drivers may have a device of that name: only for a name that is known to be the
        driver's. Raises as `choose`.
        """
        with self._held(deadline_ns):
            for one in self._all_drivers():
                if one.name == driver and not one.refused:
                    for found in one.devices(isolate, deadline_ns):
                        if found.info.name == name and found.info.usable:
                            return one.apart(found, isolate, deadline_ns)
        return None

    def origins(self) -> list[str]:
        """Each driver's entry point with its distribution and version. None is loaded."""
        with self._held(None):
            sources = [driver.source for driver in self._all_drivers()]
        return [f"{s.entry_point}@{s.distribution}-{s.version}" for s in sources]

    def _usable_by_name(self, name: str, isolate: bool | None) -> Found | None:
        if (found := self._likeliest(name, isolate, None)) is not None:
            return found
        found = _usable(name, self._discover(isolate))
        return None if found is None else self._apart(found, isolate, None)

    def _apart(self, found: Found, isolate: bool | None, deadline_ns: int | None) -> Found:
        """As `_Driver.apart`, for a device of any driver."""
        if not found.info.isolated or is_isolated(found.device):
            return found
        with self._held(deadline_ns):
            for driver in self._all_drivers():
                if driver.name == found.info.driver and driver.source == found.info.source:
                    return driver.apart(found, isolate, deadline_ns)
        return found

    def _check_settings(self, deadline_ns: int | None) -> None:
        """Raises `InputError` for an invalid knob of isolation. Logs unknown drivers, once."""
        knobs.driver_timeout_ms()
        knobs.driver_start_ms()
        knobs.ring_spin_us()
        if knobs.driver_sources():
            named_sources()
        if knobs.isolate() or knobs.services():
            from penstock.runtime.isolation import check_settings, unknown_drivers

            check_settings()
            for text in unknown_drivers(self.drivers(deadline_ns)):
                if text not in self._warned:
                    self._warned.add(text)
                    log.warning("%s", text)

    def _one(
        self, wanted: AnyDevice, isolate: bool | None, deadline_ns: int | None, *, absent: bool
    ) -> Found:
        if isinstance(wanted, str | DeviceInfo):
            name = wanted if isinstance(wanted, str) else wanted.name
            return self._named(name, isolate, deadline_ns, absent=absent)
        if isinstance(wanted, type):
            name = wanted.__name__
            raise InputError(f"{name} is a class; a device is an object of it: {name}()")
        kind = type(wanted).__name__
        if not is_device(wanted):
            raise InputError(f"{kind} is neither a device nor a device's name")
        found = examined(wanted, kind)
        if isolate:
            name = found.info.name
            reason = "an object of this process cannot run in another; give the device's name"
            raise PlacementError(f"device {name!r} cannot be isolated", {name: reason})
        _refuse_unusable(found.info)
        return found

    def _named(
        self, name: str, isolate: bool | None, deadline_ns: int | None, *, absent: bool
    ) -> Found:
        if (found := self._likeliest(name, isolate, deadline_ns)) is not None:
            return found
        # Discovered once: each discovery may start an unavailable host process again.
        everything = self._discover(isolate, deadline_ns)
        if (found := _usable(name, everything)) is not None:
            return self._apart(found, isolate, deadline_ns)
        if (found := self._absent(name, isolate, everything)) is not None:
            if absent:
                return found
            _refuse_unusable(found.info)
        named = [f for f in everything if f.info.name == name]
        if not named:
            raise PlacementError(unknown_device(name, [f.info for f in everything]))
        _refuse_unusable(named[0].info)
        return named[0]

    def _likeliest(self, name: str, isolate: bool | None, deadline_ns: int | None) -> Found | None:
        """The usable device of that name, if drivers with a matching name have it."""
        with self._held(deadline_ns):
            for driver in self._likely(name):
                for found in driver.devices(isolate, deadline_ns):
                    if found.info.name != name:
                        continue
                    if found.info.usable and holder(name, [driver.distribution]) is not None:
                        return driver.apart(found, isolate, deadline_ns)
                    if driver.distribution == DISTRIBUTION:
                        return None
        return None

    def _likely(self, name: str) -> list[_Driver]:
        """The drivers that may have the device of that name: best match first, Penstock's first."""
        drivers = [driver for driver in self._all_drivers() if not driver.refused]
        of_others = {d.distribution for d in drivers if d.distribution != DISTRIBUTION}
        if len(of_others) > 1:
            drivers = [driver for driver in drivers if driver.distribution == DISTRIBUTION]
        kin = [driver for driver in drivers if driver.kinship(name)]
        return sorted(kin, key=lambda d: (d.distribution != DISTRIBUTION, -d.kinship(name)))

    def _absent(self, name: str, isolate: bool | None, everything: Sequence[Found]) -> Found | None:
        """The placeholder for the device of that name, if its driver's process is unavailable."""
        claimed = {f.info.source.distribution for f in everything if f.info.name == name}
        for driver in self._all_drivers():
            if claimed - {driver.distribution}:
                continue
            if driver.kinship(name) and (found := driver.absent(isolate)) is not None:
                from penstock.runtime.isolation import PlaceholderDevice

                assert isinstance(found.device, PlaceholderDevice)
                return Found(found.device.named(name), replace(found.info, name=name))
        return None

    def _all_drivers(self) -> list[_Driver]:
        if self._drivers is None:
            entries = sorted(self._find(), key=lambda e: (e.name == FALLBACK_DEVICE, e.name))
            self._drivers = _drivers_of(entries)
        return self._drivers

    def _discover(self, isolate: bool | None, deadline_ns: int | None = None) -> list[Found]:
        with self._held(deadline_ns):
            if isolate in self._found:
                return self._found[isolate]
            drivers = self._all_drivers()
            found = _named_apart(drivers, isolate, deadline_ns)
            if not any(driver.absent(isolate) for driver in drivers):
                self._found[isolate] = found
            return found

    @contextmanager
    def _held(self, deadline_ns: int | None) -> Iterator[None]:
        left = -1.0
        if deadline_ns is not None:
            left = max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
        if not self._lock.acquire(timeout=left):
            raise MissedDeadlinePersistent("the deadline passed while another thread found devices")
        try:
            yield
        finally:
            self._lock.release()


class _Driver:
    """One entry point, with its devices here and in a host process, discovered on demand."""

    def __init__(self, entry: DriverEntry, source: Source, refused: str) -> None:
        self._entry, self.name = entry, entry.name
        self.source, self.distribution, self.refused = source, source.distribution, refused
        self.kinship = partial(_kinship, entry.name)
        self._warned: set[str] = set()
        self._devices: dict[bool, list[Found]] = {}
        self._look_at = 0.0
        self._absent: Found | None = None

    def warn(self, text: str) -> None:
        """Logs a warning once."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    def devices(self, isolate: bool | None, deadline_ns: int | None = None) -> list[Found]:
        """The driver's devices. Its host process may start until half of the time has passed.

        A device with `own_process` is here one of this process, described as isolated: `apart` has
        the one that is used.
        """
        found = self._found(isolate, deadline_ns)
        if isolate is None and any(getattr(f.device, "own_process", False) for f in found):
            return [self._described(one) for one in found]
        return found

    def _found(self, isolate: bool | None, deadline_ns: int | None) -> list[Found]:
        isolated = not self.refused and _is_isolated(self._entry, isolate)
        known = self._devices.get(isolated)
        if known is not None and (
            not isolated or self._absent is None or time.monotonic() < self._look_at
        ):
            return known
        if isolated:
            found = self._isolated_devices(deadline_ns)
        elif self.refused:
            from penstock.hal import InvalidDevice

            invalid = InvalidDevice(self.name, self.refused)
            found = [examined(invalid, self.name, source=self.source)]
        else:
            devices = load_devices(self.name, self._entry.load, self.source.origin)
            found = [examined(device, self.name, source=self.source) for device in devices]
        self._devices[isolated] = found
        for one in found:
            if not one.info.usable and not (isolated and self._absent):
                _log_unusable(one.info)
        return found

    def apart(self, found: Found, isolate: bool | None, deadline_ns: int | None) -> Found:
        """*found*, or the device of that name in a host process where it runs in one by itself."""
        if isolate is not None or not found.info.isolated or is_isolated(found.device):
            return found
        from penstock.runtime.isolation import runs_apart

        if not runs_apart(self._entry):
            return found
        name = found.info.name
        inside = [f for f in self.devices(True, deadline_ns) if f.info.name == name]
        return inside[0] if inside else self.devices(True, deadline_ns)[0]

    def _described(self, found: Found) -> Found:
        """*found* of this process, described as isolated if it runs in a host process when used."""
        own = getattr(found.device, "own_process", False) and sys.platform == "linux"
        if own and knobs.isolate():
            from penstock.runtime.isolation import isolated_names

            own = isolated_names().get(self._entry.name, True)
        return Found(found.device, replace(found.info, isolated=bool(own)), found.status)

    def absent(self, isolate: bool | None) -> Found | None:
        """The placeholder, if the host process was unavailable at the last check."""
        # Whether it is isolated is asked last, because that may import what isolates.
        if self.refused or self._absent is None:
            return None
        return self._absent if _is_isolated(self._entry, isolate) else None

    def _isolated_devices(self, deadline_ns: int | None) -> list[Found]:
        from penstock.ipc.deadlines import deadline_context, halfway_to
        from penstock.runtime.isolation import isolated_devices, present

        began, before = time.monotonic(), self._absent
        with deadline_context(halfway_to(deadline_ns)):
            found = [
                present(examined(device, self.name, isolated=True, source=self.source))
                for device in isolated_devices(self._entry, deadline_ns)
            ]
        for one in found:
            remember_origin(one.device, self.source.origin)
        self._absent = next((one for one in found if is_placeholder(one.device)), None)
        if self._absent is not None:
            now = time.monotonic()
            self._look_at = now + max(LOOK_SECONDS, LOOK_SHARE * (now - began))
            if before is None:
                log.warning("driver %s is unavailable: %s", self.name, self._absent.info.reason)
        return found


def unknown_device(name: str, found: Sequence[DeviceInfo]) -> str:
    """The error text for an unknown device, with the reason of the driver it may belong to."""
    known = ", ".join(info.name for info in found) or "none"
    # A driver that does not start, or fails to load, is listed under its own name.
    reasons = [
        f"; {info.name!r} cannot be used: {info.reason}"
        for info in found
        if info.name == info.driver and not info.usable and _kinship(info.driver, name)
    ]
    return f"no device is named {name!r}; found: {known}{''.join(reasons)}"


def _kinship(driver: str, device: str) -> int:
    """The length of the driver's name if the device's name begins with it as a word, else 0."""
    own = device.startswith(driver) and not device[len(driver) : len(driver) + 1].isalnum()
    return len(driver) if own else 0


def _is_isolated(entry: DriverEntry, isolate: bool | None) -> bool:
    if isolate is False or (
        isolate is None
        and getattr(entry, "distribution", None) == DISTRIBUTION
        and not knobs.isolate()
        and not knobs.services()
    ):
        # The common case, which needs no import.
        return False
    from penstock.runtime.isolation import is_isolated

    return is_isolated(entry, isolate)


def _usable(name: str, everything: Sequence[Found]) -> Found | None:
    return next((f for f in everything if f.info.usable and f.info.name == name), None)


def _drivers_of(entries: Sequence[DriverEntry]) -> list[_Driver]:
    """A driver for each entry point; one whose name another distribution owns is not loaded."""
    sources = [source_of(entry) for entry in entries]
    drivers = []
    for entry, source in zip(entries, sources, strict=True):
        claims = [s for e, s in zip(entries, sources, strict=True) if e.name == entry.name]
        has_it = holder(entry.name, (s.distribution for s in claims)) == source.distribution
        refused = "" if has_it else why_refused(entry.name, source, claims)
        drivers.append(driver := _Driver(entry, source, refused))
        if refused:
            driver.warn(f"driver {entry.name} is not loaded: {refused}")
    return drivers


def _named_apart(
    drivers: Sequence[_Driver], isolate: bool | None, deadline_ns: int | None
) -> list[Found]:
    """Every driver's devices. Of a name one stays usable: by `holder`, then kinship, then order."""
    every = [
        (driver, found) for driver in drivers for found in driver.devices(isolate, deadline_ns)
    ]
    claims: dict[str, list[Source]] = {}
    for driver, found in every:
        if not driver.refused:
            claims.setdefault(found.info.name, []).append(driver.source)
    holders = {name: holder(name, (s.distribution for s in of)) for name, of in claims.items()}
    first: dict[str, Found] = {}
    for driver, found in sorted(every, key=lambda pair: -pair[0].kinship(pair[1].info.name)):
        if found.info.usable and holders[found.info.name] == driver.distribution:
            first.setdefault(found.info.name, found)
    return [
        found
        if not found.info.usable or first.get(found.info.name) is found
        else _unnamed(driver, found, claims[found.info.name], holders[found.info.name])
        for driver, found in every
    ]


def _log_unusable(info: DeviceInfo) -> None:
    log.info("device %s is not usable: %s", info.name, info.reason)


def _unnamed(driver: _Driver, found: Found, claims: Sequence[Source], has_it: str | None) -> Found:
    """*found* of *driver* as unusable: another device has its name, or no device may have it."""
    name = found.info.name
    if driver.distribution == has_it:
        reason = "another driver has a device of this name"
    else:
        reason = why_refused(name, driver.source, claims)
        driver.warn(f"device {name} of driver {driver.name} is not used: {reason}")
    info = replace(found.info, usable=False, reason=reason)
    _log_unusable(info)
    return Found(found.device, info)


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    if (found := method()) is not None:
        found()


def _refuse_unusable(info: DeviceInfo) -> None:
    if not info.usable:
        raise PlacementError(f"device {info.name!r} cannot be used", {info.name: info.reason})


manager: Final = Manager()
"""The devices of this process."""


def devices() -> list[DeviceInfo]:
    """Every device of every installed driver, usable or not, the reference device last.

    An unusable device has the reason in its `reason`.
    """
    return manager.infos()
