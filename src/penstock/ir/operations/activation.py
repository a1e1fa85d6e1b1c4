"""Rows of activation functions, softmax and normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations.requirements import fixed_output
from penstock.ir.operations.rules import broadcast, first_of_rank, like
from penstock.ir.operations.signature import row
from penstock.ir.operations.spec import ShapeContext
from penstock.ir.types import Shape


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


_LOGISTIC: Final = fixed_output(int8=(1 / 256, None), uint8=(1 / 256, None), int16=(1 / 32768, 0))
_SOFTMAX: Final = fixed_output(tolerance=1e-3, int8=(1 / 256, -128), int16=(1 / 32768, 0))
_LOG_SOFTMAX: Final = fixed_output(int8=(1 / 16, 127), uint8=(1 / 16, 255))
_UNIT_LENGTH: Final = fixed_output(int8=(1 / 128, 0), uint8=(1 / 128, 128))

ROWS: Final = (
    row("RELU(x: number T) -> y: number T; version 3; NNAPI 1 # max(x, 0).")(like(0)),
    row("RELU_N1_TO_1(x: number T) -> y: number T; NNAPI 1 RELU1 # x clamped to -1..1.")(like(0)),
    row("RELU_0_TO_1(x: number T) -> y: number T # x clamped to 0..1.")(like(0)),
    row("RELU6(x: number T) -> y: number T; version 3; NNAPI 1 # x clamped to 0..6.")(like(0)),
    row("""TANH(x: number T) -> y: number T; version 3; NNAPI 1
        # The hyperbolic tangent of x.""")(like(0)),
    row("""LOGISTIC(x: number T) -> y: number T; version 3; NNAPI 1
        # 1 / (1 + exp(-x)).""")(like(0), require=_LOGISTIC),
    row("ELU(x: number T) -> y: number T; NNAPI 4 # x where positive, else exp(x) - 1.")(like(0)),
    row("HARD_SWISH(x: number T) -> y: number T; NNAPI 4 # x * relu6(x + 3) / 6.")(like(0)),
    row("""LEAKY_RELU(x: number T; alpha: float) -> y: number T; version 2
        # x where positive, else alpha * x.""")(like(0)),
    row("""GELU(x: number T; approximate: bool) -> y: number T; version 3
        # x times the normal distribution function of x, or its tanh approximation.""")(like(0)),
    row("""PRELU(x: activation, alpha: activation) -> y: activation; NNAPI 3
        # x where positive, else alpha * x, broadcast.""")(_prelu),
    row("""SOFTMAX(x: activation; beta: float) -> y: activation; version 4; NNAPI 1
        # exp(beta * x) over its sum along the last dimension.""")(
        first_of_rank(1, more=True), require=_SOFTMAX
    ),
    row("""LOG_SOFTMAX(x: activation) -> y: activation; version 2; NNAPI 3
        # The logarithm of softmax along the last dimension.
        """)(first_of_rank(1, more=True), require=_LOG_SOFTMAX),
    row("""L2_NORMALIZATION(x: activation T; fused_activation_function) -> y: activation T;
        version 2; NNAPI 1 # x over its Euclidean length along the last dimension; a vector of zeros
        stays zeros.""")(first_of_rank(1, more=True), require=_UNIT_LENGTH),
    row("""LOCAL_RESPONSE_NORMALIZATION(x: float T; radius: int, bias: float, alpha: float,
        beta: float) -> y: float T; NNAPI 1
        # x over (bias + alpha * the sum of squares within radius channels) to the power of beta;
        NHWC.""")(first_of_rank(4)),
)
