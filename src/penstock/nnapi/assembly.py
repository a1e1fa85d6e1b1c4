"""A model under construction: its operands, checks of a new operation, and the finished model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from penstock.errors import NotLowerable
from penstock.ir import ConstantPool, DataLocation
from penstock.ir.types import is_static
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
from penstock.nnapi.lowering.validation import check_channels, check_operand

PER_CHANNEL: Final = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL


@dataclass(frozen=True, slots=True)
class FinishedSubgraph:
    """A finished model. Its pool and subgraph numbers index *pools* and *referenced*."""

    subgraph: NnapiSubgraph
    pools: tuple[ConstantPool, ...]
    referenced: tuple[FinishedSubgraph, ...]


@dataclass(slots=True)
class OperandSlot:
    """An operand under construction, and at most one source of its value: bytes (copied now or by
    `finish`), *memory* at the operand's location, or another *model*.
    """

    operand: NnapiOperand
    value: memoryview | None = None
    memory: ConstantPool | None = None
    model: FinishedSubgraph | None = None

    @property
    def type(self) -> AnyType:
        return self.operand.type

    @property
    def lifetime(self) -> NnapiLifetime:
        return self.operand.lifetime

    def set(
        self,
        lifetime: NnapiLifetime,
        *,
        value: memoryview | None = None,
        memory: ConstantPool | None = None,
        location: DataLocation | None = None,
        model: FinishedSubgraph | None = None,
    ) -> None:
        """Replaces the value."""
        self.operand = replace(self.operand, lifetime=lifetime, location=location)
        self.value, self.memory, self.model = value, memory, model

    def check_type(self) -> None:
        """Raises BAD_DATA if dimensions, scale or zero point do not fit (NNAPI section 8.1)."""
        alone = self.operand
        if self.type is PER_CHANNEL:
            if alone.scale != 0 or alone.zero_point != 0:
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
        dimensions = self.operand.dimensions
        if dimensions is None or not is_static(dimensions):
            raise bad_data("the dimensions of a constant must be known")
        return value_size(self.type, dimensions)

    @property
    def is_small(self) -> bool:
        """Whether it is a constant that is small enough to be copied at once."""
        place = self.operand.location
        length = None if place is None else place.length
        if self.value is not None:
            length = len(self.value)
        return length is not None and length <= MAX_SIZE_OF_IMMEDIATELY_COPIED_VALUES

    def set_channels(self, dimension: int, scales: Sequence[float]) -> None:
        """Sets the scales of its channels. Raises BAD_DATA if they do not fit."""
        if self.type is not PER_CHANNEL:
            raise bad_data(f"a {self.type.name} has no scales for channels")
        channels, dimensions = (
            ChannelQuantization(dimension, tuple(scales)),
            self.operand.dimensions,
        )
        with translated():
            check_channels(dimensions, channels)
        if dimensions is not None and dimensions[dimension] is None:
            raise bad_data(f"{len(scales)} scales for an unknown number of channels")
        self.operand = replace(self.operand, channel_quantization=channels)


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
        operand, value, place = slot.operand, slot.value, slot.operand.location
        if value is not None:
            if len(value) <= MAX_SIZE_OF_IMMEDIATELY_COPIED_VALUES:
                return replace(operand, value=bytes(value))
            self.own += bytes(-len(self.own) % ALIGNMENT)
            place = DataLocation(OWN_POOL, len(self.own), len(value))
            self.own += value
            return replace(operand, location=place, lifetime=NnapiLifetime.CONSTANT_POOL)
        if slot.memory is not None and place is not None:
            pool = _place(slot.memory, self.pools, self._places)
            return replace(operand, location=DataLocation(pool, place.offset, place.length))
        if slot.model is not None:
            return replace(operand, subgraph=_place(slot.model, self.models, self._places))
        return operand

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
        operands = []
        for operand in model.subgraph.operands:
            renumbered = operand
            if (place := operand.location) is not None:
                pool = len(pools) + place.pool % len(model.pools)
                moved = DataLocation(pool, place.offset, place.length)
                renumbered = replace(operand, location=moved)
            elif operand.subgraph is not None:
                number = numbers[id(model.referenced[operand.subgraph])]
                renumbered = replace(operand, subgraph=number)
            operands.append(renumbered)
        subgraphs.append(replace(model.subgraph, operands=tuple(operands)))
        pools += model.pools
    return NnapiModel(subgraphs[0], tuple(subgraphs[1:]), tuple(pools), relaxed)


def in_run_order(
    operands: Sequence[OperandSlot], operations: Sequence[NnapiOperation]
) -> list[int]:
    """A topological order of the operations (NNAPI section 1.5).

    Of several ready operations, the last to become ready comes first. Raises BAD_DATA for a cycle,
    and for an operand that no operation writes.
    """
    readers: dict[int, list[int]] = {}
    waiting = [0] * len(operations)
    for at, operation in enumerate(operations):
        for operand in operation.inputs:
            if operands[operand].lifetime.is_written:
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
        given, wanted = ([slot.operand for slot in slots] for slots in (inputs, outputs))
        match = rule_of(operation.type).match(given, wanted, MAXIMUM_FEATURE_LEVEL)
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
    scaled = [s for s in (*inputs, *outputs) if s.type is PER_CHANNEL]
    return (
        bool(outputs)
        and len(written) == len(outputs)
        and written.isdisjoint(operation.inputs)
        and all(slot.lifetime.is_written for slot in outputs)
        and all(slot.operand.channel_quantization is not None for slot in scaled)
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
            listed.append(replace(slot.operand, lifetime=NnapiLifetime.SUBGRAPH_OUTPUT))
        elif slot.lifetime is NnapiLifetime.NO_VALUE or slot.model is not None or slot.is_small:
            listed.append(packing.operand(slot))
        else:
            fed.append(len(listed))
            listed.append(
                replace(slot.operand, lifetime=NnapiLifetime.SUBGRAPH_INPUT, location=None)
            )
    inputs = tuple(places[i] for i in operation.inputs)
    outputs = tuple(places[i] for i in operation.outputs)
    alone = NnapiOperation(operation.type, inputs, outputs)
    return packing.finished(NnapiSubgraph(tuple(listed), (alone,), tuple(fed), outputs))
