"""Rows of random numbers. Seeds of 0 and 0 ask for a different sequence in each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations.attributes import integer
from penstock.ir.operations.rules import constant_integer, dimension, ranked
from penstock.ir.operations.shape import target_shape
from penstock.ir.operations.spec import OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import FLOAT, INDEX
from penstock.ir.types import Shape

SEEDS: Final = (integer("seed"), integer("seed2"))


def _filled(context: ShapeContext) -> Sequence[Shape]:
    return (target_shape(context, 0),)


def _samples(context: ShapeContext) -> Sequence[Shape]:
    logits, count = ranked(context, 0, 2), constant_integer(context, 1)
    ranked(context, 1, 0)
    if count is not None and count < 0:
        raise ShapeMismatch(f"{count} samples")
    return ((dimension(logits, 0), count),)


ROWS: Final = (
    OperationSpec(
        "RANDOM_UNIFORM",
        (Port("shape", INDEX),),
        (Port("output", FLOAT),),
        _filled,
        SEEDS,
        doc="Random numbers uniform in [0, 1), of a given shape.",
    ),
    OperationSpec(
        "RANDOM_STANDARD_NORMAL",
        (Port("shape", INDEX),),
        (Port("output", FLOAT),),
        _filled,
        SEEDS,
        doc="Random numbers of mean 0 and deviation 1, of a given shape.",
    ),
    OperationSpec(
        "MULTINOMIAL",
        (Port("logits", FLOAT), Port("num_samples", INDEX)),
        (Port("samples", INDEX),),
        _samples,
        SEEDS,
        doc="For each row of unnormalised log-probabilities, random classes drawn by them.",
    ),
)
