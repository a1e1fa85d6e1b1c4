"""Rows of convolutions and matrix products. Images are NHWC, volumes NDHWC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations import rules, signature
from penstock.ir.operations.requirements import integer_filter
from penstock.ir.operations.spec import AttributeSpec, Port, ShapeContext
from penstock.ir.types import Shape

DILATION_W: Final = signature.integer("dilation_w_factor", 1)
DILATION_H: Final = signature.integer("dilation_h_factor", 1)
BIASED: Final = Port("bias", signature.BIAS, optional=True)


def _check_bias(context: ShapeContext, index: int, channels: rules.Dimension) -> None:
    """A bias has one element for each output channel, in any shape (TFLite's kernels only count
    elements).
    """
    if context.has(index):
        rules.agree(
            rules.elements(context, index), channels, "elements of the bias and output channels"
        )


def _spatial(
    context: ShapeContext, image: Shape, extents: Shape, axes: str
) -> list[rules.Dimension]:
    """Output size along each of *axes* ("hw", "dhw"); *extents* are the filter's."""
    padding = context.attributes.text("padding")
    return [
        rules.window(
            rules.dimension(image, at + 1),
            rules.dimension(extents, at),
            rules.positive(context, f"stride_{axis}"),
            rules.positive(context, f"dilation_{axis}_factor"),
            padding,
        )
        for at, axis in enumerate(axes)
    ]


def _conv_2d(context: ShapeContext) -> Sequence[Shape]:
    """Filter [out, height, width, in]; the input channels are a multiple of its `in` (groups)."""
    image, filters = rules.ranked(context, 0, 4), rules.ranked(context, 1, 4)
    channels, depth = rules.dimension(image, 3), rules.dimension(filters, 3)
    if channels is not None and depth is not None and (depth == 0 or channels % depth):
        raise ShapeMismatch(f"{channels} input channels are not a multiple of the filter's {depth}")
    outputs = rules.dimension(filters, 0)
    _check_bias(context, 2, outputs)
    size = _spatial(context, image, None if filters is None else filters[1:3], "hw")
    return ((rules.dimension(image, 0), *size, outputs),)


def _depthwise(context: ShapeContext) -> Sequence[Shape]:
    """Filter [1, height, width, out], where out is a multiple of the input channels.

    TFLite ignores the multiplier attribute.
    """
    image, filters = rules.ranked(context, 0, 4), rules.ranked(context, 1, 4)
    rules.agree(rules.dimension(filters, 0), 1, "first dimension of a depthwise filter")
    channels, outputs = rules.dimension(image, 3), rules.dimension(filters, 3)
    if channels is not None and outputs is not None and (channels == 0 or outputs % channels):
        raise ShapeMismatch(
            f"{outputs} output channels are not a multiple of {channels} input channels"
        )
    if context.has(2):
        rules.agree(rules.length(context, 2), outputs, "bias length and output channels")
    size = _spatial(context, image, None if filters is None else filters[1:3], "hw")
    return ((rules.dimension(image, 0), *size, outputs),)


def _transpose_conv(context: ShapeContext) -> Sequence[Shape]:
    """The output's shape is an input; filter [out, height, width, in]."""
    rules.ranked(context, 0, 1)
    filters, image = rules.ranked(context, 1, 4), rules.ranked(context, 2, 4)
    rules.agree(rules.dimension(filters, 3), rules.dimension(image, 3), "filter and input channels")
    _check_bias(context, 3, rules.dimension(filters, 0))
    for name in ("stride_w", "stride_h"):
        rules.positive(context, name)
    target = rules.constant_integers(context, 0)
    if target is None:
        return ((rules.dimension(image, 0), None, None, rules.dimension(filters, 0)),)
    if len(target) != 4 or min(target) < 0:
        raise ShapeMismatch(f"{target} is not the shape of an image batch")
    rules.agree(target[0], rules.dimension(image, 0), "batches of output and input")
    rules.agree(target[3], rules.dimension(filters, 0), "output channels and filters")
    for axis, stride in ((1, "stride_h"), (2, "stride_w")):
        positions = rules.window(
            target[axis],
            rules.dimension(filters, axis),
            context.attributes.integer(stride),
            1,
            context.attributes.text("padding"),
        )
        rules.agree(
            positions,
            rules.dimension(image, axis),
            f"positions of the filter over {target} and input",
        )
    return (target,)


