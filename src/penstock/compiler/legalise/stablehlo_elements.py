"""StableHLO operations on the elements at one position.

Operands do not broadcast; a scalar is combined with each element (StableHLO specification).
Quantised types are their stored numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.compiler.expression import Value
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.comparing import COMPARISONS
from penstock.compiler.legalise.converting import cast
from penstock.compiler.legalise.elementwise import F32, I32, I64, MOVED, arguments, emit
from penstock.driverkit.site import require
from penstock.ir import DType

SMALL: Final = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.UINT16})
"""Integers that are computed as int32. They wrap at their own width, as uint32 does, in int64."""

NUMBERS: Final = SMALL | {F32, I32, I64, DType.UINT32}
FLOAT: Final = frozenset({F32})
BOOL: Final = frozenset({DType.BOOL})


def widened(x: Value) -> Value:
    """*x* in the type that its functions are computed in."""
    if x.dtype is DType.UINT32:
        return x.cast(I64)
    return x.cast(I32) if x.dtype in SMALL else x


def larger(a: Value, b: Value) -> Value:
    """The larger of two; the first if either is NaN."""
    return a.apply("or", b) if a.dtype is DType.BOOL else b.apply("maximum", a)


def smaller(a: Value, b: Value) -> Value:
    return a.apply("and", b) if a.dtype is DType.BOOL else b.apply("minimum", a)


def added(a: Value, b: Value) -> Value:
    return a.apply("or", b) if a.dtype is DType.BOOL else a + b


def multiplied(a: Value, b: Value) -> Value:
    return a.apply("and", b) if a.dtype is DType.BOOL else a * b


def divided(a: Value, b: Value) -> Value:
    """A / b. Integers are truncated toward zero, and the one quotient that does not fit wraps."""
    if a.dtype.is_float:
        return a / b
    return a.scope.select(a.scope.compare("equal", b, -1), -a, a / b)


def remainder(a: Value, b: Value) -> Value:
    """What `divided` leaves, with the sign of *a*."""
    if not a.dtype.is_float:
        return a - divided(a, b) * b
    size = a.apply("abs").apply("mod", b.apply("abs"))
    return a.scope.select(a < 0.0, -size, size)


def shifted_left(a: Value, b: Value) -> Value:
    """A << b; 0 if *b* is not below the width of the operand, or negative."""
    bits = a.dtype.bits or 0
    inside = (b < bits).apply("and", (b < 0).apply("not"))
    return a.scope.select(inside, a.apply("shift_left", b.clamp(0, bits - 1)), 0)


FUNCTIONS: Final[dict[str, tuple[Callable[..., Value], frozenset[DType]]]] = {
    "STABLEHLO_ABS": (lambda x: x.apply("abs"), frozenset({F32, I32, DType.INT16, DType.INT8})),
    "STABLEHLO_NEGATE": (lambda x: -x, NUMBERS),
    "STABLEHLO_COSINE": (lambda x: x.apply("cos"), FLOAT),
    "STABLEHLO_EXPONENTIAL": (lambda x: x.apply("exp"), FLOAT),
    "STABLEHLO_FLOOR": (lambda x: x.apply("floor"), FLOAT),
    "STABLEHLO_LOG": (lambda x: x.apply("log"), FLOAT),
    "STABLEHLO_LOGISTIC": (lambda x: x.apply("logistic"), FLOAT),
    "STABLEHLO_RSQRT": (lambda x: x.apply("rsqrt"), FLOAT),
    "STABLEHLO_TANH": (lambda x: x.apply("tanh"), FLOAT),
    "STABLEHLO_ADD": (added, NUMBERS | BOOL),
    "STABLEHLO_SUBTRACT": (lambda a, b: a - b, NUMBERS),
    "STABLEHLO_MULTIPLY": (multiplied, NUMBERS | BOOL),
    "STABLEHLO_DIVIDE": (divided, SMALL | {F32, I32}),
    "STABLEHLO_REMAINDER": (remainder, SMALL | {F32, I32}),
    "STABLEHLO_POWER": (lambda a, b: a.apply("power", b), FLOAT),
    "STABLEHLO_MAXIMUM": (larger, NUMBERS | BOOL),
    "STABLEHLO_MINIMUM": (smaller, NUMBERS | BOOL),
    "STABLEHLO_AND": (lambda a, b: a.apply("and", b), (NUMBERS - FLOAT) | BOOL),
    "STABLEHLO_OR": (lambda a, b: a.apply("or", b), (NUMBERS - FLOAT) | BOOL),
    "STABLEHLO_SHIFT_LEFT": (shifted_left, frozenset({I32, I64})),
}
"""Functions, and the types that they have kernels for."""

DIVISIONS: Final = frozenset(["STABLEHLO_DIVIDE", "STABLEHLO_REMAINDER"])


@legal(*FUNCTIONS)
def function(operation: Operation) -> None:
    """Functions of one or two operands. Integers wrap; a divisor of 0 fails the run."""
    site = operation.site
    compute, types = FUNCTIONS[site.operation.type]
    count = len(site.inputs)
    dtype = site.output().dtype
    if dtype not in types or any(site.input(i).dtype is not dtype for i in range(count)):
        site.refuse_types(types)
    require_aligned(operation, count)
    if site.operation.type in DIVISIONS and not dtype.is_float:
        operation.fail_if(1, "division by zero", lambda b: b.scope.compare("equal", b, 0))
    _, values = arguments(operation, count)
    emit(operation, compute(*(widened(v) for v in values)).cast(dtype), count)


def require_aligned(operation: Operation, count: int) -> None:
    """Refuses operands that are neither scalars nor of the result's shape."""
    made = operation.site.output_shape()
    shapes = [operation.site.shape(i) for i in range(count)]
    require(all(s in {(), made} for s in shapes), "operands of different shapes")


