"""Tables as text, for pipes and files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

PIPE_WIDTH: Final = 2000
"""Columns if no terminal reports its width, so that nothing is wrapped or cut."""

NUMBER: Final = re.compile(r"-?[\d,]+(\.\d+)?([eE][-+]?\d+)?( ?%| [a-zA-Z/]+)?")
"""A number, optionally with a unit. A column of numbers is right-aligned."""

BETWEEN: Final = "  "


def is_numeric(cells: Sequence[str]) -> bool:
    """Whether a column of *cells* is right-aligned."""
    return bool(cells) and all(not cell or NUMBER.fullmatch(cell) for cell in cells)


def plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str] | None:
    """The lines of a table of printable text; None if a character is not one column wide, or a row
    is wider than `PIPE_WIDTH`: rich then lays it out.
    """
    columns = list(zip(heads, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    if sum(widths) + len(BETWEEN) * (len(widths) - 1) > PIPE_WIDTH:
        return None
    if not all(cell.isascii() and cell.isprintable() for column in columns for cell in column):
        return None
    padded = [
        [cell.rstrip().rjust(width) if numeric else cell.ljust(width) for cell in column]
        for column, width in zip(columns, widths, strict=True)
        for numeric in [is_numeric(column[1:])]
    ]
    return [BETWEEN.join(row).rstrip() for row in zip(*padded, strict=True)]
