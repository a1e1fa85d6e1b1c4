"""An NNAPI model as a frozen value: operands with NNAPI's types, operations, subgraphs.

NNAPI's object model builds this value, and files of NNAPI models contain it. Construction checks
nothing; `penstock.nnapi.lowering.lower` checks NNAPI's rules (NNAPI sections 8.1 to 8.5).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from penstock.ir import ConstantPool, DataLocation, DType
from penstock.ir.types import Shape, byte_size

MAXIMUM_FEATURE_LEVEL: Final = 8


class OperandType(enum.Enum):
    """NNAPI's operand types by their codes (NNAPI section 8.1)."""

    FLOAT32, INT32, UINT32, TENSOR_FLOAT32, TENSOR_INT32, TENSOR_QUANT8_ASYMM = range(6)
    BOOL, TENSOR_QUANT16_SYMM, TENSOR_FLOAT16, TENSOR_BOOL8, FLOAT16 = range(6, 11)
    TENSOR_QUANT8_SYMM_PER_CHANNEL, TENSOR_QUANT16_ASYMM, TENSOR_QUANT8_SYMM = range(11, 14)
    TENSOR_QUANT8_ASYMM_SIGNED, SUBGRAPH = range(14, 16)

    __hash__ = object.__hash__

    @property
    def is_tensor(self) -> bool:
        return self.name.startswith("TENSOR_")

    @property
    def is_quantized(self) -> bool:
        return "QUANT" in self.name

    @property
    def dtype(self) -> DType:
        """The element type of its values in the IR; a SUBGRAPH has none."""
        return _DTYPES[self.name.removeprefix("TENSOR_")]

    @property
    def feature_level(self) -> int:
        """The level that introduced the type: 1 below code 6, 3 below code 14, otherwise 4."""
        return 1 if self.value < 6 else 3 if self.value < 14 else 4


_DTYPES: Final[Mapping[str, DType]] = {
    **{dtype.name: dtype for dtype in (DType.FLOAT32, DType.INT32, DType.UINT32, DType.FLOAT16)},
    **dict.fromkeys(("BOOL", "BOOL8"), DType.BOOL),
    **dict.fromkeys(("QUANT8_SYMM", "QUANT8_SYMM_PER_CHANNEL", "QUANT8_ASYMM_SIGNED"), DType.INT8),
    "QUANT8_ASYMM": DType.UINT8,
    "QUANT16_SYMM": DType.INT16,
    "QUANT16_ASYMM": DType.UINT16,
}
"""Element types by the name of an operand type without `TENSOR_`."""


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
    is_quantized: ClassVar = False
    """Never: only the driver knows."""
    dtype: ClassVar = DType.UINT8
    """An element's bytes are the last dimension in the IR."""
    feature_level: ClassVar = 3
    """The level that introduced extensions."""

    @property
    def name(self) -> str:
        """`com.example.fibonacci:1`."""
        return f"{self.extension}:{self.code}"


AnyType: TypeAlias = "OperandType | ExtensionType"


def ir_shape(kind: AnyType, dimensions: Shape) -> Shape:
    """The shape in the IR of an operand of these dimensions."""
    if isinstance(kind, ExtensionType) and dimensions is not None:
        return (*dimensions, kind.byte_size)
    return dimensions


def value_size(kind: AnyType, dimensions: Iterable[int | None]) -> int:
    """Bytes of a value of fully known dimensions; `ShapeOverflow` beyond 64-bit sizes."""
    return byte_size(kind.dtype, ir_shape(kind, tuple(dimensions)) or ()) or 0


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

    @property
    def is_written(self) -> bool:
        """Whether an operation writes the operand."""
        return self in {NnapiLifetime.TEMPORARY_VARIABLE, NnapiLifetime.SUBGRAPH_OUTPUT}


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
