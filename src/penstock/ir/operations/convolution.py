"""Rows of convolutions. Images are NHWC, volumes NDHWC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations.attributes import (
    FUSED_ACTIVATION,
    PADDING,
    QUANTIZED_BIAS_TYPE,
    STRIDE_H,
    STRIDE_W,
    integer,
)
from penstock.ir.operations.requirements import integer_filter
from penstock.ir.operations.rules import (
    Dimension,
    agree,
    constant_integers,
    dimension,
    elements,
    length,
    positive,
    ranked,
    window,
)
from penstock.ir.operations.spec import OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import ACTIVATION, BIAS, INT32, WEIGHTS
from penstock.ir.types import Shape

DILATION_W: Final = integer("dilation_w_factor", 1)
DILATION_H: Final = integer("dilation_h_factor", 1)
BIASED: Final = Port("bias", BIAS, optional=True)


def _check_bias(context: ShapeContext, index: int, channels: Dimension) -> None:
    """A bias has an element for each output channel, in any shape (TFLite's kernels count the
    elements).
    """
    if context.has(index):
        agree(elements(context, index), channels, "elements of the bias and output channels")


def _spatial(context: ShapeContext, image: Shape, extents: Shape, axes: str) -> list[Dimension]:
    """Output size along each of *axes* ("hw", "dhw"); *extents* are the filter's."""
    padding = context.attributes.text("padding")
    return [
        window(
            dimension(image, at + 1),
            dimension(extents, at),
            positive(context, f"stride_{axis}"),
            positive(context, f"dilation_{axis}_factor"),
            padding,
        )
        for at, axis in enumerate(axes)
    ]


def _conv_2d(context: ShapeContext) -> Sequence[Shape]:
    """Filter [out, height, width, in]; input channels are a multiple of its `in` (groups)."""
    image, filters = ranked(context, 0, 4), ranked(context, 1, 4)
    channels, depth = dimension(image, 3), dimension(filters, 3)
    if channels is not None and depth is not None and (depth == 0 or channels % depth):
        raise ShapeMismatch(f"{channels} input channels are not a multiple of the filter's {depth}")
    outputs = dimension(filters, 0)
    _check_bias(context, 2, outputs)
    size = _spatial(context, image, None if filters is None else filters[1:3], "hw")
    return ((dimension(image, 0), *size, outputs),)


def _depthwise(context: ShapeContext) -> Sequence[Shape]:
    """Filter [1, height, width, out], where out is a multiple of the input channels.

    The multiplier is out over input channels; TFLite does not read the attribute.
    """
    image, filters = ranked(context, 0, 4), ranked(context, 1, 4)
    agree(dimension(filters, 0), 1, "first dimension of a depthwise filter")
    channels, outputs = dimension(image, 3), dimension(filters, 3)
    if channels is not None and outputs is not None and (channels == 0 or outputs % channels):
        raise ShapeMismatch(
            f"{outputs} output channels are not a multiple of {channels} input channels"
        )
    if context.has(2):
        agree(length(context, 2), outputs, "bias length and output channels")
    size = _spatial(context, image, None if filters is None else filters[1:3], "hw")
    return ((dimension(image, 0), *size, outputs),)


def _transpose_conv(context: ShapeContext) -> Sequence[Shape]:
    """The output's shape is an input; filter [out, height, width, in]."""
    ranked(context, 0, 1)
    filters, image = ranked(context, 1, 4), ranked(context, 2, 4)
    agree(dimension(filters, 3), dimension(image, 3), "filter and input channels")
    _check_bias(context, 3, dimension(filters, 0))
    for name in ("stride_w", "stride_h"):
        positive(context, name)
    target = constant_integers(context, 0)
    if target is None:
        return ((dimension(image, 0), None, None, dimension(filters, 0)),)
    if len(target) != 4 or min(target) < 0:
        raise ShapeMismatch(f"{target} is not the shape of an image batch")
    agree(target[0], dimension(image, 0), "batches of output and input")
    agree(target[3], dimension(filters, 0), "output channels and filters")
    for axis, stride in ((1, "stride_h"), (2, "stride_w")):
        positions = window(
            target[axis],
            dimension(filters, axis),
            context.attributes.integer(stride),
            1,
            context.attributes.text("padding"),
        )
        agree(positions, dimension(image, axis), f"positions of the filter over {target} and input")
    return (target,)


