"""Fixed-point arithmetic, bit for bit as gemmlowp does it for TFLite's reference kernels.

A multiplier m is mantissa / 2**31 * 2**shift with 2**30 <= mantissa < 2**31 (NNAPI section 8.1).
Scaling an integer by it rounds twice: to the nearest after the multiplication (halves up), and to
the nearest after the right shift (halves away from zero).

A number Qk has k integer bits: its raw int32 value stands for raw / 2**(31 - k). Arrays hold raw
values as int64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from penstock.ir import NDArray

INT32_MAX: Final = 2**31 - 1
INT32_MIN: Final = -(2**31)


def quantize_multiplier(real: float | np.floating[Any]) -> tuple[int, int]:
    """(mantissa, shift) of a multiplier >= 0; (0, 0) below 2**-32 and if it is not finite."""
    mantissas, shifts = quantize_multipliers([float(real)])
    return int(mantissas[0]), int(shifts[0])


def quantize_multipliers(reals: Sequence[float] | NDArray) -> tuple[NDArray, NDArray]:
    """`quantize_multiplier` of each: (mantissas, shifts), int64 arrays."""
    multipliers = np.asarray(reals, np.float64)
    multipliers = np.where(np.isfinite(multipliers), multipliers, 0.0)
    fractions, exponents = np.frexp(multipliers)
    mantissas = np.floor(fractions * 2.0**31 + 0.5).astype(np.int64)
    shifts = exponents.astype(np.int64)
    carried = mantissas == 2**31
    mantissas[carried] //= 2
    shifts[carried] += 1
    mantissas[shifts < -31] = 0
    shifts[mantissas == 0] = 0
    return mantissas, shifts


def wrapped(values: NDArray) -> NDArray:
    """int64 values wrapped to 32 bits, as int64."""
    return values.astype(np.int32).astype(np.int64)


def round_half_away(real: float | np.floating[Any]) -> float:
    """Rounds halves away from zero: C's round(), which Python and NumPy do not have."""
    size = abs(float(real))
    whole = math.floor(size)
    return math.copysign(whole + (size - whole >= 0.5), real)


def round_half_away_from_zero(values: NDArray) -> NDArray:
    """Rounds floats to the nearest integers, halves away from zero, in the same type.

    Adds the greatest number below one half, because one half would round 0.49999997 to 1.
    """
    half = np.nextafter(values.dtype.type(0.5), values.dtype.type(0))
    result: NDArray = np.asarray(values + np.copysign(half, values))
    return np.trunc(result, out=result)


def doubling_high_mul(a: NDArray, b: NDArray | int, width: int = 32) -> NDArray:
    """The product of *a* and *b* over 2**(width - 1) to the nearest, halves up, for values of
    *width* bits in int64 arrays.

    The product of two least values saturates to the greatest one.
    """
    product: NDArray = np.asarray(np.multiply(a, b, dtype=np.int64))
    product += 1 << (width - 2)
    product >>= width - 1
    return np.minimum(product, (1 << (width - 1)) - 1, out=product)


def rounding_divide_by_pot(x: NDArray, exponent: NDArray | int) -> NDArray:
    """int64 *x* over 2**exponent to the nearest, halves away from zero; *exponent* >= 0."""
    # Half of the divisor, minus one for negative x: x >> 63 is -1 for negative x. For an exponent
    # of 0, 1 << e >> 1 is 0.
    exponent = np.asarray(exponent, np.int64)
    half = (np.int64(1) << exponent) >> 1
    result: NDArray = np.asarray(x + half)
    result += (x >> 63) & -(half > 0).astype(np.int64)
    result >>= exponent
    return result


