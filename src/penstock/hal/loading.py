"""From a driver's entry point to its devices. A driver may return anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NoReturn

from penstock.distribution import BY_THE_PROGRAM, made_by, remember_origin
from penstock.errors import FOREIGN, GeneralFailure
from penstock.hal.capabilities import Support
from penstock.hal.config import PrepareConfig
from penstock.hal.device import NO_VERSION, Device, DeviceBase
from penstock.hal.prepared import PreparedModel
from penstock.ir import Model

if TYPE_CHECKING:
    from penstock.hal.buffer import Buffer, BufferDesc, BufferRole


class RefusingDevice(DeviceBase):
    """A device that prepares and allocates nothing; a subclass raises its error in `refuse`."""

    def refuse(self) -> NoReturn:
        """Raises the error of every call."""
        raise NotImplementedError

    def prepare_model(self, model: Model, config: PrepareConfig) -> PreparedModel:
        self.refuse()

    def prepare_model_from_cache(self, config: PrepareConfig) -> PreparedModel:
        self.refuse()

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, Buffer]:
        self.refuse()


class InvalidDevice(RefusingDevice):
    """A device that refuses everything with one reason."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.version, self.reason = name, NO_VERSION, reason

    def check(self) -> str | None:
        return self.reason

    def supported_operations(self, model: Model) -> Sequence[Support]:
        return [Support(False, self.reason)] * len(model.operations)

    def refuse(self) -> NoReturn:
        raise GeneralFailure(f"device {self.name}: {self.reason}")


MAX_DEVICES: Final = 256
"""Most devices of one driver: a bound for a driver that never stops yielding them."""

MAX_SHOWN: Final = 300
"""Characters of a driver's value that a reason quotes."""


def load_devices(
    driver: str, load: Callable[[], Any], origin: str = BY_THE_PROGRAM
) -> list[Device]:
    """The devices that *load* returns.

    A placeholder device with the reason stands in for an item that is no device, or for all devices
    if *load* raises. *origin* names the entry point of *load*: `distribution:name=value`.
    """
    try:
        return made_devices(driver, load, origin)
    except FOREIGN as error:  # a broken driver is a reason, never a crash
        return [InvalidDevice(driver, failed_to_load(error))]


def made_devices(
    driver: str, load: Callable[[], Any], origin: str = BY_THE_PROGRAM
) -> list[Device]:
    """As `load_devices`, but any error of the driver propagates, `SystemExit` too."""
    with made_by(origin):
        devices = _made_devices(driver, load)
    for device in devices:
        remember_origin(device, origin)
    return devices


def _made_devices(driver: str, load: Callable[[], Any]) -> list[Device]:
    made: Any = load()()
    if isinstance(made, type):
        reason = f"its driver made the class {made.__name__}; a device is an object of it"
        return [InvalidDevice(driver, reason)]
    if is_device(made):
        return [made]
    if isinstance(made, str | bytes | Mapping) or not isinstance(made, Iterable):
        return [_no_device(driver, made)]
    several = list(islice(made, MAX_DEVICES + 1))
    if len(several) > MAX_DEVICES:
        return [InvalidDevice(driver, f"brings more than {MAX_DEVICES} devices")]
    return [d if is_device(d) else _no_device(driver, d) for d in several]


def failed_to_load(error: BaseException) -> str:
    """The reason of a driver that raised *error* while it was loaded."""
    return f"failed to load: {describe(error)}"


def is_device(value: object) -> bool:
    """Whether *value* has the methods of a device; False if looking at it raises."""
    try:
        members = ("prepare_model", "supported_operations")
        return all(callable(getattr(value, member, None)) for member in members)
    except FOREIGN:  # a driver may raise anything
        return False


def describe(value: object) -> str:
    """The start of a driver's value or exception in Python's notation; never raises."""
    try:
        return repr(value)[:MAX_SHOWN]
    except FOREIGN:  # as above
        return f"{type(value).__name__} object"


def _no_device(driver: str, made: object) -> Device:
    reason = f"its driver made {describe(made)}, which is no device and no devices"
    return InvalidDevice(driver, reason)
