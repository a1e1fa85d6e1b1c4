"""Activation functions, softmax and normalisations."""

from __future__ import annotations

from typing import Final

from penstock.ir import DType, Quantization
from tests.differential.draw import Draw
from tests.differential.registry import cases

FIXED: Final[dict[str, dict[DType, tuple[float, int]]]] = {
    "LOGISTIC": {
        DType.INT8: (1 / 256, -128),
        DType.UINT8: (1 / 256, 0),
        DType.INT16: (1 / 32768, 0),
    },
    "TANH": {DType.INT8: (1 / 128, 0), DType.UINT8: (1 / 128, 128), DType.INT16: (1 / 32768, 0)},
    "SOFTMAX": {
        DType.INT8: (1 / 256, -128),
        DType.UINT8: (1 / 256, 0),
        DType.INT16: (1 / 32768, 0),
    },
    "LOG_SOFTMAX": {DType.INT8: (16 / 256, 127), DType.UINT8: (16 / 256, 255)},
    "L2_NORMALIZATION": {DType.INT8: (1 / 128, 0), DType.UINT8: (1 / 128, 128)},
}
"""Scale and zero point that the kernels want of their outputs."""


def output_quantization(draw: Draw, kind: str, dtype: DType) -> Quantization | None:
    """The one that the kernel wants, most of the time."""
    fixed = FIXED.get(kind, {}).get(dtype)
    if fixed is not None and draw.chance(0.9):
        return draw.quantization(dtype, *fixed)
    return draw.quantization(dtype, scaled=dtype in {DType.INT8, DType.UINT8, DType.INT16})


@cases(
    "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "TANH", "LOGISTIC", "ELU", "HARD_SWISH",
    "LEAKY_RELU", "GELU",
    slots=1,
)  # fmt: skip
def activation(draw: Draw, kind: str) -> None:
    dtype = draw.type(0)
    x = draw.value(dtype, draw.shape(), draw.quantization(dtype, scaled=dtype.is_integer), low=None)
    attributes: dict[str, float | bool] = {}
    if kind == "LEAKY_RELU":
        attributes = {"alpha": draw.real(-0.5, 1.5)}
    if kind == "GELU":
        attributes = {"approximate": draw.chance(0.5)}
    made = x.quantization if draw.chance(0.2) and kind not in FIXED else None
    made = made or output_quantization(draw, kind, dtype)
    draw.operation(kind, [x], [draw.output(dtype, made)], **attributes)


def _slopes(dtype: DType, slope: DType) -> bool:
    return slope is (DType.INT8 if dtype is DType.INT16 else dtype)


def _softmax(dtype: DType, made: DType) -> bool:
    return dtype is made or (dtype in {DType.INT8, DType.UINT8} and made is DType.INT16)


@cases("PRELU", slots=2, only=_slopes)
def parametric(draw: Draw, kind: str) -> None:
    dtype, slope = draw.type(0), draw.type(1)
    shape = draw.shape(1, 4)
    slopes = draw.pick(
        (shape, shape[1:], shape[-1:], (), tuple(1 if draw.chance(0.5) else d for d in shape))
    )
    qs = [draw.quantization(d, scaled=d.is_integer) for d in (dtype, slope, dtype)]
    x = draw.value(dtype, shape, qs[0])
    alpha = draw.value(slope, slopes, qs[1], constant=draw.chance(0.8))
    draw.operation(kind, [x, alpha], [draw.output(dtype, qs[2])])


@cases("SOFTMAX", "LOG_SOFTMAX", slots=2, only=_softmax)
def softmax(draw: Draw, kind: str) -> None:
    dtype, made = draw.type(0), draw.type(1)
    x = draw.value(dtype, draw.shape(1, 5, 12), draw.quantization(dtype, scaled=dtype.is_integer))
    attributes = {}
    if kind == "SOFTMAX":
        attributes = {"beta": draw.pick((1.0, draw.real(0.1, 2.0)))}
    if dtype.is_integer and made is DType.INT16:
        wide = dtype is not made and draw.chance(0.5)
        quantization = draw.quantization(made, *((1 / 65536, -32768) if wide else (1 / 32768, 0)))
    else:
        quantization = output_quantization(draw, kind, made)
    draw.operation(kind, [x], [draw.output(made, quantization)], **attributes)


@cases("L2_NORMALIZATION", slots=1)
def length(draw: Draw, kind: str) -> None:
    dtype = draw.type(0)
    x = draw.value(dtype, draw.shape(1, 4, 8), draw.quantization(dtype, scaled=dtype.is_integer))
    made = output_quantization(draw, kind, dtype)
    activation = draw.activation() if draw.chance(0.3) else "NONE"
    draw.operation(kind, [x], [draw.output(dtype, made)], fused_activation_function=activation)


@cases("LOCAL_RESPONSE_NORMALIZATION", slots=1)
def response(draw: Draw, kind: str) -> None:
    x = draw.value(draw.type(0), draw.shape(4, 4, 9))
    draw.operation(
        kind,
        [x],
        [draw.output(draw.type(0))],
        radius=draw.integer(0, 5),
        bias=draw.real(0.5, 2.0),
        alpha=draw.real(0.0, 2.0),
        beta=draw.real(0.1, 1.0),
    )
