"""Resizing and operations over the channels of images, and random classes."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from penstock.errors import InvalidAttribute, ShapeMismatch
from penstock.ir import DType
from penstock.nnapi.lowering.operation import OperationLowering
from penstock.nnapi.lowering.registry import lowers, maps
from penstock.nnapi.lowering.windows import (
    PADDINGS,
    STRIDES,
    bind_image,
    check_weights,
    image,
    padding_of,
)

QUANTIZED: Final = "f32 f16 q8 q8s@4"

_SHUFFLE: Final = "input:T/1-4 groups:i>0 axis:i -> output:T"
maps("CHANNEL_SHUFFLE", _SHUFFLE, same="input output", T=QUANTIZED)

_NORMALIZATION: Final = "input:T/4 gamma:real beta:real epsilon:real nchw:b -> output:T"
maps("INSTANCE_NORMALIZATION", _NORMALIZATION, T="f32 f16")


@lowers(
    "GROUPED_CONV_2D",
    *(
        f"input:T/4 filter:W/4 bias:B/1 {pads} {STRIDES} groups:i>0 activation:i nchw:b -> output:T"
        for pads in PADDINGS
    ),
    T=QUANTIZED,
    W="f32 f16 q8 pc q8s@4",
    B="f32 i32 f16",
)
def grouped_conv_2d(op: OperationLowering) -> None:
    check_weights(op, 0)
    padding = padding_of(op)
    height, width = padding.sides
    op.finish(
        "GROUPED_CONV_2D",
        op.named_tensors(("input", "filter", "bias")),
        padding=padding.scheme,
        explicit_padding=width + height if padding.scheme == "EXPLICIT" else (),
        **{name: op.integer(name) for name in ("stride_w", "stride_h", "groups")},
        fused_activation_function=op.activation(),
        data_layout=op.layout,
    )


@lowers("RANDOM_MULTINOMIAL", "logits:T/2 samples:i>0 seeds:i32/1 -> output:i32", T="f32 f16")
def random_multinomial(op: OperationLowering) -> None:
    if op.dimension("logits", 1) == 0:
        raise ShapeMismatch("logits of no class")
    op.pass_through()


BILINEAR = "[nchw:b@3 [align:b@4 [half:b@4]]] -> y:T"
NEAREST = "nchw:b [align:b@4 [half:b@4]] -> y:T"


def _size(op: OperationLowering, data: int) -> int:
    """[height, width]: as given, or the image's times the scales, rounded down."""
    if "width" in op.match.inputs:
        return op.integers((op.integer("height"), op.integer("width")))
    scales = op.real("scale_h"), op.real("scale_w")
    if not all(0 < s < math.inf for s in scales):
        raise InvalidAttribute(f"a scale of {op.type} is not above 0, or infinite: {scales}")
    shape = op.shape(data)
    if shape is None or shape[1] is None or shape[2] is None:
        given = op.cast(op.sizes(data, 1, 3), DType.FLOAT32)
        factors = op.graph.constant(np.array(scales, np.float32))
        return op.cast(op.emit("MUL", [given, factors]), DType.INT32)
    height, width = (
        int(np.float32(n) * np.float32(s)) for n, s in zip(shape[1:3], scales, strict=True)
    )
    op.require(height > 0 and width > 0, f"the scales {scales} leave no pixel of {shape[1:3]}")
    return op.integers((height, width))


@lowers(
    "RESIZE_BILINEAR",
    f"x:T width:i>0 height:i>0 {BILINEAR}",
    f"x:T scale_w:real@3 scale_h:real@3 {BILINEAR}",
    same="x y",
    T="f32 q8@3 f16@3 q8s@4",
)
@lowers(
    "RESIZE_NEAREST_NEIGHBOR",
    f"x:T width:i>0 height:i>0 {NEAREST}",
    f"x:T scale_w:real scale_h:real {NEAREST}",
    same="x y",
    T=QUANTIZED,
)
def _resize(op: OperationLowering) -> None:
    align, half = op.flag("align", default=False), op.flag("half", default=False)
    op.require(not (align and half), "aligned corners and half-pixel centres exclude each other")
    data = image(op, "x")
    size = _size(op, data)
    bind_image(op, op.emit(op.type, [data, size], align_corners=align, half_pixel_centers=half))
