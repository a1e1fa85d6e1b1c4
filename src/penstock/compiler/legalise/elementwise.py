"""Operations on the elements at one position: arithmetic, activations, comparisons, conversions.

Quantised functions are written as integer arithmetic, or as float arithmetic on dequantised values
where TFLite computes its tables so. `penstock.compiler.tabulate` makes a table of a chain that
depends on one 8-bit value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from penstock.compiler.expression import Scope, Value
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.quantised import (
    NARROW,
    STORED,
    bounds_of,
    integer_range,
    limits_of,
    rescale,
    scale_of,
)
from penstock.driverkit.fixed_point import power_of_two
from penstock.driverkit.site import Refused, require
from penstock.ir import DType

F32, I32, I64 = DType.FLOAT32, DType.INT32, DType.INT64
PLAIN: Final = frozenset({F32, I32, I64})


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


PAIRS: Final = {"ADD": "add", "SUB": "sub", "MUL": "mul", "DIV": "div"}


@legal("ADD", "SUB", "MUL", "DIV")
def arithmetic(operation: Operation) -> None:
    """A + b and its kin, broadcast, with a fused activation. Integers wrap."""
    site = operation.site
    kind = site.operation.type
    if is_stored(operation):
        same_types(operation, STORED)
        require(kind != "DIV", "quotients of quantised values")
        compute = _quantised_product if kind == "MUL" else _quantised_sum
        emit(operation, compute(operation), 2)
        return
    dtype = same_types(operation, PLAIN)
    require(kind != "DIV" or dtype is F32, "quotients of integers, whose divisor may be 0")
    _, (a, b) = arguments(operation, 2)
    low, high = bounds_of(site.activation)
    result = a.apply(PAIRS[kind], b)
    if dtype is not F32:
        low, high = (None if bound is None else int(bound) for bound in (low, high))
    emit(operation, result.clamp(low, high), 2)


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


@legal("MAXIMUM", "MINIMUM")
def extreme(operation: Operation) -> None:
    """The larger or smaller stored value."""
    same_types(operation, PLAIN | STORED)
    _, (a, b) = arguments(operation, 2)
    emit(operation, a.apply(operation.site.operation.type.lower(), b), 2)


@legal("SQUARED_DIFFERENCE")
def squared_difference(operation: Operation) -> None:
    require(not is_stored(operation), "squared differences of quantised values")
    same_types(operation, frozenset({F32, I32}))
    _, (a, b) = arguments(operation, 2)
    difference = a - b
    emit(operation, difference * difference, 2)


@legal("POW")
def power(operation: Operation) -> None:
    same_types(operation, frozenset({F32}))
    _, (a, b) = arguments(operation, 2)
    emit(operation, a.apply("power", b), 2)


COMPARISONS: Final = {
    "LESS": ("less", False, False),
    "LESS_EQUAL": ("less_equal", False, False),
    "GREATER": ("less", True, False),
    "GREATER_EQUAL": ("less_equal", True, False),
    "EQUAL": ("equal", False, False),
    "NOT_EQUAL": ("equal", False, True),
}
"""The scalar operation of each comparison, whether its operands change places, whether it is
negated.
"""


@legal(*COMPARISONS)
def comparison(operation: Operation) -> None:
    """Compares plain numbers and booleans, and quantised values in steps of 2**-8."""
    site = operation.site
    name, swapped, negated = COMPARISONS[site.operation.type]
    scope, (a, b) = arguments(operation, 2)
    require(a.dtype is b.dtype, "a comparison of two types")
    if a.dtype in NARROW or (name == "equal" and is_stored(operation)):
        a, b = (
            rescale(
                centred(v, operation, i).apply("shift_left", 8),
                scale_of(site.input(i), "an operand").scale,
            )
            for i, v in enumerate((a, b))
        )
    else:
        require(a.dtype in PLAIN or (a.dtype is DType.BOOL and name == "equal"), "this comparison")
    first, second = (b, a) if swapped else (a, b)
    result = scope.compare(name, first, second)
    emit(operation, result.apply("not") if negated else result, 2)


@legal("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT")
def logic(operation: Operation) -> None:
    kind = operation.site.operation.type.removeprefix("LOGICAL_").lower()
    count = 1 if kind == "not" else 2
    _, values = arguments(operation, count)
    require(all(v.dtype is DType.BOOL for v in values), "logic of another type than bool")
    emit(operation, values[0].apply(kind, *values[1:]), count)


@legal("SELECT", "SELECT_V2")
def select(operation: Operation) -> None:
    """The first value where the condition holds, otherwise the second one."""
    site = operation.site
    scope, (condition, a, b) = arguments(operation, 3)
    require(condition.dtype is DType.BOOL, "a condition of another type than bool")
    require(a.dtype is b.dtype is site.output().dtype, "a choice between two types")
    result = scope.finish(scope.select(condition, a, b))
    sources = [operation.tensor(i) for i in range(3)]
    shapes = [operation.shape(s) for s in sources]
    if site.operation.type == "SELECT" and len(shapes[0]) == 1 and len(shapes[1]) > 1:
        rows = (*shapes[0], *(1,) * (len(shapes[1]) - 1))
        sources[0] = operation.build.alias(rows, sources[0])
    operation.elementwise("select", result, sources)


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


REAL: Final = {
    "EXP": "exp",
    "LOG": "log",
    "SQRT": "sqrt",
    "SIN": "sin",
    "COS": "cos",
    "FLOOR": "floor",
    "CEIL": "ceil",
    "ROUND": "round_even",
    "RSQRT": "rsqrt",
}


@legal(*REAL)
def real_function(operation: Operation) -> None:
    require(operation.site.input().dtype is F32, "only float32 values are computed here")
    _, (x,) = arguments(operation, 1)
    emit(operation, x.apply(REAL[operation.site.operation.type]), 1)


@legal("SQUARE")
def square(operation: Operation) -> None:
    require(operation.site.input().dtype is F32, "only float32 values are computed here")
    _, (x,) = arguments(operation, 1)
    emit(operation, x * x, 1)


@legal("NEG", "ABS", "SIGN")
def sign(operation: Operation) -> None:
    site = operation.site
    dtype = site.input().dtype
    accepted = PLAIN | ({DType.INT8, DType.INT16} if site.operation.type == "NEG" else set())
    require(dtype in accepted and site.output().dtype is dtype, "types of this function")
    _, (x,) = arguments(operation, 1)
    emit(operation, x.apply(site.operation.type.lower()), 1)


@legal("LOGISTIC")
def logistic(operation: Operation) -> None:
    """1 / (1 + exp(-x)); below -9 TFLite's kernel for floats computes exp(x)."""
    site = operation.site
    if site.input().dtype in NARROW:
        require(scale_of(site.output(), "a result").scale == 2.0**-8, "a result not in 1/256")
        unary(operation, lambda x: _one(x) / (_one(x) + _precise("exp", -x)))
        return
    unary(operation, lambda x: x.scope.select(x < -9.0, x.apply("exp"), x.apply("logistic")))


