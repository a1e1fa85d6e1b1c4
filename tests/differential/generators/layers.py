"""Layers: convolutions, dense layers, matrix products, pooling, resizing."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from penstock.ir import DType, Quantization
from tests.differential.draw import EIGHT_BITS, Draw, Value
from tests.differential.kinds import Kind, edges
from tests.differential.registry import SWEPT, cases

EVERY_ACTIVATION: Final = ("RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")
F32, F16, BF16 = DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16
I2, I4, I8, U8, I16, I32, I64 = (
    DType.INT2,
    DType.INT4,
    DType.INT8,
    DType.UINT8,
    DType.INT16,
    DType.INT32,
    DType.INT64,
)
LAYERS: Final = frozenset(
    [(a, a, a, a) for a in (F32, F16, BF16)]
    + [(F32, w, F32, F32) for w in (I2, I4, I8, U8)]
    + [(I8, w, I32, I8) for w in (I2, I4, I8)]
    + [(I16, w, b, I16) for w in (I4, I8) for b in (I32, I64)]
    + [(U8, U8, I32, U8), (U8, U8, I32, I16)]
)
"""Types of (input, weights, bias, output) that mean something. LiteRT's kernels do not look at the
weights' type and read whatever is there as what they expect.
"""

CHOICES: Final = (
    (F32, F16, BF16, I8, I16, U8),
    (F32, F16, BF16, I2, I4, I8, U8),
    (F32, F16, BF16, I32, I64),
    (F32, F16, BF16, I8, I16, U8),
)
BIASED: Final = (Kind.BIAS_SHAPE, Kind.BIAS_TYPE, Kind.BIAS_SCALE)
BIAS_TYPES: Final = (F32, F16, I8, I16, I32, I64)
MIXED_PRODUCTS: Final = frozenset(
    [(F32, w, F32) for w in (I4, I8, U8)] + [(I8, I8, I32), (I16, I8, I16), (I8, I4, I8)]
)
NUMBERS: Final = tuple(d for d in SWEPT if d not in {DType.STRING, DType.BOOL})


def layer_types(draw: Draw, kind: str) -> None:
    """Raises `ValueError` for types that mean nothing together, or that LiteRT reads wrongly."""
    wrong = {"FULLY_CONNECTED": (), "DEPTHWISE_CONV_2D": ((F32, I2), (I16, I4))}
    if draw.types not in LAYERS or draw.types[:2] in wrong.get(kind, ((F32, I2),)):
        raise ValueError("no layer has these types")


def is_scaled_by_channel(draw: Draw, kind: str) -> bool | None:
    """Where LiteRT's kernels know only one of the two: whether weights have a scale a channel."""
    if kind == "DEPTHWISE_CONV_2D" and draw.type(0).is_float:
        return True
    if draw.type(3) is I16 and draw.type(0) is not I16:
        return False
    return None


def bias_type(draw: Draw) -> str:
    """LiteRT reads a bias as the attribute says, whatever the operand is."""
    return draw.type(2).name


def weights(draw: Draw, kind: str, shape: tuple[int, ...], dimension: int) -> Value:
    """Constant weights: per channel along *dimension*, or with one scale."""
    dtype = draw.type(1)
    quantization = None
    if dtype.is_integer:
        by_channel = is_scaled_by_channel(draw, kind)
        if by_channel is None:
            by_channel = draw.chance(0.6)
        if dtype is not DType.UINT8 and by_channel:
            quantization = draw.per_channel(dtype, shape[dimension], dimension)
        else:
            zero = None if dtype is DType.UINT8 else 0
            quantization = draw.quantization(dtype, draw.scale(2e-3, 0.05), zero)
    array = draw.array(dtype, shape)
    if dtype.bits == 8 and (dtype is DType.INT8 or draw.type(0).is_float):
        # Symmetric weights leave out the lowest value, and LiteRT's products rely on it.
        array = np.where(array.view(np.int8) == -128, array + 1, array).astype(array.dtype)
    return draw.value(dtype, shape, quantization, array=array, constant=not draw.chance(0.1))


def activations(draw: Draw, shape: tuple[int, ...]) -> Value:
    """The input of a layer."""
    dtype = draw.type(0)
    zero = 0 if dtype is DType.INT16 else None
    quantization = (
        draw.quantization(dtype, draw.scale(0.005, 0.1), zero) if dtype.is_integer else None
    )
    return draw.value(dtype, shape, quantization, constant=False)


