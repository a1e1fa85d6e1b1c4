"""Control flow in the shapes of one use: subgraphs of their own for each IF and WHILE."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from penstock.errors import ModelError
from penstock.interrupts import checkpoint
from penstock.ir.infer import Inferred, infer_subgraph
from penstock.ir.model import Model
from penstock.ir.operation import Attributes, Operation
from penstock.ir.subgraph import Subgraph
from penstock.ir.types import Shape, static_shape

BRANCHES: Final = {
    "IF": ("then_subgraph_index", "else_subgraph_index"),
    "WHILE": ("cond_subgraph_index", "body_subgraph_index"),
}
"""The attributes that refer to the subgraphs of an operation, by type."""

KEPT: Final = "_settled"
"""Where a model holds what it was made into."""

MOST_COPIED: Final = 1 << 15
"""Operands and operations that copies of subgraphs may have, beyond those that the model has."""


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
    """*model* with a copy of its subgraphs for each IF and WHILE, also within them, whose shapes
    are those of the values that this operation gives. Operations that give one subgraph the same
    shapes share its copy. One whose values are of unknown shape keeps the subgraphs it has, and so
    do those for which `MOST_COPIED` leaves no room. Without control flow: *model*.
    """
    if not has_control_flow(model):
        return model
    # Who prices a model and who asks devices about it want the same.
    known: Model | None = model.__dict__.get(KEPT)
    if known is None:
        known = model.__dict__[KEPT] = _Settling(model).run()
    return known


class _Settling:
    """The subgraphs of one model as they become; *copies* is where each is that was copied, by
    index and input shapes.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.subgraphs = list(model.subgraphs)
        self.copies: dict[tuple[int, tuple[Shape, ...]], int] = {}
        self.known = Inferred()
        own = sum(len(s.operands) + len(s.operations) for s in model.subgraphs)
        self.room = MOST_COPIED + own

    def run(self) -> Model:
        model = self.model
        # Not recursive, as subgraphs may be nested deeper than Python's stack: what is copied waits
        # to be settled.
        pending = [(model.main, model.entry)]
        while pending:
            checkpoint()
            place, graph = pending.pop()
            settled_operations = tuple(self._settle(graph, o, pending) for o in graph.operations)
            self.subgraphs[place] = replace(graph, operations=settled_operations)
        return replace(model, subgraphs=tuple(self.subgraphs))

    def _settle(
        self, graph: Subgraph, operation: Operation, pending: list[tuple[int, Subgraph]]
    ) -> Operation:
        if operation.type not in BRANCHES:
            return operation
        model = self.model
        shapes = [static_shape(graph.operands[i].shape) for i in arguments_of(operation)]
        indexes = branches_of(operation)
        if None in shapes or any(model.subgraphs[i].states for i in indexes):
            return operation
        if any(len(model.subgraphs[i].inputs) != len(shapes) for i in indexes):
            return operation
        keys = [(index, tuple(shapes)) for index in indexes]
        try:
            made = {
                key: infer_subgraph(model, *key, self.known)
                for key in dict.fromkeys(keys)
                if key not in self.copies
            }
        except ModelError:
            return operation
        size = sum(len(s.operands) + len(s.operations) for s in made.values())
        if size > self.room:
            return operation
        self.room -= size
        for key, inferred in made.items():
            self.copies[key] = len(self.subgraphs)
            pending.append((len(self.subgraphs), inferred))
            self.subgraphs.append(inferred)
        names = BRANCHES[operation.type]
        changed = {name: self.copies[key] for name, key in zip(names, keys, strict=True)}
        return replace(operation, attributes=Attributes({**operation.attributes, **changed}))