def _one(x: Value) -> Value:
    return x.scope.constant(1.0, F32)


def _precise(name: str, x: Value) -> Value:
    """A function as C's mathematical library rounds it: once."""
    return x.cast(DType.FLOAT64).apply(name).cast(F32)


@legal("TANH")
def tanh(operation: Operation) -> None:
    if operation.site.input().dtype in NARROW:
        unary(operation, lambda x: _precise("tanh", x))
        return
    unary(operation, lambda x: x.apply("tanh"))


@legal("ELU")
def elu(operation: Operation) -> None:
    require(operation.site.input().dtype is not DType.UINT8, "ELU of uint8")
    unary(
        operation,
        lambda x: x.scope.select(
            x < 0.0, (x.apply("minimum", 0.0).cast(DType.FLOAT64).apply("expm1")).cast(F32), x
        ),
    )


@legal("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1")
def relu(operation: Operation) -> None:
    """X clamped; a quantised input is rescaled to the output's scale first."""
    site = operation.site
    kind = site.operation.type
    low, high = (0.0, 1.0) if kind == "RELU_0_TO_1" else bounds_of(kind)
    _, (x,) = arguments(operation, 1)
    if x.dtype is F32:
        emit(operation, x.clamp(low, high), 1)
        return
    require(x.dtype in STORED and site.output().dtype is x.dtype, "types of this function")
    given, made = scale_of(site.input(), "the input"), scale_of(site.output(), "a result")
    ratio = float(np.float32(given.scale) / np.float32(made.scale))
    least, greatest = integer_range(x.dtype)
    if low is not None:
        least = max(least, made.zero_point + _steps(low, made.scale))
    if high is not None:
        greatest = min(greatest, made.zero_point + _steps(high, made.scale))
    scaled = rescale(centred(x, operation, 0), ratio) + made.zero_point
    # The least bound first, as TFLite's kernel: an empty range gives the greatest value.
    bounded = scaled.apply("maximum", least).apply("minimum", greatest)
    emit(operation, bounded.clamp(*integer_range(x.dtype)).cast(x.dtype), 1)


