"""Models whose large constants all lie in pools, for whoever lends these instead of sending what
they hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from msgspec.structs import replace

from penstock.ir.builder import ALIGNMENT
from penstock.ir.model import Model
from penstock.ir.operand import MAX_COPIED_VALUE, DataLocation, Lifetime, Operand
from penstock.ir.subgraph import ConstantPool, Variable

T = TypeVar("T", Operand, Variable)


def pooled(model: Model) -> Model:
    """*model* with every value of more than `MAX_COPIED_VALUE` bytes (NNAPI section 6.1) in a pool,
    those that it holds itself in one of their own, which is made once; *model*, where it holds
    none. The digest is the same.
    """
    if not holds_large_values(model):
        return model
    known: Model | None = model.__dict__.get("_pooled")
    if known is None:
        known = model.__dict__["_pooled"] = _made(model)
    return known


def holds_large_values(model: Model) -> bool:
    """Whether *model* holds a value itself that belongs in a pool."""
    return any(len(item.value or b"") > MAX_COPIED_VALUE for item in _items(model))


def _made(model: Model) -> Model:
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


def _items(model: Model) -> Iterator[Operand | Variable]:
    """Everything that may hold a value."""
    for subgraph in model.subgraphs:
        yield from subgraph.operands
    yield from model.variables
