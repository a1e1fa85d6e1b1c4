"""Devices that fail, or are slow, at chosen calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal, TypeAlias, TypeVar

from penstock import errors
from penstock.arguments import check_kind
from penstock.hal import Device, ExecutionConfig, PrepareConfig
from penstock.testing.doubles.intercepting import METHODS, InterceptingDevice

T = TypeVar("T")

When: TypeAlias = int | Collection[int] | Literal["always"]
"""The chosen calls, counted from 1: one, several, or all of them."""


class FaultyDevice(InterceptingDevice):
    """Raises in place of chosen calls: `FaultyDevice(device, raise_on={"execute": 3})`.

    *raise_on* maps names of `METHODS` to the chosen calls; other names are an `InputError`. *error*
    is a status (`ErrorStatus.DEAD_OBJECT`), or a function that makes an exception from a message.
    `calls` counts the calls of each method so far, on the device and on every object that it
    created.
    """

    def __init__(
        self,
        device: Device,
        raise_on: Mapping[str, When],
        error: errors.ErrorStatus | Callable[[str], Exception] = errors.GeneralFailure,
        name: str | None = None,
    ) -> None:
        super().__init__(device, name)
        _check_methods(raise_on, "raise_on")
        if error is errors.ErrorStatus.NONE:
            raise errors.InputError("the status NONE is no failure")
        if isinstance(error, errors.ErrorStatus):
            error = errors.driver_error_classes()[error]
        self.raise_on, self.error = dict(raise_on), error
        self.calls = dict.fromkeys(METHODS, 0)
        self._lock = threading.Lock()

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        with self._lock:
            self.calls[method] += 1
            count = self.calls[method]
        when = self.raise_on.get(method, ())
        if when == "always" or count in ((when,) if isinstance(when, int) else when):
            raise self.error(f"{self.name}: {method} fails at call {count}, as told")
        return proceed()


def _check_methods(given: Mapping[str, object], what: str) -> None:
    check_kind(given, Mapping, f"{what} is a mapping of names of methods")
    if unknown := set(given) - set(METHODS):
        raise errors.InputError(
            f"no method of a device is named {', '.join(sorted(map(str, unknown)))}"
        )


class SlowDevice(InterceptingDevice):
    """Delays each call of a method by the *seconds* of that method; infinity is a hang.

    It reacts to deadlines and cancellation during the delay, unless it is *heedless*. *sleep* and
    *clock_ns* replace `time.sleep` and `time.monotonic_ns`.
    """

    STEP_S: Final = 0.001

    def __init__(
        self,
        device: Device,
        seconds: Mapping[str, float],
        name: str | None = None,
        *,
        heedless: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(device, name)
        _check_methods(seconds, "seconds")
        self.seconds, self.heedless = dict(seconds), heedless
        self._sleep, self._clock_ns = sleep, clock_ns

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        kinds = () if self.heedless else (ExecutionConfig, PrepareConfig)
        configs = [a for a in arguments if isinstance(a, kinds)]
        end = self._clock_ns() + self.seconds.get(method, 0.0) * 1e9
        while self._clock_ns() < end:
            for config in configs:
                if config.cancel is not None:
                    config.cancel.check()
                if config.deadline_ns is not None and self._clock_ns() >= config.deadline_ns:
                    raise errors.MissedDeadlineTransient(
                        f"{self.name}: the deadline passed in {method}"
                    )
            self._sleep(self.STEP_S)
        return proceed()
