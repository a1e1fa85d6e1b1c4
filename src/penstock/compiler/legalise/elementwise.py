"""Operations on the elements at one position: arithmetic, and what other rules share.

Quantised functions are written as integer arithmetic, or as float arithmetic on dequantised values
where TFLite computes its tables so. `penstock.compiler.tabulate` makes a table of a chain that
depends on one 8-bit value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from penstock.compiler.arithmetic import evaluate
from penstock.compiler.expression import Number, Scope, Value
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.fixed import reciprocal
from penstock.compiler.legalise.quantised import (
    GREATEST,
    NARROW,
    STORED,
    bounds_of,
    integer_range,
    limits_of,
    rescale,
    scale_of,
)
from penstock.driverkit.fixed_point import power_of_two, quantize_multiplier
from penstock.driverkit.site import require
from penstock.driverkit.tables_16 import interpolation_table
from penstock.ir import DType, NDArray

F32, I32, I64 = DType.FLOAT32, DType.INT32, DType.INT64
PLAIN: Final = frozenset({F32, I32, I64})
WHOLE: Final = frozenset(
    {DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32, DType.UINT32}
)
MOST_ADDED: Final = 64
MOVED: Final = WHOLE | PLAIN | {DType.BOOL, DType.FLOAT16, DType.FLOAT64, DType.UINT64}
"""The types of elements that are moved unchanged."""


def arguments(operation: Operation, count: int) -> tuple[Scope, list[Value]]:
    """The scope of an expression of the first *count* inputs, and these."""
    dtypes = [operation.site.input(i).dtype for i in range(count)]
    scope = Scope(*dtypes)
    return scope, [scope.argument(i) for i in range(count)]


def emit(operation: Operation, result: Value, count: int) -> None:
    """Adds the kernel that computes *result* of the first *count* inputs."""
    site = operation.site
    target = site.output().dtype
    require(result.dtype is target, f"a result of {target.value}")
    sources = [operation.tensor(i) for i in range(count)]
    name = site.operation.type.lower()
    operation.elementwise(name, result.scope.finish(result), sources)


def is_stored(operation: Operation, position: int = 0) -> bool:
    """Whether input *position* is quantised. 8-bit types always are, int16 if it has a scale."""
    operand = operation.site.input(position)
    return operand.dtype in NARROW or (
        operand.dtype is DType.INT16 and operand.quantization is not None
    )


def same_types(operation: Operation, accepted: frozenset[DType], count: int = 2) -> DType:
    """The one type of the first *count* inputs and the output."""
    site = operation.site
    found = {site.input(i).dtype for i in range(count)} | {site.output().dtype}
    if len(found) > 1 or not found <= accepted:
        site.refuse_types(accepted)
    return site.output().dtype


def stored(result: Value, operation: Operation, limits: tuple[int, int] | None = None) -> Value:
    """An int32 *result* plus the output's zero point, clamped, as the output's type."""
    output = operation.site.output()
    made = scale_of(output, "a result")
    low, high = limits or integer_range(output.dtype)
    return (result + made.zero_point).clamp(low, high).cast(output.dtype)


def centred(value: Value, operation: Operation, position: int) -> Value:
    """Stored values minus their zero point, as int32."""
    given = scale_of(operation.site.input(position), f"input {position}")
    wide = value.cast(I32)
    return wide - given.zero_point if given.zero_point else wide


GREATEST_HALF: Final = float(np.finfo(np.float16).max)

PAIRS: Final = {"ADD": "add", "SUB": "sub", "MUL": "mul", "DIV": "div"}


SUMMED: Final = PLAIN | {DType.INT16}
TYPES: Final = {
    "ADD": SUMMED,
    "SUB": SUMMED,
    "MUL": SUMMED | {DType.UINT32},
    "DIV": frozenset({F32, I32}),
}
"""The types of plain arithmetic, by operation."""


@legal("ADD", "SUB", "MUL", "DIV")
def arithmetic(operation: Operation) -> None:
    """A + b and its kin, broadcast, with a fused activation. Integers wrap, floats stay finite.
    Quotients of integers are truncated toward zero, and a divisor of 0 fails the run.
    """
    site = operation.site
    kind = site.operation.type
    if is_stored(operation):
        same_types(operation, STORED)
        if kind == "DIV":
            zero = scale_of(site.input(1), "input 1").zero_point
            operation.fail_if(1, "division by zero", lambda b: b.scope.compare("equal", b, zero))
            compute = _quantised_quotient
        else:
            compute = _quantised_product if kind == "MUL" else _quantised_sum
        emit(operation, compute(operation), 2)
        return
    dtype = same_types(operation, TYPES[kind])
    if kind == "DIV" and dtype is I32:
        operation.fail_if(1, "division by zero", lambda b: b.scope.compare("equal", b, 0))
    _, (a, b) = arguments(operation, 2)
    low, high = plain_bounds(operation)
    emit(operation, a.apply(PAIRS[kind], b).clamp(low, high), 2)


def plain_bounds(operation: Operation) -> tuple[Number | None, Number | None]:
    """The bounds of plain arithmetic with a fused activation."""
    low, high = bounds_of(operation.site.activation)
    dtype = operation.site.output().dtype
    if not dtype.is_float:
        low, high = (None if bound is None else int(bound) for bound in (low, high))
        return (0 if dtype is DType.UINT32 and low is not None else low), high
    # The others are computed in float32 by the reference device, and become infinite.
    half = operation.is_half and operation.site.operation.type in {"ADD", "MUL"}
    greatest = GREATEST_HALF if half else GREATEST
    return -greatest if low is None else low, greatest if high is None else high


def _scales(operation: Operation) -> tuple[np.float32, np.float32, np.float32]:
    site = operation.site
    operands = (site.input(0), "input 0"), (site.input(1), "input 1"), (site.output(), "a result")
    a, b, made = (np.float32(scale_of(o, what).scale) for o, what in operands)
    return a, b, made


def _quantised_sum(operation: Operation) -> Value:
    """Both operands in steps of 2**-20 (int16: 2**-15) of twice the larger scale."""
    site = operation.site
    dtype, negate = site.output().dtype, site.operation.type == "SUB"
    scale_a, scale_b, scale = (float(s) for s in _scales(operation))
    limits = limits_of(site.activation, site.output())
    _, (a, b) = arguments(operation, 2)
    if dtype is DType.INT16:
        points = [
            scale_of(o, "int16").zero_point for o in (site.input(0), site.input(1), site.output())
        ]
        require(not any(points), "int16 with a zero point other than 0")
        if site.flag("pot_scale_int16"):
            powers = [power_of_two(s) for s in (scale_a, scale_b, scale)]
            if None not in powers:
                return _power_of_two_sum(operation, [p or 0 for p in powers], limits, negate)
    left = 15 if dtype is DType.INT16 else 20
    twice = 2.0 * max(scale_a, scale_b)
    wide = [
        rescale(centred(v, operation, i).apply("shift_left", left), s / twice)
        for i, (v, s) in enumerate(((a, scale_a), (b, scale_b)))
    ]
    total = wide[0] - wide[1] if negate else wide[0] + wide[1]
    real = twice / (2.0**left * scale)
    return stored(rescale(total, real, saturating=True), operation, limits)


def _power_of_two_sum(
    operation: Operation, powers: list[int], limits: tuple[int, int], negate: bool
) -> Value:
    shifts = powers[2] - powers[0], powers[2] - powers[1]
    require(min(shifts) == 0, "int16 power-of-two scales neither of which is the output's")
    _, pair = arguments(operation, 2)
    wide = [
        v.cast(I32).apply("divide_by_power", shift) if shift else v.cast(I32)
        for v, shift in zip(pair, shifts, strict=True)
    ]
    total = wide[0] - wide[1] if negate else wide[0] + wide[1]
    return total.clamp(*limits).cast(DType.INT16)


def _quantised_product(operation: Operation) -> Value:
    site = operation.site
    scale_a, scale_b, scale = _scales(operation)
    _, (a, b) = arguments(operation, 2)
    product = centred(a, operation, 0) * centred(b, operation, 1)
    real = float(scale_a * scale_b / scale)
    return stored(rescale(product, real), operation, limits_of(site.activation, site.output()))


def _quantised_quotient(operation: Operation) -> Value:
    """A times the reciprocal of b, in the bits that a leaves free. int16 of one shape are computed
    in float32. Results beyond 32 bits saturate.
    """
    site = operation.site
    scale_a, scale_b, scale = _scales(operation)
    limits = limits_of(site.activation, site.output())
    scope, (a, b) = arguments(operation, 2)
    if a.dtype is DType.INT16:
        points = [scale_of(o, "int16").zero_point for o in (site.input(), site.input(1))]
        require(
            not any([*points, scale_of(site.output(), "int16").zero_point]),
            "int16 with a zero point other than 0",
        )
        if site.shape() == site.shape(1):
            reals = a.cast(F32) * float(scale_a), b.cast(F32) * float(scale_b)
            quotient = (reals[0] / reals[1] / float(scale)).apply("round_away")
            return stored(quotient.cast(I32), operation, limits)
    mantissa, shift = quantize_multiplier(scale_a / (scale_b * scale))
    divisor, value = centred(b, operation, 1), centred(a, operation, 0)
    value = scope.select(divisor < 0, -value, value)
    # A divisor of 0 fails the run; here it may be any number.
    divisor = divisor.apply("abs").apply("maximum", 1)
    size = value.apply("abs")
    zeros = size.apply("leading_zeros") - 1
    below = (size + size - 1).apply("leading_zeros")
    headroom = scope.select(value < 0, below, zeros)
    moved = value.cast(I64).apply("shift_left", headroom.cast(I64))
    fine = moved.apply("high_product", reciprocal(divisor))
    scaled = fine.apply("high_product", mantissa)
    right = -divisor.apply("leading_zeros") + 31 + headroom - shift
    left = (-right).clamp(0, 31).cast(I64)
    held = scaled.apply("shift_left", left).clamp(-(2**31), 2**31 - 1)
    result = held.apply("divide_by_power", right.clamp(0, 62).cast(I64)).cast(I32)
    return stored(result, operation, limits)


@legal("MAXIMUM", "MINIMUM")
def extreme(operation: Operation) -> None:
    """The larger or smaller stored value; the second operand if either is NaN."""
    same_types(operation, PLAIN | STORED)
    _, (a, b) = arguments(operation, 2)
    emit(operation, a.apply(operation.site.operation.type.lower(), b), 2)


@legal("SQUARED_DIFFERENCE")
def squared_difference(operation: Operation) -> None:
    """(a - b)**2. Quantised operands are scaled to 2**-7 of twice the larger scale first."""
    dtype = same_types(operation, frozenset({F32, I32, DType.INT8}))
    _, (a, b) = arguments(operation, 2)
    if dtype is not DType.INT8:
        difference = a - b
        emit(operation, difference * difference, 2)
        return
    scales = [scale_of(operation.site.input(i), f"input {i}").scale for i in (0, 1)]
    twice, made = 2.0 * max(scales), np.float32(scale_of(operation.site.output(), "a result").scale)
    first, second = (
        rescale(centred(v, operation, i).apply("shift_left", 7), s / twice)
        for i, (v, s) in enumerate(zip((a, b), scales, strict=True))
    )
    difference = first - second
    real = twice * twice / float(np.float32(2**14) * made)
    emit(operation, stored(rescale(difference * difference, real), operation), 2)


@legal("POW")
def power(operation: Operation) -> None:
    """A to the power of b."""
    same_types(operation, frozenset({F32}))
    _, (a, b) = arguments(operation, 2)
    emit(operation, a.apply("power", b), 2)


@legal("FLOOR_DIV", "FLOOR_MOD")
def floor_division(operation: Operation) -> None:
    """floor(a / b), or its remainder. A divisor of 0 fails the run, except with floats and mod."""
    remainder = operation.site.operation.type == "FLOOR_MOD"
    accepted = frozenset({DType.INT8, DType.INT16, I32, F32})
    dtype = same_types(operation, accepted | {I64} if remainder else accepted)
    scope, (a, b) = arguments(operation, 2)
    if not (remainder and dtype is F32):
        operation.fail_if(1, "division by zero", lambda b: b.scope.compare("equal", b, 0))
    if remainder:
        emit(operation, a.apply("mod", b), 2)
        return
    if dtype is F32:
        emit(operation, (a / b).apply("floor"), 2)
        return
    quotient = a / b
    exact = scope.compare("equal", quotient * b, a)
    signs = (a < 0).apply("xor", b < 0)
    lower = scope.select(exact.apply("not").apply("and", signs), quotient - 1, quotient)
    # The one quotient that int32 does not hold wraps.
    emit(operation, scope.select(scope.compare("equal", b, -1), -a, lower), 2)


@legal("BITWISE_XOR")
def bitwise_xor(operation: Operation) -> None:
    """The bits that differ."""
    same_types(operation, WHOLE | {DType.BOOL})
    _, (a, b) = arguments(operation, 2)
    emit(operation, a.apply("xor", b), 2)


@legal("RIGHT_SHIFT")
def right_shift(operation: Operation) -> None:
    """A shifted right by b bits, at least 0 and less than there are."""
    bits = same_types(operation, WHOLE).bits or 0
    _, (a, b) = arguments(operation, 2)
    emit(operation, a.apply("shift_right", b.clamp(0, bits - 1)), 2)


@legal("ADD_N")
def add_n(operation: Operation) -> None:
    """The sum of all inputs; floats stay finite at every step."""
    site = operation.site
    count = len(site.inputs)
    dtype = same_types(operation, frozenset({F32, I32}), count)
    require(count <= MOST_ADDED, f"{count} inputs")
    _, values = arguments(operation, count)
    low, high = (-GREATEST, GREATEST) if dtype is F32 else (None, None)
    total = values[0]
    for value in values[1:]:
        total = (total + value).clamp(low, high)
    emit(operation, total, count)


def unary(operation: Operation, real: Callable[[Value], Value]) -> None:
    """A real function of one operand: of floats, or of the real values of quantised ones."""
    site = operation.site
    _, (x,) = arguments(operation, 1)
    if x.dtype is F32:
        emit(operation, real(x), 1)
        return
    require(x.dtype in NARROW and site.output().dtype is x.dtype, "types of this function")
    emit(operation, quantised(operation, real(dequantised(operation, x))), 1)


def dequantised(operation: Operation, value: Value) -> Value:
    """The real value of a stored one, in float32."""
    given = scale_of(operation.site.input(0), "the input")
    return centred(value, operation, 0).cast(F32) * float(np.float32(given.scale))


def quantised(operation: Operation, real: Value) -> Value:
    """The stored value of a real one, as TFLite's tables round it: halves away from zero."""
    output = operation.site.output()
    made = scale_of(output, "a result")
    inverse = float(np.float32(1) / np.float32(made.scale))
    low, high = integer_range(output.dtype)
    steps = (real * inverse).apply("round_away") + float(made.zero_point)
    return steps.clamp(float(low), float(high)).cast(output.dtype)