def rescale(x: NDArray, mantissa: NDArray | int, shift: NDArray | int) -> NDArray:
    """The int32 values *x* times a quantised multiplier, as int64; multiplier and shift broadcast.

    Left shifts wrap at 32 bits. Only the last five bits of the shift count, as in processors (C++
    leaves shifts of more than 31 undefined).
    """
    shift = np.asarray(shift, np.int64)
    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    wide = np.asarray(x, np.int64)
    if left.any():
        wide = wrapped(wide << (left & 31))
    return rounding_divide_by_pot(doubling_high_mul(wide, mantissa), right)


def rescale_saturating(x: NDArray, mantissa: int, shift: int) -> NDArray:
    """As `rescale`, but left shifts saturate at 32 bits."""
    left = min(max(shift, 0), 32)
    wide = np.clip(np.asarray(x, np.int64) << left, INT32_MIN, INT32_MAX)
    return rounding_divide_by_pot(doubling_high_mul(wide, mantissa), max(-shift, 0))


def rescale_wide(x: NDArray, mantissa: NDArray | int, shift: NDArray | int) -> NDArray:
    """The 64-bit accumulators *x* times a quantised multiplier, as int64.

    Kernels with 64-bit accumulators reduce the mantissa to 16 bits and round once, halves up.
    Results wrap at 32 bits, and only the last six bits of the shift count, if accumulators reach
    2**47 or multipliers 2**8.
    """
    mantissa = np.asarray(mantissa, np.int64)
    reduced = np.where(mantissa < 0x7FFF0000, (mantissa + (1 << 15)) >> 16, 0x7FFF)
    total = 15 - np.asarray(shift, np.int64)
    result: NDArray = np.asarray(np.asarray(x, np.int64) * reduced)
    result += np.int64(1) << (total - 1 & 63)
    result >>= total & 63
    return wrapped(result)


_multiply = doubling_high_mul
_SQRT_HALF = 1518500250
_FOURTH_ROOT_HALF = 1805811301


def power_of_two(scale: float) -> int | None:
    """The exponent of a scale that is a power of two, to 1e-3 of its logarithm; otherwise None."""
    power = float(np.log(np.float32(scale)) * (np.float32(1) / np.log(np.float32(2))))
    return round(power) if abs(power - round(power)) < 1e-3 else None


def shift_left_saturating(x: NDArray, exponent: NDArray | int, width: int = 32) -> NDArray:
    """`x * 2**exponent`, clamped to *width* bits; *exponent* >= 0."""
    most = 1 << (width - 1)
    result: NDArray = np.clip(x << np.asarray(exponent, np.int64), -most, most - 1)
    return result


def count_leading_zeros(x: NDArray) -> NDArray:
    """Leading zero bits of *x* as a 32-bit number, 0 <= x < 2**32; 32 for 0."""
    return 32 - np.frexp(x.astype(np.float64))[1].astype(np.int64)


def exp_on_negative_values(x: NDArray, integer_bits: int = 5, width: int = 32) -> NDArray:
    """exp(x) in Q0 of x <= 0 in Q*integer_bits*, numbers of *width* bits."""
    fraction = width - 1 - integer_bits
    quarter = 1 << (fraction - 2)
    rest = (x & (quarter - 1)) - quarter
    result = _exp_near_zero(shift_left_saturating(rest, integer_bits, width), width)
    remainder = rest - x
    # exp(-2**e) in Q0 for e = -2 .. 4
    factors = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
    for exponent, factor in zip(range(-2, integer_bits), factors, strict=False):
        scaled = doubling_high_mul(result, _constant(factor, width), width)
        result = np.where(remainder >> (fraction + exponent) & 1, scaled, result)
    if integer_bits > 5:
        result = np.where(x < -(1 << (fraction + 5)), 0, result)
    return np.where(x == 0, (1 << (width - 1)) - 1, result)


@cache
def _constant(raw: int, width: int) -> int:
    """A raw constant of 32 bits, rounded to *width* bits."""
    return int(rounding_divide_by_pot(np.array(raw), 32 - width))


