"""Units of work that are a part of a panel of channels or of a line of positions, where whole ones
are so few that the shares of threads would differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.drivers.llvm.emit.assembler import Function, Index

ENOUGH_UNITS: Final = 16
"""With so many units of work, the shares of threads are about equal."""


def count_of(units: int, *most: int) -> int:
    """Into how many parts each of *units* units is divided: enough, and at most each of *most*."""
    return max(1, min(-(-ENOUGH_UNITS // units), *most))


def divided(f: Function, number: Index, parts: int) -> tuple[Index, Index]:
    """*number* divided by *parts*, and the rest: a unit, and the number of its part."""
    if parts == 1:
        return number, 0
    whole, rest = (f.value(f"{o} i64 {number}, {parts}", "i64") for o in ("udiv", "urem"))
    return whole.name, rest.name


def span_of(f: Function, part: Index, parts: int, size: int) -> tuple[Index, Index]:
    """Where *part* of *size* begins and ends; the *parts* are about equal."""
    if parts == 1:
        return 0, size
    begin, end = (f.mul(bound, size) for bound in (part, f.add(part, 1)))
    return divided(f, begin, parts)[0], divided(f, end, parts)[0]


def in_last(f: Function, part: Index, parts: int, body: Callable[[], object]) -> None:
    """Runs *body* if *part* is the last one of *parts*."""
    if parts == 1:
        body()
    else:
        f.when(f.value(f"icmp eq i64 {part}, {parts - 1}", "i1").name, body)