def interpolated(operation: Operation, real: Callable[[Value], Value]) -> None:
    """A real function of an int16 operand, as TFLite's tables compute it: 512 steps of input, each
    corrected by half its error in the middle. Slopes and results wrap at 16 bits.
    """
    site = operation.site
    given, made = scale_of(site.input(), "the input"), scale_of(site.output(), "a result")
    require(not given.zero_point and not made.zero_point, "int16 with a zero point other than 0")
    inner = Scope(F32)
    function = inner.finish(real(inner.argument(0)))
    points = interpolation_table(
        (given.scale, 0),
        (made.scale, 0),
        lambda x: evaluate(function, [x], _no_tables),
        np.float32,
    )
    table_ = operation.build.constant(I32, points.shape, lambda: points)
    scope, (x,) = arguments(operation, 1)
    wide = x.cast(I32)
    index = wide.apply("shift_right", 7) + 256
    low, high = scope.lookup(table_, index, I32), scope.lookup(table_, index + 1, I32)
    slope = (high - low).cast(DType.INT16).cast(I32)
    moved = (slope * wide.apply("and", 0x7F) + 64).apply("shift_right", 7)
    emit(operation, (low + moved).cast(DType.INT16), 1)


def _no_tables(number: int) -> NDArray:
    raise LookupError(f"table {number} of a function without tables")
