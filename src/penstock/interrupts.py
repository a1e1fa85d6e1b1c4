"""The deadline and cancel token of the current thread's call, checked in long loops.

`Device.supported_operations`, validation, and the writers of engines' formats have no parameters
for them. They check those of the compile that calls them. Outside `interruptible` nothing is
checked or raised.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol, TypeVar

from msgspec import Struct

from penstock.errors import MissedDeadline, MissedDeadlinePersistent
from penstock.facade import uncollected

T = TypeVar("T")

STRIDE: Final = 32
"""Loop iterations between two checks."""

MANY: Final = 2_000
"""Operations from which on a garbage collection may take some hundredths of a second."""

LATE: Final = "the compile's timeout had passed before every step was compiled"


class Cancellation(Protocol):
    """The part of `penstock.hal.CancelToken` that this module uses."""

    def check(self) -> None: ...


class _Limits(Struct, frozen=True):
    deadline_ns: int | None
    cancel: Cancellation | None
    late: type[MissedDeadline]
    message: str

    def check(self) -> None:
        if self.cancel is not None:
            self.cancel.check()
        if self.deadline_ns is not None and time.monotonic_ns() >= self.deadline_ns:
            raise self.late(self.message)


_current: Final[ContextVar[_Limits | None]] = ContextVar("penstock.interrupts", default=None)


@contextmanager
def interruptible(
    deadline_ns: int | None,
    cancel: Cancellation | None,
    late: type[MissedDeadline] = MissedDeadlinePersistent,
    message: str = LATE,
) -> Iterator[None]:
    """Within the block, in this thread, `checkpoint` raises once a limit is reached.

    It raises *late*, with the text *message*, once *deadline_ns* of `time.monotonic_ns` has passed,
    and `Cancelled` once *cancel* is set. Without either, the limits of the enclosing block stay in
    force.
    """
    if deadline_ns is None and cancel is None:
        yield
        return
    token = _current.set(_Limits(deadline_ns, cancel, late, message))
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def punctual(operations: int) -> Iterator[None]:
    """A block of `interruptible` that handles so many *operations*.

    With many operations and a deadline, it pauses cyclic garbage collection. A collection visits
    every object, takes seconds, and cannot be interrupted.
    """
    limits = _current.get()
    if limits is None or limits.deadline_ns is None or operations < MANY:
        yield
        return
    with uncollected:
        yield


def checkpoint() -> None:
    """Raises `MissedDeadline*` or `Cancelled` if the current thread's call must end."""
    limits = _current.get()
    if limits is not None:
        limits.check()


def current_deadline() -> int | None:
    """The deadline of this thread's call, of `time.monotonic_ns`; None if it has none."""
    limits = _current.get()
    return None if limits is None else limits.deadline_ns


def polled(items: Iterable[T]) -> Iterable[T]:
    """*items* with a `checkpoint` before every 32nd; unchanged outside `interruptible`."""
    limits = _current.get()
    return items if limits is None else _polled(items, limits, STRIDE)


def watched(items: Iterable[T]) -> Iterable[T]:
    """*items* with a `checkpoint` before each, for loops whose iterations may take milliseconds."""
    limits = _current.get()
    return items if limits is None else _polled(items, limits, 1)


def _polled(items: Iterable[T], limits: _Limits, stride: int) -> Iterator[T]:
    for count, item in enumerate(items):
        if count % stride == 0:
            limits.check()
        yield item
