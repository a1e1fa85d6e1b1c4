"""An NNAPI model as a frozen value: operands with NNAPI's types, operations, subgraphs.

NNAPI's object model builds this value, and files of NNAPI models contain it. Construction checks
nothing; `penstock.nnapi.lowering.lower` checks NNAPI's rules (NNAPI sections 8.1 to 8.5).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.ir import ConstantPool, DataLocation, DType
from penstock.ir.types import Shape, byte_size

MAXIMUM_FEATURE_LEVEL: Final = 8
EXPERIMENTAL: Final = 9
"""The level of experimental operations: above every feature level."""


class OperandType(enum.Enum):
    """NNAPI's operand types by their codes (NNAPI section 8.1)."""

    FLOAT32 = 0
    INT32 = 1
    UINT32 = 2
    TENSOR_FLOAT32 = 3
    TENSOR_INT32 = 4
    TENSOR_QUANT8_ASYMM = 5
    BOOL = 6
    TENSOR_QUANT16_SYMM = 7
    TENSOR_FLOAT16 = 8
    TENSOR_BOOL8 = 9
    FLOAT16 = 10
    TENSOR_QUANT8_SYMM_PER_CHANNEL = 11
    TENSOR_QUANT16_ASYMM = 12
    TENSOR_QUANT8_SYMM = 13
    TENSOR_QUANT8_ASYMM_SIGNED = 14
    SUBGRAPH = 15

    __hash__ = object.__hash__

    @property
    def is_tensor(self) -> bool:
        return self.name.startswith("TENSOR_")

    @property
    def is_scalar(self) -> bool:
        return not self.is_tensor and self is not OperandType.SUBGRAPH

    @property
    def is_quantized(self) -> bool:
        return "QUANT" in self.name

    @property
    def dtype(self) -> DType:
        """The element type of its values in the IR; a SUBGRAPH has none."""
        return DTYPES[self]

    @property
    def feature_level(self) -> int:
        """The level that introduced the type."""
        return _LEVELS.get(self, 1)


@dataclass(frozen=True, slots=True)
class ExtensionType:
    """An operand type of a vendor's extension (NNAPI section 8.6).

    It has number *code* within *extension*, and *byte_size* bytes per element. Only the extension's
    drivers interpret the bytes.
    """

    extension: str
    code: int
    byte_size: int
    is_tensor: bool

    @property
    def name(self) -> str:
        """`com.example.fibonacci:1`."""
        return f"{self.extension}:{self.code}"

    @property
    def is_scalar(self) -> bool:
        return not self.is_tensor

    @property
    def is_quantized(self) -> bool:
        """Never: only the driver knows."""
        return False

    @property
    def dtype(self) -> DType:
        """UINT8. An element's bytes are the last dimension in the IR."""
        return DType.UINT8

    @property
    def feature_level(self) -> int:
        """The level that introduced extensions."""
        return 3


AnyType: TypeAlias = "OperandType | ExtensionType"


def ir_shape(kind: AnyType, dimensions: Shape) -> Shape:
    """The shape in the IR of an operand of these dimensions."""
    if isinstance(kind, ExtensionType) and dimensions is not None:
        return (*dimensions, kind.byte_size)
    return dimensions


def value_size(kind: AnyType, dimensions: Iterable[int | None]) -> int:
    """Bytes of a value of fully known dimensions; `ShapeOverflow` beyond 64-bit sizes."""
    return byte_size(kind.dtype, ir_shape(kind, tuple(dimensions)) or ()) or 0


DTYPES: Final[Mapping[OperandType, DType]] = {
    OperandType.FLOAT32: DType.FLOAT32,
    OperandType.INT32: DType.INT32,
    OperandType.UINT32: DType.UINT32,
    OperandType.BOOL: DType.BOOL,
    OperandType.FLOAT16: DType.FLOAT16,
    OperandType.TENSOR_FLOAT32: DType.FLOAT32,
    OperandType.TENSOR_INT32: DType.INT32,
    OperandType.TENSOR_QUANT8_ASYMM: DType.UINT8,
    OperandType.TENSOR_QUANT16_SYMM: DType.INT16,
    OperandType.TENSOR_FLOAT16: DType.FLOAT16,
    OperandType.TENSOR_BOOL8: DType.BOOL,
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL: DType.INT8,
    OperandType.TENSOR_QUANT16_ASYMM: DType.UINT16,
    OperandType.TENSOR_QUANT8_SYMM: DType.INT8,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: DType.INT8,
}

_LEVELS: Final[Mapping[OperandType, int]] = {
    **dict.fromkeys(
        (
            OperandType.BOOL,
            OperandType.TENSOR_QUANT16_SYMM,
            OperandType.TENSOR_FLOAT16,
            OperandType.TENSOR_BOOL8,
            OperandType.FLOAT16,
            OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
            OperandType.TENSOR_QUANT16_ASYMM,
            OperandType.TENSOR_QUANT8_SYMM,
        ),
        3,
    ),
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: 4,
    OperandType.SUBGRAPH: 4,
}


class NnapiLifetime(enum.Enum):
    """How an operand gets its value, and when (NNAPI section 6.1)."""

    TEMPORARY_VARIABLE = "temporary"
    SUBGRAPH_INPUT = "input"
    SUBGRAPH_OUTPUT = "output"
    CONSTANT_COPY = "constant_copy"
    CONSTANT_POOL = "constant_pool"
    NO_VALUE = "no_value"
    SUBGRAPH = "subgraph"

    __hash__ = object.__hash__

    @property
    def is_constant(self) -> bool:
        return self in {NnapiLifetime.CONSTANT_COPY, NnapiLifetime.CONSTANT_POOL}


@dataclass(frozen=True, slots=True)
class ChannelQuantization:
    """Scales of a TENSOR_QUANT8_SYMM_PER_CHANNEL, one for each index of *dimension*."""

    dimension: int
    scales: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class NnapiOperand:
    """One operand.

    *dimensions* is () for a scalar. None for one dimension means unknown (NNAPI writes 0). None for
    the whole means an unknown rank. 0 is a real dimension, which NNAPI allows only in a run. A
    CONSTANT_COPY has *value*, a CONSTANT_POOL *location*, both little-endian and dense. A SUBGRAPH
    has *subgraph*, an index into `NnapiModel.referenced`. *extension_data* belongs to operands of
    extension types.
    """

    type: AnyType
    dimensions: Shape = ()
    lifetime: NnapiLifetime = NnapiLifetime.TEMPORARY_VARIABLE
    scale: float = 0.0
    zero_point: int = 0
    channel_quantization: ChannelQuantization | None = None
    value: bytes | None = None
    location: DataLocation | None = None
    subgraph: int | None = None
    name: str = ""
    extension_data: bytes = b""


@dataclass(frozen=True, slots=True)
class NnapiOperation:
    """One operation: NNAPI's name, or an extension's key, and operand indexes."""

    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NnapiSubgraph:
    """Operands, inputs, outputs, and operations in topological order."""

    operands: tuple[NnapiOperand, ...]
    operations: tuple[NnapiOperation, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class NnapiModel:
    """The main subgraph, those that IF and WHILE refer to, and the pools of constants. *relaxed*
    allows float32 to be computed with the range and precision of float16.
    """

    main: NnapiSubgraph
    referenced: tuple[NnapiSubgraph, ...] = ()
    pools: tuple[ConstantPool, ...] = ()
    relaxed: bool = False
