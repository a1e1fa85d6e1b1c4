"""Rows of activation functions, softmax included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations.attributes import flag, real
from penstock.ir.operations.requirements import fixed_output
from penstock.ir.operations.rules import at_least, broadcast, like
from penstock.ir.operations.spec import OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import ACTIVATION, NUMBER
from penstock.ir.types import DType, Shape

X: Final = (Port("x", NUMBER, "T"),)
Y: Final = (Port("y", NUMBER, "T"),)


def _prelu(context: ShapeContext) -> Sequence[Shape]:
    """The slopes broadcast to the input, never the input to the slopes."""
    shape, slopes = context.shape(0), context.shape(1)
    result = broadcast(shape, slopes)
    if shape is not None and result is not None:
        grown = len(result) > len(shape)
        if grown or any(
            a == 1 and b != 1 for a, b in zip(shape, result, strict=True) if b is not None
        ):
            raise ShapeMismatch(f"slopes of shape {slopes} for an input of shape {shape}")
    return (shape,)


def _along_last(context: ShapeContext) -> Sequence[Shape]:
    return (at_least(context, 0, 1),)


ROWS: Final = (
    OperationSpec("RELU", X, Y, like(0), feature_level=1, doc="max(x, 0)."),
    OperationSpec(
        "RELU_N1_TO_1",
        X,
        Y,
        like(0),
        feature_level=1,
        nnapi_name="RELU1",
        doc="x clamped to -1..1.",
    ),
    OperationSpec("RELU_0_TO_1", X, Y, like(0), doc="x clamped to 0..1."),
    OperationSpec("RELU6", X, Y, like(0), feature_level=1, doc="x clamped to 0..6."),
    OperationSpec("TANH", X, Y, like(0), feature_level=1, doc="The hyperbolic tangent of x."),
    OperationSpec(
        "LOGISTIC",
        X,
        Y,
        like(0),
        require=fixed_output(
            {
                DType.INT8: (1 / 256, None),
                DType.UINT8: (1 / 256, None),
                DType.INT16: (1 / 32768, 0),
            }
        ),
        feature_level=1,
        doc="1 / (1 + exp(-x)).",
    ),
    OperationSpec("ELU", X, Y, like(0), feature_level=4, doc="x where positive, else exp(x) - 1."),
    OperationSpec("HARD_SWISH", X, Y, like(0), feature_level=4, doc="x * relu6(x + 3) / 6."),
    OperationSpec(
        "LEAKY_RELU",
        X,
        Y,
        like(0),
        (real("alpha"),),
        doc="x where positive, else alpha * x.",
    ),
    OperationSpec(
        "GELU",
        X,
        Y,
        like(0),
        (flag("approximate"),),
        doc="x times the normal distribution function of x, or its tanh approximation.",
    ),
    OperationSpec(
        "PRELU",
        (Port("x", ACTIVATION), Port("alpha", ACTIVATION)),
        (Port("y", ACTIVATION),),
        _prelu,
        feature_level=3,
        doc="x where positive, else alpha * x, broadcast.",
    ),
    OperationSpec(
        "SOFTMAX",
        (Port("x", ACTIVATION),),
        (Port("y", ACTIVATION),),
        _along_last,
        (real("beta"),),
        require=fixed_output(
            {DType.INT8: (1 / 256, -128), DType.INT16: (1 / 32768, 0)}, tolerance=1e-3
        ),
        feature_level=1,
        doc="exp(beta * x) over its sum along the last dimension.",
    ),
    OperationSpec(
        "LOG_SOFTMAX",
        (Port("x", ACTIVATION),),
        (Port("y", ACTIVATION),),
        _along_last,
        require=fixed_output({DType.INT8: (1 / 16, 127), DType.UINT8: (1 / 16, 255)}),
        feature_level=3,
        doc="The logarithm of softmax along the last dimension.",
    ),
)
