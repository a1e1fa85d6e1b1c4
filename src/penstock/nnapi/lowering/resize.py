"""Image resizing, to a size or by a scale."""

from __future__ import annotations

import math

import numpy as np

from penstock.errors import InvalidAttribute
from penstock.ir import DType
from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site
from penstock.nnapi.lowering.windows import bind_image, image

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
