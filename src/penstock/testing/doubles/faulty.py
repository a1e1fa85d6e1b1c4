"""`FaultyDevice`: a device that fails where it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

from penstock.arguments import check_kind
from penstock.errors import ErrorStatus, GeneralFailure, InputError, driver_error_classes
from penstock.hal import Device
from penstock.testing.doubles.intercepting import METHODS, InterceptingDevice

T = TypeVar("T")

When: TypeAlias = int | Collection[int] | Literal["always"]
"""The calls meant, counted from 1: one, several, or all of them."""


class FaultyDevice(InterceptingDevice):
    """Raises in place of chosen calls: `FaultyDevice(device, raise_on={"execute": 3})`.

    *raise_on* maps names of `METHODS` to the calls meant; other names are an `InputError`. *error*
    is the status that those fail with (`ErrorStatus.DEAD_OBJECT`), or makes what is raised from a
    sentence. `calls` counts the calls of each method so far, over all that the device has made.
    """

    def __init__(
        self,
        device: Device,
        raise_on: Mapping[str, When],
        error: ErrorStatus | Callable[[str], Exception] = GeneralFailure,
        name: str | None = None,
    ) -> None:
        super().__init__(device, name)
        check_kind(raise_on, Mapping, "raise_on is a mapping of names of methods")
        if unknown := set(raise_on) - set(METHODS):
            raise InputError(
                f"no method of a device is named {', '.join(sorted(map(str, unknown)))}"
            )
        self.raise_on, self.error = dict(raise_on), _maker(error)
        self.calls = dict.fromkeys(METHODS, 0)
        self._lock = threading.Lock()

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        with self._lock:
            self.calls[method] += 1
            count = self.calls[method]
        if _is_meant(self.raise_on.get(method, ()), count):
            raise self.error(f"{self.name}: {method} fails at call {count}, as told")
        return proceed()


def _maker(error: ErrorStatus | Callable[[str], Exception]) -> Callable[[str], Exception]:
    if not isinstance(error, ErrorStatus):
        return error
    if error is ErrorStatus.NONE:
        raise InputError("the status NONE is no failure")
    return driver_error_classes()[error]


def _is_meant(when: When, count: int) -> bool:
    if when == "always":
        return True
    return count == when if isinstance(when, int) else count in when
