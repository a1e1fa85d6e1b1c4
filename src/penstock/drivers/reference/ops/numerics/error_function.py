"""The complementary error function of arrays, which NumPy does not have.

W. J. Cody, "Rational Chebyshev approximations for the error function", Mathematics of Computation
23 (1969): three rational functions, to about 1e-15 relative.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from penstock.ir import NDArray

# Coefficients by falling power.
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
"""Beyond it erfc underflows."""


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
    # Choices are made by factors of 0 and 1, which are faster than choosing element by element.
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
