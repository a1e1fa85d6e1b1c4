"""The devices of NNAPI's object model, and the vendor extensions that they offer (NNAPI section
8.6).

An identifier has 32 bits. The high 16 bits are the extension's prefix, from 1 to 32767. The low 16
bits are the number of the operation or operand type within the extension. An extension gets its
prefix on first use, and keeps it for the life of the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Final, TypeAlias

from penstock.hal import Device as HalDevice, Extension, ExtensionAttribute
from penstock.hal.capabilities import MAX_ATTRIBUTES
from penstock.ir.operand import MAX_CODE, extension_key, name_fault
from penstock.logs import Log
from penstock.nnapi import codes, parameters
from penstock.nnapi.description import AnyType, ExtensionType, OperandType
from penstock.runtime.discovery import DeviceInfo, manager

log = Log(__name__)

TYPE_BITS: Final = 16
"""Bits of the number within the extension."""

MAX_PREFIX: Final = 0x7FFF
"""The largest prefix: identifiers are positive 32-bit numbers."""


@dataclass(frozen=True, slots=True)
class Offer:
    """An extension, the *first* device with it, and the *conflict* of another declaration."""

    extension: Extension
    first: str
    conflict: str = ""


class Registry:
    """The prefixes of extensions, and the devices that are not installed. Thread-safe."""

    def __init__(self) -> None:
        self._given: dict[str, tuple[Extension, ...]] = {}
        self._names: list[str] = []
        self._warned: set[str] = set()
        self._lock = Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        """Renews the lock in a forked child, because a thread of the parent may have held it."""
        self._lock = Lock()

    def give(self, device: str, extensions: Iterable[Extension]) -> None:
        """Registers the *extensions* of a device object that belongs to no installed driver."""
        with self._lock:
            self._given[device] = tuple(extensions)

    def prefix_of(self, name: str) -> int:
        """The prefix of an extension; BAD_DATA if none is left."""
        with self._lock:
            if name not in self._names:
                if len(self._names) == MAX_PREFIX:
                    raise codes.bad_data(
                        f"{MAX_PREFIX} extensions are in use, and no more are possible"
                    )
                self._names.append(name)
            return self._names.index(name) + 1

    def name_of(self, prefix: int) -> str | None:
        """The extension with that prefix; None for no extension."""
        return self._names[prefix - 1] if 0 < prefix <= len(self._names) else None

    def offers(self) -> Mapping[str, Offer]:
        """Every extension of a usable device, by name. Warns once of contradictions."""
        installed = [(info.name, info.capabilities.extensions) for info in usable_infos()]
        names = {name for name, _ in installed}
        with self._lock:
            given = [(name, e) for name, e in self._given.items() if name not in names]
        found: dict[str, Offer] = {}
        for device, extensions in (*installed, *given):
            for extension in extensions:
                known = found.setdefault(extension.name, Offer(extension, device))
                # Operand types have no order.
                alike = set(known.extension.operand_types) == set(extension.operand_types)
                if not known.conflict and not alike:
                    conflict = (
                        f"devices {known.first} and {device} declare other operand types for the "
                        f"extension {extension.name}, which is therefore disabled"
                    )
                    found[extension.name] = replace(known, conflict=conflict)
                    with self._lock:
                        new = conflict not in self._warned
                        self._warned.add(conflict)
                    if new:
                        log.warning("%s", conflict)
        return found


registry: Final = Registry()


def usable_infos() -> list[DeviceInfo]:
    """Every usable device, including those that are used only by name."""
    with codes.translated():
        return [info for info in manager.infos() if info.usable]


def identifier(name: str, code: int) -> int:
    """The identifier of a type or operation. Raises BAD_DATA if no device offers it."""
    usable_offer(name)
    return registry.prefix_of(name) << TYPE_BITS | code


def usable_offer(name: str) -> Offer:
    """The extension of that name. Raises BAD_DATA unless devices offer and agree on it."""
    if fault := name_fault(name):
        raise codes.bad_data(fault)
    offer = registry.offers().get(name)
    if offer is None:
        raise codes.bad_data(f"no device offers the extension {name}")
    if offer.conflict:
        raise codes.bad_data(offer.conflict)
    return offer


def _declared(name: str, code: int) -> ExtensionType:
    kind = usable_offer(name).extension.type_of(code)
    if kind is None:
        raise codes.bad_data(f"the extension {name} has no operand type {code}")
    return ExtensionType(name, code, kind.byte_size, kind.is_tensor)


def with_attribute(
    attributes: tuple[ExtensionAttribute, ...],
    device: HalDevice,
    given: tuple[object, object, object, object],
) -> tuple[ExtensionAttribute, ...]:
    """*attributes* with one more for *device*.

    *given* are the extension's name, the number, the value and its length. Raises as
    `Compilation.add_extension_attribute`.
    """
    name = parameters.text(given[0], "the extension's name")
    code = parameters.code_within(given[1], "the number of the attribute")
    parameters.given(given[2], "the value of the attribute")
    value = parameters.extension_bytes(given[2], given[3], "the value of the attribute")
    with codes.translated():
        offered = {extension.name for extension in device.capabilities.extensions}
    if name not in offered:
        raise codes.bad_data(f"device {device.name} does not offer the extension {name}")
    offer = registry.offers().get(name)
    if offer is not None and offer.conflict:
        raise codes.bad_data(offer.conflict)
    if any((a.extension, a.code) == (name, code) for a in attributes):
        raise codes.bad_data(f"attribute {code} of the extension {name} is set already")
    if len(attributes) == MAX_ATTRIBUTES:
        raise codes.bad_data(f"{MAX_ATTRIBUTES} attributes are set, and no more are possible")
    return (*attributes, ExtensionAttribute(name, code, value))


def operand_type(value: object) -> AnyType:
    """An operand type by its member or number; an extension's by its number in this process."""
    parameters.given(value, "the operand's type")
    if isinstance(value, OperandType):
        return value
    if isinstance(value, ExtensionType):
        if (declared := _declared(value.extension, value.code)) != value:
            raise codes.bad_data(f"{value.name} is not declared as {value}")
        return declared
    number = parameters.whole(value, "the operand's type", 0, 2**31 - 1)
    if number >> TYPE_BITS:
        return _declared(*_split(number))
    try:
        return OperandType(number)
    except ValueError:
        raise codes.bad_data(f"operand type {number} is none of NNAPI's") from None


