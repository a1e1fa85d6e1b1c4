"""Pooling. What lies in explicit padding takes no part, as with implicit padding."""

from __future__ import annotations

import numpy as np

from penstock.ir import DType
from penstock.nnapi.lowering.graph import ValueType
from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site
from penstock.nnapi.lowering.windows import (
    LAYOUT,
    PADS,
    Padding,
    bind_image,
    image,
    padded,
    padding_of,
    strides_of,
)

TAIL = f"stride_w:i stride_h:i filter_w:i filter_h:i activation:i [{LAYOUT}] -> output:T"
FORMS = (f"input:T {PADS} {TAIL}", f"input:T padding:i {TAIL}")
REAL = (DType.FLOAT32, None)
MAX_ONES = 1 << 16
"""Elements of an image of ones that is a constant; a larger one is made when the model runs."""


@lowers("MAX_POOL_2D", level=1, form=FORMS, T="f32 q8 f16@3 q8s@4")
def max_pool_2d(site: Site) -> None:
    """Explicit padding is filled with the least value."""
    site.require_same_quantization("input", "output")
    data, padding, steps = _window(site)
    if padding.scheme == "EXPLICIT":
        data = _padded_with_least(site, data, padding)
    _finish(site, "MAX_POOL_2D", data, padding, steps)


@lowers("AVERAGE_POOL_2D", level=1, form=FORMS, T="f32 q8 f16@3 q8s@4")
def average_pool_2d(site: Site) -> None:
    """With explicit padding: the mean of the padded image over that of a padded image of ones."""
    site.require_same_quantization("input", "output")
    data, padding, steps = _window(site)
    if padding.scheme != "EXPLICIT":
        _finish(site, "AVERAGE_POOL_2D", data, padding, steps)
        return
    real = _real(site, data)
    mean = _pool(site, "AVERAGE_POOL_2D", padded(site, real, padding.sides), steps)
    share = _share(site, real, padding, steps)
    activation = site.activation()
    result = site.emit("DIV", [mean, share], fused_activation_function=activation)
    bind_image(site, _stored(site, result, site.result_type()))


@lowers("L2_POOL_2D", level=1, form=FORMS, T="f32 f16@3")
def l2_pool_2d(site: Site) -> None:
    """With explicit padding: the norm of the padded image over the root of the share of real
    elements.
    """
    data, padding, steps = _window(site)
    if padding.scheme != "EXPLICIT":
        _finish(site, "L2_POOL_2D", data, padding, steps)
        return
    norm = _pool(site, "L2_POOL_2D", padded(site, data, padding.sides), steps)
    share = site.emit("SQRT", [_share(site, data, padding, steps)])
    activation = site.activation()
    bind_image(site, site.emit("DIV", [norm, share], fused_activation_function=activation))


Steps = dict[str, int]


def _window(site: Site) -> tuple[int, Padding, Steps]:
    """The NHWC image, its padding, and the attributes of the windows."""
    data, strides = image(site), strides_of(site)
    extents = site.positive("filter_h"), site.positive("filter_w")
    padding = padding_of(site)
    for (before, after), extent in zip(padding.sides, extents, strict=True):
        site.require(max(before, after) < extent, "a window that lies in the padding altogether")
    steps = {
        "stride_h": strides[0],
        "stride_w": strides[1],
        "filter_height": extents[0],
        "filter_width": extents[1],
    }
    return data, padding.resolved(site.shape(data), extents, strides), steps


def _finish(site: Site, kind: str, data: int, padding: Padding, steps: Steps) -> None:
    scheme = "SAME" if padding.scheme == "SAME" else "VALID"
    result = site.emit(
        kind,
        [data],
        site.result_type(),
        padding=scheme,
        fused_activation_function=site.activation(),
        **steps,
    )
    bind_image(site, result)


def _pool(site: Site, kind: str, data: int, steps: Steps) -> int:
    return site.emit(kind, [data], padding="VALID", **steps)


def _padded_with_least(site: Site, data: int, padding: Padding) -> int:
    dtype, quantization = site.value_type(data)
    least = np.iinfo(dtype.numpy).min if dtype.is_integer else -np.inf
    value = site.graph.constant(np.array(least, dtype.numpy), quantization)
    (top, bottom), (left, right) = padding.sides
    table = site.table([(0, 0), (top, bottom), (left, right), (0, 0)])
    return site.emit("PADV2", [data, table, value])


def _share(site: Site, data: int, padding: Padding, steps: Steps) -> int:
    """For each window the share of its elements that are no padding, [1, height, width, 1]."""
    shape = site.shape(data)
    dtype = site.dtype(data)
    height, width = (None, None) if shape is None else shape[1:3]
    if height is not None and width is not None and height * width <= MAX_ONES:
        ones = site.graph.constant(np.ones((1, height, width, 1), dtype.numpy))
    else:
        one = site.integers((1,))
        target = site.emit("CONCATENATION", [one, site.sizes(data, 1, 3), one], axis=0)
        ones = site.emit("FILL", [target, site.number(1, data)], (dtype, None))
    return _pool(site, "AVERAGE_POOL_2D", padded(site, ones, padding.sides), steps)


def _real(site: Site, index: int) -> int:
    return index if site.dtype(index).is_float else site.emit("DEQUANTIZE", [index], REAL)


def _stored(site: Site, index: int, kind: ValueType) -> int:
    return index if kind[0].is_float else site.emit("QUANTIZE", [index], kind)
