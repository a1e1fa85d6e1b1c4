"""TFLite's fixed-point arithmetic: real multipliers as 31-bit mantissas and shifts (NNAPI section
8.1).

A multiplier m is mantissa / 2**31 * 2**shift with 2**30 <= mantissa < 2**31. Scaling an integer by
it rounds twice: to the nearest after the multiplication (halves up), and to the nearest after the
right shift (halves away from zero); this is gemmlowp's arithmetic, and what TFLite's reference
kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.ir import NDArray

INT32_MAX: Final = 2**31 - 1
INT32_MIN: Final = -(2**31)


def quantize_multiplier(real: float) -> tuple[int, int]:
    """(mantissa, shift) of a multiplier >= 0; those under 2**-32, and those that are no finite
    number, become (0, 0).
    """
    mantissas, shifts = quantize_multipliers([real])
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
    """int64 values as 32 bits hold them, as int64."""
    return values.astype(np.int32).astype(np.int64)


def round_half_away(real: float) -> float:
    """To the nearest integer, halves away from zero: C's round(), which Python and NumPy do not
    have.
    """
    whole = math.floor(abs(real))
    return math.copysign(whole + (abs(real) - whole >= 0.5), real)


def round_half_away_from_zero(values: NDArray) -> NDArray:
    """Floats to the nearest integers, halves away from zero, in the same type.

    The number added is the greatest below one half: adding one half itself would carry 0.49999997
    to 1.
    """
    half = np.nextafter(values.dtype.type(0.5), values.dtype.type(0))
    result: NDArray = np.asarray(values + np.copysign(half, values))
    return np.trunc(result, out=result)


def saturating_rounding_doubling_high_mul(a: NDArray, b: NDArray | int) -> NDArray:
    """The product of *a* and *b* over 2**31 to the nearest, halves up, for int32 values in int64
    arrays.

    The product of two -2**31 saturates to 2**31 - 1.
    """
    product: NDArray = np.asarray(np.multiply(a, b, dtype=np.int64))
    product += 1 << 30
    product >>= 31
    return np.minimum(product, INT32_MAX, out=product)


def rounding_divide_by_pot(x: NDArray, exponent: NDArray | int) -> NDArray:
    """Quotient of *x* and 2**exponent to the nearest, halves away from zero; *x* is an int64 array,
    *exponent* >= 0.
    """
    # Half of the divisor, less one for negative x: -1 >> 63 is the sign, and 1 << e >> 1 is 0 for e
    # = 0, where there is nothing to round.
    exponent = np.asarray(exponent, np.int64)
    half = (np.int64(1) << exponent) >> 1
    result: NDArray = np.asarray(x + half)
    result += (x >> 63) & -(half > 0).astype(np.int64)
    result >>= exponent
    return result


def multiply_by_quantized_multiplier(
    x: NDArray, mantissa: NDArray | int, shift: NDArray | int
) -> NDArray:
    """The int32 values *x* times a quantised multiplier, as int64; multiplier and shift broadcast.

    Left shifts wrap at 32 bits; of the number of places only the last five bits count, as in
    processors (C++ leaves more than 31 places undefined).
    """
    shift = np.asarray(shift, np.int64)
    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    wide = np.asarray(x, np.int64)
    if left.any():
        wide = wrapped(wide << (left & 31))
    return rounding_divide_by_pot(saturating_rounding_doubling_high_mul(wide, mantissa), right)


def multiply_saturating(x: NDArray, mantissa: int, shift: int) -> NDArray:
    """As `multiply_by_quantized_multiplier`, save that left shifts saturate at 32 bits."""
    left = min(max(shift, 0), 32)
    wide = np.clip(np.asarray(x, np.int64) << left, INT32_MIN, INT32_MAX)
    return rounding_divide_by_pot(
        saturating_rounding_doubling_high_mul(wide, mantissa), max(-shift, 0)
    )


def multiply_wide_by_quantized_multiplier(
    x: NDArray, mantissa: NDArray | int, shift: NDArray | int
) -> NDArray:
    """The 64-bit accumulators *x* times a quantised multiplier, as int64.

    Kernels with 64-bit accumulators reduce the mantissa to 16 bits and round once, halves up. What
    they make wraps at 32 bits, and of a number of places the last six bits count, where
    accumulators reach 2**47 or multipliers 2**8.
    """
    mantissa = np.asarray(mantissa, np.int64)
    reduced = np.where(mantissa < 0x7FFF0000, (mantissa + (1 << 15)) >> 16, 0x7FFF)
    total = 15 - np.asarray(shift, np.int64)
    result: NDArray = np.asarray(np.asarray(x, np.int64) * reduced)
    result += np.int64(1) << (total - 1 & 63)
    result >>= total & 63
    return wrapped(result)
