"""Tables of functions over int16, as TFLite's integer recurrent cells have them.

They are of three kinds: gemmlowp's 16-bit fixed-point functions, which round every step to 16 bits;
functions of real values, cut off to 15 bits; and real functions at 513 points, with straight
lines between them. A number Qk has k integer bits: its raw value stands for raw / 2**(15 - k).
Tables of the first two kinds are in the order of the stored bits as unsigned numbers, so that
negative values count from the end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np

from penstock.driverkit import fixed_point
from penstock.ir import NDArray

LEAST: Final = -(2**15)
GREATEST: Final = 2**15 - 1
STEPS: Final = 512
"""The steps of an `interpolation_table`."""

MOST_INTEGER_BITS: Final = 6
"""The greatest k with a hyperbolic tangent of Qk."""

_ONE_Q2: Final = 1 << 13
_STORED: Final = np.arange(LEAST, GREATEST + 1)


@cache
def logistic_q3() -> NDArray:
    """The logistic function in Q0 of every value of Q3."""
    x = _STORED
    above = fixed_point.shift_left_saturating(_twice_the_reciprocal(-np.abs(x), 3), 1, 16)
    return _table(np.where(x == 0, 1 << 14, np.where(x > 0, above, GREATEST - above)))


@cache
def tanh_of(integer_bits: int) -> NDArray:
    """The hyperbolic tangent in Q0 of Q*integer_bits*, which is 0 to `MOST_INTEGER_BITS`."""
    x = _STORED
    half = _twice_the_reciprocal(-np.abs(x), integer_bits + 1)
    size = fixed_point.shift_left_saturating(half - _ONE_Q2, 2, 16)
    return _table(np.where(x == 0, 0, np.where(x < 0, -size, size)))


def _twice_the_reciprocal(x: NDArray, integer_bits: int) -> NDArray:
    """2 / (1 + exp(x)) in Q2 of x <= 0 in Q*integer_bits*."""
    powers = fixed_point.exp_on_negative_values(x, integer_bits, 16)
    return fixed_point.twice_the_reciprocal(powers, 16)


@cache
def cut_logistic() -> NDArray:
    """The logistic function of every value of Q3, in float32, truncated to Q0."""
    x = (_STORED * 2.0**-12).astype(np.float32)
    small = np.exp(-x.astype(np.float64)).astype(np.float32)
    return _cut(np.float32(1) / (np.float32(1) + small))


@cache
def cut_tanh(integer_bits: int) -> NDArray:
    """The hyperbolic tangent of every value of Q*integer_bits*, in float32, truncated to Q0."""
    x = (_STORED * 2.0 ** (integer_bits - 15)).astype(np.float32)
    return _cut(np.tanh(x.astype(np.float64)).astype(np.float32))


def _cut(reals: NDArray) -> NDArray:
    return _table(np.clip(np.trunc(reals * np.float32(2**15)), LEAST, GREATEST))


def _table(values: NDArray) -> NDArray:
    table: NDArray = np.roll(values.astype(np.int64), LEAST)
    table.flags.writeable = False
    return table


def round_half_away(x: NDArray) -> NDArray:
    """To the nearest integer, halves away from zero, in the dtype of *x*."""
    whole = np.trunc(x)
    return np.asarray(whole + np.copysign(np.abs(x - whole) >= 0.5, x).astype(x.dtype))


def interpolation_table(
    given: tuple[float, int],
    made: tuple[float, int],
    function: Callable[[NDArray], NDArray],
    real: type[np.floating[Any]],
) -> NDArray:
    """The 513 points of an int16 table for (scale, zero point) pairs, computed in *real*."""
    (in_scale, in_zero), (out_scale, out_zero) = given, made
    low, high = LEAST, GREATEST
    # Arrays of one element, so that every step is rounded to *real*.
    in_min, in_max = (np.array([in_scale], real) * real(v - in_zero) for v in (low, high))
    out_min, out_max = (np.array([out_scale], real) * real(v - out_zero) for v in (low, high))
    step = (in_max - in_min) / real(STEPS)
    inverse = real(2**16) / (out_max - out_min)
    with np.errstate(all="ignore"):
        starts = in_min + np.arange(STEPS + 1).astype(real) * step
        values, middles = function(starts), function(starts[:-1] + step / real(2))
        samples = round_half_away(values[:-1] * inverse)
        between = round_half_away((values[1:] * inverse + samples) / real(2))
        bias = round_half_away((between - round_half_away(middles * inverse)) / real(2))
        last = round_half_away(function(in_max) * inverse)
    points: NDArray = np.clip(np.concatenate([samples - bias, last]), low, high)
    # A function that overflows has infinite errors; its points become NaN.
    return np.nan_to_num(points, nan=0.0).astype(np.int64)
