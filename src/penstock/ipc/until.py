"""What calls that are part of a greater one, as `Device.supported_operations` is of a compile, have
of it: its deadline, and a place to say that a process was started again for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_restarts: Final[ContextVar[dict[str, str] | None]] = ContextVar(
    "penstock.ipc.until.restarts", default=None
)
_deadline: Final[ContextVar[int | None]] = ContextVar("penstock.ipc.until", default=None)


@contextmanager
def until(deadline_ns: int | None) -> Iterator[None]:
    """In this block, and thread, calls to other processes that have no deadline have this one; None
    changes nothing.
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
def gathering(restarts: dict[str, str]) -> Iterator[None]:
    """In this block, and thread, *restarts* gets the name of each device whose process is started
    again for a call that has no receipt of its own, and how the one before ended.
    """
    token = _restarts.set(restarts)
    try:
        yield
    finally:
        _restarts.reset(token)


def started_again(device: str, ended: str) -> None:
    """Tells the block that gathers restarts, if there is one."""
    if (restarts := _restarts.get()) is not None:
        restarts[device] = ended


def current_deadline() -> int | None:
    """Of the block that this thread is in."""
    return _deadline.get()
