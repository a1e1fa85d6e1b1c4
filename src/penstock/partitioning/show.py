"""A plan as text: one line, or a table of steps and the reasons for each operation's device."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.errors import counted
from penstock.hal import ACCURACY_RANK, AccuracyClass
from penstock.ir.model import MAX_LINE, MAX_ROWS, html_table, shortened
from penstock.partitioning.plan import PREDICTED

if TYPE_CHECKING:
    from penstock.partitioning.plan import ExecutionPlan, ExecutionStep, Placement, Tuned

WIDTH: Final = 80
DEFAULT_CLASS: Final[AccuracyClass] = "faithful"
SHOWN_TYPES: Final = 4
"""Maximum operation types named in one line of a listing; the rest is counted."""
LEAST_WIDTH: Final = 60
"""Minimum width of a nested branch of control flow."""
LEAST_COLUMN: Final = 16
"""Minimum characters of a column when the table is made narrower."""

DURATION: Final = re.compile(r"(\d[\d.]*(?:e[+-]?\d+)?) (ns|us|ms|s)\b")
UNITS: Final = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


class Group(Struct, frozen=True):
    """Operations of one type on one device, with equal reasons against the others except durations.

    *reasons* has the durations as ranges.
    """

    type: str
    device: str
    operations: tuple[int, ...]
    reasons: Mapping[str, str]

    @property
    def title(self) -> str:
        """`0-3, 5: ADD x5`."""
        count = f" x{len(self.operations)}" if len(self.operations) > 1 else ""
        return f"{ranges(self.operations)}: {self.type}{count}"

    @property
    def by_reason(self) -> dict[str, list[str]]:
        """Each reason, with the devices that it excludes."""
        found: dict[str, list[str]] = {}
        for device, reason in self.reasons.items():
            found.setdefault(reason, []).append(device)
        return found


def groups_of(plan: ExecutionPlan) -> list[Group]:
    """The operations of *plan* in groups, ordered by their first operation."""
    found: dict[tuple[object, ...], list[Placement]] = {}
    for placement in plan.operations:
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
    """The result of measuring: the winner, the time, and the medians; or why nothing was
    measured.
    """
    if not tuned.candidates:
        if tuned.winner == PREDICTED:
            return f"not measured: {tuned.reason}"
        return f"measured: {tuned.winner}: {tuned.reason}"
    medians = ", ".join(
        f"{m.name} {duration(m.median_ns) if m.error is None else 'failed'}"
        for m in tuned.candidates
    )
    when = ""
    if tuned.created is not None:
        moment = datetime.fromtimestamp(tuned.created, UTC)
        when = f" on {moment:%Y-%m-%d %H:%M} UTC"
    kept = "; kept in the cache directory until 'penstock cache clear'" if tuned.stored else ""
    return f"measured{when}: {tuned.winner}: {tuned.reason}; medians: {medians}{kept}"


def reasons_against(tuned: Tuned) -> list[str]:
    """For each candidate that failed, a sentence why it could not be measured."""
    return [f"{m.name!r} failed: {_line(m.error)}" for m in tuned.candidates if m.error is not None]


def describe_accuracy(plan: ExecutionPlan) -> str:
    """How many operations run below the default accuracy class; empty if the policy allows none."""
    if ACCURACY_RANK[plan.accuracy] >= ACCURACY_RANK[DEFAULT_CLASS]:
        return ""
    least = ACCURACY_RANK[DEFAULT_CLASS]
    lesser = Counter(p.accuracy for p in plan.operations if ACCURACY_RANK[p.accuracy] < least)
    if not lesser:
        return (
            f"accuracy: {plan.accuracy} is allowed; each device declares at least "
            f"{DEFAULT_CLASS} for its operations"
        )
    told = ", ".join(f"{count} {accuracy}" for accuracy, count in lesser.items())
    amount = counted(len(plan.operations), "operation")
    return f"accuracy: {plan.accuracy} is allowed; of {amount}, their devices declare {told}"


def show_plan(plan: ExecutionPlan) -> str:
    """Implements `ExecutionPlan.show`."""
    return "\n".join(_lines(plan, WIDTH)) + "\n"


def line_of(kind: str, text: str) -> str:
    """`<kind: text>` in one line of limited length, for the `repr` of large values."""
    words = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
    return shortened(f"<{kind}: {words}", MAX_LINE - 1) + ">"


def html_of_plan(plan: ExecutionPlan) -> str:
    """The plan as an HTML table of its steps."""
    rows = [STEP_COLUMNS, *(step_row(plan, step) for step in plan.steps[: MAX_ROWS + 1])]
    title = f"{plan.summary()}; {describe_prediction(plan)}".removesuffix("; ")
    return html_table(title, rows)


def _lines(plan: ExecutionPlan, width: int) -> list[str]:
    lines = _wrapped(f"plan: {summarize_plan(plan)}", "  ", width)
    if told := describe_accuracy(plan):
        lines += _wrapped(told, "  ", width)
    for device, doubt in plan.doubts:
        lines += _wrapped(f"{device}: {doubt}", "  ", width)
    for device, why in plan.apart:
        lines += _wrapped(f"{device} runs in a process of its own: {why}", "  ", width)
    if prediction := describe_prediction(plan):
        lines += _wrapped(prediction, "  ", width)
    if plan.tuned is not None:
        lines += _wrapped(describe_tuned(plan.tuned), "  ", width)
        for reason in reasons_against(plan.tuned):
            lines += _wrapped(f"  {reason}", "    ", width)
    lines += _steps(plan, width)
    if idle := idle_operations(plan):
        text = f"not run, because nothing reads the results: {ranges(idle)}"
        lines += _wrapped(text, "  ", width)
    if plan.forwards:
        entry = plan.model.entry
        named = ", ".join(
            f"{position} (%{i} {entry.operands[i].name!r})" for position, i in plan.forwards
        )
        lines += _wrapped(f"outputs that are inputs or constants: {named}", "  ", width)
    if plan.operations:
        lines.append("operations:")
    for group in groups_of(plan):
        lines += _wrapped(f"  {group.title} on {group.device}", "    ", width)
        for reason, devices in group.by_reason.items():
            text = f"    not on {', '.join(devices)}: {reason}"
            lines += _wrapped(text, "      ", width)
    for step in plan.steps:
        if step.control is None:
            continue
        for part, branch in zip(step.control.parts, step.control.branches, strict=True):
            lines.append(f"{part} of {step.control.kind} {step.operations[0]}:")
            lines += [f"  {line}" for line in _lines(branch, max(width - 2, LEAST_WIDTH))]
    return lines


def summarize_plan(plan: ExecutionPlan) -> str:
    """Implements `ExecutionPlan.summary`. Names the accuracy class if it is not the default."""
    placed = Counter(placement.device for placement in plan.operations)
    shares = ", ".join(f"{device} {placed[device]}" for device in plan.devices if placed[device])
    text = f"{counted(len(plan.steps), 'step')}, {counted(len(plan.operations), 'operation')}"
    text += f" ({shares})" if shares else ""
    if plan.accuracy != DEFAULT_CLASS:
        text += f", {plan.accuracy}"
    if plan.temporaries.nbytes:
        text += f", {counted(plan.temporaries.nbytes, 'byte')} between steps"
    if plan.temporaries.dynamic:
        text += f", {counted(len(plan.temporaries.dynamic), 'value')} of unknown size between steps"
    return text


def describe_prediction(plan: ExecutionPlan) -> str:
    """The predicted time of a run, as planned and on each device alone; empty if unknown."""
    if plan.predicted_ns is None:
        return ""
    text = f"predicted: {duration(plan.predicted_ns)} a run"
    if plan.predicted_energy is not None:
        text += f", the energy of {duration(plan.predicted_energy)} of the reference"
    alone, idle = [], []
    for one in plan.alternatives:
        if one.predicted_ns is None:
            continue
        if not one.operations and plan.operations:
            idle.append(one.device)
            continue
        count = len(plan.operations)
        share = (
            ""
            if one.operations == count
            else f" with {one.operations} of {counted(count, 'operation')}"
        )
        alone.append(f"{one.device} {duration(one.predicted_ns)}{share}")
    if len(alone) + len(idle) < 2:
        return text
    if alone:
        text += f"; first choice alone: {', '.join(alone)}"
    if idle:
        text += f"; not {', '.join(idle)}, which may run none of the operations: reasons below"
    return text


def step_row(plan: ExecutionPlan, step: ExecutionStep) -> tuple[str, str, str, str, str, str, str]:
    """Number, device, operations, inputs, outputs, prediction and fallbacks of a step."""
    return (
        str(step.index),
        step.device,
        f"{ranges(step.operations)}: {types_of(plan, step.operations)}",
        str(len(step.inputs)),
        str(len(step.outputs)),
        "" if step.predicted_ns is None else duration(step.predicted_ns),
        ", ".join(step.fallbacks),
    )


STEP_COLUMNS: Final = ("step", "device", "operations", "in", "out", "predicted", "else on")


def idle_operations(plan: ExecutionPlan) -> list[int]:
    """The operations of no step: their results are never read."""
    run = {i for step in plan.steps for i in step.operations}
    return [placement.index for placement in plan.operations if placement.index not in run]


def types_of(plan: ExecutionPlan, operations: Sequence[int]) -> str:
    """`CONV_2D x3, RELU, 2 more types`."""
    kinds = Counter(plan.operations[i].type for i in operations).most_common()
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


def _steps(plan: ExecutionPlan, width: int) -> list[str]:
    """The table of steps; its widest columns are wrapped to fit."""
    rows = [STEP_COLUMNS, *(step_row(plan, step) for step in plan.steps)]
    kept = [k for k in range(len(STEP_COLUMNS)) if k < 5 or any(row[k] for row in rows[1:])]
    widths = [max(len(row[k]) for row in rows) for k in kept]
    for wide in (6, 2, 1):
        if wide in kept and (over := 2 + sum(widths) + 2 * (len(widths) - 1) - width) > 0:
            place = kept.index(wide)
            widths[place] = max(LEAST_COLUMN, widths[place] - over)
    lines = []
    for row in rows:
        cells = [_wrap(row[k], wide) for k, wide in zip(kept, widths, strict=True)]
        for at in range(max(map(len, cells))):
            parts = (
                (cell[at] if at < len(cell) else "").ljust(wide)
                for cell, wide in zip(cells, widths, strict=True)
            )
            lines.append(("  " + "  ".join(parts)).rstrip())
    return lines


def _merged(reasons: Sequence[str]) -> str:
    """Merges reasons that differ only in durations into one with ranges."""
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


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
