"""Models derived from models: subgraphs renumbered, specialised by shape, and constants in
pools.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final, TypeVar

from msgspec.structs import replace

from penstock.errors import ModelError
from penstock.interrupts import checkpoint, polled
from penstock.ir.infer import Inferred, infer_subgraph
from penstock.ir.model import Model
from penstock.ir.operand import MAX_COPIED_VALUE, DataLocation, Lifetime, Operand
from penstock.ir.operation import Attributes, AttributeValue, Operation
from penstock.ir.operations import spec_of
from penstock.ir.subgraph import ALIGNMENT, ConstantPool, Subgraph, Variable
from penstock.ir.types import Shape, static_shape
from penstock.ir.validate import reachable, subgraph_references

BRANCHES: Final = {
    "IF": ("then_subgraph_index", "else_subgraph_index"),
    "WHILE": ("cond_subgraph_index", "body_subgraph_index"),
}
"""The attributes that refer to the subgraphs of an operation, by type."""

MOST_COPIED: Final = 1 << 15
"""Greatest number of operands and operations that specialised subgraphs add, beyond the number that
the model has.
"""

T = TypeVar("T", Operand, Variable)


def referenced_by(model: Model, operations: Iterable[Operation]) -> dict[int, int]:
    """The subgraphs that *operations* refer to, directly or indirectly.

    Maps the index in *model* to a number from 1 on; subgraph 0 has these operations.
    """
    targets = [target for operation in operations for target in subgraph_references(operation)]
    return {index: number for number, index in enumerate(reachable(model, targets), 1)}


def entered_from(model: Model, index: int) -> list[int]:
    """The subgraphs that *index* enters, directly or indirectly, each after all those that it
    enters.
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


def renumber_references(operation: Operation, numbers: Mapping[int, int]) -> Operation:
    """*operation* with each index of a subgraph replaced by its number in *numbers*."""
    changed = {
        spec.name: _renumbered(operation.attributes.get(spec.name), numbers)
        for spec in spec_of(operation).attributes
        if spec.kind in {"subgraph", "subgraphs"} and spec.name in operation.attributes
    }
    if all(operation.attributes[name] == new for name, new in changed.items()):
        return operation
    return replace(operation, attributes=Attributes({**operation.attributes, **changed}))


def renumbered(
    operation: Operation, operands: Mapping[int, int], subgraphs: Mapping[int, int]
) -> Operation:
    """*operation* with each operand and each subgraph replaced by its number."""
    return replace(
        renumber_references(operation, subgraphs),
        inputs=tuple(operands[i] for i in operation.inputs),
        outputs=tuple(operands[i] for i in operation.outputs),
    )


def renumbered_subgraphs(model: Model, numbers: Mapping[int, int]) -> list[Subgraph]:
    """The subgraphs of `referenced_by`, in their new order, with references to match."""
    return [
        replace(graph, operations=tuple(renumber_references(o, numbers) for o in graph.operations))
        for graph in (model.subgraphs[old] for old in polled(numbers))
    ]


def _renumbered(value: AttributeValue, numbers: Mapping[int, int]) -> AttributeValue:
    if isinstance(value, tuple):
        return tuple(numbers.get(int(old), -1) for old in value)
    return numbers.get(value, -1) if isinstance(value, int) else value


def has_control_flow(model: Model) -> bool:
    """Whether the entry subgraph has an IF or a WHILE."""
    return any(operation.type in BRANCHES for operation in model.operations)


def arguments_of(operation: Operation) -> tuple[int, ...]:
    """The operands that an IF or a WHILE passes to its subgraphs."""
    return operation.inputs[1:] if operation.type == "IF" else operation.inputs


def branches_of(operation: Operation) -> tuple[int, int]:
    """Indexes of the two subgraphs of an IF or a WHILE."""
    first, second = BRANCHES[operation.type]
    return operation.attributes.integer(first), operation.attributes.integer(second)


def specialized(model: Model) -> Model:
    """*model* with a copy of the subgraphs of each IF and WHILE, also nested ones. The copies have
    the shapes of the values that the operation passes.

    Operations that pass the same shapes to a subgraph share its copy. An operation keeps its
    original subgraphs if a shape is unknown, or if the limit `MOST_COPIED` is reached. Without
    control flow the result is *model*. The result is computed once for each model.
    """
    if not has_control_flow(model):
        return model
    known: Model | None = model.__dict__.get("_specialized")
    if known is None:
        known = model.__dict__["_specialized"] = _Specializer(model).run()
    return known


class _Specializer:
    """Copies the subgraphs of one model. *copies* maps the index of the original and the input
    shapes to the index of the copy.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.subgraphs = list(model.subgraphs)
        self.copies: dict[tuple[int, tuple[Shape, ...]], int] = {}
        self.known = Inferred()
        own = sum(len(s.operands) + len(s.operations) for s in model.subgraphs)
        self.room = MOST_COPIED + own

    def run(self) -> Model:
        # Not recursive: subgraphs may be nested deeper than Python's stack.
        pending = [(self.model.main, self.model.entry)]
        while pending:
            checkpoint()
            place, graph = pending.pop()
            operations = tuple(self._operation(graph, o, pending) for o in graph.operations)
            self.subgraphs[place] = replace(graph, operations=operations)
        return replace(self.model, subgraphs=tuple(self.subgraphs))

    def _operation(
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


def pooled(model: Model) -> Model:
    """*model* with every value of more than `MAX_COPIED_VALUE` bytes (NNAPI section 6.1) in a pool.

    Values that the model stores itself move to one new pool. The digest does not change.
    """
    if not holds_large_values(model):
        return model
    known: Model | None = model.__dict__.get("_pooled")
    if known is None:
        known = model.__dict__["_pooled"] = _pooled(model)
    return known


def holds_large_values(model: Model) -> bool:
    """Whether *model* stores a value itself that must be in a pool."""
    items = chain[Operand | Variable](
        model.variables, *(subgraph.operands for subgraph in model.subgraphs)
    )
    return any(len(item.value or b"") > MAX_COPIED_VALUE for item in items)


def _pooled(model: Model) -> Model:
    own = bytearray()
    number = len(model.pools)

    def moved(item: T) -> T:
        value = item.value
        if value is None or len(value) <= MAX_COPIED_VALUE:
            return item
        own.extend(bytes(-len(own) % ALIGNMENT))
        place = DataLocation(number, len(own), len(value))
        own.extend(value)
        if isinstance(item, Operand):
            return replace(item, lifetime=Lifetime.CONSTANT_POOL, value=None, location=place)
        return replace(item, value=None, location=place)

    subgraphs = tuple(replace(s, operands=tuple(map(moved, s.operands))) for s in model.subgraphs)
    variables = tuple(map(moved, model.variables))
    pool = ConstantPool(memoryview(bytes(own)))
    return replace(model, subgraphs=subgraphs, variables=variables, pools=(*model.pools, pool))
