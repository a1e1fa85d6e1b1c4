"""How long calls wait that have no deadline of their own, as `Device.supported_operations`: until that of what needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_deadline: Final[ContextVar[int | None]] = ContextVar("penstock.ipc.until", default=None)


@contextmanager
def until(deadline_ns: int | None) -> Iterator[None]:
    """In this block, and thread, calls to other processes that have no deadline have this one; None changes nothing."""
    if deadline_ns is None:
        yield
        return
    token = _deadline.set(deadline_ns)
    try:
        yield
    finally:
        _deadline.reset(token)


def current_deadline() -> int | None:
    """Of the block that this thread is in."""
    return _deadline.get()
