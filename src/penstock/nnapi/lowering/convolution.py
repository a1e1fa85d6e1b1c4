"""Convolutions. Explicit padding that no implicit scheme gives becomes a PAD before, or a SLICE
after. | Pooling. What lies in explicit padding takes no part, as with implicit padding.
"""

from __future__ import annotations

import numpy as np

from penstock.errors import InvalidAttribute, NotLowerable, ShapeMismatch
from penstock.ir import DType
from penstock.nnapi.lowering.graph import ValueType
from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site
from penstock.nnapi.lowering.windows import (
    LAYOUT,
    PADS,
    Padding,
    Sides,
    bind_image,
    check_weights,
    finish_weighted,
    image,
    padded,
    padding_of,
    strides_of,
)

ACTIVATIONS = "f32 q8 f16@3 q8s@4"
WEIGHTS = "f32 q8 f16@3 pc@3 q8s@4"
BIASES = "f32 i32 f16@3"
TAIL = f"[{LAYOUT} [dilation_w:i@3 dilation_h:i@3]] -> output:T"


def _dilations(site: Site) -> tuple[int, int]:
    return site.positive("dilation_h", 1), site.positive("dilation_w", 1)


def _convolve(site: Site, kind: str, data: int, weights: int, **more: int) -> None:
    """Adds the convolution *kind* of an image by a filter, with the windows that the operands say."""
    strides, dilations = strides_of(site), _dilations(site)
    extents = (_dimension(site, weights, 1), _dimension(site, weights, 2))
    padding = padding_of(site).resolved(site.shape(data), extents, strides, dilations)
    result = finish_weighted(
        site,
        kind,
        [padded(site, data, padding.sides), weights, site.tensor("bias")],
        0,
        padding=_implicit(padding),
        stride_h=strides[0],
        stride_w=strides[1],
        dilation_h_factor=dilations[0],
        dilation_w_factor=dilations[1],
        fused_activation_function=site.activation(),
        **more,
    )
    bind_image(site, result)


@lowers(
    "CONV_2D",
    level=1,
    form=(
        f"input:T filter:W bias:B {PADS} stride_w:i stride_h:i activation:i {TAIL}",
        f"input:T filter:W bias:B padding:i stride_w:i stride_h:i activation:i {TAIL}",
    ),
    T=ACTIVATIONS,
    W=WEIGHTS,
    B=BIASES,
)
def conv_2d(site: Site) -> None:
    site.require_rank("filter", 4)
    site.require_rank("bias", 1)
    check_weights(site, 0)
    data, weights = image(site), site.tensor("filter")
    depth, taken = _dimension(site, data, 3), _dimension(site, weights, 3)
    if depth is not None and taken is not None and depth != taken:
        raise ShapeMismatch(f"an image of {depth} channels, a filter for {taken}")
    _convolve(site, "CONV_2D", data, weights)


@lowers(
    "DEPTHWISE_CONV_2D",
    level=1,
    form=(
        f"input:T filter:W bias:B {PADS} stride_w:i stride_h:i multiplier:i activation:i {TAIL}",
        f"input:T filter:W bias:B padding:i stride_w:i stride_h:i multiplier:i activation:i {TAIL}",
    ),
    T=ACTIVATIONS,
    W=WEIGHTS,
    B=BIASES,
)
def depthwise_conv_2d(site: Site) -> None:
    site.require_rank("filter", 4)
    site.require_rank("bias", 1)
    check_weights(site, 3)
    data, weights = image(site), site.tensor("filter")
    multiplier = site.positive("multiplier")
    if _dimension(site, weights, 0) not in {None, 1}:
        raise ShapeMismatch(
            f"a depthwise filter of shape {site.describe(weights)} does not begin with 1"
        )
    depth, made = _dimension(site, data, 3), _dimension(site, weights, 3)
    if depth is not None and made is not None and depth * multiplier != made:
        raise ShapeMismatch(f"{depth} channels times {multiplier} are not the filter's {made}")
    _convolve(site, "DEPTHWISE_CONV_2D", data, weights, depth_multiplier=multiplier)


