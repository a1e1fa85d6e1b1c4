"""Rows of element-by-element arithmetic, comparison and selection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.ir.operations import rules
from penstock.ir.operations.requirements import symmetric_16bit
from penstock.ir.operations.signature import FUSED_ACTIVATION, POT_SCALE_INT16, row
from penstock.ir.operations.spec import FoldRule, OperationSpec, ShapeContext
from penstock.ir.types import Shape


def _same_shapes(context: ShapeContext) -> tuple[Shape]:
    shape = context.shape(0)
    for index in range(1, context.input_count):
        shape = rules.agree_shapes(shape, context.shape(index), f"input {index}")
    return (shape,)


def _comparison(
    name: str, sign: str, fold: FoldRule, versions: int, types: str = "number"
) -> OperationSpec:
    return row(
        name,
        f"a: {types} T, b: {types} T -> truth: bool",
        rules.broadcasting,
        fold=fold,
        level=3,
        versions=versions,
        doc=f"a {sign} b, broadcast.",
    )


def _logical(name: str, word: str, fold: FoldRule) -> OperationSpec:
    signature = "a: bool, b: bool -> truth: bool"
    return row(
        name, signature, rules.broadcasting, fold=fold, level=3, doc=f"a {word} b, broadcast."
    )


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
    row(
        "ADD",
        "a: value T, b: value T -> result: value T",
        rules.broadcasting,
        (FUSED_ACTIVATION, POT_SCALE_INT16),
        fold=rules.elementwise(np.add),
        require=symmetric_16bit,
        level=1,
        versions=6,
        doc="a + b, broadcast.",
    ),
    row(
        "SUB",
        "a: value T, b: value T -> result: value T",
        rules.broadcasting,
        (FUSED_ACTIVATION, POT_SCALE_INT16),
        fold=rules.elementwise(np.subtract),
        require=symmetric_16bit,
        level=2,
        versions=5,
        doc="a - b, broadcast.",
    ),
    row(
        "MUL",
        "a: value T, b: value T -> result: value T",
        rules.broadcasting,
        (FUSED_ACTIVATION,),
        fold=rules.elementwise(np.multiply),
        level=1,
        versions=8,
        doc="a * b, broadcast.",
    ),
    row(
        "DIV",
        "a: value T, b: value T -> result: value T",
        rules.broadcasting,
        (FUSED_ACTIVATION,),
        fold=rules.elementwise(rules.truncated_division),
        level=2,
        versions=2,
        doc="a / b, broadcast; integers are truncated toward zero.",
    ),
    row(
        "FLOOR_DIV",
        "a: any_number T, b: any_number T -> result: value T",
        rules.broadcasting,
        fold=rules.elementwise(rules.floor_division),
        versions=3,
        doc="floor(a / b), broadcast.",
    ),
    row(
        "FLOOR_MOD",
        "a: any_number T, b: any_number T -> result: value T",
        rules.broadcasting,
        fold=rules.elementwise(rules.floor_modulo),
        versions=2,
        doc="a - floor(a / b) * b, broadcast: the remainder with the sign of b.",
    ),
    row(
        "POW",
        "a: any_number T, b: any_number T -> result: value T",
        rules.broadcasting,
        level=3,
        doc="a to the power of b, broadcast; integers take no negative exponent.",
    ),
    row(
        "MAXIMUM",
        "a: number T, b: number T -> result: value T",
        rules.broadcasting,
        fold=rules.elementwise(np.maximum),
        level=3,
        versions=4,
        doc="The larger of a and b, broadcast.",
    ),
    row(
        "MINIMUM",
        "a: number T, b: number T -> result: value T",
        rules.broadcasting,
        fold=rules.elementwise(np.minimum),
        level=3,
        versions=4,
        doc="The smaller of a and b, broadcast.",
    ),
    row(
        "SQUARED_DIFFERENCE",
        "a: number T, b: number T -> result: value T",
        rules.broadcasting,
        versions=2,
        doc="(a - b) * (a - b), broadcast.",
    ),
    row(
        "ADD_N",
        "a: number T, b: number T, more...: number T -> result: value T",
        _same_shapes,
        doc="The sum of all inputs, which have one shape.",
    ),
    row(
        "ATAN2",
        "a: number T, b: number T -> result: value T",
        _same_shapes,
        doc="The angle of the point (b, a) in radians; a and b have one shape.",
    ),
    row(
        "BITWISE_XOR",
        "a: int|bool T, b: int|bool T -> result: value T",
        rules.broadcasting,
        doc="a xor b, bit by bit, broadcast.",
    ),
    row(
        "RIGHT_SHIFT",
        "a: int T, b: int T -> result: value T",
        rules.broadcasting,
        doc="a shifted right by b bits, broadcast; signed types keep their sign.",
    ),
    _comparison("EQUAL", "=", rules.broadcast_folding(np.equal), 5, "value"),
    _comparison("NOT_EQUAL", "≠", rules.broadcast_folding(np.not_equal), 4, "value"),
    _comparison("GREATER", ">", rules.broadcast_folding(np.greater), 2),
    _comparison("GREATER_EQUAL", "≥", rules.broadcast_folding(np.greater_equal), 3),
    _comparison("LESS", "<", rules.broadcast_folding(np.less), 3),
    _comparison("LESS_EQUAL", "≤", rules.broadcast_folding(np.less_equal), 2),
    _logical("LOGICAL_AND", "and", rules.broadcast_folding(np.logical_and)),
    _logical("LOGICAL_OR", "or", rules.broadcast_folding(np.logical_or)),
    row(
        "LOGICAL_NOT",
        "x: bool -> truth: bool",
        rules.like(0),
        fold=rules.broadcast_folding(np.logical_not),
        level=3,
        doc="not x.",
    ),
    row(
        "SELECT",
        "condition: bool, a: value T, b: value T -> selected: value T",
        _select,
        level=3,
        versions=4,
        doc="a where the condition holds, else b; a condition of rank 1 selects whole rows of "
        "values of higher rank.",
    ),
    row(
        "SELECT_V2",
        "condition: bool, a: value T, b: value T -> selected: value T",
        _select_v2,
        fold=rules.broadcast_folding(np.where),
        versions=2,
        doc="a where the condition holds, else b, all three broadcast.",
    ),
)
