"""A receipt as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import counted

if TYPE_CHECKING:
    from penstock.compilation.receipt import CopyReceipt, Receipt, StepReceipt


def show_receipt(receipt: Receipt) -> str:
    """`Receipt.show`."""
    copied = sum(copy.nbytes for copy in receipt.copies)
    lines = [
        f"{receipt.wall_ns / 1e6:.3f} ms, {counted(receipt.compiles, 'compile')}, {counted(copied, 'byte')} copied",
        *(
            line
            for place, step in enumerate(receipt.steps)
            for line in (_step(place, step), *_inner(step.inner, "    "))
        ),
        *map(_copy, receipt.copies),
        *(f"  note: {note}" for note in receipt.notes),
    ]
    return "\n".join(lines) + "\n"


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
    return f"  copy {counted(copy.nbytes, 'byte')}, {copy.source} -> {copy.destination}{place}: {copy.reason}"
