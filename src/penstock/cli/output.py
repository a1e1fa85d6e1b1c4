"""The output of commands: tables and lines for people, one JSON object for programs.

Names and labels come from untrusted files: none of their characters may control a terminal.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.errors import counted
from penstock.logs import printable, printable_json

if TYPE_CHECKING:
    from rich.progress import Progress

    from penstock.compilation import CacheOutcome, Receipt
    from penstock.hal import ProgressEvent
    from penstock.hal.config import ProgressCallback


PIPE_WIDTH: Final = 2000
"""Columns if no terminal reports its width, so that nothing is wrapped or cut."""

NUMBER: Final = re.compile(r"-?[\d,]+(\.\d+)?([eE][-+]?\d+)?( ?%| [a-zA-Z/]+)?")
"""A number, optionally with a unit. A column of numbers is right-aligned."""

FONT_FACE: Final = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
"""rich's pictures load a font from the network; without it a viewer uses its monospaced font."""


class Output:
    """Prints the result of one command. Lines and tables are silent with `--json`."""

    def __init__(self, *, as_json: bool = False, console: Console | None = None) -> None:
        self.as_json = as_json
        self.console = console or Console(highlight=False, markup=False, emoji=False)
        if console is None and not self.console.is_terminal:
            self.console.width = PIPE_WIDTH

    def line(self, text: str = "", style: str = "") -> None:
        """Prints a line; characters that are not printable are escaped."""
        if not self.as_json:
            self.console.print(Text(printable(text), style=style), soft_wrap=True)

    def notes(self, notes: Iterable[str]) -> None:
        """Prints notes on how the answer was obtained."""
        for note in notes:
            self.line(f"note: {note}", "yellow")

    def warnings(self, warnings: Iterable[str]) -> None:
        """Prints warnings on stderr, also with `--json`."""
        for warning in warnings:
            typer.echo(f"penstock: warning: {printable(warning)}", err=True)

    def problems(self, problems: Iterable[str]) -> None:
        """Prints problems of this installation."""
        for problem in problems:
            self.line(f"problem: {problem}", "red")

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        title: str = "",
        whole: Sequence[str] = (),
    ) -> None:
        """Prints a table, boxed on a terminal. Columns in *whole* never wrap."""
        if not self.as_json:
            boxed = self.console.is_terminal
            table = make_table(columns, rows, title, boxed=boxed, whole=whole)
            if boxed:
                self.console.print(table)
                return
            with self.console.capture() as printed:
                self.console.print(table)
            # For programs and files a column is not padded to its widest cell.
            for line in printed.get().splitlines():
                self.console.print(Text(line.rstrip()), soft_wrap=True)

    def json(self, value: Mapping[str, Any]) -> None:
        """Prints the command's one JSON object with `--json`; nothing otherwise."""
        if self.as_json:
            encoded = json.dumps(jsonable(value), ensure_ascii=False, allow_nan=False)
            typer.echo(printable_json(encoded))

    def progress(self) -> Progress:
        """A progress bar, visible on a terminal only."""
        from rich import progress as bars

        console = Console(stderr=True)
        return bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=self.as_json or not console.is_terminal,
        )


def make_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    title: str = "",
    *,
    boxed: bool = True,
    whole: Sequence[str] = (),
) -> Table:
    """A rich table; numbers are right-aligned, columns in *whole* never wrap."""
    # A line break in a name would look like a new row.
    content = [
        ["" if v is None else printable(str(v)).replace("\n", "\\n") for v in row] for row in rows
    ]
    table = Table(
        title=Text(printable(title)) if title else None,
        title_justify="left",
        box=box.ROUNDED if boxed else None,
        pad_edge=boxed,
        header_style="bold",
    )
    for position, name in enumerate(columns):
        cells = [row[position] for row in content]
        numeric = bool(cells) and all(not cell or NUMBER.fullmatch(cell) for cell in cells)
        table.add_column(
            printable(name),
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=name in whole,
        )
    for row in content:
        table.add_row(*(Text(value) for value in row))
    return table


def svg(console: Console, title: str) -> str:
    """The output of a recording *console* as a self-contained picture."""
    picture = console.export_svg(title=title, unique_id="penstock")
    return FONT_FACE.sub("", picture)


