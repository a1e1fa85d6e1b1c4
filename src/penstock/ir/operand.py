"""`Operand`: a typed slot for a value, and where its value lives (NNAPI section 6.1)."""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct

from penstock.ir.extension import ExtensionType
from penstock.ir.types import DType, Quantization, Shape

MAX_COPIED_VALUE: Final = 128
"""Constants up to this many bytes are held in the model itself (NNAPI section 1.1)."""


class Lifetime(enum.Enum):
    """Who writes an operand, and when. A subgraph output may also be an input or a constant: it
    then keeps that lifetime and merely stands in `outputs` too.
    """

    TEMPORARY_VARIABLE = "temporary"
    SUBGRAPH_INPUT = "input"
    SUBGRAPH_OUTPUT = "output"
    CONSTANT_COPY = "constant_copy"
    CONSTANT_POOL = "constant_pool"
    NO_VALUE = "no_value"

    __hash__ = object.__hash__

    @property
    def is_constant(self) -> bool:
        return self is Lifetime.CONSTANT_COPY or self is Lifetime.CONSTANT_POOL


class DataLocation(Struct, frozen=True):
    """*length* bytes at *offset* of pool number *pool*."""

    pool: int
    offset: int
    length: int


class Origin(Struct, frozen=True):
    """Where an item stood in the file it was loaded from; never part of the digest.

    *opcode* is the file's operator code number and *version* its operator version (operations
    only).
    """

    subgraph: int
    index: int
    opcode: int | None = None
    version: int | None = None


class Operand(Struct, frozen=True, eq=False, gc=False):
    """One typed value slot of a subgraph.

    A CONSTANT_COPY operand has *value* (its packed little-endian bytes), a CONSTANT_POOL operand
    *location*; a NO_VALUE operand stands for an omitted optional input. String constants are stored
    in TFLite's string-tensor layout (count, offsets, bytes). Names and origins do not count when
    operands are compared.

    *shape_declared* is False for a computed value to which its TFLite file gives no dimensions, and
    stays so when *shape* is inferred: LiteRT chooses kernels by what the file has.

    *extension* is the type of an operand whose values only the driver of a vendor's extension
    understands. Such an operand is uint8, and the bytes of each element are its last dimension.
    """

    dtype: DType
    shape: Shape
    lifetime: Lifetime = Lifetime.TEMPORARY_VARIABLE
    name: str = ""
    quantization: Quantization | None = None
    value: bytes | None = None
    location: DataLocation | None = None
    origin: Origin | None = None
    shape_declared: bool = True
    extension: ExtensionType | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operand) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def _compared(self) -> tuple[object, ...]:
        return (
            self.dtype,
            self.shape,
            self.lifetime,
            self.quantization,
            self.value,
            self.location,
            self.shape_declared,
            self.extension,
        )

    @property
    def is_constant(self) -> bool:
        return self.lifetime.is_constant

    @property
    def has_value(self) -> bool:
        return self.lifetime is not Lifetime.NO_VALUE


OMITTED: Final = Operand(DType.FLOAT32, (), Lifetime.NO_VALUE)
"""The operand that an omitted optional input refers to."""


def plain_dimensions(operand: Operand) -> Shape:
    """The dimensions of *operand* without the bytes of an extension's element."""
    if operand.extension is None or operand.shape is None:
        return operand.shape
    return operand.shape[:-1]