@lowers(
    "TRANSPOSE_CONV_2D",
    level=3,
    form=(
        f"input:T filter:W bias:B {PADS} stride_w:i stride_h:i activation:i nchw:b -> output:T",
        "input:T filter:W bias:B output_shape:i32 padding:i stride_w:i stride_h:i activation:i nchw:b -> output:T",
    ),
    T=ACTIVATIONS,
    W=WEIGHTS,
    B=BIASES,
)
def transpose_conv_2d(site: Site) -> None:
    """With explicit padding: everything the filter reaches, and then the padding cut off."""
    site.require_rank("filter", 4)
    site.require_rank("bias", 1)
    check_weights(site, 0)
    data, weights = image(site), site.tensor("filter")
    strides, padding = strides_of(site), padding_of(site)
    if padding.scheme == "EXPLICIT":
        target, scheme = _full_extent(site, data, weights, strides), "VALID"
    else:
        shape, scheme = _target_shape(site), padding.scheme
        target = site.tensor("output_shape") if shape is None else site.integers(shape)
    result = finish_weighted(
        site,
        "TRANSPOSE_CONV",
        [target, weights, data, site.tensor("bias")],
        2,
        padding=scheme,
        stride_h=strides[0],
        stride_w=strides[1],
        fused_activation_function=site.activation(),
    )
    bind_image(site, _cut(site, result, padding.sides))


def _full_extent(site: Site, data: int, weights: int, strides: tuple[int, int]) -> int:
    """NHWC shape of everything that a transposed convolution writes to: (n - 1) * stride + filter."""
    filters = [_dimension(site, weights, i) for i in range(3)]
    if None in filters:
        raise NotLowerable("explicit padding of a TRANSPOSE_CONV_2D whose filter only a run tells")
    outputs, height, width = (d or 0 for d in filters)
    scaled = site.compute("MUL", [site.sizes(data, 0, 3), site.integers((1, *strides))])
    more = (0, height - strides[0], width - strides[1])
    spatial = site.compute("ADD", [scaled, site.integers(more)])
    return site.compute("CONCATENATION", [spatial, site.integers((outputs,))], axis=0)


def _target_shape(site: Site) -> tuple[int, ...] | None:
    """The output's NHWC shape, where it is known; in the operation's layout it stands in the
    argument.
    """
    site.require_rank("output_shape", 1)
    value = site.constant("output_shape")
    if value is None:
        if site.flag("nchw"):
            raise NotLowerable("an output shape in NCHW that only a run brings")
        return None
    shape = tuple(int(v) for v in value.reshape(-1))
    if len(shape) != 4 or min(shape) < 0:
        raise InvalidAttribute(f"output shape {shape} of TRANSPOSE_CONV_2D is that of no image")
    return (shape[0], shape[2], shape[3], shape[1]) if site.flag("nchw") else shape


def _cut(site: Site, result: int, sides: Sides) -> int:
    """*result* without what lies under the padding."""
    (top, bottom), (left, right) = sides
    if not any((top, bottom, left, right)):
        return result
    for axis, margin in ((1, top + bottom), (2, left + right)):
        size = _dimension(site, result, axis)
        if size is not None and size <= margin:
            raise ShapeMismatch(f"padding of {margin} leaves nothing of an output of {size}")
    ends = (bottom, right)
    return site.emit(
        "STRIDED_SLICE",
        [
            result,
            site.integers((0, top, left, 0)),
            site.integers((0, -bottom, -right, 0)),
            site.integers((1, 1, 1, 1)),
        ],
        end_mask=0b1001 | sum(1 << 1 + at for at, cut in enumerate(ends) if cut == 0),
    )


def _implicit(padding: Padding) -> str:
    """The scheme of what is left once explicit padding has been added."""
    return "SAME" if padding.scheme == "SAME" else "VALID"


def _dimension(site: Site, index: int, axis: int) -> int | None:
    shape = site.shape(index)
    return None if shape is None else shape[axis]


WINDOW = f"stride_w:i stride_h:i filter_w:i filter_h:i activation:i [{LAYOUT}] -> output:T"
FORMS = (f"input:T {PADS} {WINDOW}", f"input:T padding:i {WINDOW}")
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
