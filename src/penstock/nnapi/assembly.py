"""A model under construction: its operands, checks of a new operation, and the finished model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from penstock.errors import NotLowerable
from penstock.ir import ConstantPool, DataLocation
from penstock.ir.types import Shape, is_static
from penstock.nnapi.codes import MAX_SIZE_OF_IMMEDIATELY_COPIED_VALUES, bad_data, translated
from penstock.nnapi.description import (
    MAXIMUM_FEATURE_LEVEL,
    AnyType,
    ChannelQuantization,
    NnapiLifetime,
    NnapiModel,
    NnapiOperand,
    NnapiOperation,
    NnapiSubgraph,
    OperandType,
    value_size,
)
from penstock.nnapi.lowering import lower
from penstock.nnapi.lowering.forms import Match
from penstock.nnapi.lowering.registry import rule_of
from penstock.nnapi.lowering.validation import check_operand

PER_CHANNEL: Final = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL


@dataclass(frozen=True, slots=True)
class FinishedSubgraph:
    """A finished model. Its pool and subgraph numbers index *pools* and *referenced*."""

    subgraph: NnapiSubgraph
    pools: tuple[ConstantPool, ...]
    referenced: tuple[FinishedSubgraph, ...]


@dataclass(slots=True)
class OperandSlot:
    """An operand under construction: its type, and at most one of *value* (copied now or by
    `finish`), *memory* with *location*, and *model*.
    """

    type: AnyType
    dimensions: Shape
    scale: float
    zero_point: int
    name: str = ""
    lifetime: NnapiLifetime = NnapiLifetime.TEMPORARY_VARIABLE
    channels: ChannelQuantization | None = None
    value: memoryview | None = None
    memory: ConstantPool | None = None
    location: DataLocation | None = None
    model: FinishedSubgraph | None = None
    extension_data: bytes = b""

    def set(
        self,
        lifetime: NnapiLifetime,
        *,
        value: memoryview | None = None,
        memory: ConstantPool | None = None,
        offset: int = 0,
        length: int = 0,
        model: FinishedSubgraph | None = None,
    ) -> None:
        """Replaces the value."""
        self.lifetime, self.value, self.memory, self.model = lifetime, value, memory, model
        self.location = None if memory is None else DataLocation(0, offset, length)

    def release(self) -> None:
        """Drops references to the caller's memory and models."""
        self.set(self.lifetime)

    def check_type(self) -> None:
        """Raises BAD_DATA if dimensions, scale or zero point do not fit (NNAPI section 8.1)."""
        alone = NnapiOperand(
            self.type, self.dimensions, scale=self.scale, zero_point=self.zero_point
        )
        if self.type is PER_CHANNEL:
            if self.scale != 0 or self.zero_point != 0:
                raise bad_data(f"a {self.type.name} has the scale 0 and the zero point 0")
            alone = replace(alone, type=OperandType.TENSOR_QUANT8_SYMM, scale=1.0)
        if self.type is OperandType.SUBGRAPH:
            alone = replace(alone, lifetime=NnapiLifetime.SUBGRAPH, subgraph=0)
        with translated():
            check_operand(alone, (), 1, MAXIMUM_FEATURE_LEVEL)

    def nbytes(self) -> int:
        """The size of its value; BAD_DATA if the dimensions are not fully known."""
        if self.type is OperandType.SUBGRAPH:
            raise bad_data("an operand that stands for a model has no bytes")
        if self.dimensions is None or not is_static(self.dimensions):
            raise bad_data("the dimensions of a constant must be known")
        return value_size(self.type, self.dimensions)

    @property
    def is_small(self) -> bool:
        """Whether it is a constant that is small enough to be copied at once."""
        length = self.location.length if self.location is not None else None
        if self.value is not None:
            length = len(self.value)
        return length is not None and length <= MAX_SIZE_OF_IMMEDIATELY_COPIED_VALUES

    def set_channels(self, dimension: int, scales: Sequence[float]) -> None:
        """Sets the scales of its channels. Raises BAD_DATA if they do not fit."""
        if self.type is not PER_CHANNEL:
            raise bad_data(f"a {self.type.name} has no scales for channels")
        if self.dimensions is None or not 0 <= dimension < len(self.dimensions):
            raise bad_data(f"channels along dimension {dimension} of {self.dimensions}")
        if self.dimensions[dimension] != len(scales):
            raise bad_data(f"{len(scales)} scales for {self.dimensions[dimension]} channels")
        if not all(math.isfinite(s) and s > 0 for s in scales):
            raise bad_data("the scale of a channel is not a positive number")
        self.channels = ChannelQuantization(dimension, tuple(scales))

    def described(
        self,
        *,
        value: bytes | None = None,
        location: DataLocation | None = None,
        subgraph: int | None = None,
        lifetime: NnapiLifetime | None = None,
    ) -> NnapiOperand:
        """The operand as a frozen value, stored where the arguments say."""
        return NnapiOperand(
            self.type,
            self.dimensions,
            lifetime or self.lifetime,
            self.scale,
            self.zero_point,
            self.channels,
            value,
            location,
            subgraph,
            self.name,
            self.extension_data,
        )


