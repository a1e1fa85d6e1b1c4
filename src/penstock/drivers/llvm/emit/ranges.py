"""What is known of the floats of an expression: those that are clamped are converted faster."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, TypeAlias

from penstock.compiler.expression import Expression, Step
from penstock.ir import DType

Range: TypeAlias = tuple[float, float] | None
"""The least and the greatest value; None: maybe NaN."""

LIMIT: Final = 2.0**31

ROUNDS: Final = frozenset(["ceil", "floor", "round_away", "round_even", "trunc"])
"""They move a value by less than 1."""


@lru_cache(maxsize=1024)
def is_whole(expression: Expression, value: int, made: DType) -> bool:
    """Whether *value*, a float32 that becomes an integer *made* of at most 32 bits with a sign, or
    of fewer without one, is within int32 and not NaN.
    """
    if expression.dtype_of(value) is not DType.FLOAT32 or not made.is_integer:
        return False
    if made.numpy.itemsize > 4 or made is DType.UINT32:
        return False
    found = _range(expression, value)
    return found is not None and found[0] > -LIMIT and found[1] < LIMIT - 256


def _range(expression: Expression, value: int) -> Range:
    count = len(expression.arguments)
    if value < count:
        return None
    step = expression.steps[value - count]
    if step.operation == "constant":
        number = float(step.value or 0)
        return None if math.isnan(number) else (number, number)
    if step.operation in ROUNDS:
        inner = _range(expression, step.arguments[0])
        return None if inner is None else (inner[0] - 1, inner[1] + 1)
    if step.operation in {"maximum", "minimum", "add", "sub"}:
        first, second = (_range(expression, a) for a in step.arguments)
        return _of_two(step, first, second)
    return None


def _of_two(step: Step, first: Range, second: Range) -> Range:
    """The second of two floats is the result of an extreme where either is NaN."""
    if second is None:
        return None
    low, high = second
    if step.operation == "maximum":
        return (low, math.inf) if first is None else (max(low, first[0]), max(high, first[1]))
    if step.operation == "minimum":
        return (-math.inf, high) if first is None else (min(low, first[0]), min(high, first[1]))
    if first is None or not all(map(math.isfinite, (*first, *second))):
        return None
    if step.operation == "add":
        return first[0] + low, first[1] + high
    return first[0] - high, first[1] - low
