"""LOGISTIC, TANH, ELU and GELU, and the complementary error function, which NumPy does not have.

The error function follows W. J. Cody, "Rational Chebyshev approximations for the error function",
Mathematics of Computation 23 (1969): three rational functions, to about 1e-15 relative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import cache
from typing import Final

import numpy as np

from penstock.driverkit.fixed_point import power_of_two
from penstock.drivers.reference.kernel import Kernel, Site, kernel, require
from penstock.drivers.reference.numerics import one_operand
from penstock.ir import DType, NDArray

RealFunction = Callable[[NDArray], NDArray]

LOW: Final = np.float32(-9.0)
HIGH: Final = np.float32(16.619047164916992)
"""Above this magnitude, LOGISTIC equals its asymptote."""

_SQRT_2_OVER_PI: Final = math.sqrt(2 / math.pi)


@kernel("LOGISTIC")
def logistic(site: Site) -> Kernel:
    """1 / (1 + exp(-x)). Quantised outputs have the scale 1/256, int16 ones 1/32768."""
    if site.input(0).dtype is DType.INT16:
        require(_scale(site) == 2.0**-15, "LOGISTIC to int16 of another scale than 1/32768")
        return one_operand.tabulated(
            site, lambda stored: _logistic_16(*_multiplier(site, 0), stored)
        )
    if site.input(0).dtype in one_operand.QUANTIZED_8:
        require(_scale(site) == 2.0**-8, "LOGISTIC to 8 bits of another scale than 1/256")
    return _by_type(site, _logistic, _logistic_rounded, one_operand.SHORT_FLOATS)


@kernel("TANH")
def tanh(site: Site) -> Kernel:
    """The hyperbolic tangent. int16 outputs have the scale 1/32768."""
    if site.input(0).dtype is DType.INT16:
        require(_scale(site) == 2.0**-15, "TANH to int16 of another scale than 1/32768")
        return one_operand.tabulated(site, lambda stored: _tanh_16(*_multiplier(site, 1), stored))
    return _by_type(site, np.tanh, one_operand.in_double(np.tanh), one_operand.SHORT_FLOATS)


@kernel("ELU")
def elu(site: Site) -> Kernel:
    """`x` if it is not negative, otherwise `exp(x) - 1`."""
    site.require_types(site.input(0).dtype is not DType.UINT8)
    return _by_type(site, _elu, _elu)


@kernel("GELU")
def gelu(site: Site) -> Kernel:
    """`x` times the normal distribution function of x, or its tanh approximation."""
    approximate = site.attributes.flag("approximate")
    function = _gelu_approximate if approximate else _gelu
    if site.input(0).dtype is site.output().dtype is DType.INT16:
        return one_operand.tabulated_reals(site, function)
    if site.input(0).dtype is site.output().dtype is DType.FLOAT16:
        return lambda inputs: (function(np.asarray(inputs[0])),)
    return _by_type(site, function if approximate else _gelu_single, function)


def _by_type(
    site: Site, function: RealFunction, rounded: RealFunction, short: Collection[str] = ()
) -> Kernel:
    """The kernel for float32, int8 and uint8, and for the *short* floats, computed as float32.

    *rounded* is *function* as C's mathematical library computes it, each step rounded to float32.
    """
    given = site.input(0).dtype
    site.require_types(given is site.output().dtype)
    if given in one_operand.QUANTIZED_8:
        return one_operand.tabulated_reals(site, rounded)
    site.require_types(given is DType.FLOAT32 or given.value in short)

    def convert(x: NDArray) -> NDArray:
        return function(x.astype(np.float32, copy=False)).astype(x.dtype, copy=False)

    return lambda inputs: (one_operand.by_parts(convert, np.asarray(inputs[0])),)


_exp: Final = one_operand.in_double(np.exp)


def _logistic(x: NDArray) -> NDArray:
    small = np.exp(-np.abs(x))
    result: NDArray = np.where(x >= 0, np.float32(1), small) / (np.float32(1) + small)
    # TFLite uses exp(x) where x is low, which changes the fifth digit.
    result = np.where(x < LOW, small, result)
    return np.where(x > HIGH, np.float32(1), result)


def _logistic_rounded(x: NDArray) -> NDArray:
    return np.float32(1) / (np.float32(1) + _exp(-x))


def _elu(x: NDArray) -> NDArray:
    return np.where(x < 0, one_operand.in_double(np.expm1)(np.minimum(x, np.float32(0))), x)


def _gelu(x: NDArray) -> NDArray:
    """Computes every step in the type of *x*."""
    real = x.dtype.type
    inner = (x * real(-math.sqrt(0.5))).astype(np.float64)
    return np.asarray(real(0.5) * x * complementary_error_function(inner).astype(x.dtype))


def _gelu_single(x: NDArray) -> NDArray:
    """`_gelu` of float32 in float32 throughout, to about 1e-6."""
    half = np.float32(0.5)
    tail = complementary_error_function(x * np.float32(-math.sqrt(0.5)))
    return half * x * tail


def _gelu_approximate(x: NDArray) -> NDArray:
    """Computes every step in the type of *x*."""
    real = x.dtype.type
    inner = real(_SQRT_2_OVER_PI) * (x + real(0.044715) * (x * x * x))
    return np.asarray(real(0.5) * x * (real(1) + np.tanh(inner.astype(np.float64)).astype(x.dtype)))


def _scale(site: Site) -> float:
    made = site.output_quantization()
    given = site.quantization(0)
    if site.input(0).dtype is DType.INT16:
        require(made.zero_point == given.zero_point == 0, "int16 with a zero point other than 0")
    return made.scale


def _multiplier(site: Site, most_shift: int) -> tuple[int, int]:
    """(multiplier, right shift) that scale int16 values to 3 * 4096 steps a unit.

    Scales that are a power of two, with a shift of 0 to *most_shift*, are multiplied by 3 exactly.
    """
    scale = site.quantization(0).scale
    power = power_of_two(scale)
    if power is not None and 0 <= 12 + power <= most_shift:
        return 3 << (12 + power), 0
    multiplier, right = scale * 4096.0 * 3.0, 0
    while multiplier <= 32767.0 / 2.0 and right <= 30:
        multiplier, right = multiplier * 2.0, right + 1
    return int(multiplier), right


@cache
def _logistic_points() -> NDArray:
    """logistic(i / 24) in Q0.16 for i = 0 .. 255. Each value is corrected by half the error of
    linear interpolation in the middle; the last one is the greatest value.
    """
    exact = 65536.0 / (1.0 + np.exp(np.arange(0.0, 256.5, 0.5) / -24.0))
    starts, middles, ends = exact[:-1:2], exact[1::2], exact[2::2]
    points = np.rint(starts - ((starts + ends) / 2 - middles) / 2)
    points[-1] = 65535.0
    return points.astype(np.int64)


def _steps(multiplier: int, shift: int, stored: NDArray) -> NDArray:
    half = 1 << (shift - 1) if shift > 0 else 0
    return (stored * multiplier + half) >> shift


def _interpolated(size: NDArray, bits: int) -> NDArray:
    """The table at *size* / 2**bits, times 2**bits, for sizes within the table."""
    points, index = _logistic_points(), np.minimum(size >> bits, 254)
    low = points[index]
    return np.asarray((low << bits) + (size & ((1 << bits) - 1)) * (points[index + 1] - low))


def _logistic_16(multiplier: int, shift: int, stored: NDArray) -> NDArray:
    x = _steps(multiplier, shift, stored)
    size = np.abs(x)
    value = np.where(size >> 9 >= 255, 0x7FFF << 10, _interpolated(size, 9))
    value = np.where(x >= 0, value + (1 << 9), (1 << 25) - value + (1 << 9) - 1)
    return value >> 10


def _tanh_16(multiplier: int, shift: int, stored: NDArray) -> NDArray:
    x = _steps(multiplier, shift, stored)
    size = np.abs(x)
    value = np.where(size >> 8 >= 255, 0xFFFF << 8, _interpolated(size, 8))
    value = np.where(x >= 0, value - (1 << 23) + (1 << 7), -value + (1 << 23) + (1 << 7) - 1)
    return value >> 8


# Coefficients in descending order of power.
_SMALL: Final = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2,
     3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3,
     2.84423683343917062e3),
)  # fmt: skip
_MIDDLE: Final = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1,
     2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
     1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2,
     1.62138957456669019e3, 3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3,
     1.23033935480374942e3),
)  # fmt: skip
_LARGE: Final = (
    (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
     1.60837851487422766e-2, 6.58749161529837803e-4),
    (1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2,
     2.33520497626869185e-3),
)  # fmt: skip
_LARGEST: Final = 26.5
"""The number above which erfc underflows."""


def complementary_error_function(x: NDArray) -> NDArray:
    """erfc(x) = 1 - erf(x), in the type of *x*: float64, or float32 to about 1e-6 relative."""
    if not x.ndim:
        return complementary_error_function(x.reshape(1)).reshape(())
    real = x.dtype.type
    one, root = real(1), real(1 / math.sqrt(math.pi))
    bounded = np.clip(x, real(-_LARGEST), real(_LARGEST))
    size, square = np.abs(bounded), bounded * bounded
    result = _rational(_MIDDLE, np.minimum(size, real(4)))
    if (size > 4).any():
        inverse = one / np.maximum(square, one)
        large = (root - inverse * _rational(_LARGE, inverse)) / np.maximum(size, one)
        result = np.where(size <= 4, result, large)
    result *= np.exp(-square)
    # Multiplying by 0 and 1 is faster than selecting elements.
    result += (real(2) - result - result) * (bounded < 0)
    small = one - bounded * _rational(_SMALL, np.minimum(square, one))
    small -= result
    small *= size <= real(0.46875)
    result += small
    return result


def _rational(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: NDArray) -> NDArray:
    numerator, denominator = (_polynomial(c, x) for c in coefficients)
    return np.divide(numerator, denominator, out=numerator)


def _polynomial(coefficients: tuple[float, ...], x: NDArray) -> NDArray:
    """Horner's scheme, in the type of *x*."""
    result: NDArray = np.multiply(x, coefficients[0])
    for coefficient in coefficients[1:-1]:
        result += coefficient
        result *= x
    result += coefficients[-1]
    return result
