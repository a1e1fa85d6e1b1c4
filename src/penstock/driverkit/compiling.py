"""Calls into an engine's own compiler, which take neither a deadline nor a cancellation."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from penstock.hal import CancelToken, check_deadline

T = TypeVar("T")

POLL_SECONDS: Final = 0.01
"""How often a compile that is waited for looks at its cancel token."""


class Limits(Protocol):
    """Anything with a deadline and a cancel token."""

    @property
    def deadline_ns(self) -> int | None: ...

    @property
    def cancel(self) -> CancelToken | None: ...


class _Outcome(Generic[T]):
    def __init__(self) -> None:
        self.over = threading.Event()
        self.result: T | None = None
        self.error: BaseException | None = None


def compiled_within(limits: Limits, compile_it: Callable[[], T]) -> T:
    """What *compile_it* returns or raises, waited for until the deadline of *limits* or until its
    token is set.

    The call goes on in a thread of its own after that, and what it makes is dropped: only for
    engines that let other Python threads run while they compile, and that write to no memory of the
    caller. Without limits it is called as it is.
    """
    if limits.deadline_ns is None and limits.cancel is None:
        return compile_it()
    outcome: _Outcome[T] = _Outcome()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            outcome.result = context.run(compile_it)
        except BaseException as error:  # noqa: BLE001  # raised again by the thread that waits
            outcome.error = error
        outcome.over.set()

    threading.Thread(target=run, name="penstock-compile", daemon=True).start()
    while not outcome.over.wait(_patience(limits)):
        if limits.cancel is not None:
            limits.cancel.check()
        check_deadline(limits.deadline_ns)
    if outcome.error is not None:
        raise outcome.error
    return outcome.result  # type: ignore[return-value]  # what the call returned


def _patience(limits: Limits) -> float | None:
    """Seconds until the next look."""
    if limits.deadline_ns is None:
        return POLL_SECONDS
    left = max(0.0, (limits.deadline_ns - time.monotonic_ns()) / 1e9)
    return left if limits.cancel is None else min(left, POLL_SECONDS)
