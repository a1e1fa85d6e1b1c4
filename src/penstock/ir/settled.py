"""Control flow in the shapes of one use: subgraphs of their own for each IF and WHILE."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from penstock.errors import ModelError
from penstock.ir.infer import infer_subgraph
from penstock.ir.model import Model, Subgraph
from penstock.ir.operation import Attributes, Operation
from penstock.ir.types import static_shape

BRANCHES: Final = {
    "IF": ("then_subgraph_index", "else_subgraph_index"),
    "WHILE": ("cond_subgraph_index", "body_subgraph_index"),
}
"""The attributes that refer to the subgraphs of an operation, by type."""

MOST_DEPTH: Final = 8
"""How deep control flow is followed."""


def has_control_flow(model: Model) -> bool:
    """Whether the entry subgraph has an IF or a WHILE."""
    return any(operation.type in BRANCHES for operation in model.operations)


def arguments_of(operation: Operation) -> tuple[int, ...]:
    """The operands that an IF or a WHILE gives to its subgraphs."""
    return operation.inputs[1:] if operation.type == "IF" else operation.inputs


def branches_of(operation: Operation) -> tuple[int, int]:
    """Indexes of the two subgraphs of an IF or a WHILE."""
    first, second = BRANCHES[operation.type]
    return operation.attributes.integer(first), operation.attributes.integer(second)


def settled(model: Model) -> Model:
    """*model* with a copy of its subgraphs for each IF and WHILE, also within them, whose shapes are those of the
    values that this operation gives. One whose values are of unknown shape keeps the subgraphs it has. Without
    control flow: *model*.
    """
    if not has_control_flow(model):
        return model
    subgraphs = list(model.subgraphs)
    entry = replace(model.entry, operations=_settled(model, model.entry, subgraphs, 0))
    subgraphs[model.main] = entry
    return replace(model, subgraphs=tuple(subgraphs))


def _settled(
    model: Model, graph: Subgraph, subgraphs: list[Subgraph], depth: int
) -> tuple[Operation, ...]:
    """The operations of *graph*; the copies join *subgraphs*."""
    found = []
    for operation in graph.operations:
        copied = operation.type in BRANCHES and depth < MOST_DEPTH
        found.append(
            _with_copies(model, graph, operation, subgraphs, depth) if copied else operation
        )
    return tuple(found)


def _with_copies(
    model: Model, graph: Subgraph, operation: Operation, subgraphs: list[Subgraph], depth: int
) -> Operation:
    shapes = [static_shape(graph.operands[i].shape) for i in arguments_of(operation)]
    indexes = branches_of(operation)
    if None in shapes or any(model.subgraphs[i].states for i in indexes):
        return operation
    if any(len(model.subgraphs[i].inputs) != len(shapes) for i in indexes):
        return operation
    changed = {}
    for name, index in zip(BRANCHES[operation.type], indexes, strict=True):
        try:
            inferred = infer_subgraph(model, index, shapes)
        except ModelError:
            return operation
        inner = _settled(model, inferred, subgraphs, depth + 1)
        changed[name] = len(subgraphs)
        subgraphs.append(replace(inferred, operations=inner))
    return replace(operation, attributes=Attributes({**operation.attributes, **changed}))
