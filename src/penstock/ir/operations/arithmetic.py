"""Rows of element-by-element arithmetic, comparison and selection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from penstock.ir.operations import rules
from penstock.ir.operations.requirements import symmetric_16bit
from penstock.ir.operations.signature import row
from penstock.ir.operations.spec import OperationSpec, ShapeContext
from penstock.ir.types import Shape


def _comparison(
    name: str, sign: str, compute: Callable[..., Any], version: int, types: str = "number T"
) -> OperationSpec:
    text = f"{name}(a: {types}, b: {types}) -> truth: bool; version {version}; NNAPI 3"
    fold = rules.broadcast_folding(compute)
    return row(f"{text} # a {sign} b, broadcast.")(rules.broadcasting, fold=fold)


def _select(context: ShapeContext) -> Sequence[Shape]:
    """SELECT: the values have one shape. The condition has that shape, is a scalar, or selects
    rows.
    """
    values = rules.agree_shapes(context.shape(1), context.shape(2), "the two values")
    condition = context.shape(0)
    if condition is None or values is None or not condition:
        return (values,)
    if len(condition) == 1 and len(values) > 1:
        rows = rules.agree(condition[0], values[0], "rows of condition and values")
        return ((rows, *values[1:]),)
    return (rules.agree_shapes(values, condition, "condition and values"),)


def _select_v2(context: ShapeContext) -> Sequence[Shape]:
    return (rules.broadcast(context.shape(0), rules.broadcast(context.shape(1), context.shape(2))),)


ROWS: Final = (
    row("""ADD(a: value T, b: value T; fused_activation_function, pot_scale_int16)
        -> result: value T; version 6; NNAPI 1
        # a + b, broadcast.
        """)(rules.broadcasting, fold=rules.elementwise(np.add), require=symmetric_16bit),
    row("""SUB(a: value T, b: value T; fused_activation_function, pot_scale_int16)
        -> result: value T; version 5; NNAPI 2
        # a - b, broadcast.
        """)(rules.broadcasting, fold=rules.elementwise(np.subtract), require=symmetric_16bit),
    row("""MUL(a: value T, b: value T; fused_activation_function) -> result: value T; version 8;
        NNAPI 1 # a * b, broadcast.""")(rules.broadcasting, fold=rules.elementwise(np.multiply)),
    row("""DIV(a: value T, b: value T; fused_activation_function) -> result: value T; version 2;
        NNAPI 2 # a / b, broadcast; integers are truncated toward zero.
        """)(rules.broadcasting, fold=rules.elementwise(rules.dividing(rules.truncated_quotient))),
    row("""FLOOR_DIV(a: any_number T, b: any_number T) -> result: value T; version 3
        # floor(a / b), broadcast.
        """)(rules.broadcasting, fold=rules.elementwise(rules.dividing(np.floor_divide))),
    row("""FLOOR_MOD(a: any_number T, b: any_number T) -> result: value T; version 2
        # a - floor(a / b) * b, broadcast: the remainder with the sign of b.
        """)(rules.broadcasting, fold=rules.elementwise(rules.dividing(np.mod))),
    row("""POW(a: any_number T, b: any_number T) -> result: value T; NNAPI 3
        # a to the power of b, broadcast; integers take no negative exponent.
        """)(rules.broadcasting),
    row("""MAXIMUM(a: number T, b: number T) -> result: value T; version 4; NNAPI 3
        # The larger of a and b, broadcast.
        """)(rules.broadcasting, fold=rules.elementwise(np.maximum)),
    row("""MINIMUM(a: number T, b: number T) -> result: value T; version 4; NNAPI 3
        # The smaller of a and b, broadcast.
        """)(rules.broadcasting, fold=rules.elementwise(np.minimum)),
    row("""SQUARED_DIFFERENCE(a: number T, b: number T) -> result: value T; version 2
        # (a - b) * (a - b), broadcast.""")(rules.broadcasting),
    row("""ADD_N(a: number T, b: number T, more...: number T) -> result: value T
        # The sum of all inputs, which have one shape.""")(rules.same_shapes),
    row("""ATAN2(a: number T, b: number T) -> result: value T
        # The angle of the point (b, a) in radians; a and b have one shape.""")(rules.same_shapes),
    row("""BITWISE_XOR(a: int|bool T, b: int|bool T) -> result: value T
        # a xor b, bit by bit, broadcast.""")(rules.broadcasting),
    row("""RIGHT_SHIFT(a: int T, b: int T) -> result: value T
        # a shifted right by b bits, broadcast; signed types keep their sign.
        """)(rules.broadcasting),
    _comparison("EQUAL", "=", np.equal, 5, "value T"),
    _comparison("NOT_EQUAL", "≠", np.not_equal, 4, "value T"),
    _comparison("GREATER", ">", np.greater, 2),
    _comparison("GREATER_EQUAL", "≥", np.greater_equal, 3),
    _comparison("LESS", "<", np.less, 3),
    _comparison("LESS_EQUAL", "≤", np.less_equal, 2),
    _comparison("LOGICAL_AND", "and", np.logical_and, 1, "bool"),
    _comparison("LOGICAL_OR", "or", np.logical_or, 1, "bool"),
    row("""LOGICAL_NOT(x: bool) -> truth: bool; NNAPI 3
        # not x.""")(rules.like(0), fold=rules.broadcast_folding(np.logical_not)),
    row("""SELECT(condition: bool, a: value T, b: value T) -> selected: value T; version 4; NNAPI 3
        # a where the condition holds, else b; a condition of rank 1 selects whole rows of values of
        higher rank.""")(_select),
    row("""SELECT_V2(condition: bool, a: value T, b: value T) -> selected: value T; version 2
        # a where the condition holds, else b, all three broadcast.
        """)(_select_v2, fold=rules.broadcast_folding(np.where)),
)