def _exp_near_zero(x: NDArray, width: int) -> NDArray:
    """exp(x) in Q0 of -1/4 <= x < 0 in Q0: the Taylor polynomial of degree 4 around -1/8."""

    def multiply(a: NDArray, b: NDArray | int) -> NDArray:
        return doubling_high_mul(a, b, width)

    exp_minus_eighth, third = (_constant(raw, width) for raw in (1895147668, 715827883))
    y = x + (1 << (width - 4))
    y2 = multiply(y, y)
    y3, y4 = multiply(y2, y), multiply(y2, y2)
    tail = multiply(rounding_divide_by_pot(y4, 2) + y3, third) + y2
    result = multiply(y + rounding_divide_by_pot(tail, 1), exp_minus_eighth)
    return shift_left_saturating(exp_minus_eighth + result, 0, width)


def twice_the_reciprocal(x: NDArray, width: int = 32) -> NDArray:
    """2 / (1 + x) in Q2 of 0 <= x < 1 in Q0, *width* bits: three Newton-Raphson steps."""
    dtype = np.int32 if width == 32 else np.int16
    half_denominator = (x + (1 << (width - 1))) >> 1
    first = doubling_high_mul(half_denominator, _constant(-1010580540, width), width)
    result = (_constant(1515870810, width) + first).astype(dtype).astype(np.int64)
    for _ in range(3):
        error = (1 << (width - 3)) - doubling_high_mul(half_denominator, result, width)
        step = shift_left_saturating(doubling_high_mul(result, error, width), 2, width)
        result = (result + step).astype(dtype).astype(np.int64)
    return result


def one_over_one_plus_x(x: NDArray) -> NDArray:
    """1 / (1 + x) in Q0 of 0 <= x < 1 in Q0."""
    return shift_left_saturating(twice_the_reciprocal(x), 1)


def reciprocal(x: NDArray, integer_bits: int) -> tuple[NDArray, NDArray]:
    """(mantissa in Q0, right shift) of 1 / x for x > 0 in Q*integer_bits*."""
    headroom = count_leading_zeros(x)
    return one_over_one_plus_x((x << headroom) - (1 << 31)), integer_bits - headroom


def log(x: NDArray) -> NDArray:
    """log(x) in Q5 of x >= 1 in Q12."""
    headroom = count_leading_zeros(x)
    a = _multiply(shift_left_saturating(x, headroom - 1), _SQRT_HALF)
    a = shift_left_saturating(a, 1)
    a_power = np.minimum(shift_left_saturating(12 - headroom, 25) + (1 << 23), INT32_MAX)
    b_headroom = count_leading_zeros(_multiply(x, _SQRT_HALF)) - 1
    b = shift_left_saturating(x, b_headroom)
    b_power = np.maximum(shift_left_saturating(12 - b_headroom, 25) - (1 << 23), INT32_MIN)
    r, power = np.minimum(a, b), np.maximum(a_power, b_power)

    p = (r + _FOURTH_ROOT_HALF + 1) >> 1
    half = r - _FOURTH_ROOT_HALF
    half = half + half
    square = _multiply(half, half)
    numerator = _multiply(half, r) + _multiply(_multiply(half, square), 117049297)
    denominator = _multiply(p, 1057819769 + half + _multiply(square, 127690142))
    denominator = denominator + _multiply(half, 638450708)
    quotient = _multiply(rounding_divide_by_pot(numerator, 6), one_over_one_plus_x(denominator))
    return shift_left_saturating(_multiply(power, 1488522236) + quotient, 1)


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
        cube = shift_left_saturating(_multiply(_multiply(root, root), root), 6)
        step = _multiply(root, (1 << 28) + (1 << 27)) - _multiply(quarter, cube)
        root = shift_left_saturating(step, 3)
    root = _multiply(root, _SQRT_HALF)
    left = np.maximum(-right, 0)
    mantissa = np.where(x <= 1, INT32_MAX, (root << left).astype(np.int32))
    return mantissa.astype(np.int64), np.where(x <= 1, 0, -np.maximum(right, 0))
