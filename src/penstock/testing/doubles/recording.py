"""`RecordingDevice`: a device that keeps what it was asked and what it answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from penstock.hal import Device
from penstock.testing.doubles.intercepting import InterceptingDevice

T = TypeVar("T")


class Call(NamedTuple):
    """One call that a `RecordingDevice` saw; *result* is None where *error* was raised."""

    method: str
    arguments: tuple[Any, ...]
    result: Any
    error: Exception | None


class RecordingDevice(InterceptingDevice):
    """Keeps every call of `METHODS`, with its arguments and its result or error, in `calls`, in the
    order in which they ended.

    What is kept is kept alive: prepared models and requests with their memory.
    """

    def __init__(self, device: Device, name: str | None = None) -> None:
        super().__init__(device, name)
        self.calls: list[Call] = []

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        try:
            result = proceed()
        except Exception as error:
            self.calls.append(Call(method, arguments, None, error))
            raise
        self.calls.append(Call(method, arguments, result, None))
        return result

    def count(self, method: str) -> int:
        """How often *method* was called."""
        return sum(call.method == method for call in self.calls)
