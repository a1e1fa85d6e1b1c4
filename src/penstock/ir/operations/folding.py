"""Fold rules: output values of small shape computations.

Only plain integers, booleans and floats are followed, and only where inputs and outputs stay small:
whatever a file holds, folding it costs microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from penstock.ir.operations.spec import FoldRule, ShapeContext, ShapeRule
from penstock.ir.types import DType, NDArray

MAX_FOLDED_ELEMENTS: Final = 512

_FOLDED: Final = frozenset(
    {DType.INT32, DType.INT64, DType.UINT32, DType.INT16, DType.BOOL, DType.FLOAT32, DType.FLOAT64}
)


def small_values(context: ShapeContext) -> list[NDArray] | None:
    """The values of all inputs, where they are known and small enough to follow."""
    values: list[NDArray] = []
    for index in range(context.input_count):
        if not context.has(index) or context.dtype(index) not in _FOLDED:
            return None
        shape = context.shape(index)
        if shape is None or not _small(shape):
            return None
        value = context.value(index)
        if value is None:
            return None
        values.append(value)
    return values


def _small(shape: Sequence[int | None]) -> bool:
    count = 1
    for size in shape:
        if size is None:
            return False
        count *= size
    return count <= MAX_FOLDED_ELEMENTS


def fits(*shape: int) -> bool:
    """Whether a value of this shape is small enough to be followed."""
    return min(shape, default=0) >= 0 and _small(shape)


def folding(compute: Callable[..., Any]) -> FoldRule:
    """A fold rule of one output: *compute* of the values of all inputs.

    *compute* returns the result, whose size it bounds, or None where it cannot tell; a fused
    activation stops the following.
    """

    def rule(context: ShapeContext) -> Sequence[NDArray] | None:
        if context.attributes.get("fused_activation_function", "NONE") != "NONE":
            return None
        values = small_values(context)
        if values is None:
            return None
        with np.errstate(all="ignore"):
            try:
                result = compute(*values)
            except (ValueError, IndexError, OverflowError, ZeroDivisionError):
                return None
        return None if result is None else (np.asarray(result),)

    return rule


def broadcast_folding(function: Callable[..., Any]) -> FoldRule:
    """Folds a function that broadcasts its operands."""

    def compute(*values: NDArray) -> Any:
        return function(*values) if fits(*np.broadcast_shapes(*(v.shape for v in values))) else None

    return folding(compute)


def elementwise(function: Callable[..., Any]) -> FoldRule:
    """Folds a function that broadcasts its operands and keeps the dtype of the first."""

    def compute(first: NDArray, *others: NDArray) -> Any:
        result = function(first, *others)
        return None if result is None else np.asarray(result).astype(first.dtype, copy=False)

    return broadcast_folding(compute)


def relabelling(rule: ShapeRule) -> FoldRule:
    """Folds an operation that gives its first input another shape, the one that *rule* infers."""

    def fold(context: ShapeContext) -> Sequence[NDArray] | None:
        values, (shape,) = small_values(context), rule(context)
        if values is None or shape is None or None in shape:
            return None
        return (values[0].reshape([d for d in shape if d is not None]),)

    return fold


def truncated_division(a: NDArray, b: NDArray) -> NDArray | None:
    """TFLite's DIV: integers are truncated toward zero; None for a division by zero."""
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    if not np.all(b):
        return None
    return np.asarray(
        np.where((a < 0) ^ (b < 0), -(np.abs(a) // np.abs(b)), np.abs(a) // np.abs(b))
    )


def floor_division(a: NDArray, b: NDArray) -> NDArray | None:
    if a.dtype.kind != "f" and not np.all(b):
        return None
    return np.asarray(np.floor_divide(a, b))


def floor_modulo(a: NDArray, b: NDArray) -> NDArray | None:
    if a.dtype.kind != "f" and not np.all(b):
        return None
    return np.asarray(np.mod(a, b))
