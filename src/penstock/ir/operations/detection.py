"""Rows of non-maximum suppression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations.rules import agree, constant_integer, dimension, fill, ranked
from penstock.ir.operations.spec import OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import FLOAT32, INT32
from penstock.ir.types import Shape

INPUTS: Final = (
    Port("boxes", FLOAT32),
    Port("scores", FLOAT32),
    Port("max_output_size", INT32),
    Port("iou_threshold", FLOAT32),
    Port("score_threshold", FLOAT32),
)


def _selected(context: ShapeContext) -> Shape:
    """Boxes [n, 4], scores [n]; as many places as may be selected, filled up with zeros."""
    boxes, scores = ranked(context, 0, 2), ranked(context, 1, 1)
    agree(dimension(boxes, 1), 4, "numbers a box")
    agree(dimension(boxes, 0), dimension(scores, 0), "boxes and scores")
    for index in range(2, context.input_count):
        ranked(context, index, 0)
    limit = constant_integer(context, 2)
    if limit is not None and limit < 0:
        raise ShapeMismatch(f"at most {limit} boxes selected")
    return (limit,)


def _hard(context: ShapeContext) -> Sequence[Shape]:
    return fill(context, _selected(context), ())


def _soft(context: ShapeContext) -> Sequence[Shape]:
    chosen = _selected(context)
    return fill(context, chosen, chosen, ())


ROWS: Final = (
    OperationSpec(
        "NON_MAX_SUPPRESSION_V4",
        INPUTS,
        (Port("indices", INT32), Port("count", INT32)),
        _hard,
        doc="Boxes in order of score, without those that overlap a better one; their indices and number.",
    ),
    OperationSpec(
        "NON_MAX_SUPPRESSION_V5",
        (*INPUTS, Port("sigma", FLOAT32)),
        (Port("indices", INT32), Port("scores", FLOAT32), Port("count", INT32)),
        _soft,
        doc="As version 4, but overlapping boxes lose score by a Gaussian of sigma; also their scores.",
    ),
)
