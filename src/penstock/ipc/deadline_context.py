"""Context of a nested call to a host process, such as `supported_operations` during a compile: the
outer call's deadline, and where to record that the driver's process was restarted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_restarts: Final[ContextVar[dict[str, str] | None]] = ContextVar(
    "penstock.ipc.restarts", default=None
)
_deadline: Final[ContextVar[int | None]] = ContextVar("penstock.ipc.deadline_context", default=None)


@contextmanager
def deadline_context(deadline_ns: int | None) -> Iterator[None]:
    """A block in which this thread's calls to host processes that have no deadline get this one, in
    nanoseconds of `time.monotonic_ns`. None changes nothing.
    """
    if deadline_ns is None:
        yield
        return
    token = _deadline.set(deadline_ns)
    try:
        yield
    finally:
        _deadline.reset(token)


@contextmanager
def collecting_restarts(restarts: dict[str, str]) -> Iterator[None]:
    """A block in which this thread records in *restarts* each device whose process is restarted for
    a call that has no receipt of its own: its name, and how the process before ended.
    """
    token = _restarts.set(restarts)
    try:
        yield
    finally:
        _restarts.reset(token)


def record_restart(device: str, ended: str) -> None:
    """Records that the process of *device* was restarted, in the innermost `collecting_restarts`
    block of this thread, if there is one.
    """
    if (restarts := _restarts.get()) is not None:
        restarts[device] = ended


def current_deadline() -> int | None:
    """The deadline of the innermost `deadline_context` of this thread; None outside of one."""
    return _deadline.get()


def halfway_to(deadline_ns: int | None) -> int | None:
    """The middle between now and *deadline_ns*: a call to a process that may be dead gets the first
    half of the time, and a fallback has the other half.
    """
    if deadline_ns is None:
        return None
    now = time.monotonic_ns()
    return now + max(0, deadline_ns - now) // 2
