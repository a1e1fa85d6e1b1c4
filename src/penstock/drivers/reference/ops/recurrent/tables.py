"""The nonlinearities of integer recurrent cells, as tables over int16.

Two kinds: gemmlowp's 16-bit fixed-point functions, whose every step rounds to 16 bits, and
functions of real values that are cut off to 15 bits. A number Qk has k integer bits: its raw value
stands for raw / 2**(15 - k). Tables are indexed by stored values: negative ones count from the end.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np

from penstock.drivers.reference.ops.numerics.fixed_point import rounding_divide_by_pot
from penstock.drivers.reference.ops.numerics.tables import by_bits, stored_values
from penstock.ir import DType, NDArray

LEAST: Final = -(2**15)
GREATEST: Final = 2**15 - 1
MOST_INTEGER_BITS: Final = 6
"""The greatest k for which there is a hyperbolic tangent of Qk."""

_ONE_Q2: Final = 1 << 13


def multiply_q15(a: NDArray, b: NDArray | int) -> NDArray:
    """The product of int16 values over 2**15 to the nearest, halves up; -1 times -1 saturates."""
    result: NDArray = (np.multiply(a, b, dtype=np.int64) + (1 << 14)) >> 15
    return np.minimum(result, GREATEST, out=result)


@cache
def logistic_q3() -> NDArray:
    """The logistic function in Q0 of every value of Q3."""
    x = stored_values(DType.INT16)
    above = _twice_the_reciprocal(_exp_on_negative_values(np.where(x > 0, -x, x), 3))
    above = _shift_saturating(above, 1)
    return _table(np.where(x == 0, 1 << 14, np.where(x > 0, above, GREATEST - above)))


@cache
def tanh_of(integer_bits: int) -> NDArray:
    """The hyperbolic tangent in Q0 of every value of Q*integer_bits*, which is 0 to
    `MOST_INTEGER_BITS`.
    """
    x = stored_values(DType.INT16)
    half = _twice_the_reciprocal(_exp_on_negative_values(np.where(x < 0, x, -x), integer_bits + 1))
    size = _shift_saturating(half - _ONE_Q2, 2)
    return _table(np.where(x == 0, 0, np.where(x < 0, -size, size)))


@cache
def cut_logistic() -> NDArray:
    """The logistic function of every value of Q3, in float32 and cut off to Q0."""
    x = (stored_values(DType.INT16) * 2.0**-12).astype(np.float32)
    small = np.exp(-x.astype(np.float64)).astype(np.float32)
    return _cut(np.float32(1) / (np.float32(1) + small))


@cache
def cut_tanh(integer_bits: int) -> NDArray:
    """The hyperbolic tangent of every value of Q*integer_bits*, in float32 and cut off to Q0."""
    x = (stored_values(DType.INT16) * 2.0 ** (integer_bits - 15)).astype(np.float32)
    return _cut(np.tanh(x.astype(np.float64)).astype(np.float32))


def _cut(reals: NDArray) -> NDArray:
    return _table(np.clip(np.trunc(reals * np.float32(2**15)), LEAST, GREATEST))


def _table(values: NDArray) -> NDArray:
    table = by_bits(values.astype(np.int64), DType.INT16)
    table.flags.writeable = False
    return table


def _constant(raw32: int) -> int:
    """A raw 32-bit constant as a raw 16-bit one."""
    return int(rounding_divide_by_pot(np.array(raw32), 16))


def _wrapped(x: NDArray) -> NDArray:
    result: NDArray = x.astype(np.int16).astype(np.int64)
    return result


def _shift_saturating(x: NDArray, bits: int) -> NDArray:
    result: NDArray = np.clip(x << bits, LEAST, GREATEST)
    return result


def _exp_on_negative_values(x: NDArray, integer_bits: int) -> NDArray:
    """exp(x) in Q0 of x <= 0 in Q*integer_bits*."""
    fraction = 15 - integer_bits
    quarter = 1 << (fraction - 2)
    rest = (x & (quarter - 1)) - quarter
    result = _exp_near_zero(_shift_saturating(rest, integer_bits))
    remainder = rest - x
    # exp(-2**e) in Q0 for e = -2 .. 4
    factors = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
    for exponent, factor in zip(range(-2, integer_bits), factors, strict=False):
        scaled = multiply_q15(result, _constant(factor))
        result = np.where(remainder >> (fraction + exponent) & 1, scaled, result)
    if integer_bits > 5:
        result = np.where(x < -(1 << (fraction + 5)), 0, result)
    return np.where(x == 0, GREATEST, result)


def _exp_near_zero(x: NDArray) -> NDArray:
    """exp(x) in Q0 of -1/4 <= x < 0 in Q0: the Taylor polynomial of degree 4 around -1/8."""
    exp_minus_eighth, third = _constant(1895147668), _constant(715827883)
    y = x + (1 << 12)
    y2 = multiply_q15(y, y)
    y3, y4 = multiply_q15(y2, y), multiply_q15(y2, y2)
    tail = multiply_q15(rounding_divide_by_pot(y4, 2) + y3, third) + y2
    result = multiply_q15(y + rounding_divide_by_pot(tail, 1), exp_minus_eighth)
    total: NDArray = np.clip(exp_minus_eighth + result, LEAST, GREATEST)
    return total


def _twice_the_reciprocal(x: NDArray) -> NDArray:
    """2 / (1 + x) in Q2 of 0 <= x < 1 in Q0: three Newton-Raphson steps."""
    half_denominator = (x + GREATEST + 1) >> 1
    first = multiply_q15(half_denominator, _constant(-1010580540))
    result = _wrapped(_constant(1515870810) + first)
    for _ in range(3):
        error = _ONE_Q2 - multiply_q15(half_denominator, result)
        result = _wrapped(result + _shift_saturating(multiply_q15(result, error), 2))
    return result
