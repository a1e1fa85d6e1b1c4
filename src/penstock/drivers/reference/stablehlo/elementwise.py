"""StableHLO's elementwise functions.

Operands have one shape. A scalar is combined with each element of an array, so that a region may
run on many elements at once (`Region`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from penstock.drivers.reference.kernel import Inputs, Kernel, Outputs, Site, direct, kernel, require
from penstock.drivers.reference.structure.shape import cast
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray
from penstock.ir.types import FLOATS, INTEGERS, PACKED

Function = Callable[..., Any]

SMALL: Final = FLOATS - {DType.FLOAT32, DType.FLOAT64}
"""Floats that are computed in float32 and rounded once."""

COMPLEX: Final = frozenset({DType.COMPLEX64, DType.COMPLEX128})
BOOL: Final = frozenset({DType.BOOL})
WHOLE: Final = INTEGERS - PACKED
REAL: Final = FLOATS | WHOLE
ANALYTIC: Final = FLOATS | COMPLEX
ARITHMETIC: Final = REAL | COMPLEX
ANY: Final = ARITHMETIC | BOOL
SIGNED: Final = frozenset({DType.INT8, DType.INT16, DType.INT32, DType.INT64})


def aligned(arrays: Sequence[NDArray | None]) -> list[NDArray]:
    """The operands. Raises `ShapeMismatch` if two that are not scalars differ in shape."""
    given = [np.asarray(a) for a in arrays]
    shapes = {a.shape for a in given if a.ndim}
    if len(shapes) > 1:
        raise ShapeMismatch(f"operands of shapes {', '.join(str(a.shape) for a in given)}")
    return given


def elementwise(dtype: DType, function: Function) -> Kernel:
    """The kernel of an elementwise function whose result has the type *dtype* of its operands."""
    target = dtype.numpy
    wide = np.dtype(np.float32) if dtype in SMALL else target

    def run(inputs: Inputs) -> Outputs:
        given = [a.astype(wide, copy=False) for a in aligned(inputs)]
        return (np.asarray(function(*given)).astype(target, copy=False),)

    return run


def one_type(site: Site, types: frozenset[DType]) -> DType:
    """The type of all operands and the result. Raises `Unsupported` unless in *types*."""
    dtype = site.output().dtype
    if dtype not in types or any(o is None or o.dtype is not dtype for o in site.inputs):
        raise site.unsupported_types()
    return dtype


def larger(a: NDArray, b: NDArray) -> NDArray:
    """The larger of two, complex numbers lexicographically; the first if unordered."""
    return np.asarray(np.where(a < b, b, a))


def smaller(a: NDArray, b: NDArray) -> NDArray:
    return np.asarray(np.where(b < a, b, a))


def divided(a: NDArray, b: NDArray) -> NDArray:
    """`a / b`, integers truncated toward zero; integer division by zero raises."""
    if a.dtype.kind not in "iu":
        return np.asarray(a / b)
    if not np.all(b):
        raise ZeroDivisionError("division by zero")
    quotient = np.floor_divide(a, b)
    inexact = quotient * b != a
    return np.asarray(np.where(inexact & ((a < 0) != (b < 0)), quotient + 1, quotient))


def remainder(a: NDArray, b: NDArray) -> NDArray:
    """The remainder of `divided`, with the sign of `a`."""
    if a.dtype.kind in "iu" and not np.all(b):
        raise ZeroDivisionError("division by zero")
    return np.asarray(np.fmod(a, b))


def powered(a: NDArray, b: NDArray) -> NDArray:
    """`a` to the power of `b`. Integers wrap; negative exponents are truncated to 0 or +-1."""
    if a.dtype.kind not in "iu":
        return np.asarray(np.power(a, b))
    negative = b < 0
    if np.any(negative & (a == 0)):
        raise ZeroDivisionError("zero to a negative power")
    power = np.power(a, np.where(negative, b & 1, b).astype(a.dtype))
    return np.asarray(np.where(negative & (np.abs(a) != 1), 0, power))


def shifted_left(a: NDArray, b: NDArray) -> NDArray:
    """`a << b`; 0 if *b*, as an unsigned number, is not below the width."""
    inside = (b >= 0) & (b < 8 * a.dtype.itemsize)
    return np.asarray(np.where(inside, np.left_shift(a, np.where(inside, b, 0)), 0))


def cube_root(x: NDArray) -> NDArray:
    return np.asarray(np.power(x, 1 / 3) if x.dtype.kind == "c" else np.cbrt(x))


def logistic(x: NDArray) -> NDArray:
    """1 / (1 + exp(-x))."""
    one = x.dtype.type(1)
    return np.asarray(one / (one + np.exp(-x)))


def reciprocal_root(x: NDArray) -> NDArray:
    return np.asarray(x.dtype.type(1) / np.sqrt(x))


NAMED: Final[dict[str, tuple[Function, frozenset[DType]]]] = {
    "ABS": (np.abs, FLOATS | SIGNED),
    "NEGATE": (np.negative, ARITHMETIC),
    "CBRT": (cube_root, ANALYTIC),
    "COSINE": (np.cos, ANALYTIC),
    "EXPONENTIAL": (np.exp, ANALYTIC),
    "FLOOR": (np.floor, FLOATS),
    "LOG": (np.log, ANALYTIC),
    "LOGISTIC": (logistic, ANALYTIC),
    "RSQRT": (reciprocal_root, ANALYTIC),
    "TANH": (np.tanh, ANALYTIC),
    "ADD": (np.add, ANY),
    "SUBTRACT": (np.subtract, ARITHMETIC),
    "MULTIPLY": (np.multiply, ANY),
    "DIVIDE": (divided, ARITHMETIC),
    "REMAINDER": (remainder, REAL),
    "POWER": (powered, ARITHMETIC),
    "MAXIMUM": (larger, ANY),
    "MINIMUM": (smaller, ANY),
    "AND": (np.bitwise_and, WHOLE | BOOL),
    "OR": (np.bitwise_or, WHOLE | BOOL),
    "SHIFT_LEFT": (shifted_left, WHOLE),
}
"""Functions with the types they accept. Sum and product of booleans are OR and AND."""

FUNCTIONS: Final = {f"STABLEHLO_{name}": row for name, row in NAMED.items()}


@kernel(*FUNCTIONS)
def computed(site: Site) -> Kernel:
    """Functions of one or two operands; integers wrap."""
    compute, types = FUNCTIONS[site.operation.type]
    return elementwise(one_type(site, types), compute)


ORDERINGS: Final[dict[str, Function]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "GE": np.greater_equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
}


@kernel("STABLEHLO_COMPARE")
def compare(site: Site) -> Kernel:
    """Compares. The total order of floats is -NaN < -Inf < ... < -0 < +0 < ... < NaN."""
    direction = site.attributes.text("comparison_direction").rpartition("_")[2]
    total = site.attributes.text("compare_type").endswith("TOTAL_ORDER")
    order, dtype = ORDERINGS[direction], site.input(0).dtype
    site.require_types(dtype is site.input(1).dtype and dtype in ANY)
    require(dtype not in COMPLEX or direction in {"EQ", "NE"}, f"{direction} of complex numbers")
    ranked = total and dtype in FLOATS

    def run(inputs: Inputs) -> Outputs:
        a, b = (_rank(x) if ranked else x for x in aligned(inputs))
        return (np.asarray(order(a, b)).astype(bool, copy=False),)

    return run


def _rank(x: NDArray) -> NDArray:
    """Integers in the total order of the floats *x* (IEEE 754 totalOrder)."""
    bits = np.asarray(x, order="C").view(f"i{x.dtype.itemsize}")
    return np.asarray(np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits))


@kernel("STABLEHLO_CONVERT")
def convert(site: Site) -> Kernel:
    """The value in another type, as CAST converts it."""
    require(not {site.input(0).dtype, site.output().dtype} & PACKED, "conversion of packed types")
    return cast(site)


@kernel("STABLEHLO_CLAMP")
def clamp(site: Site) -> Kernel:
    dtype = one_type(site, REAL | BOOL)
    return elementwise(dtype, lambda low, x, high: np.minimum(np.maximum(x, low), high))


@direct(
    "STABLEHLO_SELECT", accepts=lambda s: s.input(1).dtype is s.input(2).dtype is s.output().dtype
)
def select(_: Site, inputs: Inputs) -> Outputs:
    """The first value if the condition is true, otherwise the second."""
    return (np.where(*aligned(inputs)),)
