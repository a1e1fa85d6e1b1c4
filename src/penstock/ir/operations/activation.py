"""Rows of activation functions, softmax and normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations.requirements import fixed_output
from penstock.ir.operations.rules import at_least, broadcast, like, ranked
from penstock.ir.operations.signature import FUSED_ACTIVATION, NUMBER, flag, integer, real, row
from penstock.ir.operations.spec import Port, ShapeContext
from penstock.ir.types import DType, Shape

X: Final = (Port("x", NUMBER, "T"),)
Y: Final = (Port("y", NUMBER, "T"),)


def _prelu(context: ShapeContext) -> Sequence[Shape]:
    """The slopes broadcast to the input, but the input does not broadcast to the slopes."""
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


def _l2(context: ShapeContext) -> Sequence[Shape]:
    return (at_least(context, 0, 1),)


def _response(context: ShapeContext) -> Sequence[Shape]:
    return (ranked(context, 0, 4),)


ROWS: Final = (
    row("RELU", "x: number T -> y: number T", like(0), level=1, versions=3, doc="max(x, 0)."),
    row(
        "RELU_N1_TO_1",
        "x: number T -> y: number T",
        like(0),
        level=1,
        nnapi_name="RELU1",
        doc="x clamped to -1..1.",
    ),
    row("RELU_0_TO_1", "x: number T -> y: number T", like(0), doc="x clamped to 0..1."),
    row(
        "RELU6",
        "x: number T -> y: number T",
        like(0),
        level=1,
        versions=3,
        doc="x clamped to 0..6.",
    ),
    row(
        "TANH",
        "x: number T -> y: number T",
        like(0),
        level=1,
        versions=3,
        doc="The hyperbolic tangent of x.",
    ),
    row(
        "LOGISTIC",
        "x: number T -> y: number T",
        like(0),
        require=fixed_output(
            {DType.INT8: (1 / 256, None), DType.UINT8: (1 / 256, None), DType.INT16: (1 / 32768, 0)}
        ),
        level=1,
        versions=3,
        doc="1 / (1 + exp(-x)).",
    ),
    row(
        "ELU",
        "x: number T -> y: number T",
        like(0),
        level=4,
        doc="x where positive, else exp(x) - 1.",
    ),
    row("HARD_SWISH", "x: number T -> y: number T", like(0), level=4, doc="x * relu6(x + 3) / 6."),
    row(
        "LEAKY_RELU",
        "x: number T -> y: number T",
        like(0),
        (real("alpha"),),
        versions=2,
        doc="x where positive, else alpha * x.",
    ),
    row(
        "GELU",
        "x: number T -> y: number T",
        like(0),
        (flag("approximate"),),
        versions=3,
        doc="x times the normal distribution function of x, or its tanh approximation.",
    ),
    row(
        "PRELU",
        "x: activation, alpha: activation -> y: activation",
        _prelu,
        level=3,
        doc="x where positive, else alpha * x, broadcast.",
    ),
    row(
        "SOFTMAX",
        "x: activation -> y: activation",
        _along_last,
        (real("beta"),),
        require=fixed_output(
            {DType.INT8: (1 / 256, -128), DType.INT16: (1 / 32768, 0)}, tolerance=1e-3
        ),
        level=1,
        versions=4,
        doc="exp(beta * x) over its sum along the last dimension.",
    ),
    row(
        "LOG_SOFTMAX",
        "x: activation -> y: activation",
        _along_last,
        require=fixed_output({DType.INT8: (1 / 16, 127), DType.UINT8: (1 / 16, 255)}),
        level=3,
        versions=2,
        doc="The logarithm of softmax along the last dimension.",
    ),
    row(
        "L2_NORMALIZATION",
        "x: activation T -> y: activation T",
        _l2,
        (FUSED_ACTIVATION,),
        require=fixed_output({DType.INT8: (1 / 128, 0), DType.UINT8: (1 / 128, 128)}),
        level=1,
        versions=2,
        doc="x over its Euclidean length along the last dimension; a vector of zeros stays zeros.",
    ),
    row(
        "LOCAL_RESPONSE_NORMALIZATION",
        "x: float T -> y: float T",
        _response,
        (integer("radius"), real("bias"), real("alpha"), real("beta")),
        level=1,
        doc="x over (bias + alpha * the sum of squares within radius channels) to the power of "
        "beta; NHWC.",
    ),
)
