"""`SlowDevice`: a device that takes its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from penstock.arguments import check_kind
from penstock.errors import InputError, MissedDeadlineTransient
from penstock.hal import Device, ExecutionConfig, PrepareConfig
from penstock.testing.doubles.intercepting import METHODS, InterceptingDevice

T = TypeVar("T")


class SlowDevice(InterceptingDevice):
    """Takes *seconds*[method] longer, and notices deadline and cancellation meanwhile, unless it is
    *heedless*.

    *seconds* maps names of `METHODS` to what they take on top, before the call goes on; infinite is
    a hang. *sleep* and *clock_ns* stand for `time.sleep` and `time.monotonic_ns`.
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
        check_kind(seconds, Mapping, "seconds is a mapping of names of methods")
        if unknown := set(seconds) - set(METHODS):
            raise InputError(
                f"no method of a device is named {', '.join(sorted(map(str, unknown)))}"
            )
        self.seconds, self.heedless = dict(seconds), heedless
        self._sleep, self._clock_ns = sleep, clock_ns

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        configs = [a for a in arguments if isinstance(a, ExecutionConfig | PrepareConfig)]
        if self.heedless:
            configs = []
        end = self._clock_ns() + self.seconds.get(method, 0.0) * 1e9
        while self._clock_ns() < end:
            for config in configs:
                if config.cancel is not None:
                    config.cancel.check()
                if config.deadline_ns is not None and self._clock_ns() >= config.deadline_ns:
                    raise MissedDeadlineTransient(f"{self.name}: the deadline passed in {method}")
            self._sleep(self.STEP_S)
        return proceed()
