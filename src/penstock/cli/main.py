"""The `penstock` program."""

from __future__ import annotations

import gc
import os
import sys
import time
from typing import Final

from penstock.cli.program import perform

ALLOCATIONS: Final = 100_000
"""Objects that are made between two collections: more than imports make, which nothing ends."""


def main() -> None:
    """The `penstock` program."""
    gc.set_threshold(ALLOCATIONS)
    try:
        perform(sys.argv[1:], _with_typer, age_ns())
    finally:
        # All objects end with the process. Python would look through them first for cycles.
        gc.freeze()


def _with_typer(given: list[str], began_ns: int) -> object:
    from penstock.cli.application import group

    return group().answer(given, began_ns)


def age_ns() -> int:
    """The nanoseconds since this process was created, or a little less.

    It is at least the processor time of the process. Linux tells the creation in ticks of 10 ms.
    """
    worked = time.process_time_ns()
    if sys.platform != "linux":
        return worked
    try:
        with open("/proc/self/stat", "rb") as file:
            # The second field is the program's name in parentheses.
            ticks = int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return worked
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return max(worked, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - (ticks + 1) * tick_ns)
