"""Receipts as lines of text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.compilation.receipt import Receipt
from penstock.compilation.step_receipt import StepReceipt
from penstock.errors import counted
from penstock.memory.copies import CopyReceipt


def shown(receipt: Receipt) -> str:
    """*receipt* as a few readable lines."""
    lines = [
        summary_of(receipt),
        *(
            line
            for place, step in enumerate(receipt.steps)
            for line in (_step(place, step), *_inner(step.inner, "    "))
        ),
        *([] if receipt.plan is None else [f"  plan: cache {receipt.plan}"]),
        *map(_copy, receipt.copies),
        *(f"  note: {note}" for note in receipt.notes),
    ]
    return "\n".join(lines) + "\n"


def table_of(receipt: Receipt) -> str:
    """The HTML table of steps, notes and copies."""
    from penstock.ir.model import html_table

    header = ("step", "device", "operations", "ms", "cache", "fell back from")
    rows: list[Sequence[str]] = [header]
    for place, step in enumerate(receipt.steps):
        tried = "; ".join(f"{f.device}: {f.error}" for f in step.failures)
        index, count = place if step.step is None else step.step, len(step.operations)
        cells = str(index), step.device, str(count), f"{step.wall_ns / 1e6:.3f}"
        rows.append((*cells, str(step.cache), tried or step.fallback_from or ""))
    rows += [("note", note) for note in receipt.notes]
    rows += [("copy", _copy(copy).strip()) for copy in receipt.copies]
    return html_table(f"{receipt.stage}: {summary_of(receipt)}", rows)


def summary_of(receipt: Receipt) -> str:
    """Time, compiles and bytes copied, in one line."""
    copied = counted(sum(copy.nbytes for copy in receipt.copies), "byte")
    return (
        f"{receipt.wall_ns / 1e6:.3f} ms, {counted(receipt.compiles, 'compile')}, {copied} copied"
    )


def _step(place: int, step: StepReceipt) -> str:
    name = f"step {place if step.step is None else step.step}"
    if step.step is None and step.failures:
        name = "the whole model"
    where = f"{step.device} (simulated: no such hardware ran)" if step.simulated else step.device
    line = f"  {name} on {where}: {counted(len(step.operations), 'operation')}"
    runs = f" in {step.runs} runs" if step.runs > 1 else ""
    line += f", {step.wall_ns / 1e6:.3f} ms{runs}, cache {step.cache}"
    if step.fallback_from is not None and not step.failures:
        line += f", fell back from {step.fallback_from}: {step.error}"
    return line + "".join(f", fell back from {f.device}: {f.error}" for f in step.failures)


def _inner(steps: Sequence[StepReceipt], indent: str) -> list[str]:
    lines = []
    for place, step in enumerate(steps):
        lines.append(f"{indent}{step.part} {_step(place, step).strip()}")
        lines += _inner(step.inner, indent + "  ")
    return lines


def _copy(copy: CopyReceipt) -> str:
    place = "" if copy.step is None else f" at step {copy.step}"
    if copy.operand is not None:
        place += f", operand {copy.operand}"
    return (
        f"  copy {counted(copy.nbytes, 'byte')}, {copy.source} -> {copy.destination}{place}: "
        f"{copy.reason}"
    )
