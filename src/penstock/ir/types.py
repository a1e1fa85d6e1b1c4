"""Element types, shapes and quantisation of operands."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import force_setattr

from penstock.arguments import check_kind
from penstock.errors import InputError, InvalidQuantization, ShapeOverflow

Shape: TypeAlias = "tuple[int | None, ...] | None"
"""A shape. A dimension of None is unknown (0 is a known dimension). A shape of None has unknown
rank.
"""

NDArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]

MAX_BYTES: Final = 2**63 - 1

MAX_RANK: Final = 32
"""Greatest number of dimensions of an operand. NumPy's limit is 64; formats have at most 8."""


class DType(enum.Enum):
    """Element type of an operand. Its value is the name that users see (NumPy's name, if there is
    one).
    """

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT64 = "float64"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    INT2 = "int2"
    INT4 = "int4"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT4 = "uint4"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    BOOL = "bool"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    STRING = "string"
    RESOURCE = "resource"
    VARIANT = "variant"

    # Members are singletons. Identity hashing saves a call for each use of a set of types.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        """Equal to itself, and to every dtype that NumPy uses for arrays of this type."""
        if self is other:
            return True
        if isinstance(other, DType) or other is None:
            return False
        try:
            given: Any = other
            return self not in _OPAQUE and bool(np.dtype(given) == self.numpy)
        except TypeError:
            return NotImplemented

    @property
    def bits(self) -> int | None:
        """Size of one packed element in a constant, in bits; None for types without a fixed
        size.
        """
        return _BITS[self]

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype of arrays of this type: ml-dtypes' dtype if NumPy has none, object for
        strings.
        """
        return _numpy_dtype(self)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The same dtype. This name lets NumPy accept a member as a dtype."""
        return _numpy_dtype(self)

    @property
    def is_float(self) -> bool:
        return self in FLOATS

    @property
    def is_integer(self) -> bool:
        return self in INTEGERS


FLOATS: Final = frozenset(
    {
        DType.FLOAT32,
        DType.FLOAT16,
        DType.BFLOAT16,
        DType.FLOAT64,
        DType.FLOAT8_E4M3FN,
        DType.FLOAT8_E5M2,
    }
)
INTEGERS: Final = frozenset(d for d in DType if d.value.startswith(("int", "uint")))
PACKED: Final = frozenset({DType.INT2, DType.INT4, DType.UINT4})
"""Types of less than a byte. Constants store them packed, low bits first; arrays store one element
in a byte.
"""

_OPAQUE = frozenset({DType.STRING, DType.RESOURCE, DType.VARIANT})
_ML_DTYPES = frozenset(
    {DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2, DType.INT2, DType.INT4, DType.UINT4}
)
_BITS: Final[dict[DType, int | None]] = {
    d: None
    if d in _OPAQUE
    else 8
    if d is DType.BOOL
    else int("".join(filter(str.isdigit, d.value.split("_")[0])))
    for d in DType
} | {DType.BFLOAT16: 16}


@cache
def _numpy_dtype(dtype: DType) -> np.dtype[Any]:
    if dtype in _OPAQUE:
        return np.dtype(object)
    if dtype in _ML_DTYPES:
        import ml_dtypes

        custom: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype.value))
        return custom
    return np.dtype(dtype.value)


@cache
def dtype_of(array_dtype: np.dtype[Any]) -> DType | None:
    """The operand type whose arrays have this NumPy dtype, or None (objects count as strings)."""
    if array_dtype.kind in "OSU":
        return DType.STRING
    try:
        return DType(array_dtype.name)
    except ValueError:
        return None


def is_masked(value: object) -> bool:
    """Whether *value* is an array that hides some of its values (`numpy.ma`). A masked array that
    hides none counts as an ordinary array.
    """
    return isinstance(value, np.ndarray) and bool(np.any(getattr(value, "mask", False)))


def is_static(shape: Shape) -> bool:
    """Whether rank and every dimension are known."""
    return shape is not None and None not in shape


