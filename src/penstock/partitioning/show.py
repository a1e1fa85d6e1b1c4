"""The forms a plan is read in: text, one line, JSON and Graphviz."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.ir.show import show_operand

if TYPE_CHECKING:
    from penstock.partitioning.plan import ExecutionPlan, Placement

SHOWN_TYPES = 4
"""Operation types named in one line of a listing; the rest are counted."""


def show_plan(plan: ExecutionPlan) -> str:
    """`ExecutionPlan.show`."""
    lines = [f"plan: {summarize_plan(plan)}"]
    rows = [("step", "device", "operations", "inputs", "outputs")]
    rows += [
        (
            str(step.index),
            step.device,
            f"{_ranges(step.operations)}: {_types(plan, step.operations)}",
            str(len(step.inputs)),
            str(len(step.outputs)),
        )
        for step in plan.steps
    ]
    lines += _table(rows)
    if idle := _idle(plan):
        lines.append(f"not run, because nothing reads the results: {_ranges(idle)}")
    if plan.forwards:
        entry = plan.model.entry
        named = ", ".join(
            f"{position} (%{i} {entry.operands[i].name!r})" for position, i in plan.forwards
        )
        lines.append(f"outputs that are inputs or constants: {named}")
    lines += _refusals(plan)
    return "\n".join(lines) + "\n"


def summarize_plan(plan: ExecutionPlan) -> str:
    """`ExecutionPlan.summary`."""
    placed = Counter(placement.device for placement in plan.operations)
    shares = ", ".join(f"{device} {placed[device]}" for device in plan.devices if placed[device])
    text = f"{_count(len(plan.steps), 'step')}, {_count(len(plan.operations), 'operation')}"
    text += f" ({shares})" if shares else ""
    if plan.temporaries.nbytes:
        text += f", {plan.temporaries.nbytes} bytes between steps"
    if plan.temporaries.dynamic:
        text += f", {_count(len(plan.temporaries.dynamic), 'value')} of unknown size between steps"
    return text


def plan_to_json(plan: ExecutionPlan) -> str:
    """`ExecutionPlan.to_json`."""
    content = {
        "devices": plan.devices,
        "steps": [
            {
                "index": step.index,
                "device": step.device,
                "operations": step.operations,
                "inputs": step.inputs,
                "outputs": step.outputs,
                "fallbacks": step.fallbacks,
            }
            for step in plan.steps
        ],
        "operations": [
            {
                "index": placement.index,
                "type": placement.type,
                "name": placement.name,
                "device": placement.device,
                "accuracy": placement.accuracy,
                "reasons": dict(placement.reasons),
            }
            for placement in plan.operations
        ],
        "forwards": plan.forwards,
        "temporaries": {
            "nbytes": plan.temporaries.nbytes,
            "alignment": plan.temporaries.alignment,
            "offsets": {str(key): place for key, place in plan.temporaries.offsets.items()},
            "dynamic": plan.temporaries.dynamic,
        },
    }
    return msgspec.json.encode(content).decode()


def plan_to_dot(plan: ExecutionPlan) -> str:
    """`ExecutionPlan.to_dot`."""
    entry = plan.model.entry
    lines = ["digraph plan {", "  rankdir=TB;", "  node [shape=box];"]
    writer: dict[int, str] = {}
    for index in entry.inputs:
        writer[index] = f"in{index}"
        lines.append(
            f"  in{index} [shape=ellipse, label={_quote(f'input {entry.operands[index].name}')}];"
        )
    for step in plan.steps:
        node = f"step{step.index}"
        label = f"step {step.index} on {step.device}\n{_types(plan, step.operations)}"
        lines.append(f"  {node} [label={_quote(label)}];")
        lines += [f"  {writer[i]} -> {node} [label={_edge(plan, i)}];" for i in step.inputs]
        writer.update(dict.fromkeys(step.outputs, node))
    for position, index in enumerate(entry.outputs):
        label = f"output {entry.operands[index].name}"
        lines.append(f"  out{position} [shape=ellipse, label={_quote(label)}];")
        if index in writer:
            lines.append(f"  {writer[index]} -> out{position} [label={_edge(plan, index)}];")
    return "\n".join([*lines, "}"]) + "\n"


def _idle(plan: ExecutionPlan) -> list[int]:
    run = {i for step in plan.steps for i in step.operations}
    return [placement.index for placement in plan.operations if placement.index not in run]


def _refusals(plan: ExecutionPlan) -> list[str]:
    lines: list[str] = []
    for device in plan.devices:
        grouped: dict[str, list[Placement]] = {}
        for placement in plan.operations:
            if (reason := placement.reasons.get(device)) is not None:
                grouped.setdefault(" ".join(reason.split()), []).append(placement)
        if grouped:
            lines.append(f"not on {device}:")
            lines += [
                f"  {_ranges(p.index for p in group)} ({_type_counts(p.type for p in group)}): {reason}"
                for reason, group in grouped.items()
            ]
    return lines


def _types(plan: ExecutionPlan, operations: Sequence[int]) -> str:
    return _type_counts(plan.operations[i].type for i in operations)


def _type_counts(types: Iterable[str]) -> str:
    counted = Counter(types).most_common()
    shown = [f"{kind} x{n}" if n > 1 else kind for kind, n in counted[:SHOWN_TYPES]]
    if len(counted) > SHOWN_TYPES:
        shown.append(f"{_count(len(counted) - SHOWN_TYPES, 'more type')}")
    return ", ".join(shown)


def _ranges(indexes: Iterable[int]) -> str:
    """`0-3, 5`."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _edge(plan: ExecutionPlan, index: int) -> str:
    operand = plan.model.entry.operands[index]
    return _quote(f"{operand.name or f'%{index}'}: {show_operand(operand)}")


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