def operation_type(value: object) -> str:
    """The NNAPI name of an operation, given by member, number or name.

    For an extension's operation, given by its number in this process, the extension's key.
    """
    if isinstance(value, str):
        if value in codes.OperationCode.__members__:
            return value
        raise codes.bad_data(f"{value!r} is not an operation of NNAPI")
    number = parameters.whole(value, "the operation's code", 0, 2**31 - 1)
    if number >> TYPE_BITS:
        # Only the driver knows whether an extension's operation exists.
        name, code = _split(number)
        usable_offer(name)
        return extension_key(name, code)
    try:
        return codes.OperationCode(number).name
    except ValueError:
        raise codes.bad_data(f"operation {number} is none of NNAPI's") from None


def _split(number: int) -> tuple[str, int]:
    prefix = number >> TYPE_BITS
    name = registry.name_of(prefix)
    if name is None:
        raise codes.bad_data(f"{number:#010x} has the prefix {prefix}, and no extension has")
    return name, number & MAX_CODE


Nameable: TypeAlias = "str | DeviceInfo | HalDevice"


@dataclass(frozen=True, slots=True)
class Device:
    """One device of this process: `ANeuralNetworksDevice`."""

    info: DeviceInfo

    @property
    def name(self) -> str:
        """Its name, unique in the process."""
        return self.info.name

    @property
    def version(self) -> str:
        """A text that changes whenever compiled artefacts may change."""
        return self.info.version

    @property
    def type(self) -> codes.DeviceType:
        return codes.DeviceType[self.info.type.upper()]

    @property
    def feature_level(self) -> codes.FeatureLevel:
        """The highest level that both the device and this runtime support."""
        return codes.FeatureLevel.of(self.info.feature_level)

    def get_extension_support(self, name: str) -> bool:
        """Whether it offers the extension, and no other device contradicts its types."""
        wanted = parameters.text(name, "the extension's name")
        if all(extension.name != wanted for extension in self.info.capabilities.extensions):
            return False
        offer = registry.offers().get(wanted)
        return offer is None or not offer.conflict

    def wait(self) -> None:
        """Returns at once: a discovered device is ready."""

    def __repr__(self) -> str:
        return f"<penstock.nnapi.Device {self.name!r}>"


def get_device_count() -> int:
    """The number of devices that a compilation uses if it names none."""
    return len(_listed())


def get_device(index: int) -> Device:
    """Device *index*; the reference device is last. Raises BAD_DATA for a greater index."""
    devices = _listed()
    place = parameters.whole(index, "the device's index", 0)
    if place >= len(devices):
        raise codes.bad_data(f"device {place} of {len(devices)}")
    return devices[place]


def get_device_by_name(name: str) -> Device:
    """The usable device of that name. Raises BAD_DATA if there is none."""
    wanted = parameters.text(name, "the device's name")
    for info in usable_infos():
        if info.name == wanted:
            return Device(info)
    raise codes.bad_data(f"no usable device is named {wanted!r}")


def get_runtime_feature_level() -> codes.FeatureLevel:
    """The highest level of this runtime."""
    return codes.FeatureLevel.LEVEL_8


def choose_devices(devices: object) -> tuple[list[Nameable], list[HalDevice]]:
    """The given handles, names or device objects, in the runtime's form and as devices.

    Raises UNEXPECTED_NULL for None among them, BAD_DATA for an empty list, and for a device that is
    listed twice, unknown or unusable.
    """
    found = parameters.listed(devices, "the devices", "a device")
    wanted: list[Any] = [d.info if isinstance(d, Device) else d for d in found]
    with codes.translated():
        return wanted, manager.choose(wanted)


def register_extensions(device: HalDevice) -> None:
    """Registers the extensions of *device*, an object for `Compilation.create_for_devices`.

    The object belongs to no installed driver. It replaces another device of its name. Raises
    BAD_DATA if it is not usable.
    """
    (chosen,) = choose_devices([device])[1]
    with codes.translated():
        registry.give(chosen.name, chosen.capabilities.extensions)


def _listed() -> list[Device]:
    with codes.translated():
        infos = manager.infos()
        usable = {info.name: info for info in infos if info.usable}
        if not any(not info.only_when_named for info in usable.values()):
            return []
        return [Device(usable[device.name]) for device in manager.choose(None)]
