"""Rows of comparisons, boolean logic and selection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.ir.operations.folding import broadcast_folding
from penstock.ir.operations.rules import agree, agree_shapes, broadcast, broadcasting, like
from penstock.ir.operations.spec import FoldRule, OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import BOOL, NUMBER, VALUE
from penstock.ir.types import Shape

TRUTH: Final = (Port("truth", BOOL),)


def _comparison(
    name: str, sign: str, fold: FoldRule, level: int | None = 3, any_type: bool = False
) -> OperationSpec:
    types = VALUE if any_type else NUMBER
    ports = (Port("a", types, "T"), Port("b", types, "T"))
    return OperationSpec(
        name,
        ports,
        TRUTH,
        broadcasting,
        fold=fold,
        feature_level=level,
        doc=f"a {sign} b, broadcast.",
    )


def _logical(name: str, word: str, fold: FoldRule) -> OperationSpec:
    ports = (Port("a", BOOL), Port("b", BOOL))
    return OperationSpec(
        name, ports, TRUTH, broadcasting, fold=fold, feature_level=3, doc=f"a {word} b, broadcast."
    )


def _select(context: ShapeContext) -> Sequence[Shape]:
    """SELECT: the values have one shape; the condition has it too, or is a scalar, or picks rows."""
    values = agree_shapes(context.shape(1), context.shape(2), "the two values")
    condition = context.shape(0)
    if condition is None or values is None or not condition:
        return (values,)
    if len(condition) == 1 and len(values) > 1:
        rows = agree(condition[0], values[0], "rows of condition and values")
        return ((rows, *values[1:]),)
    return (agree_shapes(values, condition, "condition and values"),)


def _select_v2(context: ShapeContext) -> Sequence[Shape]:
    return (broadcast(context.shape(0), broadcast(context.shape(1), context.shape(2))),)


ROWS: Final = (
    _comparison("EQUAL", "=", broadcast_folding(np.equal), any_type=True),
    _comparison("NOT_EQUAL", "≠", broadcast_folding(np.not_equal), any_type=True),
    _comparison("GREATER", ">", broadcast_folding(np.greater)),
    _comparison("GREATER_EQUAL", "≥", broadcast_folding(np.greater_equal)),
    _comparison("LESS", "<", broadcast_folding(np.less)),
    _comparison("LESS_EQUAL", "≤", broadcast_folding(np.less_equal)),
    _logical("LOGICAL_AND", "and", broadcast_folding(np.logical_and)),
    _logical("LOGICAL_OR", "or", broadcast_folding(np.logical_or)),
    OperationSpec(
        "LOGICAL_NOT",
        (Port("x", BOOL),),
        TRUTH,
        like(0),
        fold=broadcast_folding(np.logical_not),
        feature_level=3,
        doc="not x.",
    ),
    OperationSpec(
        "SELECT",
        (Port("condition", BOOL), Port("a", VALUE, "T"), Port("b", VALUE, "T")),
        (Port("selected", VALUE, "T"),),
        _select,
        feature_level=3,
        doc="a where the condition holds, else b; a condition of rank 1 selects whole rows of values of higher rank.",
    ),
    OperationSpec(
        "SELECT_V2",
        (Port("condition", BOOL), Port("a", VALUE, "T"), Port("b", VALUE, "T")),
        (Port("selected", VALUE, "T"),),
        _select_v2,
        fold=broadcast_folding(np.where),
        doc="a where the condition holds, else b, all three broadcast.",
    ),
)
