"""The deadline and the cancel token of the call that a thread is in, for the loops that may run
long within it.

`Device.supported_operations`, validation and the writers of engines' formats take neither: they
look at those of the compile that they are part of. Outside of `interruptible` nothing is looked at,
and nothing is raised.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol, TypeVar

from msgspec import Struct

from penstock.errors import MissedDeadline, MissedDeadlinePersistent

T = TypeVar("T")

STRIDE: Final = 32
"""Items of a loop between two looks at the clock."""

MANY: Final = 2_000
"""Operations whose objects a collection of garbage may look at for some hundredths of a second."""

LATE: Final = "the compile's timeout had passed before every step was compiled"


class Cancellation(Protocol):
    """What `penstock.hal.CancelToken` is to this module."""

    def check(self) -> None:
        """Raises `Cancelled` once the token is set."""
        ...


class _Limits(Struct, frozen=True):
    deadline_ns: int | None
    cancel: Cancellation | None
    late: type[MissedDeadline]
    told: str

    def check(self) -> None:
        if self.cancel is not None:
            self.cancel.check()
        if self.deadline_ns is not None and time.monotonic_ns() >= self.deadline_ns:
            raise self.late(self.told)


_current: Final[ContextVar[_Limits | None]] = ContextVar("penstock.interrupts", default=None)


@contextmanager
def interruptible(
    deadline_ns: int | None,
    cancel: Cancellation | None,
    late: type[MissedDeadline] = MissedDeadlinePersistent,
    told: str = LATE,
) -> Iterator[None]:
    """In this block, and thread, `checkpoint` raises *late*, with the words *told*, once
    *deadline_ns*, of `time.monotonic_ns`, has passed, or `Cancelled` once *cancel* is set. Without
    either, the limits of the block around it hold.
    """
    if deadline_ns is None and cancel is None:
        yield
        return
    token = _current.set(_Limits(deadline_ns, cancel, late, told))
    try:
        yield
    finally:
        _current.reset(token)


class _Collections:
    """Python's cyclic garbage collections, which calls of several threads may hold back at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._enabled = False

    def hold(self) -> None:
        with self._lock:
            if not self._holders:
                self._enabled = gc.isenabled()
                gc.disable()
            self._holders += 1

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if not self._holders and self._enabled:
                gc.enable()


_collections: Final = _Collections()


@contextmanager
def punctual(operations: int) -> Iterator[None]:
    """A block of `interruptible` that handles so many *operations*. Where they are many and there
    is a deadline, Python collects no cyclic garbage meanwhile: it looks at every object that there
    is, for seconds, and cannot be interrupted.
    """
    limits = _current.get()
    if limits is None or limits.deadline_ns is None or operations < MANY:
        yield
        return
    _collections.hold()
    try:
        yield
    finally:
        _collections.release()


def checkpoint() -> None:
    """Raises `MissedDeadline*` or `Cancelled` where the call that this thread is in has to end."""
    limits = _current.get()
    if limits is not None:
        limits.check()


def current_deadline() -> int | None:
    """The deadline of this thread's call, of `time.monotonic_ns`; None if it has none."""
    limits = _current.get()
    return None if limits is None else limits.deadline_ns


def polled(items: Iterable[T]) -> Iterable[T]:
    """*items* with a `checkpoint` before every 32nd; as they are outside of `interruptible`."""
    limits = _current.get()
    return items if limits is None else _polled(items, limits)


def watched(items: Iterable[T]) -> Iterable[T]:
    """*items*, with a `checkpoint` before each: for loops of which one round may take
    milliseconds.
    """
    limits = _current.get()
    return items if limits is None else _polled(items, limits, 1)


def _polled(items: Iterable[T], limits: _Limits, stride: int = STRIDE) -> Iterator[T]:
    for count, item in enumerate(items):
        if count % stride == 0:
            limits.check()
        yield item