def jsonable(value: Any) -> Any:
    """*value* in JSON's types: arrays become lists, NaN and infinities become null."""
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def output_of(context: typer.Context) -> Output:
    """The output that the root command created."""
    found = context.find_object(Output)
    return found if found is not None else Output()


def milliseconds(nanoseconds: float) -> str:
    """`3.2 ms`, with the significant digits."""
    value = nanoseconds / 1e6
    if value < 1000:
        return f"{value:.3f} ms" if value < 1 else f"{value:.1f} ms"
    return f"{value / 1000:.2f} s"


def size(nbytes: float) -> str:
    """`3.4 MiB`."""
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


def percentage(share: float) -> str:
    """A fraction of 1 in percent, or `NaN`."""
    return "NaN" if math.isnan(share) else f"{100 * share:.1f} %"


def shortened(text: str, width: int = 40) -> str:
    """*text*, cut to *width* characters; `--json` has the whole text."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


STAGES: Final = {
    "compile": "compiling on",
    "tune": "measuring",
    "lease": "compiling, or waiting for the process that compiles, on",
}
"""Stages in words; a driver's own stages are shown by name."""


@contextmanager
def compile_bar(output: Output, name: str = "") -> Iterator[ProgressCallback | None]:
    """The *progress* argument of `penstock.compile`, labelled *name*; None if no bar is visible."""
    bar = output.progress()
    if bar.disable:
        yield None
        return
    with bar:
        task = bar.add_task(f"{name} compiling".strip(), total=None)

        def show(event: ProgressEvent) -> None:
            text, total = f"{name} {words(event)}".strip(), event.total or None
            bar.update(task, description=text, completed=event.done, total=total)

        yield show


def words(event: ProgressEvent) -> str:
    """The event in words."""
    stage = STAGES.get(event.stage, event.stage)
    return f"{stage} {event.subject}" if event.subject else stage.removesuffix(" on")


ORDINARY: Final = ("NO_ENTRY", "NOT_YET_WRITTEN", "INGREDIENT_CHANGED")
"""Codes of expected misses. Any other code means that an existing entry was rejected."""


def show_cache(output: Output, receipt: Receipt) -> None:
    """Prints a line for each device and cache outcome of a compile: a hit, or a miss and its
    reason.

    Steps that missed with the same code share one line with the first step's reason.
    """
    grouped: dict[tuple[object, ...], Counter[CacheOutcome]] = {}
    for step in receipt.steps:
        cache = step.cache
        kind = cache if refused(cache) else (cache.outcome, cache.code, cache.not_saved)
        grouped.setdefault((step.device, kind), Counter())[cache] += 1
    for (device, _), outcomes in grouped.items():
        first, others = next(iter(outcomes)), len(outcomes) - 1
        more = f"; {counted(others, 'other reason')}" if others else ""
        style = "yellow" if refused(first) else "dim"
        output.line(f"cache: {device} {in_words(first, outcomes.total())}{more}", style)


def show_fallbacks(output: Output, *receipts: Receipt) -> None:
    """Prints each device that failed to compile or run a step, with its reason, once."""
    printed: set[tuple[str, str]] = set()
    for receipt in receipts:
        failed = Counter((f.device, f.error) for step in receipt.steps for f in step.failures)
        act = "compile" if receipt.stage == "compile" else "run"
        for (device, error), steps in failed.items():
            if (device, error) in printed:
                continue
            many = f" ({steps} steps)" if steps > 1 else ""
            output.line(f"fallback: {device} failed to {act}{many}: {error}", "yellow")
        printed |= set(failed)


def in_words(outcome: CacheOutcome, steps: int = 1) -> str:
    """`miss (2 steps): NoEntry: ...; saved`."""
    many = f"{outcome.outcome} ({steps} steps)" if steps > 1 else outcome.outcome
    text = str(outcome).replace(outcome.outcome, many, 1)
    return f"{text}; saved" if outcome.saved else text


def refused(outcome: CacheOutcome) -> bool:
    """Whether an existing entry was rejected."""
    return outcome.code is not None and outcome.code.name not in ORDINARY
