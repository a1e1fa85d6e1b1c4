"""Rows of convolutions and matrix products. Images are NHWC, volumes NDHWC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations.requirements import integer_filter
from penstock.ir.operations.rules import (
    Dimension,
    agree,
    at_least,
    broadcast,
    check_blocks,
    constant_integers,
    dimension,
    elements,
    fill,
    length,
    positive,
    product,
    ranked,
    window,
)
from penstock.ir.operations.signature import (
    ASYMMETRIC_INPUTS,
    BIAS,
    FUSED_ACTIVATION,
    PADDING,
    QUANTIZED_BIAS_TYPE,
    STRIDE_H,
    STRIDE_W,
    choice,
    flag,
    integer,
    row,
)
from penstock.ir.operations.spec import AttributeSpec, Port, ShapeContext
from penstock.ir.types import Shape

DILATION_W: Final = integer("dilation_w_factor", 1)
DILATION_H: Final = integer("dilation_h_factor", 1)
BIASED: Final = Port("bias", BIAS, optional=True)


def _check_bias(context: ShapeContext, index: int, channels: Dimension) -> None:
    """A bias has one element for each output channel, in any shape (TFLite's kernels only count
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
    """Filter [out, height, width, in]; the input channels are a multiple of its `in` (groups)."""
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

    TFLite ignores the multiplier attribute.
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


def _fully_connected(context: ShapeContext) -> Sequence[Shape]:
    """Weights [units, in]. The input is flattened to rows of `in`, unless `keep_num_dims`. As in
    TFLite, the work space of shuffled weights keeps its declared shape.
    """
    shape, weights = context.shape(0), ranked(context, 1, 2)
    units, depth = dimension(weights, 0), dimension(weights, 1)
    if context.has(2):
        agree(elements(context, 2), units, "elements of the bias and units")
    check_blocks(context, 3)
    if context.attributes.flag("keep_num_dims"):
        if shape is None:
            return _with_space(context, None)
        if not shape:
            raise ShapeMismatch("keep_num_dims needs an input of rank 1 or more")
        agree(shape[-1], depth, "last input dimension and weight columns")
        return _with_space(context, (*shape[:-1], units))
    size = None if shape is None else product(shape)
    if size is None or depth is None:
        return _with_space(context, (None, units))
    if depth == 0 or size % depth:
        raise ShapeMismatch(f"an input of shape {shape} does not make rows of {depth}")
    return _with_space(context, (size // depth, units))


def _with_space(context: ShapeContext, output: Shape) -> Sequence[Shape]:
    space = [context.declared(i) for i in range(1, context.output_count)]
    return fill(context, output, *space)


def _batch_matmul(context: ShapeContext) -> Sequence[Shape]:
    a, b = at_least(context, 0, 2), at_least(context, 1, 2)
    swap_a, swap_b = context.attributes.flag("adj_x"), context.attributes.flag("adj_y")
    rows, inner = (
        (dimension(a, -1), dimension(a, -2)) if swap_a else (dimension(a, -2), dimension(a, -1))
    )
    depth, columns = (
        (dimension(b, -1), dimension(b, -2)) if swap_b else (dimension(b, -2), dimension(b, -1))
    )
    agree(inner, depth, "inner dimensions of the product")
    if a is None or b is None:
        return (None,)
    batch = broadcast(a[:-2], b[:-2])
    return (None if batch is None else (*batch, rows, columns),)


def _matrix_diagonal(context: ShapeContext) -> Sequence[Shape]:
    shape = at_least(context, 0, 1)
    return (None if shape is None else (*shape, shape[-1]),)


def _set_diagonal(context: ShapeContext) -> Sequence[Shape]:
    return (at_least(context, 0, 2),)


ROWS: Final = (
    row(
        "CONV_2D",
        "input: activation T, filter: weights, bias?: bias -> output: activation T",
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
        level=1,
        versions=8,
        doc="Two-dimensional convolution, grouped where the filter has fewer channels than the "
        "input.",
    ),
    row(
        "DEPTHWISE_CONV_2D",
        "input: activation T, filter: weights, bias?: bias -> output: activation T",
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
        level=1,
        versions=7,
        doc="Convolution of each input channel with filters of its own.",
    ),
    row(
        "TRANSPOSE_CONV",
        "output_shape: int32, filter: weights, input: activation T, bias?: bias -> output: "
        "activation T",
        _transpose_conv,
        (PADDING, STRIDE_W, STRIDE_H, FUSED_ACTIVATION, QUANTIZED_BIAS_TYPE),
        require=integer_filter(0, data=2, checks_bias=False),
        level=3,
        nnapi_name="TRANSPOSE_CONV_2D",
        versions=5,
        doc="The gradient of CONV_2D with respect to its input, as an upsampling layer.",
    ),
    row(
        "CONV_3D",
        "input: activation T, filter: weights, bias?: bias -> output: activation T",
        _conv_3d,
        CONV_3D_ATTRIBUTES,
        doc="Three-dimensional convolution.",
    ),
    row(
        "CONV_3D_TRANSPOSE",
        "output_shape: int32, filter: weights, input: activation T, bias?: bias -> output: "
        "activation T",
        _conv_3d_transpose,
        CONV_3D_ATTRIBUTES,
        doc="The gradient of CONV_3D with respect to its input, as an upsampling layer.",
    ),
    row(
        "FULLY_CONNECTED",
        "input: activation, weights: weights, bias?: bias, block_scales?: float16 -> output: "
        "activation, shuffled_input?: activation",
        _fully_connected,
        (
            FUSED_ACTIVATION,
            choice("weights_format", "DEFAULT", "SHUFFLED4x16INT8"),
            flag("keep_num_dims"),
            ASYMMETRIC_INPUTS,
            QUANTIZED_BIAS_TYPE,
            AttributeSpec("quant_spec", "bytes", b""),
        ),
        require=integer_filter(0, checks_bias=True),
        level=1,
        versions=14,
        doc="The input's rows times the transposed weights, plus a bias. Integer weights may have "
        "a scale for each"
        "block of a row. "
        "The second output is the work space of the shuffled format.",
    ),
    row(
        "BATCH_MATMUL",
        "a: number, b: number -> product: number",
        _batch_matmul,
        (flag("adj_x"), flag("adj_y"), ASYMMETRIC_INPUTS),
        level=6,
        versions=4,
        doc="The matrix products of the last two dimensions, either side transposed on demand, the "
        "others broadcast.",
    ),
    row(
        "MATRIX_DIAG",
        "diagonal: value T -> matrix: value T",
        _matrix_diagonal,
        doc="Matrices with the last dimension of the input on their diagonal, zero elsewhere.",
    ),
    row(
        "MATRIX_SET_DIAG",
        "matrix: value T, diagonal: value T -> result: value T",
        _set_diagonal,
        doc="The matrices with their diagonals replaced.",
    ),
)
