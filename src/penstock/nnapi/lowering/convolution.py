"""Convolutions. Explicit padding that no implicit scheme gives becomes a PAD before, or a SLICE
after.
"""

from __future__ import annotations

from penstock.errors import InvalidAttribute, NotLowerable, ShapeMismatch
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
