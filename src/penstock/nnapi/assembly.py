"""A finished model: constants in pools, operations in an order to run, and the models it refers to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from penstock.ir import ConstantPool, DataLocation
from penstock.nnapi.codes import MAX_SIZE_OF_IMMEDIATELY_COPIED_VALUES
from penstock.nnapi.description import (
    NnapiLifetime,
    NnapiModel,
    NnapiOperand,
    NnapiOperation,
    NnapiSubgraph,
)
from penstock.nnapi.failures import bad_data
from penstock.nnapi.operands import FinishedSubgraph, OperandSlot

Item = TypeVar("Item")

ALIGNMENT: Final = 64
"""Of large constants in the pool they are packed in: that of the widest vector registers."""

OWN_POOL: Final = -1
"""Where the pool of large values stands among a model's pools: it is the last."""


@dataclass(slots=True)
class Packing:
    """Constants of one model being laid into pools: large values into one of the model's own."""

    own: bytearray = field(default_factory=bytearray)
    pools: list[ConstantPool] = field(default_factory=list)
    models: list[FinishedSubgraph] = field(default_factory=list)
    _places: dict[int, int] = field(default_factory=dict)

    def operand(self, slot: OperandSlot) -> NnapiOperand:
        """*slot* as a value."""
        if slot.value is not None:
            if len(slot.value) <= MAX_SIZE_OF_IMMEDIATELY_COPIED_VALUES:
                return slot.described(value=bytes(slot.value))
            self.own += bytes(-len(self.own) % ALIGNMENT)
            place = DataLocation(OWN_POOL, len(self.own), len(slot.value))
            self.own += slot.value
            return slot.described(location=place, lifetime=NnapiLifetime.CONSTANT_POOL)
        if slot.memory is not None and slot.location is not None:
            pool = _place(slot.memory, self.pools, self._places)
            moved = DataLocation(pool, slot.location.offset, slot.location.length)
            return slot.described(location=moved)
        if slot.model is not None:
            return slot.described(subgraph=_place(slot.model, self.models, self._places))
        return slot.described()

    def finished(self, subgraph: NnapiSubgraph) -> FinishedSubgraph:
        """*subgraph* with everything that was packed."""
        own = (ConstantPool(memoryview(self.own).toreadonly()),) if self.own else ()
        return FinishedSubgraph(subgraph, (*self.pools, *own), tuple(self.models))


def _place(item: Item, items: list[Item], places: dict[int, int]) -> int:
    """Where *item* stands among *items*, at the end if it was not there."""
    if id(item) not in places:
        places[id(item)] = len(items)
        items.append(item)
    return places[id(item)]


def assemble(main: FinishedSubgraph, *, relaxed: bool = False) -> NnapiModel:
    """*main* and every model it refers to, directly or not, as one value."""
    every, numbers = [main], {id(main): -1}
    for model in every:
        for other in model.referenced:
            if id(other) not in numbers:
                numbers[id(other)] = len(every) - 1
                every.append(other)
    pools: list[ConstantPool] = []
    subgraphs = []
    for model in every:
        subgraphs.append(_renumbered(model, len(pools), numbers))
        pools += model.pools
    return NnapiModel(subgraphs[0], tuple(subgraphs[1:]), tuple(pools), relaxed)


def _renumbered(
    model: FinishedSubgraph, first_pool: int, numbers: Mapping[int, int]
) -> NnapiSubgraph:
    operands = []
    for operand in model.subgraph.operands:
        here = operand
        if (place := here.location) is not None:
            pool = first_pool + place.pool % len(model.pools)
            moved = DataLocation(pool, place.offset, place.length)
            here = replace(here, location=moved)
        if here.subgraph is not None:
            here = replace(here, subgraph=numbers[id(model.referenced[here.subgraph])])
        operands.append(here)
    return replace(model.subgraph, operands=tuple(operands))


def in_run_order(
    operands: Sequence[OperandSlot], operations: Sequence[NnapiOperation]
) -> list[int]:
    """The operations in an order in which each comes after those whose results it reads (NNAPI
    section 1.5).

    Of those that are ready, the one that became so last comes first. Raises BAD_DATA where there is
    none: operations that wait for each other, or for what nobody writes.
    """
    computed = {NnapiLifetime.TEMPORARY_VARIABLE, NnapiLifetime.SUBGRAPH_OUTPUT}
    readers: dict[int, list[int]] = {}
    waiting = [0] * len(operations)
    for at, operation in enumerate(operations):
        for operand in operation.inputs:
            if operands[operand].lifetime in computed:
                readers.setdefault(operand, []).append(at)
                waiting[at] += 1
    ready = [at for at, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        order.append(ready.pop())
        for operand in operations[order[-1]].outputs:
            for reader in readers.get(operand, ()):
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    ready.append(reader)
    if len(order) < len(operations):
        stuck = min(set(range(len(operations))) - set(order))
        raise bad_data(
            f"operation {stuck} ({operations[stuck].type}) reads what is written by itself, by one that waits "
            "for it, or by none"
        )
    return order