def _steps(real: float, scale: float) -> int:
    from penstock.driverkit.fixed_point import round_half_away

    return int(round_half_away(float(np.float32(real) / np.float32(scale))))


@legal("LEAKY_RELU")
def leaky_relu(operation: Operation) -> None:
    site = operation.site
    alpha = np.float32(site.attributes.number("alpha"))
    scope, (x,) = arguments(operation, 1)
    if x.dtype is F32:
        below = x * float(alpha)
        result = x.apply("maximum", below) if 0 < alpha <= 1 else scope.select(x < 0.0, below, x)
        emit(operation, result, 1)
        return
    require(x.dtype in STORED and site.output().dtype is x.dtype, "types of this function")
    scale, made = (
        np.float32(scale_of(o, "an operand").scale) for o in (site.input(), site.output())
    )
    slope = float(scale * alpha / made)
    value = centred(x, operation, 0)
    below = rescale(value, abs(slope))
    below = -below if slope < 0 else below
    result = scope.select(value < 0, below, rescale(value, float(scale / made)))
    emit(operation, stored(result, operation), 1)


@legal("PRELU")
def prelu(operation: Operation) -> None:
    site = operation.site
    scope, (x, alpha) = arguments(operation, 2)
    if x.dtype is alpha.dtype is F32:
        emit(operation, scope.select(x < 0.0, x * alpha, x), 2)
        return
    expected = DType.INT8 if x.dtype is DType.INT16 else x.dtype
    require(x.dtype in STORED and alpha.dtype is expected, "types of this function")
    scale, slopes, made = (
        np.float32(scale_of(o, "an operand").scale)
        for o in (site.input(), site.input(1), site.output())
    )
    value = centred(x, operation, 0)
    below = rescale(value * centred(alpha, operation, 1), float(scale * slopes / made))
    result = scope.select(value < 0, below, rescale(value, float(scale / made)))
    emit(operation, stored(result, operation), 2)


@legal("HARD_SWISH")
def hard_swish(operation: Operation) -> None:
    require(operation.site.input().dtype is F32, "only float32 values are computed here")
    _, (x,) = arguments(operation, 1)
    emit(operation, x * (x + 3.0).clamp(0.0, 6.0) / 6.0, 1)


@legal("CAST")
def cast(operation: Operation) -> None:
    """Converts plain numbers. Floats are truncated; what an integer does not hold is undefined."""
    _, (x,) = arguments(operation, 1)
    target = operation.site.output().dtype
    plain = PLAIN | STORED | {DType.BOOL}
    require(x.dtype in plain and target in plain, "types of this conversion")
    if target is DType.BOOL:
        emit(operation, x.scope.compare("equal", x, 0).apply("not"), 1)
        return
    emit(operation, x.cast(target), 1)


@legal("QUANTIZE")
def quantize(operation: Operation) -> None:
    """Quantises real values (a real division, halves away from zero), or rescales stored ones."""
    site = operation.site
    _, (x,) = arguments(operation, 1)
    output = site.output()
    made = scale_of(output, "a result")
    require(output.dtype in STORED, "types of this conversion")
    if x.dtype is F32:
        low, high = integer_range(output.dtype)
        steps = (x / float(np.float32(made.scale))).apply("round_away")
        bounded = steps.clamp(float(low - made.zero_point), float(high - made.zero_point))
        emit(operation, (bounded + float(made.zero_point)).cast(output.dtype), 1)
        return
    require(x.dtype in STORED, "types of this conversion")
    given = scale_of(site.input(), "the input")
    emit(
        operation, stored(rescale(centred(x, operation, 0), given.scale / made.scale), operation), 1
    )


@legal("DEQUANTIZE")
def dequantize(operation: Operation) -> None:
    """Stored values as real ones, or 16-bit floats as float32."""
    site = operation.site
    _, (x,) = arguments(operation, 1)
    require(site.output().dtype is F32, "types of this conversion")
    if x.dtype is DType.FLOAT16:
        emit(operation, x.cast(F32), 1)
        return
    if x.dtype not in STORED:
        raise Refused("types of this conversion")
    given = scale_of(site.input(), "the input")
    wide = x.cast(F32) - float(given.zero_point)
    emit(operation, wide * float(np.float32(given.scale)), 1)
