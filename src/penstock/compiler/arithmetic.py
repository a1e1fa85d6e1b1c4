"""What each scalar operation means, in NumPy on whole arrays.

Integer results wrap at the width of the step's type, unless said otherwise. `rescale` and its kin
are TFLite's fixed-point arithmetic (`penstock.driverkit.fixed_point`, NNAPI section 8.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from penstock.compiler.expression import Expression, Step
from penstock.driverkit import fixed_point
from penstock.ir import DType, NDArray

Function = Callable[..., NDArray]


def _logistic(x: NDArray) -> NDArray:
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, small, x.dtype.type(1)) / (1 + small))


_erf: Final = np.vectorize(math.erf, otypes=[np.float64])


def _error_function(x: NDArray) -> NDArray:
    return np.asarray(_erf(x.astype(np.float64)).astype(x.dtype)) if x.size else x


def _maximum(a: NDArray, b: NDArray) -> NDArray:
    """The larger one; the second of two floats if either is NaN."""
    return np.where(a > b, a, b) if a.dtype.kind == "f" else np.maximum(a, b)


def _minimum(a: NDArray, b: NDArray) -> NDArray:
    """The smaller one; the second of two floats if either is NaN."""
    return np.where(a < b, a, b) if a.dtype.kind == "f" else np.minimum(a, b)


def _not(x: NDArray) -> NDArray:
    return np.logical_not(x) if x.dtype == np.bool_ else np.invert(x)


def _divide(a: NDArray, b: NDArray) -> NDArray:
    """Integers are truncated toward zero; a divisor of 0 counts as 1. The one quotient that int32
    does not hold saturates.
    """
    if a.dtype.kind == "f":
        return np.asarray(np.divide(a, b))
    safe = np.where(b == 0, 1, b)
    if a.dtype.kind == "u":
        return np.asarray(a // safe)
    wide, divisor = a.astype(np.int64), safe.astype(np.int64)
    quotient = wide // divisor
    quotient += (quotient * divisor != wide) & ((wide < 0) != (divisor < 0))
    return np.minimum(quotient, 2**31 - 1) if a.dtype == np.int32 else quotient


def _modulo(a: NDArray, b: NDArray) -> NDArray:
    """The remainder with the sign of *b* (of a quotient rounded down). An integer divisor of 0
    counts as 1.
    """
    if a.dtype.kind == "f":
        return np.asarray(np.mod(a, b))
    return np.asarray(np.mod(a, np.where(b == 0, 1, b)))


def _rescale(x: NDArray, mantissa: NDArray, shift: NDArray) -> NDArray:
    return fixed_point.rescale(x, np.asarray(mantissa, np.int64), np.asarray(shift, np.int64))


def _rescale_wide(x: NDArray, mantissa: NDArray, shift: NDArray) -> NDArray:
    return fixed_point.rescale_wide(x, mantissa, shift)


def _high_product(a: NDArray, b: NDArray) -> NDArray:
    return fixed_point.doubling_high_mul(np.asarray(a, np.int64), np.asarray(b, np.int64))


def _divide_by_power(x: NDArray, exponent: NDArray) -> NDArray:
    return fixed_point.rounding_divide_by_pot(np.asarray(x, np.int64), exponent)


def _leading_zeros(x: NDArray) -> NDArray:
    return fixed_point.count_leading_zeros(np.asarray(x, np.int64))


FUNCTIONS: Final[Mapping[str, Function]] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "ceil": np.ceil,
    "cos": np.cos,
    "div": _divide,
    "divide_by_power": _divide_by_power,
    "equal": np.equal,
    "erf": _error_function,
    "exp": np.exp,
    "expm1": np.expm1,
    "floor": np.floor,
    "high_product": _high_product,
    "leading_zeros": _leading_zeros,
    "less": np.less,
    "less_equal": np.less_equal,
    "log": np.log,
    "logistic": _logistic,
    "maximum": _maximum,
    "minimum": _minimum,
    "mod": _modulo,
    "mul": np.multiply,
    "neg": np.negative,
    "not": _not,
    "or": np.bitwise_or,
    "power": np.power,
    "rescale": _rescale,
    "rescale_wide": _rescale_wide,
    "round_away": fixed_point.round_half_away_from_zero,
    "round_even": np.rint,
    "rsqrt": lambda x: np.asarray(1 / np.sqrt(x)),
    "select": np.where,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "sign": np.sign,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "sub": np.subtract,
    "tanh": np.tanh,
    "trunc": np.trunc,
    "xor": np.bitwise_xor,
}
"""The functions of the operations other than `constant`, `cast` and `lookup`."""


def evaluate(
    expression: Expression,
    arguments: Sequence[NDArray],
    tables: Callable[[int], NDArray],
) -> NDArray:
    """The result of *expression* on arrays that broadcast together.

    *tables* returns a constant tensor by its number, for lookups.
    """
    values: list[NDArray] = list(arguments)
    with np.errstate(all="ignore"):
        for step in expression.steps:
            values.append(_step(step, [values[a] for a in step.arguments], tables))
    return values[expression.result]


def _step(step: Step, given: Sequence[NDArray], tables: Callable[[int], NDArray]) -> NDArray:
    dtype: np.dtype[Any] = step.dtype.numpy
    if step.operation == "constant":
        return np.asarray(step.value, dtype)
    if step.operation == "lookup":
        return np.asarray(tables(int(step.value or 0))[given[0]])
    if step.operation == "cast":
        return _cast(given[0], step.dtype)
    if step.operation == "bitcast":
        return np.asarray(given[0]).view(dtype)
    result = np.asarray(FUNCTIONS[step.operation](*given))
    return result if result.dtype == dtype else result.astype(dtype)


def _cast(x: NDArray, dtype: DType) -> NDArray:
    """Floats are truncated and saturate at the type's limits, NaN becomes 0. Integers of 8 and 16
    bits are made from int32, and wrap.
    """
    if x.dtype.kind != "f" or not dtype.is_integer:
        return np.asarray(x.astype(dtype.numpy))
    middle = dtype.numpy if dtype.numpy.itemsize >= 4 else np.dtype(np.int32)
    limits = np.iinfo(middle)
    whole = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0)
    above = whole >= float(limits.max)
    inside = np.where(above, 0, np.maximum(whole, float(limits.min)))
    return np.where(above, limits.max, inside.astype(middle)).astype(dtype.numpy)
