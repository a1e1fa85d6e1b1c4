"""The output of commands: tables and lines for people, one JSON object for programs.

Names and labels come from untrusted files: none of their characters may control a terminal. rich,
whose import takes longer than most commands, is imported for a terminal only, and for tables that
are not plain.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from penstock.cli.layout import plain_table
from penstock.errors import counted
from penstock.logs import printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from penstock.compilation import CacheOutcome, Receipt
    from penstock.hal import ProgressEvent
    from penstock.hal.config import ProgressCallback


FORCED: Final = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Environment variables by which rich takes a stream for a terminal that is none."""


class NoBar:
    """In place of a progress bar that nobody would see."""

    def add_task(self, description: str, total: float | None) -> TaskID:
        return cast("TaskID", 0)

    def advance(self, task: TaskID) -> None:
        """Shows nothing."""

    def update(self, task: TaskID, **changes: Any) -> None:
        """Shows nothing."""


class Output:
    """Prints the result of one command. Lines and tables are silent with `--json`.

    *console* is a console of rich's instead of the standard output. *began_ns* is when the work on
    the command began, by `time.perf_counter_ns`.
    """

    def __init__(
        self,
        *,
        as_json: bool = False,
        console: Console | None = None,
        began_ns: int | None = None,
    ) -> None:
        self.as_json = as_json
        self.began_ns = time.perf_counter_ns() if began_ns is None else began_ns
        self._given = console

    def line(self, text: str = "", style: str = "") -> None:
        """Prints a line; characters that are not printable are escaped."""
        if self.as_json:
            return
        text = printable(text)
        if (console := self._console()) is None:
            write_line(sys.stdout, text.expandtabs())
            return
        from penstock.cli.terminal import print_line

        print_line(console, text, style)

    def notes(self, notes: Iterable[str]) -> None:
        """Prints notes on how the answer was obtained."""
        for note in notes:
            self.line(f"note: {note}", "yellow")

    def warnings(self, warnings: Iterable[str]) -> None:
        """Prints warnings on stderr, also with `--json`."""
        for warning in warnings:
            say(f"penstock: warning: {printable(warning)}")

    def problems(self, problems: Iterable[str]) -> None:
        """Prints problems of this installation."""
        for problem in problems:
            self.line(f"problem: {problem}", "red")

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        whole: Sequence[str] = (),
    ) -> None:
        """Prints a table, boxed on a terminal. Columns in *whole* never wrap."""
        if self.as_json:
            return
        heads = [printable(name) for name in columns]
        # A line break in a name would look like a new row.
        cells = [
            ["" if v is None else printable(str(v)).replace("\n", "\\n") for v in row]
            for row in rows
        ]
        console = self._console()
        lines = plain_table(heads, cells) if console is None else None
        if lines is not None:
            write_line(sys.stdout, "\n".join(lines))
            return
        from penstock.cli.terminal import print_table, standard_output

        print_table(console or standard_output(), heads, cells, whole)

    def json(self, value: Mapping[str, Any]) -> None:
        """Prints the command's one JSON object with `--json`; nothing otherwise."""
        if self.as_json:
            from json import dumps

            encoded = dumps(jsonable(value), ensure_ascii=False, allow_nan=False)
            write_line(sys.stdout, printable_json(encoded))

    def picture(self, text: str) -> None:
        """Prints a picture in a language of text; characters that are not printable are escaped."""
        write_line(sys.stdout, printable(text))

    @contextmanager
    def progress(self) -> Iterator[Progress | NoBar]:
        """A progress bar, visible on a terminal only."""
        if self.as_json or not may_be_terminal(sys.stderr):
            yield NoBar()
            return
        from penstock.cli.terminal import progress_bar

        with progress_bar() as bar:
            yield bar or NoBar()

    def _console(self) -> Console | None:
        """Rich's console; None if the standard output is surely no terminal."""
        if self._given is None and may_be_terminal(sys.stdout):
            from penstock.cli.terminal import standard_output

            self._given = standard_output()
        return self._given


def may_be_terminal(stream: TextIO | None) -> bool:
    """Whether *stream* is a terminal, or may count as one to rich."""
    return stream is not None and (stream.isatty() or any(name in os.environ for name in FORCED))


def say(text: str) -> None:
    """Prints *text* on stderr, if it is open."""
    write_line(sys.stderr, text)


def write_line(stream: TextIO | None, text: str) -> None:
    """Writes *text* to *stream* at once; None is a stream whose descriptor is closed."""
    if stream is not None:
        stream.write(f"{text}\n")
        stream.flush()


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
    with output.progress() as bar:
        if isinstance(bar, NoBar):
            yield None
            return
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