def bias(draw: Draw, given: Value, filters: Value, channels: int) -> Value | None:
    """A bias in the scale of the products; none now and then."""
    dtype = draw.type(2)
    if draw.kind is Kind.BIAS_SCALE and not dtype.is_integer:
        raise ValueError("a bias of floats has no scale")
    if draw.kind not in BIASED and draw.chance(0.2):
        return None
    quantization = None
    if dtype.is_integer and given.quantization is not None and filters.quantization is not None:
        scales = tuple(
            float(np.float32(given.quantization.scales[0]) * np.float32(s))
            for s in filters.quantization.scales
        )
        quantization = Quantization(scales, (0,) * len(scales), 0)
    array = draw.array(dtype, (channels,))
    if dtype.is_integer:
        array = array * draw.pick((1, 20, 500))
    if dtype.is_integer and draw.kind is Kind.EDGES:
        array = edges(draw, dtype, array)
    if draw.has(Kind.BIAS_SCALE):
        other = draw.quantization(dtype, 10.0 ** draw.rng.uniform(-9, 0), 0)
        quantization = None if draw.chance(0.6) else other
    if draw.has(Kind.BIAS_TYPE):
        dtype = draw.pick([d for d in BIAS_TYPES if d is not dtype])
        array = array.astype(dtype.numpy)
    if draw.has(Kind.BIAS_SHAPE):
        array = array.reshape(draw.pick(((1, -1), (-1, 1), (1, 1, 1, -1), (1, -1, 1))))
        if quantization is not None and quantization.per_channel:
            quantization = replace(quantization, dimension=array.shape.index(channels))
    return draw.value(dtype, array.shape, quantization, array=array, constant=not draw.chance(0.1))


def result(draw: Draw) -> Quantization | None:
    dtype = draw.type(3)
    if not dtype.is_integer:
        return None
    return draw.quantization(dtype, draw.scale(0.02, 0.5), 0 if dtype is DType.INT16 else None)


@cases("CONV_2D", choices=CHOICES, own=BIASED)
def convolution(draw: Draw, kind: str) -> None:
    layer_types(draw, kind)
    groups = draw.pick((1, 1, 1, 2, 3))
    depth, channels = draw.integer(1, 4), groups * draw.integer(1, 4)
    kernel = draw.integer(1, 4), draw.integer(1, 4)
    size = draw.integer(1, 9), draw.integer(1, 9)
    x = activations(draw, (draw.integer(1, 2), *size, depth * groups))
    w = weights(draw, kind, (channels, *kernel, depth), 0)
    b = bias(draw, x, w, channels)
    draw.operation(
        kind,
        [x, w, b],
        [draw.output(draw.type(3), result(draw))],
        padding=draw.pick(("SAME", "VALID")),
        stride_w=draw.integer(1, 3),
        stride_h=draw.integer(1, 3),
        dilation_w_factor=draw.pick((1, 1, 2, 3)),
        dilation_h_factor=draw.pick((1, 1, 2, 3)),
        quantized_bias_type=bias_type(draw),
        fused_activation_function=draw.activation(EVERY_ACTIVATION),
    )


@cases("DEPTHWISE_CONV_2D", choices=CHOICES, own=BIASED)
def depthwise(draw: Draw, kind: str) -> None:
    layer_types(draw, kind)
    depth, multiplier = draw.integer(1, 5), draw.pick((1, 1, 2, 3))
    kernel = draw.integer(1, 4), draw.integer(1, 4)
    x = activations(draw, (draw.integer(1, 2), draw.integer(1, 9), draw.integer(1, 9), depth))
    w = weights(draw, kind, (1, *kernel, depth * multiplier), 3)
    b = bias(draw, x, w, depth * multiplier)
    draw.operation(
        kind,
        [x, w, b],
        [draw.output(draw.type(3), result(draw))],
        padding=draw.pick(("SAME", "VALID")),
        stride_w=draw.integer(1, 3),
        stride_h=draw.integer(1, 3),
        depth_multiplier=multiplier,
        dilation_w_factor=draw.pick((1, 1, 2, 3)),
        dilation_h_factor=draw.pick((1, 1, 2, 3)),
        fused_activation_function=draw.activation(EVERY_ACTIVATION),
    )


@cases("TRANSPOSE_CONV", choices=CHOICES, own=BIASED)
def transpose_convolution(draw: Draw, kind: str) -> None:
    layer_types(draw, kind)
    depth, channels = draw.integer(1, 4), draw.integer(1, 4)
    kernel = draw.integer(1, 4), draw.integer(1, 4)
    size = draw.integer(1, 6), draw.integer(1, 6)
    strides = draw.integer(1, 3), draw.integer(1, 3)
    padding = draw.pick(("SAME", "VALID"))
    batch = draw.integer(1, 2)
    grown = [
        n * s - draw.integer(0, s - 1) if padding == "SAME" else (n - 1) * s + k
        for n, s, k in zip(size, strides, kernel, strict=True)
    ]
    x = activations(draw, (batch, *size, depth))
    w = weights(draw, kind, (channels, *kernel, depth), 0)
    b = bias(draw, x, w, channels)
    shape = draw.parameter(np.array([batch, *grown, channels], np.int32))
    draw.operation(
        kind,
        [shape, w, x, b],
        [draw.output(draw.type(3), result(draw))],
        padding=padding,
        stride_h=strides[0],
        stride_w=strides[1],
        quantized_bias_type=bias_type(draw),
        fused_activation_function=draw.activation(EVERY_ACTIVATION),
    )


