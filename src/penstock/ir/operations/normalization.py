"""Rows of normalisations over one operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.ir.operations.attributes import FUSED_ACTIVATION, integer, real
from penstock.ir.operations.requirements import fixed_output
from penstock.ir.operations.rules import at_least, ranked
from penstock.ir.operations.spec import OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import ACTIVATION, FLOAT
from penstock.ir.types import DType, Shape


def _l2(context: ShapeContext) -> Sequence[Shape]:
    return (at_least(context, 0, 1),)


def _response(context: ShapeContext) -> Sequence[Shape]:
    return (ranked(context, 0, 4),)


ROWS: Final = (
    OperationSpec(
        "L2_NORMALIZATION",
        (Port("x", ACTIVATION, "T"),),
        (Port("y", ACTIVATION, "T"),),
        _l2,
        (FUSED_ACTIVATION,),
        require=fixed_output({DType.INT8: (1 / 128, 0), DType.UINT8: (1 / 128, 128)}),
        feature_level=1,
        doc="x over its Euclidean length along the last dimension; a vector of zeros stays zeros.",
    ),
    OperationSpec(
        "LOCAL_RESPONSE_NORMALIZATION",
        (Port("x", FLOAT, "T"),),
        (Port("y", FLOAT, "T"),),
        _response,
        (integer("radius"), real("bias"), real("alpha"), real("beta")),
        feature_level=1,
        doc="x over (bias + alpha * the sum of squares within radius channels) to the power of beta; NHWC.",
    ),
)
