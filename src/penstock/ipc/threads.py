"""Threads that are begun without waiting for them.

`threading.Thread.start` waits until the new thread runs. One that finds no memory for its first step dies before that,
and whoever starts it waits for ever.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

_unborn: set[object] = set()


def begin(work: Callable[..., object], *arguments: Any) -> None:
    """Has *work* done in a thread of its own, which keeps no process from ending. It may never run: see `unborn`.

    Raises `RuntimeError` or `MemoryError` where there is no room for a thread.
    """
    birth = object()
    _unborn.add(birth)
    try:
        _thread.start_new_thread(_run, (birth, work, arguments))
    except BaseException:
        _unborn.discard(birth)
        raise


def begin_or_do(work: Callable[..., object], *arguments: Any) -> None:
    """As `begin`; where there is no room for a thread, *work* is done at once."""
    try:
        begin(work, *arguments)
    except (RuntimeError, MemoryError):
        work(*arguments)


def unborn() -> set[object]:
    """One object for each thread of this process that was begun, or started, and has not run yet."""
    return set(_unborn) | {each for each in threading.enumerate() if not each.is_alive()}


def _run(birth: object, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    _unborn.discard(birth)
    work(*arguments)
