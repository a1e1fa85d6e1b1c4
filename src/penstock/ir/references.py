"""Subgraphs that operations refer to: which ones, and other numbers for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from penstock.interrupts import checkpoint, polled
from penstock.ir.model import Model
from penstock.ir.operation import Attributes, AttributeValue, Operation
from penstock.ir.operations import spec_of
from penstock.ir.subgraph import Subgraph
from penstock.ir.validate import subgraph_references


def referenced_by(model: Model, operations: Iterable[Operation]) -> dict[int, int]:
    """The subgraphs of *model* that *operations* refer to, directly or not: their index there ->
    their place, from 1 on, behind a subgraph 0 of these operations.
    """
    found: dict[int, int] = {}
    pending = deque(target for operation in operations for target in subgraph_references(operation))
    while pending:
        index = pending.popleft()
        if index not in found:
            found[index] = len(found) + 1
            pending += [
                t for o in model.subgraphs[index].operations for t in subgraph_references(o)
            ]
    return found


def entered_from(model: Model, index: int) -> list[int]:
    """The subgraphs of *model* that subgraph *index* enters, directly or not, each once and after
    all it enters itself.
    """
    order: list[int] = []
    pending, seen = [(index, False)], set[int]()
    while pending:
        checkpoint()
        at, finished = pending.pop()
        if finished:
            order.append(at)
        elif at not in seen:
            seen.add(at)
            pending.append((at, True))
            operations = model.subgraphs[at].operations
            pending += [(target, False) for o in operations for target in subgraph_references(o)]
    return order[:-1]


def refer_anew(operation: Operation, subgraphs: Mapping[int, int]) -> Operation:
    """*operation*, each index of a subgraph replaced by what *subgraphs* has for it."""
    changed = {
        spec.name: _new_reference(operation.attributes.get(spec.name), subgraphs)
        for spec in spec_of(operation).attributes
        if spec.kind in {"subgraph", "subgraphs"} and spec.name in operation.attributes
    }
    if all(operation.attributes[name] == new for name, new in changed.items()):
        return operation
    return replace(operation, attributes=Attributes({**operation.attributes, **changed}))


def carried(model: Model, subgraphs: Mapping[int, int]) -> list[Subgraph]:
    """The subgraphs that `referenced_by` found, in their new places, with references among them to
    match.
    """
    return [
        replace(graph, operations=tuple(refer_anew(o, subgraphs) for o in graph.operations))
        for graph in (model.subgraphs[old] for old in polled(subgraphs))
    ]


def _new_reference(value: AttributeValue, subgraphs: Mapping[int, int]) -> AttributeValue:
    if isinstance(value, tuple):
        return tuple(subgraphs.get(int(old), -1) for old in value)
    return subgraphs.get(value, -1) if isinstance(value, int) else value
