"""Image resizing, to a size or by a scale. | Operations over channels of images that only NNAPI has, and random classes."""

from __future__ import annotations

import math

import numpy as np

from penstock.errors import InvalidAttribute, ShapeMismatch
from penstock.ir import DType
from penstock.nnapi.lowering.detection import layout
from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site
from penstock.nnapi.lowering.windows import (
    PADS,
    bind_image,
    check_weights,
    image,
    padding_of,
    strides_of,
)

BILINEAR = "[nchw:b@3 [align:b@4 [half:b@4]]] -> y:T"
NEAREST = "nchw:b [align:b@4 [half:b@4]] -> y:T"


def _size(site: Site, data: int) -> int:
    """[height, width]: as given, or the image's times the scales, rounded down."""
    if "width" in site.match.inputs:
        return site.integers((site.positive("height"), site.positive("width")))
    scales = site.real("scale_h"), site.real("scale_w")
    if not all(0 < s < math.inf for s in scales):
        raise InvalidAttribute(f"a scale of {site.type} is not above 0, or infinite: {scales}")
    shape = site.shape(data)
    if shape is None or shape[1] is None or shape[2] is None:
        return _scaled_size(site, data, scales)
    height, width = (
        int(np.float32(n) * np.float32(s)) for n, s in zip(shape[1:3], scales, strict=True)
    )
    site.require(height > 0 and width > 0, f"the scales {scales} leave no pixel of {shape[1:3]}")
    return site.integers((height, width))


def _scaled_size(site: Site, data: int, scales: tuple[float, float]) -> int:
    """The same for an image whose size only a run tells."""
    real = (DType.FLOAT32, None)
    given = site.emit("CAST", [site.sizes(data, 1, 3)], real, out_data_type="FLOAT32")
    factors = site.graph.constant(np.array(scales, np.float32))
    scaled = site.emit("MUL", [given, factors])
    return site.emit("CAST", [scaled], (DType.INT32, None), out_data_type="INT32")


def _resize(site: Site) -> None:
    site.require_same_quantization("x", "y")
    align, half = site.flag("align", default=False), site.flag("half", default=False)
    site.require(not (align and half), "aligned corners and half-pixel centres exclude each other")
    data = image(site, "x")
    result = site.emit(
        site.type,
        [data, _size(site, data)],
        align_corners=align,
        half_pixel_centers=half,
    )
    bind_image(site, result)


lowers(
    "RESIZE_BILINEAR",
    level=1,
    form=(f"x:T width:i height:i {BILINEAR}", f"x:T scale_w:real@3 scale_h:real@3 {BILINEAR}"),
    T="f32 q8@3 f16@3 q8s@4",
)(_resize)

lowers(
    "RESIZE_NEAREST_NEIGHBOR",
    level=3,
    form=(f"x:T width:i height:i {NEAREST}", f"x:T scale_w:real scale_h:real {NEAREST}"),
    T="f16 f32 q8 q8s@4",
)(_resize)


@lowers(
    "CHANNEL_SHUFFLE",
    level=3,
    form="input:T groups:i axis:i -> output:T",
    T="f32 f16 q8 q8s@4",
)
def channel_shuffle(site: Site) -> None:
    site.require_rank("input", 1, 4)
    site.require_same_quantization("input", "output")
    groups, axis = site.positive("groups"), site.integer("axis")
    site.finish("CHANNEL_SHUFFLE", [site.tensor("input")], groups=groups, axis=axis)


@lowers(
    "INSTANCE_NORMALIZATION",
    level=3,
    form="input:T gamma:real beta:real epsilon:real nchw:b -> output:T",
    T="f32 f16",
)
def instance_normalization(site: Site) -> None:
    site.require_rank("input", 4)
    site.finish(
        "INSTANCE_NORMALIZATION",
        [site.tensor("input")],
        gamma=site.real("gamma"),
        beta=site.real("beta"),
        epsilon=site.real("epsilon"),
        data_layout=layout(site),
    )


_STEPS = "stride_w:i stride_h:i groups:i activation:i nchw:b -> output:T"


@lowers(
    "GROUPED_CONV_2D",
    level=3,
    form=(
        f"input:T filter:W bias:B {PADS} {_STEPS}",
        f"input:T filter:W bias:B padding:i {_STEPS}",
    ),
    T="f32 f16 q8 q8s@4",
    W="f32 f16 q8 pc q8s@4",
    B="f32 i32 f16",
)
def grouped_conv_2d(site: Site) -> None:
    for name, rank in (("input", 4), ("filter", 4), ("bias", 1)):
        site.require_rank(name, rank)
    check_weights(site, 0)
    padding, strides = padding_of(site), strides_of(site)
    (top, bottom), (left, right) = padding.sides
    explicit = padding.scheme == "EXPLICIT"
    site.finish(
        "GROUPED_CONV_2D",
        [site.tensor("input"), site.tensor("filter"), site.tensor("bias")],
        padding=padding.scheme,
        explicit_padding=(left, right, top, bottom) if explicit else (),
        stride_w=strides[1],
        stride_h=strides[0],
        groups=site.positive("groups"),
        fused_activation_function=site.activation(),
        data_layout=layout(site),
    )


@lowers(
    "RANDOM_MULTINOMIAL",
    level=3,
    form="logits:T samples:i seeds:i32 -> output:i32",
    T="f32 f16",
)
def random_multinomial(site: Site) -> None:
    site.require_rank("logits", 2)
    site.require_rank("seeds", 1)
    logits = site.shape(site.tensor("logits"))
    if logits is not None and logits[1] == 0:
        raise ShapeMismatch("logits of no class")
    inputs = [site.tensor("logits"), site.tensor("seeds")]
    site.finish("RANDOM_MULTINOMIAL", inputs, samples=site.positive("samples"))
