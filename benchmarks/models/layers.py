"""Layers with weights, in every type combination that LiteRT's reference kernels support."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.models.making import Case, Drawing, Pair, default_pair, pair
from penstock.ir import DType, Quantization
from penstock.ir.operation import AttributeValue

F32, I8, U8, I16, I32, I64 = (
    DType.FLOAT32,
    DType.INT8,
    DType.UINT8,
    DType.INT16,
    DType.INT32,
    DType.INT64,
)


@dataclass(frozen=True, slots=True)
class Style:
    """Types of activations, weights and biases."""

    name: str
    activations: DType
    weights: DType
    bias: DType


FLOAT: Final = Style("float32", F32, F32, F32)
HYBRID: Final = Style("hybrid", F32, I8, F32)
STYLES: Final = (
    FLOAT,
    Style("int8", I8, I8, I32),
    Style("uint8", U8, U8, I32),
    Style("int16x8", I16, I8, I64),
    HYBRID,
)


def convolutions() -> Iterator[Case]:
    """1x1, 3x3 and 5x5 kernels, strided, dilated and grouped, for single images and batches."""
    for style in STYLES:
        yield convolution("1x1", style, (1, 28, 28, 96), (64, 1, 1, 96))
        yield convolution("1x1 to few", style, (1, 56, 56, 64), (12, 1, 1, 64))
        yield convolution("3x3", style, (1, 28, 28, 32), (32, 3, 3, 32))
        yield convolution("3x3 of few", style, (1, 96, 96, 3), (16, 3, 3, 3), stride=2)
        yield convolution("3x3 of 7x7", style, (1, 7, 7, 128), (128, 3, 3, 128))
        yield convolution("5x5", style, (1, 24, 24, 16), (24, 5, 5, 16))
        yield convolution("3x3 dilated", style, (1, 32, 32, 32), (32, 3, 3, 32), dilation=2)
        if style is not HYBRID and style.name != "uint8":
            yield convolution("3x3 in 4 groups", style, (1, 28, 28, 64), (64, 3, 3, 16))
            yield convolution("3x3 in 32 groups", style, (1, 28, 28, 64), (64, 3, 3, 2))
        yield convolution("batch of 8", style, (8, 14, 14, 32), (32, 3, 3, 32))


def convolution(
    name: str,
    style: Style,
    image: tuple[int, int, int, int],
    filters: tuple[int, ...],
    *,
    stride: int = 1,
    dilation: int = 1,
) -> Case:
    drawing = Drawing()
    outputs = image[0] * math.prod(-(-n // stride) for n in image[1:3])
    result = layer(
        drawing,
        style,
        "CONV_2D",
        image,
        filters,
        axis=0,
        stride_w=stride,
        stride_h=stride,
        dilation_w_factor=dilation,
        dilation_h_factor=dilation,
    )
    return drawing.case(
        f"CONV_2D {name}, {style.name}", result, outputs * math.prod(filters), "MACs"
    )


def depthwise_convolutions() -> Iterator[Case]:
    shapes = (
        ("3x3", (1, 56, 56, 64), (1, 3, 3, 64), 1, 1),
        ("3x3 by 2", (1, 56, 56, 96), (1, 3, 3, 96), 2, 1),
        ("5x5", (1, 28, 28, 96), (1, 5, 5, 96), 1, 1),
        ("3x3 dilated", (1, 48, 48, 64), (1, 3, 3, 64), 1, 2),
        ("3x3 to 8 each", (1, 64, 64, 4), (1, 3, 3, 32), 1, 1),
        ("3x3 of 7x7", (4, 7, 7, 512), (1, 3, 3, 512), 1, 1),
    )
    for style in STYLES:
        for name, image, filters, stride, dilation in shapes:
            drawing = Drawing()
            result = layer(
                drawing,
                style,
                "DEPTHWISE_CONV_2D",
                image,
                filters,
                axis=3,
                stride_w=stride,
                stride_h=stride,
                depth_multiplier=filters[3] // image[3],
                dilation_w_factor=dilation,
                dilation_h_factor=dilation,
            )
            outputs = image[0] * math.prod(-(-n // stride) for n in image[1:3])
            work = outputs * math.prod(filters)
            yield drawing.case(f"DEPTHWISE_CONV_2D {name}, {style.name}", result, work, "MACs")


def transpose_convolutions() -> Iterator[Case]:
    shapes = (
        ("3x3 by 2", (1, 24, 24, 32), (32, 3, 3, 32), 2),
        ("4x4 by 2", (1, 16, 16, 64), (32, 4, 4, 64), 2),
        ("2x2 by 2 to few", (1, 48, 48, 32), (3, 2, 2, 32), 2),
    )
    for style in STYLES:
        if style is HYBRID:
            continue
        for name, image, filters, stride in shapes:
            drawing = Drawing()
            grown = (image[0], image[1] * stride, image[2] * stride, filters[0])
            source = drawing.input(style.activations, image)
            weights, bias = parameters(drawing, style, filters, 0)
            result = drawing.operation(
                "TRANSPOSE_CONV",
                [drawing.integers(*grown), weights, source, bias],
                style.activations,
                padding="SAME",
                stride_h=stride,
                stride_w=stride,
            )
            work = math.prod(image[:3]) * math.prod(filters)
            yield drawing.case(f"TRANSPOSE_CONV {name}, {style.name}", result, work, "MACs")


def fully_connected() -> Iterator[Case]:
    shapes = ((1, 1024, 1280), (16, 512, 512), (196, 128, 256))
    for style in STYLES:
        for rows, units, depth in shapes:
            drawing = Drawing()
            result = layer(drawing, style, "FULLY_CONNECTED", (rows, depth), (units, depth), axis=0)
            name = f"FULLY_CONNECTED {rows}x{depth} to {units}, {style.name}"
            yield drawing.case(name, result, rows * units * depth, "MACs")
    drawing = Drawing()
    result = layer(
        drawing,
        HYBRID,
        "FULLY_CONNECTED",
        (16, 512),
        (512, 512),
        axis=0,
        asymmetric_quantize_inputs=True,
    )
    yield drawing.case("FULLY_CONNECTED 16x512 to 512, hybrid asymmetric", result, 2**22, "MACs")


def volumes() -> Iterator[Case]:
    """3-D convolutions, which LiteRT supports in float only."""
    drawing = Drawing()
    weights = drawing.values(F32, (3, 3, 3, 16, 24))
    source = drawing.input(F32, (1, 12, 16, 16, 16))
    bias = drawing.constant(drawing.values(F32, (24,)))
    result = drawing.operation(
        "CONV_3D",
        [source, drawing.constant(weights), bias],
        F32,
        padding="SAME",
        stride_d=1,
        stride_h=1,
        stride_w=1,
    )
    yield drawing.case("CONV_3D 3x3x3, float32", result, 12 * 256 * weights.size, "MACs")
    drawing = Drawing()
    weights = drawing.values(F32, (2, 2, 2, 16, 24))
    source = drawing.input(F32, (1, 8, 12, 12, 24))
    shape = drawing.integers(1, 16, 24, 24, 16)
    result = drawing.operation(
        "CONV_3D_TRANSPOSE",
        [shape, drawing.constant(weights), source],
        F32,
        padding="SAME",
        stride_d=2,
        stride_h=2,
        stride_w=2,
    )
    work = 8 * 144 * weights.size
    yield drawing.case("CONV_3D_TRANSPOSE 2x2x2 by 2, float32", result, work, "MACs")


def matrix_products() -> Iterator[Case]:
    shapes = (((4, 64, 96), (4, 96, 128)), ((8, 128, 64), (8, 64, 128)))
    for dtype in (F32, I8, I16):
        for left, right in shapes:
            drawing = Drawing()
            given = [drawing.input(dtype, left), drawing.input(dtype, right)]
            result = drawing.operation("BATCH_MATMUL", given, dtype)
            name = f"BATCH_MATMUL {left} {right}, {dtype.value}"
            yield drawing.case(name, result, math.prod(left) * right[-1], "MACs")
    drawing = Drawing()
    source = drawing.input(F32, (1, 64, 256))
    weights = drawing.constant(drawing.values(I8, (1, 256, 256)), pair(0.01))
    result = drawing.operation("BATCH_MATMUL", [source, weights], F32, adj_y=True)
    yield drawing.case("BATCH_MATMUL (1, 64, 256) (1, 256, 256), hybrid", result, 2**22, "MACs")


def layer(
    drawing: Drawing,
    style: Style,
    kind: str,
    source: Sequence[int],
    filters: Sequence[int],
    *,
    axis: int,
    **attributes: AttributeValue,
) -> int:
    """An operation of (input, weights, bias), with padding SAME if it has a padding."""
    given = drawing.input(style.activations, source)
    if kind != "FULLY_CONNECTED":
        attributes["padding"] = "SAME"
    return drawing.operation(
        kind,
        [given, *parameters(drawing, style, filters, axis)],
        style.activations,
        scaled=result(style.activations),
        **attributes,
    )


def result(dtype: DType) -> Pair:
    found = default_pair(dtype)
    return None if found is None else pair(found.scale * 20, found.zero_point)


def parameters(
    drawing: Drawing, style: Style, filters: Sequence[int], axis: int
) -> tuple[int, int]:
    """Weights with one scale per channel along *axis* (uint8: one and a zero point); a bias."""
    count = filters[axis]
    values = drawing.values(style.weights, filters, -0.5, 0.5)
    if style.weights is F32:
        return drawing.constant(values), drawing.constant(drawing.values(F32, (count,)))
    if style.weights is U8:
        scales: Quantization = pair(0.004, 130)
    else:
        steps = drawing.rng.uniform(0.002, 0.006, count).astype(np.float32)
        scales = Quantization(tuple(map(float, steps)), (0,) * count, axis)
    weights = drawing.constant(values, scales)
    source = default_pair(style.activations)
    if source is None:
        return weights, drawing.constant(drawing.values(F32, (count,)))
    own = tuple(float(np.float32(source.scale) * np.float32(s)) for s in scales.scales)
    of_bias = Quantization(own, (0,) * len(own), 0) if len(own) > 1 else Quantization(own, (0,))
    bias = drawing.rng.integers(-2000, 2000, count).astype(style.bias.numpy)
    return weights, drawing.constant(bias, of_bias)
