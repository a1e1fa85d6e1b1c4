"""Receipts of the copies of tensor data that the runtime makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Final

import msgspec

STAGED: Final = "it does not lie in memory that the device maps"
"""Why a value is copied once more on its way to a device, or from it."""

_watchers: list[Callable[[CopyReceipt], None]] = []


class CopyReceipt(msgspec.Struct, frozen=True):
    """One copy of tensor data made by the runtime.

    *step* and *operand* identify the boundary: the step of the plan, and the operand of its model's
    entry subgraph. Both are None if the copy belongs to no step.
    """

    nbytes: int
    source: str
    destination: str
    reason: str
    step: int | None = None
    operand: int | None = None
    start_ns: int = 0
    wall_ns: int = 0

    def __post_init__(self) -> None:
        for watch in _watchers:
            watch(self)


@contextmanager
def watched_copies(watch: Callable[[CopyReceipt], None]) -> Iterator[None]:
    """Calls *watch* for every copy during the block, in the thread that makes the copy."""
    _watchers.append(watch)
    try:
        yield
    finally:
        _watchers.remove(watch)


def receipts_of(
    count: int,
    nbytes: int,
    route: tuple[str, str],
    reason: str,
    began_ns: int,
    operand: int | None = None,
) -> tuple[CopyReceipt, ...]:
    """Receipts of *count* copies, which began at *began_ns* and have just ended.

    The first has the time of all; the others are those between on the way (`STAGED`).
    """
    spent = perf_counter_ns() - began_ns
    return (
        CopyReceipt(nbytes, *route, reason, None, operand, began_ns, spent),
        *(CopyReceipt(nbytes, "host", "host", STAGED, None, operand) for _ in range(count - 1)),
    )
