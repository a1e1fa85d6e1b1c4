"""Rows of random numbers.

Seeds of 0 and 0 ask for a different sequence each time. The generator's position, a count that
starts at 0, is state of the network: an optional last input, and as it is afterwards an optional
last output. Without it every run begins the sequence anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations.attributes import integer
from penstock.ir.operations.rules import constant_integer, dimension, fill, ranked
from penstock.ir.operations.shape import target_shape
from penstock.ir.operations.spec import OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import FLOAT, INDEX
from penstock.ir.types import DType, Shape

SEEDS: Final = (integer("seed"), integer("seed2"))
INT64: Final = frozenset({DType.INT64})
POSITION: Final = Port("position", INT64, optional=True)
NEXT_POSITION: Final = Port("next_position", INT64, optional=True)


def _filled(context: ShapeContext) -> Sequence[Shape]:
    return _with_position(context, 1, target_shape(context, 0))


def _with_position(context: ShapeContext, at: int, shape: Shape) -> Sequence[Shape]:
    if context.has(at):
        ranked(context, at, 0)
    return fill(context, shape, ())


def _samples(context: ShapeContext) -> Sequence[Shape]:
    logits, count = ranked(context, 0, 2), constant_integer(context, 1)
    ranked(context, 1, 0)
    if count is not None and count < 0:
        raise ShapeMismatch(f"{count} samples")
    return _with_position(context, 2, (dimension(logits, 0), count))


ROWS: Final = (
    OperationSpec(
        "RANDOM_UNIFORM",
        (Port("shape", INDEX), POSITION),
        (Port("output", FLOAT), NEXT_POSITION),
        _filled,
        SEEDS,
        doc="Random numbers uniform in [0, 1), of a given shape.",
    ),
    OperationSpec(
        "RANDOM_STANDARD_NORMAL",
        (Port("shape", INDEX), POSITION),
        (Port("output", FLOAT), NEXT_POSITION),
        _filled,
        SEEDS,
        doc="Random numbers of mean 0 and deviation 1, of a given shape.",
    ),
    OperationSpec(
        "MULTINOMIAL",
        (Port("logits", FLOAT), Port("num_samples", INDEX), POSITION),
        (Port("samples", INDEX), NEXT_POSITION),
        _samples,
        SEEDS,
        doc="For each row of unnormalised log-probabilities, random classes drawn by them.",
    ),
)
