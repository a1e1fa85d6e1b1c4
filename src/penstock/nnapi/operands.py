"""Operands of a model that is being built."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.ir import ConstantPool, DataLocation
from penstock.ir.types import Shape, is_static
from penstock.nnapi.codes import MAX_SIZE_OF_IMMEDIATELY_COPIED_VALUES
from penstock.nnapi.description import (
    MAXIMUM_FEATURE_LEVEL,
    AnyType,
    ChannelQuantization,
    NnapiLifetime,
    NnapiOperand,
    NnapiSubgraph,
    OperandType,
    value_size,
)
from penstock.nnapi.failures import bad_data, translated
from penstock.nnapi.lowering.operands import check_operand

PER_CHANNEL: Final = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL


@dataclass(frozen=True, slots=True)
class FinishedSubgraph:
    """One finished model without those it refers to: pool and subgraph numbers of its operands
    count *pools* and *referenced*.
    """

    subgraph: NnapiSubgraph
    pools: tuple[ConstantPool, ...]
    referenced: tuple[FinishedSubgraph, ...]


@dataclass(slots=True)
class OperandSlot:
    """One operand on its way: its type, and of *value* (copied, or read when the model is
    finished), *memory* with *offset* and *length*, and *model* at most one.
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
        """Gives it another value; the last one counts."""
        self.lifetime, self.value, self.memory, self.model = lifetime, value, memory, model
        self.location = None if memory is None else DataLocation(0, offset, length)

    def release(self) -> None:
        """Lets go of the caller's memory and models."""
        self.set(self.lifetime)

    def check_type(self) -> None:
        """Raises BAD_DATA where dimensions, scale and zero point are not those of its type (NNAPI
        section 8.1).
        """
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
        """The size of its values; BAD_DATA where it is not fully specified."""
        if self.type is OperandType.SUBGRAPH:
            raise bad_data("an operand that stands for a model has no bytes")
        if self.dimensions is None or not is_static(self.dimensions):
            raise bad_data("the dimensions of a constant must be known")
        return value_size(self.type, self.dimensions)

    @property
    def is_small(self) -> bool:
        """Whether it is a constant of a size that is copied at once."""
        length = self.location.length if self.location is not None else None
        if self.value is not None:
            length = len(self.value)
        return length is not None and length <= MAX_SIZE_OF_IMMEDIATELY_COPIED_VALUES

    def set_channels(self, dimension: int, scales: Sequence[float]) -> None:
        """Gives it the scales of its channels; BAD_DATA where it cannot have these."""
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
        """It as a value, which lies where the arguments say."""
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
