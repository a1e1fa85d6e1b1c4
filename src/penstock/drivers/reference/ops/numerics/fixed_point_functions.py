"""Functions of fixed-point numbers, bit for bit as gemmlowp computes them for TFLite's reference
kernels.

A number Qk has k integer bits: its raw int32 value stands for raw / 2**(31 - k). Arrays hold raw
values as int64.
"""

from __future__ import annotations

import numpy as np

from penstock.drivers.reference.ops.numerics.fixed_point import (
    INT32_MAX,
    INT32_MIN,
    rounding_divide_by_pot,
    saturating_rounding_doubling_high_mul as multiply,
)
from penstock.ir import NDArray

_SQRT_HALF = 1518500250
_FOURTH_ROOT_HALF = 1805811301


def power_of_two(scale: float) -> int | None:
    """The exponent of a scale that is a power of two, to 1e-3 of its logarithm; None for others."""
    power = float(np.log(np.float32(scale)) * (np.float32(1) / np.log(np.float32(2))))
    return round(power) if abs(power - round(power)) < 1e-3 else None


def shift_left_saturating(x: NDArray, exponent: NDArray | int) -> NDArray:
    """`x * 2**exponent`, clamped to int32; *exponent* >= 0."""
    result: NDArray = np.clip(x << np.asarray(exponent, np.int64), INT32_MIN, INT32_MAX)
    return result


def count_leading_zeros(x: NDArray) -> NDArray:
    """Leading zero bits of *x* as a 32-bit number, 0 <= x < 2**32; 32 for 0."""
    return 32 - np.frexp(x.astype(np.float64))[1].astype(np.int64)


def exp_on_negative_values(x: NDArray) -> NDArray:
    """exp(x) in Q0 of x <= 0 in Q5."""
    quarter = 1 << 24
    rest = (x & (quarter - 1)) - quarter
    result = _exp_near_zero(shift_left_saturating(rest, 5))
    remainder = rest - x
    # exp(-2**e) in Q0 for e = -2 .. 4
    factors = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
    for bit, factor in enumerate(factors, 24):
        result = np.where(remainder >> bit & 1, multiply(result, factor), result)
    return np.where(x == 0, INT32_MAX, result)


def _exp_near_zero(x: NDArray) -> NDArray:
    """exp(x) in Q0 of -1/4 <= x < 0 in Q0: the Taylor polynomial of degree 4 around -1/8."""
    exp_minus_eighth, third = 1895147668, 715827883
    y = x + (1 << 28)
    y2 = multiply(y, y)
    y3, y4 = multiply(y2, y), multiply(y2, y2)
    tail = multiply(rounding_divide_by_pot(y4, 2) + y3, third) + y2
    result: NDArray = exp_minus_eighth + multiply(
        y + rounding_divide_by_pot(tail, 1), exp_minus_eighth
    )
    return result


def one_over_one_plus_x(x: NDArray) -> NDArray:
    """1 / (1 + x) in Q0 of 0 <= x < 1 in Q0: three Newton-Raphson steps."""
    half_denominator = (x + INT32_MAX + 1) >> 1
    result = 1515870810 + multiply(half_denominator, -1010580540)
    for _ in range(3):
        error = (1 << 29) - multiply(half_denominator, result)
        result = result + shift_left_saturating(multiply(result, error), 2)
    return shift_left_saturating(result, 1)


def reciprocal(x: NDArray, integer_bits: int) -> tuple[NDArray, NDArray]:
    """(mantissa in Q0, right shift) of 1 / x for x > 0 in Q*integer_bits*."""
    headroom = count_leading_zeros(x)
    return one_over_one_plus_x((x << headroom) - (1 << 31)), integer_bits - headroom


def log(x: NDArray) -> NDArray:
    """log(x) in Q5 of x >= 1 in Q12."""
    headroom = count_leading_zeros(x)
    a = multiply(shift_left_saturating(x, headroom - 1), _SQRT_HALF)
    a = shift_left_saturating(a, 1)
    a_power = np.minimum(shift_left_saturating(12 - headroom, 25) + (1 << 23), INT32_MAX)
    b_headroom = count_leading_zeros(multiply(x, _SQRT_HALF)) - 1
    b = shift_left_saturating(x, b_headroom)
    b_power = np.maximum(shift_left_saturating(12 - b_headroom, 25) - (1 << 23), INT32_MIN)
    r, power = np.minimum(a, b), np.maximum(a_power, b_power)

    p = (r + _FOURTH_ROOT_HALF + 1) >> 1
    half = r - _FOURTH_ROOT_HALF
    half = half + half
    square = multiply(half, half)
    numerator = multiply(half, r) + multiply(multiply(half, square), 117049297)
    denominator = multiply(p, 1057819769 + half + multiply(square, 127690142))
    denominator = denominator + multiply(half, 638450708)
    quotient = multiply(rounding_divide_by_pot(numerator, 6), one_over_one_plus_x(denominator))
    return shift_left_saturating(multiply(power, 1488522236) + quotient, 1)


def inverse_square_root(x: NDArray) -> tuple[NDArray, NDArray]:
    """(mantissa in Q0, shift) with 1 / sqrt(x) = mantissa / 2**31 * 2**shift for integers x >= 0;
    0 counts as 1: five Newton-Raphson steps.
    """
    value = np.maximum(x, 2).astype(np.int64)
    right = np.full(value.shape, 11, np.int64)
    while (large := value >= 1 << 29).any():
        value = np.where(large, value // 4, value)
        right = right + large
    pairs = (count_leading_zeros(value) - 1) // 2 - 1
    right = right - pairs
    half = (value << (2 * pairs)) >> 1
    quarter = rounding_divide_by_pot(half, 1)
    root = np.full(value.shape, 1 << 28, np.int64)
    for _ in range(5):
        cube = shift_left_saturating(multiply(multiply(root, root), root), 6)
        step = multiply(root, (1 << 28) + (1 << 27)) - multiply(quarter, cube)
        root = shift_left_saturating(step, 3)
    root = multiply(root, _SQRT_HALF)
    left = np.maximum(-right, 0)
    mantissa = np.where(x <= 1, INT32_MAX, (root << left).astype(np.int32))
    return mantissa.astype(np.int64), np.where(x <= 1, 0, -np.maximum(right, 0))