def _conv_3d(context: ShapeContext) -> Sequence[Shape]:
    """Filter [depth, height, width, in, out]."""
    volume, filters = rules.ranked(context, 0, 5), rules.ranked(context, 1, 5)
    rules.agree(
        rules.dimension(volume, 4), rules.dimension(filters, 3), "input and filter channels"
    )
    outputs = rules.dimension(filters, 4)
    _check_bias(context, 2, outputs)
    size = _spatial(context, volume, None if filters is None else filters[:3], "dhw")
    return ((rules.dimension(volume, 0), *size, outputs),)


def _conv_3d_transpose(context: ShapeContext) -> Sequence[Shape]:
    """The output's shape is an input; filter [depth, height, width, out, in]."""
    rules.ranked(context, 0, 1)
    filters, volume = rules.ranked(context, 1, 5), rules.ranked(context, 2, 5)
    rules.agree(
        rules.dimension(volume, 4), rules.dimension(filters, 4), "input and filter channels"
    )
    _check_bias(context, 3, rules.dimension(filters, 3))
    for name in ("stride_d", "stride_h", "stride_w"):
        rules.positive(context, name)
    target = rules.constant_integers(context, 0)
    if target is None:
        return ((rules.dimension(volume, 0), None, None, None, rules.dimension(filters, 3)),)
    if len(target) != 5 or min(target) < 0:
        raise ShapeMismatch(f"{target} is not the shape of a volume batch")
    rules.agree(target[4], rules.dimension(filters, 3), "output channels and filters")
    return (target,)


CONV_3D_ATTRIBUTES: Final = (
    signature.PADDING,
    signature.integer("stride_d"),
    signature.STRIDE_W,
    signature.STRIDE_H,
    signature.FUSED_ACTIVATION,
    signature.integer("dilation_d_factor", 1),
    DILATION_W,
    DILATION_H,
)


