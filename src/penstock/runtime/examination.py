"""Reads and validates a device's metadata once. A driver may return anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from penstock import hal
from penstock.errors import FOREIGN, DriverError, ErrorStatus
from penstock.hal.capabilities import FEATURE_LEVELS, checked, fault_of
from penstock.hal.device import NO_VERSION
from penstock.hal.loading import describe
from penstock.runtime.entries import UNKNOWN, Source


class DeviceInfo(Struct, frozen=True):
    """Public description of one device; *reason* says why it is not *usable*, else it is empty.

    A member that is missing or invalid has a default: its driver's name, the version "invalid", the
    type "other".
    """

    name: str
    type: str
    version: str
    usable: bool
    reason: str
    feature_level: int
    capabilities: hal.Capabilities
    only_when_named: bool
    driver: str
    isolated: bool = False
    """Whether it runs in a host process."""
    source: Source = UNKNOWN
    """The distribution and the entry point; empty for a device object passed by the program."""


class Found(Struct, frozen=True):
    """A *device* with its info; *status* is that of the driver's error that makes it unusable."""

    device: hal.Device
    info: DeviceInfo
    status: ErrorStatus | None = None


class Metadata(Struct):
    """The metadata read from a device, with defaults for members that could not be read."""

    name: str
    version: str
    type: hal.DeviceType
    feature_level: int
    capabilities: hal.Capabilities


def examined(
    device: hal.Device, driver: str, *, isolated: bool = False, source: Source = UNKNOWN
) -> Found:
    read, reason, status = examine(device, driver)
    info = DeviceInfo(
        **{**asdict(read), "type": read.type.value},
        usable=not reason,
        reason=reason,
        only_when_named=read.capabilities.only_when_named,
        driver=driver,
        isolated=isolated,
        source=source,
    )
    return Found(device, info, status)


def examine(device: hal.Device, driver: str) -> tuple[Metadata, str, ErrorStatus | None]:
    """The metadata of *device*, why it is unusable ("" if it is usable), and the error status.

    The status is that of the driver's error, if one is the reason. Every member is read once and
    checked: HAL version, name, version, type, feature level, capabilities, numbers of cache files.
    The device's own check is called last, and only if the rest is valid. An exception becomes the
    reason. A device without a readable name gets the name of *driver*.
    """
    blank = hal.DeviceBase
    read = Metadata(driver, NO_VERSION, blank.type, blank.feature_level, blank.capabilities)
    reasons: list[tuple[str, ErrorStatus | None]] = []
    for member, fault in _METADATA.items():
        try:
            value = getattr(device, member)
            if (found := fault(value)) is not None:
                reasons.append((found.format(describe(value)), None))
            elif hasattr(read, member):
                setattr(read, member, value)
        except FOREIGN as error:  # a driver may raise anything
            reasons.append((f"its {member} cannot be read: {describe(error)}", _status(error)))
    for asked in (_cache_files_fault, _own_refusal):
        if reasons:
            break
        try:
            if refusal := asked(device):
                reasons.append((refusal, None))
        except FOREIGN as error:  # as above
            reasons.append((f"failed in its checks: {describe(error)}", _status(error)))
    reason, status = reasons[0] if reasons else ("", None)
    return read, reason, status


def _status(error: BaseException) -> ErrorStatus | None:
    return error.status if isinstance(error, DriverError) else None


_PRINTED: Final = "one line of characters that print"
"""The rule for text shown in tables and on terminals: control characters are not allowed."""


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text_fault(member: str, value: Any) -> str | None:
    if not isinstance(value, str) or not value.strip():
        return f"its {member} is {{}}: it has no {member}, or one that is no text"
    return None if value.isprintable() else f"its {member} is {{}}: a {member} is {_PRINTED}"


def _number_fault(known: Sequence[int], words: str, value: Any) -> str | None:
    return None if _is_whole(value) and value in known else words


def _capabilities_fault(value: Any) -> str | None:
    if not isinstance(value, hal.Capabilities):
        return "its capabilities are {}, which are no Capabilities"
    fault = fault_of(checked(value))
    # The result is a format string, so braces are escaped.
    return fault and f"of its capabilities, {fault}".replace("{", "{{").replace("}", "}}")


_METADATA: Final[dict[str, Callable[[Any], str | None]]] = {
    "hal_version": partial(
        _number_fault, [hal.HAL_VERSION], f"speaks HAL {{}}; this is HAL {hal.HAL_VERSION}"
    ),
    "name": partial(_text_fault, "name"),
    "version": partial(_text_fault, "version"),
    "type": lambda value: (
        None if isinstance(value, hal.DeviceType) else "its type is {}, which is no DeviceType"
    ),
    "feature_level": partial(
        _number_fault,
        FEATURE_LEVELS,
        f"its feature level is {{}}; {FEATURE_LEVELS[0]} to {FEATURE_LEVELS[-1]} are possible",
    ),
    "capabilities": _capabilities_fault,
}
"""For each member, a function that returns the fault of its value, with {} for the value."""


def _cache_files_fault(device: hal.Device) -> str | None:
    files: Any = device.cache_files_needed()
    most = hal.MAX_NUMBER_OF_CACHE_FILES
    if (
        isinstance(files, tuple | list)
        and len(files) == 2
        and all(_is_whole(n) and 0 <= n <= most for n in files)
    ):
        return None
    return f"asks for {describe(files)} cache files; two numbers of 0 to {most} are possible"


def _own_refusal(device: hal.Device) -> str | None:
    refusal: Any = device.check()
    if refusal is None or isinstance(refusal, str):
        return refusal
    return f"its check answers {describe(refusal)}, which is neither None nor a reason"
