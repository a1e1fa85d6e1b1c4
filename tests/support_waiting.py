"""Conditions that come true a little later: on a busy machine, a while later."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

PATIENCE: Final = 60.0
"""Seconds in which what comes at all has come, however busy the machine is."""


def eventually(is_so: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Whether it is so by then; looks again and again, and returns as soon as it is."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def descriptors(process: int | str = "self") -> int:
    """How many descriptors a process has, in this one after a garbage collection."""
    if process == "self":
        gc.collect()
    return len(list(Path(f"/proc/{process}/fd").iterdir()))


def tasks(process: int | str = "self") -> int:
    """How many threads a process has, those among them that `threading` does not know."""
    return len(list(Path(f"/proc/{process}/task").iterdir()))


def steady(count: Callable[[], int], seconds: float = 0.2) -> int:
    """The value of *count* once it is stable for *seconds*, or after `PATIENCE`."""
    end = time.monotonic() + PATIENCE
    found, since = count(), time.monotonic()
    while time.monotonic() - since < seconds and time.monotonic() < end:
        time.sleep(0.01)
        if (now := count()) != found:
            found, since = now, time.monotonic()
    return found
