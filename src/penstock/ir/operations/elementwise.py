"""Rows of element-by-element arithmetic."""

from __future__ import annotations

from typing import Final

from penstock.ir.operations.rules import broadcasting, like
from penstock.ir.operations.spec import AttributeSpec, OperationSpec, Port
from penstock.ir.operations.types import ANY_NUMBER, FLOAT, INT

ACTIVATIONS: Final = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")
ACTIVATION: Final = AttributeSpec("fused_activation_function", "enum", "NONE", ACTIVATIONS)

ROWS: Final = (
    OperationSpec(
        "ADD",
        (Port("a", ANY_NUMBER, "T"), Port("b", ANY_NUMBER, "T")),
        (Port("sum", ANY_NUMBER, "T"),),
        broadcasting,
        (ACTIVATION, AttributeSpec("pot_scale_int16", "bool", True)),
        feature_level=1,
        doc="a + b, broadcast.",
    ),
    OperationSpec(
        "RELU",
        (Port("x", FLOAT | INT, "T"),),
        (Port("y", FLOAT | INT, "T"),),
        like(0),
        feature_level=1,
        doc="max(x, 0).",
    ),
)
