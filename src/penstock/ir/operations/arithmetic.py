"""Rows of element-by-element arithmetic on two or more operands."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir.operations.attributes import FUSED_ACTIVATION, POT_SCALE_INT16
from penstock.ir.operations.folding import (
    elementwise,
    floor_division,
    floor_modulo,
    truncated_division,
)
from penstock.ir.operations.requirements import symmetric_16bit
from penstock.ir.operations.rules import agree_shapes, broadcasting
from penstock.ir.operations.spec import OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import ANY_NUMBER, INT, NUMBER, VALUE
from penstock.ir.types import DType, Shape

PAIR: Final = (Port("a", NUMBER, "T"), Port("b", NUMBER, "T"))
ANY_PAIR: Final = (Port("a", ANY_NUMBER, "T"), Port("b", ANY_NUMBER, "T"))
INTEGER_PAIR: Final = (Port("a", INT, "T"), Port("b", INT, "T"))
# The preparation of TFLite's kernels lets any type pass here; the kernels themselves decide.
VALUE_PAIR: Final = (Port("a", VALUE, "T"), Port("b", VALUE, "T"))
RESULT: Final = (Port("result", VALUE, "T"),)


def _same_shapes(context: ShapeContext) -> tuple[Shape]:
    shape = context.shape(0)
    for index in range(1, context.input_count):
        shape = agree_shapes(shape, context.shape(index), f"input {index}")
    return (shape,)


ROWS: Final = (
    OperationSpec(
        "ADD",
        VALUE_PAIR,
        RESULT,
        broadcasting,
        (FUSED_ACTIVATION, POT_SCALE_INT16),
        fold=elementwise(np.add),
        require=symmetric_16bit,
        feature_level=1,
        doc="a + b, broadcast.",
    ),
    OperationSpec(
        "SUB",
        VALUE_PAIR,
        RESULT,
        broadcasting,
        (FUSED_ACTIVATION, POT_SCALE_INT16),
        fold=elementwise(np.subtract),
        require=symmetric_16bit,
        feature_level=2,
        doc="a - b, broadcast.",
    ),
    OperationSpec(
        "MUL",
        VALUE_PAIR,
        RESULT,
        broadcasting,
        (FUSED_ACTIVATION,),
        fold=elementwise(np.multiply),
        feature_level=1,
        doc="a * b, broadcast.",
    ),
    OperationSpec(
        "DIV",
        VALUE_PAIR,
        RESULT,
        broadcasting,
        (FUSED_ACTIVATION,),
        fold=elementwise(truncated_division),
        feature_level=2,
        doc="a / b, broadcast; integers are truncated toward zero.",
    ),
    OperationSpec(
        "FLOOR_DIV",
        ANY_PAIR,
        RESULT,
        broadcasting,
        fold=elementwise(floor_division),
        doc="floor(a / b), broadcast.",
    ),
    OperationSpec(
        "FLOOR_MOD",
        ANY_PAIR,
        RESULT,
        broadcasting,
        fold=elementwise(floor_modulo),
        doc="a - floor(a / b) * b, broadcast: the remainder with the sign of b.",
    ),
    OperationSpec(
        "POW",
        ANY_PAIR,
        RESULT,
        broadcasting,
        feature_level=3,
        doc="a to the power of b, broadcast; integers take no negative exponent.",
    ),
    OperationSpec(
        "MAXIMUM",
        PAIR,
        RESULT,
        broadcasting,
        fold=elementwise(np.maximum),
        feature_level=3,
        doc="The larger of a and b, broadcast.",
    ),
    OperationSpec(
        "MINIMUM",
        PAIR,
        RESULT,
        broadcasting,
        fold=elementwise(np.minimum),
        feature_level=3,
        doc="The smaller of a and b, broadcast.",
    ),
    OperationSpec(
        "SQUARED_DIFFERENCE",
        PAIR,
        RESULT,
        broadcasting,
        doc="(a - b) * (a - b), broadcast.",
    ),
    OperationSpec(
        "ADD_N",
        (*PAIR, Port("more", NUMBER, "T", variadic=True)),
        RESULT,
        _same_shapes,
        doc="The sum of all inputs, which have one shape.",
    ),
    OperationSpec(
        "ATAN2",
        PAIR,
        RESULT,
        _same_shapes,
        doc="The angle of the point (b, a) in radians; a and b have one shape.",
    ),
    OperationSpec(
        "BITWISE_XOR",
        (Port("a", INT | {DType.BOOL}, "T"), Port("b", INT | {DType.BOOL}, "T")),
        RESULT,
        broadcasting,
        doc="a xor b, bit by bit, broadcast.",
    ),
    OperationSpec(
        "RIGHT_SHIFT",
        INTEGER_PAIR,
        RESULT,
        broadcasting,
        doc="a shifted right by b bits, broadcast; signed types keep their sign.",
    ),
)
