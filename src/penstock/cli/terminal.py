"""Output through rich: lines in colour, tables in boxes, progress bars, and pictures of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.layout import PIPE_WIDTH, is_numeric

if TYPE_CHECKING:
    from rich.progress import Progress

FONT_FACE: Final = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
"""rich's pictures load a font from the network; without it a viewer uses its monospaced font."""


def standard_output() -> Console:
    """Rich's console of the standard output."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def print_line(console: Console, text: str, style: str) -> None:
    """Prints a line of printable text, in the terminal's width or wider."""
    console.print(Text(text, style=style), soft_wrap=True)


def print_table(
    console: Console, heads: Sequence[str], rows: Sequence[Sequence[str]], whole: Sequence[str]
) -> None:
    """Prints a table of printable text, boxed on a terminal. Columns in *whole* never wrap."""
    boxed = console.is_terminal
    table = make_table(heads, rows, boxed=boxed, whole=whole)
    if boxed:
        console.print(table)
        return
    with console.capture() as printed:
        console.print(table)
    # For programs and files a column is not padded to its widest cell.
    for line in printed.get().splitlines():
        console.print(Text(line.rstrip()), soft_wrap=True)


def make_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    boxed: bool = True,
    whole: Sequence[str] = (),
) -> Table:
    """A rich table; numbers are right-aligned, columns in *whole* never wrap."""
    table = Table(box=box.ROUNDED if boxed else None, pad_edge=boxed, header_style="bold")
    for position, name in enumerate(heads):
        numeric = is_numeric([row[position] for row in rows])
        table.add_column(
            name,
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=name in whole,
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """A progress bar on stderr, which leaves nothing behind; None if stderr is no terminal."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield None
        return
    from rich import progress as bars

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=console, transient=True) as bar:
        yield bar


def svg(console: Console, title: str) -> str:
    """The output of a recording *console* as a self-contained picture."""
    picture = console.export_svg(title=title, unique_id="penstock")
    return FONT_FACE.sub("", picture)
