"""Finding devices: the entry-point group `penstock.drivers`, each entry with its reason when unusable."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from penstock import knobs
from penstock.errors import InputError, PlacementError
from penstock.hal import HAL_VERSION, MAX_NUMBER_OF_CACHE_FILES, Capabilities, Device, InvalidDevice

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP: Final = "penstock.drivers"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device as users see it; *reason* says why it is not *usable* and is empty when it is."""

    name: str
    type: str
    version: str
    usable: bool
    reason: str
    feature_level: int
    capabilities: Capabilities
    only_when_named: bool
    driver: str


class Manager:
    """The devices of this process. *find* gives the entry points; tests give their own."""

    def __init__(self, find: Callable[[], Sequence[EntryPoint]] | None = None) -> None:
        self._find = find or (lambda: tuple(entry_points(group=ENTRY_POINT_GROUP)))
        self._lock = threading.Lock()
        self._found: list[tuple[str, Device, str]] | None = None

    def infos(self) -> list[DeviceInfo]:
        """Every device found, usable or not, the fall-back last."""
        return [_info(driver, device, reason) for driver, device, reason in self._discover()]

    def choose(self, wanted: Sequence[str | DeviceInfo | Device] | None) -> list[Device]:
        """The devices to place on, in order of preference.

        None takes every usable one that need not be named (or those the knob `devices` names).
        Raises `InputError` for something that is no device or twice the same, `PlacementError` with the
        reason for a name that is unknown or unusable.
        """
        if wanted is None and (names := knobs.devices()):
            wanted = [n.strip() for n in names.split(",") if n.strip()]
        if wanted is None:
            found = [
                d
                for _, d, reason in self._discover()
                if not reason and not d.capabilities.only_when_named
            ]
            if not found:
                raise PlacementError(
                    "no usable device", {d.name: r for _, d, r in self._discover()}
                )
            return found
        if isinstance(wanted, str | DeviceInfo) or not isinstance(wanted, Sequence):
            raise InputError("devices must be a list of names, DeviceInfo or Device objects")
        chosen = [self._one(w) for w in wanted]
        if not chosen:
            raise InputError("devices is an empty list; None means every usable device")
        names_seen = [d.name for d in chosen]
        if len(set(names_seen)) != len(names_seen):
            raise InputError(f"a device is listed twice: {', '.join(names_seen)}")
        return chosen

    def by_name(self, name: str) -> Device | None:
        """The usable device of that name, or None."""
        for _, device, reason in self._discover():
            if device.name == name and not reason:
                return device
        return None

    def _one(self, wanted: str | DeviceInfo | Device) -> Device:
        if isinstance(wanted, str | DeviceInfo):
            name = wanted if isinstance(wanted, str) else wanted.name
            for _, device, reason in self._discover():
                if device.name == name:
                    if reason:
                        raise PlacementError(f"device {name!r} cannot be used", {name: reason})
                    return device
            known = ", ".join(d.name for _, d, _ in self._discover()) or "none"
            raise PlacementError(f"no device is named {name!r}; found: {known}")
        if not hasattr(wanted, "prepare_model") or not hasattr(wanted, "supported_operations"):
            raise InputError(f"{type(wanted).__name__} is neither a device nor a device's name")
        if (refusal := examine(wanted)) is not None:
            raise PlacementError(f"device {wanted.name!r} cannot be used", {wanted.name: refusal})
        return wanted

    def _discover(self) -> list[tuple[str, Device, str]]:
        with self._lock:
            if self._found is None:
                self._found = self._load()
            return self._found

    def _load(self) -> list[tuple[str, Device, str]]:
        found: list[tuple[str, Device, str]] = []
        names: set[str] = set()
        for entry in sorted(self._find(), key=lambda e: (e.name == "reference", e.name)):
            for device, reason in _load_entry(entry):
                known = "another driver has a device of this name" if device.name in names else ""
                names.add(device.name)
                found.append((entry.name, device, reason or known))
                if found[-1][2]:
                    log.info("device %s is not usable: %s", device.name, found[-1][2])
        return found


def _load_entry(entry: EntryPoint) -> list[tuple[Device, str]]:
    try:
        made: Any = entry.load()()
        devices: list[Device] = list(made) if isinstance(made, Sequence) else [made]
        return [(device, examine(device) or "") for device in devices]
    except Exception as error:  # noqa: BLE001  # a broken driver is a reason, never a crash
        reason = f"failed to load: {error!r}"
        return [(InvalidDevice(entry.name, reason), reason)]


def examine(device: Device) -> str | None:
    """Why *device* cannot be used, or None: HAL version, numbers of cache files, its own check."""
    try:
        if device.hal_version != HAL_VERSION:
            return f"speaks HAL {device.hal_version}; this is HAL {HAL_VERSION}"
        files = device.cache_files_needed()
        if any(not 0 <= n <= MAX_NUMBER_OF_CACHE_FILES for n in files):
            return f"asks for {files} cache files; at most {MAX_NUMBER_OF_CACHE_FILES} of each are possible"
        if not device.name or not device.version:
            return "has no name or no version"
        return device.check()
    except Exception as error:  # noqa: BLE001  # as above
        return f"failed in its checks: {error!r}"


def _info(driver: str, device: Device, reason: str) -> DeviceInfo:
    return DeviceInfo(
        device.name,
        device.type.value,
        device.version,
        not reason,
        reason,
        device.feature_level,
        device.capabilities,
        device.capabilities.only_when_named,
        driver,
    )


manager: Final = Manager()
"""The devices of this process."""
