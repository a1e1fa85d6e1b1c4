"""Functions in fixed point as expressions, bit for bit as gemmlowp computes them for TFLite
(`penstock.driverkit.fixed_point` has the same functions on arrays).

A number Qk has k integer bits: its raw value stands for raw / 2**(31 - k). Values are int64.
"""

from __future__ import annotations

from typing import Final

from penstock.compiler.expression import Value
from penstock.ir import DType

I64: Final = DType.INT64
LEAST, GREATEST = -(2**31), 2**31 - 1
SQRT_HALF: Final = 1518500250
FOURTH_ROOT_HALF: Final = 1805811301


def multiply(a: Value, b: Value | int) -> Value:
    """The product over 2**31 to the nearest, halves up."""
    return a.apply("high_product", b)


def shifted(x: Value, bits: Value | int) -> Value:
    """X * 2**bits, saturated to 32 bits."""
    return x.apply("shift_left", bits).clamp(LEAST, GREATEST)


def leading_zeros(x: Value) -> Value:
    """Leading zero bits of *x* as a number of 32 bits."""
    return x.apply("leading_zeros")


def one_over_one_plus(x: Value) -> Value:
    """1 / (1 + x) in Q0 of 0 <= x < 1 in Q0: three Newton-Raphson steps."""
    half = (x + (1 << 31)).apply("shift_right", 1)
    result = multiply(half, -1010580540) + 1515870810
    for _ in range(3):
        error = -multiply(half, result) + (1 << 29)
        result = result + shifted(multiply(result, error), 2)
    return shifted(result, 1)


def reciprocal(x: Value) -> Value:
    """The mantissa of 1 / x in Q0, for int32 x > 0."""
    wide = x.cast(I64)
    return one_over_one_plus(wide.apply("shift_left", leading_zeros(wide)) - (1 << 31))


def logarithm(x: Value) -> Value:
    """log(x) in Q5 of x >= 1 in Q12."""
    headroom = leading_zeros(x)
    a = shifted(multiply(shifted(x, headroom - 1), SQRT_HALF), 1)
    a_power = (shifted(-headroom + 12, 25) + (1 << 23)).apply("minimum", GREATEST)
    b_headroom = leading_zeros(multiply(x, SQRT_HALF)) - 1
    b = shifted(x, b_headroom)
    b_power = (shifted(-b_headroom + 12, 25) - (1 << 23)).apply("maximum", LEAST)
    r, power = a.apply("minimum", b), a_power.apply("maximum", b_power)
    p = (r + (FOURTH_ROOT_HALF + 1)).apply("shift_right", 1)
    half = r - FOURTH_ROOT_HALF
    half = half + half
    square = multiply(half, half)
    numerator = multiply(half, r) + multiply(multiply(half, square), 117049297)
    denominator = multiply(p, half + 1057819769 + multiply(square, 127690142))
    denominator = denominator + multiply(half, 638450708)
    divided = numerator.apply("divide_by_power", 6)
    quotient = multiply(divided, one_over_one_plus(denominator))
    return shifted(multiply(power, 1488522236) + quotient, 1)


def inverse_root(x: Value) -> tuple[Value, Value]:
    """(mantissa in Q0, shift) with 1 / sqrt(x) = mantissa / 2**31 * 2**shift for integers
    0 <= x < 2**33; 0 counts as 1: five Newton-Raphson steps.
    """
    scope = x.scope
    value, right = x.apply("maximum", 2), scope.constant(11, I64)
    for _ in range(2):
        large = scope.constant((1 << 29) - 1, I64) < value
        value = scope.select(large, value.apply("shift_right", 2), value)
        right = scope.select(large, right + 1, right)
    pairs = (leading_zeros(value) - 1).apply("shift_right", 1) - 1
    right = right - pairs
    half = value.apply("shift_left", pairs + pairs).apply("shift_right", 1)
    quarter = half.apply("divide_by_power", 1)
    root = scope.constant(1 << 28, I64)
    for _ in range(5):
        cube = shifted(multiply(multiply(root, root), root), 6)
        step = multiply(root, (1 << 28) + (1 << 27)) - multiply(quarter, cube)
        root = shifted(step, 3)
    root = multiply(root, SQRT_HALF)
    left = (-right).apply("maximum", 0)
    small = x <= 1
    mantissa = root.apply("shift_left", left).cast(DType.INT32).cast(I64)
    shift = -right.apply("maximum", 0)
    return (
        scope.select(small, scope.constant(GREATEST, I64), mantissa),
        scope.select(small, scope.constant(0, I64), shift),
    )
