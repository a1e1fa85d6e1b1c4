"""The devices of NNAPI's door: handles over what the runtime has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from penstock.hal import Device as HalDevice
from penstock.nnapi import arguments
from penstock.nnapi.codes import DeviceType, FeatureLevel
from penstock.nnapi.extensions import is_supported, registry, usable_infos
from penstock.nnapi.failures import bad_data, translated, unexpected_null
from penstock.runtime.discovery import DeviceInfo, manager

Nameable: TypeAlias = "str | DeviceInfo | HalDevice"

TYPES: Final = {
    "other": DeviceType.OTHER,
    "cpu": DeviceType.CPU,
    "gpu": DeviceType.GPU,
    "accelerator": DeviceType.ACCELERATOR,
}


@dataclass(frozen=True, slots=True)
class Device:
    """One device of this process: `ANeuralNetworksDevice`."""

    info: DeviceInfo

    @property
    def name(self) -> str:
        """Unique among the devices of the process."""
        return self.info.name

    @property
    def version(self) -> str:
        """Changes whenever compiled artefacts could change."""
        return self.info.version

    @property
    def type(self) -> DeviceType:
        return TYPES[self.info.type]

    @property
    def feature_level(self) -> FeatureLevel:
        """The highest level that the device and this runtime both have."""
        return FeatureLevel.of(self.info.feature_level)

    def get_extension_support(self, name: str) -> bool:
        """Whether it offers the extension of that name; False too where another device declares
        other operand types for it.
        """
        return is_supported(self.info, arguments.text(name, "the extension's name"))

    def wait(self) -> None:
        """Returns once the device is there; one that was found is."""

    def __repr__(self) -> str:
        return f"<penstock.nnapi.Device {self.name!r}>"


def get_device_count() -> int:
    """How many devices a compilation for no device in particular places on."""
    return len(_listed())


def get_device(index: int) -> Device:
    """Device *index* of these, the reference device last; BAD_DATA beyond the last."""
    devices = _listed()
    place = arguments.whole(index, "the device's index", 0)
    if place >= len(devices):
        raise bad_data(f"device {place} of {len(devices)}")
    return devices[place]


def get_device_by_name(name: str) -> Device:
    """The usable device of that name, also one that is used only when it is named; BAD_DATA where
    there is none.
    """
    wanted = arguments.text(name, "the device's name")
    for info in usable_infos():
        if info.name == wanted:
            return Device(info)
    raise bad_data(f"no usable device is named {wanted!r}")


def get_runtime_feature_level() -> FeatureLevel:
    """The highest level of this runtime."""
    return FeatureLevel.LEVEL_8


def choose_devices(devices: object) -> tuple[list[Nameable], list[HalDevice]]:
    """What a caller lists, handles, names or device objects, as the runtime takes it, and as
    devices.

    UNEXPECTED_NULL for None among them, BAD_DATA for an empty list, one that is listed twice,
    unknown or unusable.
    """
    found = arguments.listed(devices, "the devices")
    if any(device is None for device in found):
        raise unexpected_null("a device")
    wanted: list[Any] = [d.info if isinstance(d, Device) else d for d in found]
    with translated():
        return wanted, manager.choose(wanted)


def register_extensions(device: HalDevice) -> None:
    """Makes the extensions of *device* known: an object that is given to
    `Compilation.create_for_devices`, and that no installed driver has. Another device of its name
    takes its place.

    BAD_DATA for what is no usable device.
    """
    (chosen,) = choose_devices([device])[1]
    with translated():
        registry.give(chosen.name, chosen.capabilities.extensions)


def _listed() -> list[Device]:
    with translated():
        infos = manager.infos()
        usable = {info.name: info for info in infos if info.usable}
        if not any(not info.only_when_named for info in usable.values()):
            return []
        return [Device(usable[device.name]) for device in manager.choose(None)]
