"""What there is to draw of a plan: nodes, edges, and a colour for each device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.ir.show import show_operand

if TYPE_CHECKING:
    from penstock.partitioning.plan import ExecutionPlan

COLOURS: Final = (
    "#a6cee3", "#fdbf6f", "#b2df8a", "#fb9a99", "#cab2d6", "#ffff99",
    "#7fcdbb", "#e5c494", "#f4b6d2", "#b3b3b3",
)  # fmt: skip
"""Of devices, in the plan's order; light enough for black text. They begin again after the last."""
PLAIN: Final = "#ffffff"
"""Of inputs and outputs, and of operations of no step."""


class Node(Struct, frozen=True):
    """An operation, input or output of the model. *step* is None for what belongs to none; *detail*
    is what a pointer resting on it should be told.
    """

    key: str
    label: str
    detail: str
    colour: str
    step: int | None = None
    is_operation: bool = True


class Edge(Struct, frozen=True):
    """A value on its way from node to node; *label* describes it where it crosses from step to
    step.
    """

    source: str
    target: str
    label: str
    crosses: bool


class Graph(Struct, frozen=True):
    """*steps* and *devices* are named with their colours, in order."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    steps: tuple[tuple[str, str], ...]
    devices: tuple[tuple[str, str], ...]


def graph_of(plan: ExecutionPlan) -> Graph:
    """The graph of *plan*'s operations, inputs and outputs."""
    entry = plan.model.entry
    colours = {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(plan.devices)}
    home = {i: step.index for step in plan.steps for i in step.operations}
    nodes: list[Node] = []
    edges: list[Edge] = []
    writer: dict[int, tuple[str, int | None]] = {}
    for index in entry.inputs:
        operand = entry.operands[index]
        label = f"input {operand.name}".rstrip()
        nodes.append(Node(f"in{index}", label, show_operand(operand), PLAIN, is_operation=False))
        writer[index] = f"in{index}", None

    def connect(operand: int, target: str, step: int | None) -> None:
        if operand not in writer:
            return
        source, other = writer[operand]
        described = entry.operands[operand]
        label = f"{described.name or f'%{operand}'}: {show_operand(described)}"
        edges.append(Edge(source, target, label, other != step))

    for placement, operation in zip(plan.operations, entry.operations, strict=True):
        key, step = f"op{placement.index}", home.get(placement.index)
        reasons = [f"not on {device}: {why}" for device, why in placement.reasons.items()]
        where = f"on {placement.device}" if step is not None else "not run: nothing reads it"
        detail = "\n".join([f"{placement.name or placement.type} {where}", *reasons])
        colour = PLAIN if step is None else colours.get(placement.device, PLAIN)
        nodes.append(Node(key, f"{placement.index} {placement.type}", detail, colour, step))
        for read in dict.fromkeys(operation.inputs):
            connect(read, key, step)
        writer.update(dict.fromkeys(operation.outputs, (key, step)))
    for position, index in enumerate(entry.outputs):
        operand = entry.operands[index]
        label = f"output {operand.name}".rstrip()
        key = f"out{position}"
        nodes.append(Node(key, label, show_operand(operand), PLAIN, is_operation=False))
        connect(index, key, None)
    steps = tuple(
        (f"step {step.index} on {step.device}", colours.get(step.device, PLAIN))
        for step in plan.steps
    )
    used = {placement.device for placement in plan.operations}
    legend = tuple((name, colour) for name, colour in colours.items() if name in used)
    return Graph(tuple(nodes), tuple(edges), steps, legend)