def _conv_3d(context: ShapeContext) -> Sequence[Shape]:
    """Filter [depth, height, width, in, out]."""
    volume, filters = ranked(context, 0, 5), ranked(context, 1, 5)
    agree(dimension(volume, 4), dimension(filters, 3), "input and filter channels")
    outputs = dimension(filters, 4)
    _check_bias(context, 2, outputs)
    size = _spatial(context, volume, None if filters is None else filters[:3], "dhw")
    return ((dimension(volume, 0), *size, outputs),)


def _conv_3d_transpose(context: ShapeContext) -> Sequence[Shape]:
    """The output's shape is an input; filter [depth, height, width, out, in]."""
    ranked(context, 0, 1)
    filters, volume = ranked(context, 1, 5), ranked(context, 2, 5)
    agree(dimension(volume, 4), dimension(filters, 4), "input and filter channels")
    _check_bias(context, 3, dimension(filters, 3))
    for name in ("stride_d", "stride_h", "stride_w"):
        positive(context, name)
    target = constant_integers(context, 0)
    if target is None:
        return ((dimension(volume, 0), None, None, None, dimension(filters, 3)),)
    if len(target) != 5 or min(target) < 0:
        raise ShapeMismatch(f"{target} is not the shape of a volume batch")
    agree(target[4], dimension(filters, 3), "output channels and filters")
    return (target,)


CONV_3D_ATTRIBUTES: Final = (
    PADDING,
    integer("stride_d"),
    STRIDE_W,
    STRIDE_H,
    FUSED_ACTIVATION,
    integer("dilation_d_factor", 1),
    DILATION_W,
    DILATION_H,
)

ROWS: Final = (
    OperationSpec(
        "CONV_2D",
        (Port("input", ACTIVATION, "T"), Port("filter", WEIGHTS), BIASED),
        (Port("output", ACTIVATION, "T"),),
        _conv_2d,
        (
            PADDING,
            STRIDE_W,
            STRIDE_H,
            FUSED_ACTIVATION,
            DILATION_W,
            DILATION_H,
            QUANTIZED_BIAS_TYPE,
        ),
        require=integer_filter(0, checks_bias=False),
        feature_level=1,
        doc="Two-dimensional convolution, grouped where the filter has fewer channels than the input.",
    ),
    OperationSpec(
        "DEPTHWISE_CONV_2D",
        (Port("input", ACTIVATION, "T"), Port("filter", WEIGHTS), BIASED),
        (Port("output", ACTIVATION, "T"),),
        _depthwise,
        (
            PADDING,
            STRIDE_W,
            STRIDE_H,
            integer("depth_multiplier"),
            FUSED_ACTIVATION,
            DILATION_W,
            DILATION_H,
        ),
        require=integer_filter(3, checks_bias=False),
        feature_level=1,
        doc="Convolution of each input channel with filters of its own.",
    ),
    OperationSpec(
        "TRANSPOSE_CONV",
        (
            Port("output_shape", INT32),
            Port("filter", WEIGHTS),
            Port("input", ACTIVATION, "T"),
            BIASED,
        ),
        (Port("output", ACTIVATION, "T"),),
        _transpose_conv,
        (PADDING, STRIDE_W, STRIDE_H, FUSED_ACTIVATION, QUANTIZED_BIAS_TYPE),
        require=integer_filter(0, data=2, checks_bias=False),
        feature_level=3,
        nnapi_name="TRANSPOSE_CONV_2D",
        doc="The gradient of CONV_2D with respect to its input, as an upsampling layer.",
    ),
    OperationSpec(
        "CONV_3D",
        (Port("input", ACTIVATION, "T"), Port("filter", WEIGHTS), BIASED),
        (Port("output", ACTIVATION, "T"),),
        _conv_3d,
        CONV_3D_ATTRIBUTES,
        doc="Three-dimensional convolution.",
    ),
    OperationSpec(
        "CONV_3D_TRANSPOSE",
        (
            Port("output_shape", INT32),
            Port("filter", WEIGHTS),
            Port("input", ACTIVATION, "T"),
            BIASED,
        ),
        (Port("output", ACTIVATION, "T"),),
        _conv_3d_transpose,
        CONV_3D_ATTRIBUTES,
        doc="The gradient of CONV_3D with respect to its input, as an upsampling layer.",
    ),
)