def _fully_connected(context: ShapeContext) -> Sequence[Shape]:
    """Weights [units, in]. The input is flattened to rows of `in`, unless `keep_num_dims`. As in
    TFLite, the work space of shuffled weights keeps its declared shape.
    """
    shape, weights = context.shape(0), rules.ranked(context, 1, 2)
    units, depth = rules.dimension(weights, 0), rules.dimension(weights, 1)
    if context.has(2):
        rules.agree(rules.elements(context, 2), units, "elements of the bias and units")
    rules.check_blocks(context, 3)
    if context.attributes.flag("keep_num_dims"):
        if shape is None:
            return _with_space(context, None)
        if not shape:
            raise ShapeMismatch("keep_num_dims needs an input of rank 1 or more")
        rules.agree(shape[-1], depth, "last input dimension and weight columns")
        return _with_space(context, (*shape[:-1], units))
    size = None if shape is None else rules.product(shape)
    if size is None or depth is None:
        return _with_space(context, (None, units))
    if depth == 0 or size % depth:
        raise ShapeMismatch(f"an input of shape {shape} does not make rows of {depth}")
    return _with_space(context, (size // depth, units))


def _with_space(context: ShapeContext, output: Shape) -> Sequence[Shape]:
    space = [context.declared(i) for i in range(1, context.output_count)]
    return rules.fill(context, output, *space)


def _batch_matmul(context: ShapeContext) -> Sequence[Shape]:
    a, b = rules.at_least(context, 0, 2), rules.at_least(context, 1, 2)
    swap_a, swap_b = context.attributes.flag("adj_x"), context.attributes.flag("adj_y")
    rows, inner = (
        (rules.dimension(a, -1), rules.dimension(a, -2))
        if swap_a
        else (rules.dimension(a, -2), rules.dimension(a, -1))
    )
    depth, columns = (
        (rules.dimension(b, -1), rules.dimension(b, -2))
        if swap_b
        else (rules.dimension(b, -2), rules.dimension(b, -1))
    )
    rules.agree(inner, depth, "inner dimensions of the product")
    if a is None or b is None:
        return (None,)
    batch = rules.broadcast(a[:-2], b[:-2])
    return (None if batch is None else (*batch, rows, columns),)


def _matrix_diagonal(context: ShapeContext) -> Sequence[Shape]:
    shape = rules.at_least(context, 0, 1)
    return (None if shape is None else (*shape, shape[-1]),)


def _set_diagonal(context: ShapeContext) -> Sequence[Shape]:
    return (rules.at_least(context, 0, 2),)


ROWS: Final = (
    signature.row(
        "CONV_2D",
        "input: activation T, filter: weights, bias?: bias -> output: activation T",
        _conv_2d,
        (
            signature.PADDING,
            signature.STRIDE_W,
            signature.STRIDE_H,
            signature.FUSED_ACTIVATION,
            DILATION_W,
            DILATION_H,
            signature.QUANTIZED_BIAS_TYPE,
        ),
        require=integer_filter(0, checks_bias=False),
        level=1,
        versions=8,
        doc="Two-dimensional convolution, grouped where the filter has fewer channels than the "
        "input.",
    ),
    signature.row(
        "DEPTHWISE_CONV_2D",
        "input: activation T, filter: weights, bias?: bias -> output: activation T",
        _depthwise,
        (
            signature.PADDING,
            signature.STRIDE_W,
            signature.STRIDE_H,
            signature.integer("depth_multiplier"),
            signature.FUSED_ACTIVATION,
            DILATION_W,
            DILATION_H,
        ),
        require=integer_filter(3, checks_bias=False),
        level=1,
        versions=7,
        doc="Convolution of each input channel with filters of its own.",
    ),
    signature.row(
        "TRANSPOSE_CONV",
        "output_shape: int32, filter: weights, input: activation T, bias?: bias -> output: "
        "activation T",
        _transpose_conv,
        (
            signature.PADDING,
            signature.STRIDE_W,
            signature.STRIDE_H,
            signature.FUSED_ACTIVATION,
            signature.QUANTIZED_BIAS_TYPE,
        ),
        require=integer_filter(0, data=2, checks_bias=False),
        level=3,
        nnapi_name="TRANSPOSE_CONV_2D",
        versions=5,
        doc="The gradient of CONV_2D with respect to its input, as an upsampling layer.",
    ),
    signature.row(
        "CONV_3D",
        "input: activation T, filter: weights, bias?: bias -> output: activation T",
        _conv_3d,
        CONV_3D_ATTRIBUTES,
        doc="Three-dimensional convolution.",
    ),
    signature.row(
        "CONV_3D_TRANSPOSE",
        "output_shape: int32, filter: weights, input: activation T, bias?: bias -> output: "
        "activation T",
        _conv_3d_transpose,
        CONV_3D_ATTRIBUTES,
        doc="The gradient of CONV_3D with respect to its input, as an upsampling layer.",
    ),
    signature.row(
        "FULLY_CONNECTED",
        "input: activation, weights: weights, bias?: bias, block_scales?: float16 -> output: "
        "activation, shuffled_input?: activation",
        _fully_connected,
        (
            signature.FUSED_ACTIVATION,
            signature.choice("weights_format", "DEFAULT", "SHUFFLED4x16INT8"),
            signature.flag("keep_num_dims"),
            signature.ASYMMETRIC_INPUTS,
            signature.QUANTIZED_BIAS_TYPE,
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
    signature.row(
        "BATCH_MATMUL",
        "a: number, b: number -> product: number",
        _batch_matmul,
        (signature.flag("adj_x"), signature.flag("adj_y"), signature.ASYMMETRIC_INPUTS),
        level=6,
        versions=4,
        doc="The matrix products of the last two dimensions, either side transposed on demand, the "
        "others broadcast.",
    ),
    signature.row(
        "MATRIX_DIAG",
        "diagonal: value T -> matrix: value T",
        _matrix_diagonal,
        doc="Matrices with the last dimension of the input on their diagonal, zero elsewhere.",
    ),
    signature.row(
        "MATRIX_SET_DIAG",
        "matrix: value T, diagonal: value T -> result: value T",
        _set_diagonal,
        doc="The matrices with their diagonals replaced.",
    ),
)
