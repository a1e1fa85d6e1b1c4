"""Text about a plan: durations, reasons and tables, in lines of limited width."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from penstock.errors import counted
from penstock.hal import ACCURACY_RANK, AccuracyClass
from penstock.ir.model import MAX_LINE, shortened
from penstock.partitioning.placements import PREDICTED, Placement, Tuned

WIDTH: Final = 80
DEFAULT_CLASS: Final[AccuracyClass] = "faithful"
SHOWN_TYPES: Final = 4
"""Maximum operation types named in one line of a listing; the rest is counted."""
LEAST_COLUMN: Final = 16
"""Minimum characters of a column when the table is made narrower."""

DURATION: Final = re.compile(r"(\d[\d.]*(?:e[+-]?\d+)?) (ns|us|ms|s)\b")
UNITS: Final = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}

STEP_COLUMNS: Final = ("step", "device", "operations", "in", "out", "predicted", "else on")


class Group(Struct, frozen=True):
    """Operations of one type on one device; durations in their *reasons* are ranges."""

    type: str
    device: str
    operations: tuple[int, ...]
    reasons: Mapping[str, str]

    def lines(self, width: int) -> list[str]:
        """`0-3, 5: ADD x5 on DEVICE`, then each reason with the devices that it excludes."""
        count = f" x{len(self.operations)}" if len(self.operations) > 1 else ""
        title = f"  {ranges(self.operations)}: {self.type}{count} on {self.device}"
        lines = wrapped(title, "    ", width)
        excluded: dict[str, list[str]] = {}
        for device, reason in self.reasons.items():
            excluded.setdefault(reason, []).append(device)
        for reason, devices in excluded.items():
            lines += wrapped(f"    not on {', '.join(devices)}: {reason}", "      ", width)
        return lines


def groups_of(operations: Iterable[Placement]) -> list[Group]:
    """*operations* in groups, ordered by their first operation."""
    found: dict[tuple[object, ...], list[Placement]] = {}
    for placement in operations:
        reasons = tuple((d, DURATION.sub("", _line(r))) for d, r in placement.reasons.items())
        found.setdefault((placement.type, placement.device, reasons), []).append(placement)
    return [
        Group(
            members[0].type,
            members[0].device,
            tuple(p.index for p in members),
            {
                device: _merged([_line(p.reasons[device]) for p in members])
                for device in members[0].reasons
            },
        )
        for members in found.values()
    ]


def describe_tuned(tuned: Tuned) -> str:
    """The winner, the time and the medians of measuring; or why nothing was measured."""
    at = f" with {tuned.shapes}" if tuned.shapes else ""
    if not tuned.candidates:
        if tuned.winner == PREDICTED:
            return f"not measured: {tuned.reason}"
        return f"measured{at}: {tuned.winner}: {tuned.reason}"
    medians = ", ".join(
        f"{m.name} {duration(m.median_ns) if m.error is None else 'failed'}"
        for m in tuned.candidates
    )
    when = ""
    if tuned.created is not None:
        moment = datetime.fromtimestamp(tuned.created, UTC)
        when = f" on {moment:%Y-%m-%d %H:%M} UTC"
    kept = "; kept in the cache directory until 'penstock cache clear'" if tuned.stored else ""
    others = "; runs with known shapes have plans of their own" if tuned.shapes else ""
    told = f"{tuned.winner}: {tuned.reason}; medians: {medians}"
    return f"measured{at}{when}: {told}{kept}{others}"


def reasons_against(tuned: Tuned) -> list[str]:
    """For each candidate that failed, a sentence why it could not be measured."""
    return [f"{m.name!r} failed: {_line(m.error)}" for m in tuned.candidates if m.error is not None]


def describe_accuracy(allowed: AccuracyClass, operations: Sequence[Placement]) -> str:
    """How many *operations* run below the default class; empty if the class *allowed* is none."""
    least = ACCURACY_RANK[DEFAULT_CLASS]
    if ACCURACY_RANK[allowed] >= least:
        return ""
    lesser = Counter(p.accuracy for p in operations if ACCURACY_RANK[p.accuracy] < least)
    if not lesser:
        return (
            f"accuracy: {allowed} is allowed; each device declares at least {DEFAULT_CLASS} for "
            "its operations"
        )
    declared = ", ".join(f"{count} {accuracy}" for accuracy, count in lesser.items())
    amount = counted(len(operations), "operation")
    return f"accuracy: {allowed} is allowed; of {amount}, their devices declare {declared}"


def line_of(kind: str, text: str, warning: str = "") -> str:
    """`<kind: text>` in one line of limited length, for the `repr` of large values.

    A *warning* that *text* begins with is not shortened.
    """
    words = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
    return shortened(f"<{kind}: {words}", MAX_LINE - 1 + len(warning)) + ">"


def types_of(operations: Iterable[Placement]) -> str:
    """`CONV_2D x3, RELU, 2 more types`."""
    kinds = Counter(placement.type for placement in operations).most_common()
    shown = [f"{kind} x{n}" if n > 1 else kind for kind, n in kinds[:SHOWN_TYPES]]
    if len(kinds) > SHOWN_TYPES:
        shown.append(counted(len(kinds) - SHOWN_TYPES, "more type"))
    return ", ".join(shown)


def duration(ns: float) -> str:
    """Formats nanoseconds for display: "1.2 ms"."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


def ranges(indexes: Iterable[int]) -> str:
    """`0-3, 5`."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def table(steps: Iterable[Sequence[str]], width: int) -> list[str]:
    """The rows of *steps* below `STEP_COLUMNS`; the widest columns are wrapped to fit."""
    rows = [STEP_COLUMNS, *steps]
    kept = [k for k in range(len(STEP_COLUMNS)) if k < 5 or any(row[k] for row in rows[1:])]
    widths = [max(len(row[k]) for row in rows) for k in kept]
    for wide in (6, 2, 1):
        if wide in kept and (over := 2 + sum(widths) + 2 * (len(widths) - 1) - width) > 0:
            place = kept.index(wide)
            widths[place] = max(LEAST_COLUMN, widths[place] - over)
    lines = []
    for row in rows:
        cells = [
            textwrap.wrap(row[k], wide, break_on_hyphens=False)
            for k, wide in zip(kept, widths, strict=True)
        ]
        for at in range(max(1, *map(len, cells))):
            parts = (
                (cell[at] if at < len(cell) else "").ljust(wide)
                for cell, wide in zip(cells, widths, strict=True)
            )
            lines.append(("  " + "  ".join(parts)).rstrip())
    return lines


def wrapped(text: str, indent: str, width: int) -> list[str]:
    """*text* in lines of *width*, all but the first behind *indent*; no word is broken."""
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def _merged(reasons: Sequence[str]) -> str:
    columns = zip(*(DURATION.findall(reason) for reason in reasons), strict=True)
    texts = iter([_range(column) for column in columns])
    return DURATION.sub(lambda _: next(texts), reasons[0])


def _range(durations: Iterable[tuple[str, str]]) -> str:
    ordered = sorted(set(durations), key=lambda one: float(one[0]) * UNITS[one[1]])
    (least, unit), (most, other) = ordered[0], ordered[-1]
    if least == most and unit == other:
        return f"{least} {unit}"
    return f"{least}{'' if unit == other else f' {unit}'} to {most} {other}"


def _line(reason: str) -> str:
    return " ".join(reason.split())