Item = TypeVar("Item")

ALIGNMENT: Final = 64
"""Alignment of large constants in their pool: that of the widest vector registers."""

OWN_POOL: Final = -1
"""Placeholder for the model's own pool of large values, which becomes the last one."""


@dataclass(slots=True)
class Packing:
    """Packs the constants of one model into pools. Large values go to a separate pool."""

    own: bytearray = field(default_factory=bytearray)
    pools: list[ConstantPool] = field(default_factory=list)
    models: list[FinishedSubgraph] = field(default_factory=list)
    _places: dict[int, int] = field(default_factory=dict)

    def operand(self, slot: OperandSlot) -> NnapiOperand:
        """*slot* as a frozen value."""
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
        """*subgraph* with all packed constants."""
        own = (ConstantPool(memoryview(self.own).toreadonly()),) if self.own else ()
        return FinishedSubgraph(subgraph, (*self.pools, *own), tuple(self.models))


def _place(item: Item, items: list[Item], places: dict[int, int]) -> int:
    """The index of *item* in *items*; appends it if it is new."""
    if id(item) not in places:
        places[id(item)] = len(items)
        items.append(item)
    return places[id(item)]


def assemble(main: FinishedSubgraph, *, relaxed: bool = False) -> NnapiModel:
    """*main* and every model that it refers to, directly or indirectly, as one value."""
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
    """A topological order of the operations (NNAPI section 1.5).

    Of several ready operations, the last to become ready comes first. Raises BAD_DATA for a cycle,
    and for an operand that no operation writes.
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
            f"operation {stuck} ({operations[stuck].type}) reads what is written by itself, by one "
            "that waits for it, or by none"
        )
    return order


WRITABLE: Final = frozenset({NnapiLifetime.TEMPORARY_VARIABLE, NnapiLifetime.SUBGRAPH_OUTPUT})

UNUSED: Final = NnapiOperand(OperandType.FLOAT32, (), NnapiLifetime.SUBGRAPH_INPUT)
"""A model needs an input, even for an operation without any."""


def check_operation(operation: NnapiOperation, operands: Sequence[OperandSlot]) -> None:
    """Raises BAD_DATA for an operation that is invalid in every model.

    Checks number and types of operands. If its scalars and optional operands are set by now, also
    checks dimensions, scales and ranges.
    """
    inputs = [operands[i] for i in operation.inputs]
    outputs = [operands[i] for i in operation.outputs]
    with translated():
        match = rule_of(operation.type).match(
            [slot.described() for slot in inputs],
            [slot.described() for slot in outputs],
            MAXIMUM_FEATURE_LEVEL,
        )
        if not _is_settled(operation, match, inputs, outputs):
            return
        try:
            lower(assemble(_alone(operation, operands)))
        except NotLowerable:
            # The rest of the model may supply what the operation lacks. `Model.finish` decides.
            return


def _is_settled(
    operation: NnapiOperation,
    match: Match,
    inputs: Sequence[OperandSlot],
    outputs: Sequence[OperandSlot],
) -> bool:
    """Whether the operation can be checked alone: later calls cannot change its validity."""
    written = set(operation.outputs)
    optional = {match.inputs.get(a.name) for a in match.form.inputs if a.optional}
    return (
        bool(outputs)
        and len(written) == len(outputs)
        and written.isdisjoint(operation.inputs)
        and all(slot.lifetime in WRITABLE for slot in outputs)
        and all(
            slot.channels is not None for slot in (*inputs, *outputs) if slot.type is PER_CHANNEL
        )
        and not any(
            slot.lifetime is NnapiLifetime.TEMPORARY_VARIABLE
            and (not slot.type.is_tensor or at in optional)
            for at, slot in enumerate(inputs)
        )
    )


def _alone(operation: NnapiOperation, operands: Sequence[OperandSlot]) -> FinishedSubgraph:
    """The model of one operation. Large constants become inputs: only `Model.finish` reads them."""
    packing, places = Packing(), {}
    listed, fed = [UNUSED], [0]
    for index in dict.fromkeys((*operation.inputs, *operation.outputs)):
        slot, places[index] = operands[index], len(listed)
        if index in operation.outputs:
            listed.append(slot.described(lifetime=NnapiLifetime.SUBGRAPH_OUTPUT))
        elif slot.lifetime is NnapiLifetime.NO_VALUE or slot.model is not None or slot.is_small:
            listed.append(packing.operand(slot))
        else:
            fed.append(len(listed))
            listed.append(slot.described(lifetime=NnapiLifetime.SUBGRAPH_INPUT))
    inputs = tuple(places[i] for i in operation.inputs)
    outputs = tuple(places[i] for i in operation.outputs)
    alone = NnapiOperation(operation.type, inputs, outputs)
    return packing.finished(NnapiSubgraph(tuple(listed), (alone,), tuple(fed), outputs))