def static_shape(shape: Shape) -> tuple[int, ...] | None:
    """*shape* if it is fully known; otherwise None."""
    if shape is None or None in shape:
        return None
    return tuple(d for d in shape if d is not None)


def agrees(declared: Shape, given: Sequence[int | None]) -> bool:
    """Whether a value of shape *given* fits an operand of shape *declared*."""
    return declared is None or (
        len(declared) == len(given)
        and all(d is None or d == g for d, g in zip(declared, given, strict=True))
    )


def element_count(shape: Iterable[int | None]) -> int:
    """Number of elements of a fully known shape. Raises `ShapeOverflow` beyond 64-bit sizes."""
    count = 1
    for dimension in shape:
        if dimension is None or dimension < 0:
            raise ShapeOverflow(f"dimension {dimension} of {tuple(shape)} has no element count")
        count *= dimension
    if count > MAX_BYTES:
        raise ShapeOverflow(f"{tuple(shape)} has more elements than 64 bits can count")
    return count


def byte_size(dtype: DType, shape: Iterable[int | None]) -> int | None:
    """Size, in bytes, of a packed constant of this type and known shape; None if elements have no
    fixed size.
    """
    if (bits := dtype.bits) is None:
        return None
    size = (element_count(shape) * bits + 7) // 8
    if size > MAX_BYTES:
        raise ShapeOverflow(f"{tuple(shape)} of {dtype.value} exceeds 64-bit sizes")
    return size


class Compared(Struct, frozen=True, eq=False):
    """A struct that is compared and hashed by its `_compared` alone."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def _compared(self) -> tuple[object, ...]:
        raise NotImplementedError


class Quantization(Struct, frozen=True):
    """Affine quantisation: real = scale * (stored - zero_point).

    One scale and zero point for the whole operand (*dimension* None), or one pair for each index of
    *dimension*. Scales are float32 values stored as Python floats. In TFLite, scale 0 means "not
    quantised"; loaders do not create a `Quantization` for it. (TFLite quantisation specification;
    NNAPI section 8.1.)
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    dimension: int | None = None

    def __post_init__(self) -> None:
        for name, numbers in (("scales", self.scales), ("zero points", self.zero_points)):
            check_kind(
                numbers, (tuple, list), f"{name} are a tuple of numbers, one for each channel"
            )
        if not self.scales or len(self.scales) != len(self.zero_points):
            raise InvalidQuantization(
                f"{len(self.scales)} scales and {len(self.zero_points)} zero points; one of each "
                "per channel is needed"
            )
        if self.dimension is None and len(self.scales) != 1:
            raise InvalidQuantization(f"{len(self.scales)} scales without a quantised dimension")
        try:
            sound = math.isfinite(sum(self.scales)) and min(self.scales) >= 0.0
            whole = isinstance(sum(self.zero_points), int | np.integer)
        except TypeError:
            sound = whole = False
        if not whole:
            raise InputError("scales are numbers, and zero points whole numbers")
        if not sound:
            raise InvalidQuantization("a scale is negative, infinite or not a number")

    @property
    def scale(self) -> float:
        """The single scale of per-tensor quantisation (the first one otherwise)."""
        return self.scales[0]

    @property
    def zero_point(self) -> int:
        """The single zero point of per-tensor quantisation (the first one otherwise)."""
        return self.zero_points[0]

    @property
    def per_channel(self) -> bool:
        return self.dimension is not None


def restored_quantization(
    scales: tuple[float, ...], zero_points: tuple[int, ...], dimension: int | None
) -> Quantization:
    """The quantisation that had these values. Nothing is checked."""
    # A copy of a struct is made without a call of its `__post_init__`.
    made: Quantization = _PER_TENSOR.__copy__()  # type: ignore[attr-defined]  # structs have it
    force_setattr(made, "scales", scales)
    force_setattr(made, "zero_points", zero_points)
    force_setattr(made, "dimension", dimension)
    return made


_PER_TENSOR: Final = Quantization((1.0,), (0,))
