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
    return np.asarray(1 / (1 + np.exp(-x)))


_erf: Final = np.vectorize(math.erf, otypes=[np.float64])


def _error_function(x: NDArray) -> NDArray:
    return np.asarray(_erf(x.astype(np.float64)).astype(x.dtype)) if x.size else x


def _divide(a: NDArray, b: NDArray) -> NDArray:
    """Integers are truncated toward zero; a quotient by zero is 0 here, and the kernel checks."""
    if a.dtype.kind == "f":
        return np.asarray(np.divide(a, b))
    safe = np.where(b == 0, 1, b).astype(np.int64)
    size = np.abs(a.astype(np.int64)) // np.abs(safe)
    return np.where((a < 0) ^ (b < 0), -size, size)


def _modulo(a: NDArray, b: NDArray) -> NDArray:
    """The remainder with the sign of *b* (of a quotient rounded down)."""
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
    "maximum": np.maximum,
    "minimum": np.minimum,
    "mod": _modulo,
    "mul": np.multiply,
    "neg": np.negative,
    "not": np.logical_not,
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
    result = np.asarray(FUNCTIONS[step.operation](*given))
    return result if result.dtype == dtype else result.astype(dtype)


def _cast(x: NDArray, dtype: DType) -> NDArray:
    """Floats become integers as in C where these represent them; NaN becomes 0."""
    if x.dtype.kind == "f" and dtype.is_integer:
        x = np.nan_to_num(np.trunc(x), nan=0.0).astype(np.int64)
    return np.asarray(x.astype(dtype.numpy))