@cases("FULLY_CONNECTED", choices=CHOICES, own=(*BIASED, Kind.SHUFFLED, Kind.EDGES))
def dense(draw: Draw, kind: str) -> None:
    if draw.has(Kind.SHUFFLED):
        shuffled(draw, kind)
        return
    layer_types(draw, kind)
    depth, units = draw.integer(1, 20), draw.integer(1, 6)
    keep = draw.chance(0.4)
    batch = draw.shape(1, 3)
    x = activations(draw, (*batch, depth))
    w = weights(draw, kind, (units, depth), 0)
    b = bias(draw, x, w, units)
    draw.operation(
        kind,
        [x, w, b],
        [draw.output(draw.type(3), result(draw))],
        keep_num_dims=keep,
        asymmetric_quantize_inputs=draw.chance(0.5),
        quantized_bias_type=bias_type(draw),
        fused_activation_function=draw.activation(EVERY_ACTIVATION),
    )


def shuffled(draw: Draw, kind: str) -> None:
    """Weights of 8 bits in blocks of 4 rows and 16 columns; 1 or 4 rows of inputs, zero points of
    128.
    """
    depth, units, rows = 16 * draw.integer(1, 3), 4 * draw.integer(1, 3), draw.pick((1, 4))
    scales = draw.real(0.005, 0.1), draw.real(2e-3, 0.05)
    x = draw.value(U8, (rows, depth), draw.quantization(U8, scales[0], 128), constant=False)
    w = draw.value(U8, (units, depth), draw.quantization(U8, scales[1], 128), constant=True)
    product = Quantization((float(np.float32(scales[0]) * np.float32(scales[1])),), (0,))
    b = draw.value(I32, (units,), product, array=draw.array(I32, (units,)) * 500, constant=True)
    made = draw.output(I16, draw.quantization(I16, draw.scale(1e-3, 0.1), 0))
    draw.operation(
        kind,
        [x, w, b],
        [made, draw.output(U8, None, (rows, depth))],
        weights_format="SHUFFLED4x16INT8",
        fused_activation_function=draw.activation(),
    )


@cases("BATCH_MATMUL", choices=(NUMBERS, NUMBERS, NUMBERS))
def matrix_product(draw: Draw, kind: str) -> None:
    rows, depth, columns = (draw.integer(1, 6) for _ in range(3))
    adj_x, adj_y = draw.chance(0.4), draw.chance(0.4)
    outer = draw.broadcast(draw.shape(0, 3, 3))
    if draw.type(0).is_float and draw.type(1).is_integer:
        outer = (draw.shape(0, 1, 3),) * 2
    left = (depth, rows) if adj_x else (rows, depth)
    right = (columns, depth) if adj_y else (depth, columns)
    dtypes = [draw.type(i) for i in range(3)]
    if len(set(dtypes)) > 1 and tuple(dtypes) not in MIXED_PRODUCTS:
        raise ValueError("no product has these types")
    qs = [
        draw.quantization(d, draw.scale(0.01, 0.1), 0 if d not in EIGHT_BITS else None)
        if d.is_integer
        else None
        for d in dtypes
    ]
    if dtypes[0].is_float and dtypes[1].is_integer:
        qs[1] = draw.quantization(dtypes[1], draw.scale(0.01, 0.1), 0)
    a = draw.value(dtypes[0], (*outer[0], *left), qs[0])
    b = draw.value(dtypes[1], (*outer[1], *right), qs[1])
    draw.operation(
        kind,
        [a, b],
        [draw.output(dtypes[2], qs[2])],
        adj_x=adj_x,
        adj_y=adj_y,
        asymmetric_quantize_inputs=draw.chance(0.5),
    )


@cases("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D", slots=1)
def pooling(draw: Draw, kind: str) -> None:
    shape = draw.integer(1, 2), draw.integer(1, 8), draw.integer(1, 8), draw.integer(1, 4)
    padding = draw.pick(("SAME", "VALID"))
    width, height = (draw.integer(1, min(4, shape[i]) if padding == "VALID" else 4) for i in (2, 1))
    quantization = draw.quantization(draw.type(0))
    activation = draw.activation(EVERY_ACTIVATION)
    if quantization is None and draw.type(0).is_integer:
        activation = "NONE"
    x = draw.value(draw.type(0), shape, quantization)
    draw.operation(
        kind,
        [x],
        [draw.output(draw.type(0), quantization)],
        padding=padding,
        stride_w=draw.integer(1, 3),
        stride_h=draw.integer(1, 3),
        filter_width=width,
        filter_height=height,
        fused_activation_function=activation,
    )


@cases("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", slots=1)
def resizing(draw: Draw, kind: str) -> None:
    shape = draw.integer(1, 2), draw.integer(1, 7), draw.integer(1, 7), draw.integer(1, 3)
    quantization = draw.quantization(draw.type(0))
    x = draw.value(draw.type(0), shape, quantization)
    size = draw.parameter(np.array([draw.integer(1, 12), draw.integer(1, 12)], np.int32))
    corners = draw.chance(0.4)
    draw.operation(
        kind,
        [x, size],
        [draw.output(draw.type(0), quantization)],
        align_corners=corners,
        half_pixel_centers=not corners and draw.chance(0.5),
    )