ORDERS: Final = {
    "EQ": COMPARISONS["EQUAL"],
    "NE": COMPARISONS["NOT_EQUAL"],
    "LT": COMPARISONS["LESS"],
    "LE": COMPARISONS["LESS_EQUAL"],
    "GT": COMPARISONS["GREATER"],
    "GE": COMPARISONS["GREATER_EQUAL"],
}
"""What each direction is of TFLite's comparisons."""


@legal("STABLEHLO_COMPARE")
def compare(operation: Operation) -> None:
    """Compares; floats by IEEE 754's total order where the operation says so."""
    site = operation.site
    name, swapped, negated = ORDERS[site.attributes.text("comparison_direction")[-2:]]
    total = site.attributes.text("compare_type").endswith("TOTAL_ORDER")
    scope, (a, b) = arguments(operation, 2)
    require(a.dtype is b.dtype and site.output().dtype is DType.BOOL, "types of this comparison")
    require(a.dtype in NUMBERS or (a.dtype is DType.BOOL and name == "equal"), "this comparison")
    require_aligned(operation, 2)
    order = ranked if total and a.dtype is F32 else widened
    a, b = order(a), order(b)
    first, second = (b, a) if swapped else (a, b)
    result = scope.compare(name, first, second)
    emit(operation, result.apply("not") if negated else result, 2)


def ranked(x: Value) -> Value:
    """An int32 whose order is the total one of floats."""
    bits = x.bitcast(I32)
    return x.scope.select(bits < 0, bits.apply("xor", 2**31 - 1), bits)


@legal("STABLEHLO_CONVERT")
def convert(operation: Operation) -> None:
    """The value in another type, as CAST converts it."""
    cast(operation)


@legal("STABLEHLO_CLAMP")
def clamp(operation: Operation) -> None:
    """The smaller of *high* and the larger of *low* and x; NaN if any of them is."""
    site = operation.site
    dtype = site.output().dtype
    if dtype not in NUMBERS or any(site.input(i).dtype is not dtype for i in range(3)):
        site.refuse_types(NUMBERS)
    require_aligned(operation, 3)
    _, values = arguments(operation, 3)
    low, x, high = (widened(v) for v in values)
    emit(operation, bound("minimum", bound("maximum", x, low), high).cast(dtype), 3)


def bound(kind: str, x: Value, limit: Value) -> Value:
    """*x* or *limit*, whichever *kind* chooses; NaN if either is."""
    if not x.dtype.is_float:
        return x.apply(kind, limit)
    # Of two floats, `maximum` and `minimum` choose the second where either is NaN.
    chosen = limit.apply(kind, x)
    return x.scope.select(x.scope.compare("equal", limit, limit), chosen, limit)


@legal("STABLEHLO_SELECT")
def select(operation: Operation) -> None:
    """The first value if the condition is true, otherwise the second."""
    site = operation.site
    scope, (condition, a, b) = arguments(operation, 3)
    require(condition.dtype is DType.BOOL, "a condition of another type than bool")
    require(a.dtype is b.dtype is site.output().dtype in MOVED, "types of this choice")
    require_aligned(operation, 3)
    emit(operation, scope.select(condition, a, b), 3)
