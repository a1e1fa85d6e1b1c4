"""Rows of convolutions and matrix products. Images are NHWC, volumes NDHWC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations import rules
from penstock.ir.operations.requirements import integer_filter
from penstock.ir.operations.signature import row
from penstock.ir.operations.spec import ShapeContext
from penstock.ir.types import Shape


def _check_bias(context: ShapeContext, index: int, channels: rules.Dimension) -> None:
    """A bias has one element for each output channel, in any shape (TFLite's kernels only count
    elements).
    """
    if context.has(index):
        rules.agree(
            rules.elements(context, index), channels, "elements of the bias and output channels"
        )


def _spatial(
    context: ShapeContext, image: Sequence[rules.Dimension], extents: Sequence[rules.Dimension]
) -> list[rules.Dimension]:
    """The output size along height and width, or depth, height and width. *extents* are the
    filter's.
    """
    padding = context.attributes.text("padding")
    return [
        rules.window(
            size,
            extent,
            rules.positive(context, f"stride_{axis}"),
            rules.positive(context, f"dilation_{axis}_factor"),
            padding,
        )
        for axis, size, extent in zip("dhw"[-len(image) :], image, extents, strict=True)
    ]


def _conv_2d(context: ShapeContext) -> Sequence[Shape]:
    """Filter [out, height, width, in]; the input channels are a multiple of its `in` (groups)."""
    batch, *image, channels = rules.dimensions(context, 0, 4)
    outputs, *extents, depth = rules.dimensions(context, 1, 4)
    rules.quotient(channels, depth, "input channels", "the filter's")
    _check_bias(context, 2, outputs)
    return ((batch, *_spatial(context, image, extents), outputs),)


def _depthwise(context: ShapeContext) -> Sequence[Shape]:
    """Filter [1, height, width, out], where out is a multiple of the input channels.

    TFLite ignores the multiplier attribute.
    """
    batch, *image, channels = rules.dimensions(context, 0, 4)
    first, *extents, outputs = rules.dimensions(context, 1, 4)
    rules.agree(first, 1, "first dimension of a depthwise filter")
    rules.quotient(outputs, channels, "output channels", "the input's")
    if context.has(2):
        rules.agree(rules.length(context, 2), outputs, "bias length and output channels")
    return ((batch, *_spatial(context, image, extents), outputs),)


def _target(
    context: ShapeContext,
    axes: str,
    outputs: rules.Dimension,
    depth: rules.Dimension,
    channels: rules.Dimension,
) -> tuple[int, ...] | None:
    """The output's shape of a transposed convolution, which is the value of input 0, if it is
    known. *depth* and *channels* are those of filter and input.
    """
    rules.vector(context, 0)
    rules.agree(depth, channels, "filter and input channels")
    _check_bias(context, 3, outputs)
    for axis in axes:
        rules.positive(context, f"stride_{axis}")
    target = rules.constant_integers(context, 0)
    if target is not None:
        if len(target) != len(axes) + 2 or min(target) < 0:
            raise ShapeMismatch(f"{target} is not the shape of a batch of outputs")
        rules.agree(target[-1], outputs, "output channels and filters")
    return target


def _transpose_conv(context: ShapeContext) -> Sequence[Shape]:
    """The output's shape is an input; filter [out, height, width, in]."""
    outputs, *extents, depth = rules.dimensions(context, 1, 4)
    batch, *image, channels = rules.dimensions(context, 2, 4)
    target = _target(context, "hw", outputs, depth, channels)
    if target is None:
        return ((batch, None, None, outputs),)
    rules.agree(target[0], batch, "batches of output and input")
    padding = context.attributes.text("padding")
    for axis, size, extent, places in zip("hw", target[1:3], extents, image, strict=True):
        stride = context.attributes.integer(f"stride_{axis}")
        found = rules.window(size, extent, stride, 1, padding)
        rules.agree(found, places, f"positions of the filter over {target} and input")
    return (target,)


def _conv_3d(context: ShapeContext) -> Sequence[Shape]:
    """Filter [depth, height, width, in, out]."""
    batch, *volume, channels = rules.dimensions(context, 0, 5)
    *extents, depth, outputs = rules.dimensions(context, 1, 5)
    rules.agree(channels, depth, "input and filter channels")
    _check_bias(context, 2, outputs)
    return ((batch, *_spatial(context, volume, extents), outputs),)


def _conv_3d_transpose(context: ShapeContext) -> Sequence[Shape]:
    """The output's shape is an input; filter [depth, height, width, out, in]."""
    *_, outputs, depth = rules.dimensions(context, 1, 5)
    batch, *_, channels = rules.dimensions(context, 2, 5)
    target = _target(context, "dhw", outputs, depth, channels)
    return ((batch, None, None, None, outputs) if target is None else target,)


def _fully_connected(context: ShapeContext) -> Sequence[Shape]:
    """Weights [units, in]. The input is flattened to rows of `in`, unless `keep_num_dims`. As in
    TFLite, the work space of shuffled weights keeps its declared shape.
    """
    shape, (units, depth) = context.shape(0), rules.dimensions(context, 1, 2)
    if context.has(2):
        rules.agree(rules.elements(context, 2), units, "elements of the bias and units")
    rules.check_blocks(context, 3)
    output: Shape
    if not context.attributes.flag("keep_num_dims"):
        size = None if shape is None else rules.product(shape)
        output = rules.quotient(size, depth, "elements of the input", "the row's"), units
    elif shape is None:
        output = None
    elif not shape:
        raise ShapeMismatch("keep_num_dims needs an input of rank 1 or more")
    else:
        rules.agree(shape[-1], depth, "last input dimension and weight columns")
        output = *shape[:-1], units
    return (output, *(context.declared(i) for i in range(1, context.output_count)))


def _batch_matmul(context: ShapeContext) -> Sequence[Shape]:
    a, b = rules.at_least(context, 0, 2), rules.at_least(context, 1, 2)
    rows, inner = _matrix(a, context.attributes.flag("adj_x"))
    depth, columns = _matrix(b, context.attributes.flag("adj_y"))
    rules.agree(inner, depth, "inner dimensions of the product")
    batch = None if a is None or b is None else rules.broadcast(a[:-2], b[:-2])
    return (None if batch is None else (*batch, rows, columns),)


def _matrix(shape: Shape, transposed: bool) -> tuple[rules.Dimension, rules.Dimension]:
    """Rows and columns of the matrices in an operand."""
    rows, columns = (None, None) if shape is None else shape[-2:]
    return (columns, rows) if transposed else (rows, columns)


def _matrix_diagonal(context: ShapeContext) -> Sequence[Shape]:
    shape = rules.at_least(context, 0, 1)
    return (None if shape is None else (*shape, shape[-1]),)


ROWS: Final = (
    row("""CONV_2D(input: activation T, filter: weights, bias?: bias; padding, stride_w, stride_h,
        fused_activation_function, dilation_w_factor, dilation_h_factor, quantized_bias_type)
        -> output: activation T; version 8; NNAPI 1
        # Two-dimensional convolution, grouped where the filter has fewer channels than the input.
        """)(_conv_2d, require=integer_filter(0, checks_bias=False)),
    row("""DEPTHWISE_CONV_2D(input: activation T, filter: weights, bias?: bias; padding, stride_w,
        stride_h, depth_multiplier: int, fused_activation_function, dilation_w_factor,
        dilation_h_factor) -> output: activation T; version 7; NNAPI 1
        # Convolution of each input channel with filters of its own.
        """)(_depthwise, require=integer_filter(3, checks_bias=False)),
    row("""TRANSPOSE_CONV(output_shape: int32, filter: weights, input: activation T, bias?: bias;
        padding, stride_w, stride_h, fused_activation_function, quantized_bias_type)
        -> output: activation T; version 5; NNAPI 3 TRANSPOSE_CONV_2D
        # The gradient of CONV_2D with respect to its input, as an upsampling layer.
        """)(_transpose_conv, require=integer_filter(0, data=2, checks_bias=False)),
    row("""CONV_3D(input: activation T, filter: weights, bias?: bias; padding, stride_d: int,
        stride_w, stride_h, fused_activation_function, dilation_d_factor: int = 1,
        dilation_w_factor, dilation_h_factor) -> output: activation T
        # Three-dimensional convolution.""")(_conv_3d),
    row("""CONV_3D_TRANSPOSE(output_shape: int32, filter: weights, input: activation T, bias?: bias;
        padding, stride_d: int, stride_w, stride_h, fused_activation_function,
        dilation_d_factor: int = 1, dilation_w_factor, dilation_h_factor) -> output: activation T
        # The gradient of CONV_3D with respect to its input, as an upsampling layer.
        """)(_conv_3d_transpose),
    row("""FULLY_CONNECTED(input: activation, weights: weights, bias?: bias, block_scales?: float16;
        fused_activation_function, weights_format: DEFAULT|SHUFFLED4x16INT8, keep_num_dims: bool,
        asymmetric_quantize_inputs, quantized_bias_type, quant_spec: bytes) -> output: activation,
        shuffled_input?: activation; version 14; NNAPI 1
        # The input's rows times the transposed weights, plus a bias. Integer weights may have a
        scale for each block of a row. The second output is the work space of the shuffled format.
        """)(_fully_connected, require=integer_filter(0, checks_bias=True)),
    row("""BATCH_MATMUL(a: number, b: number; adj_x: bool, adj_y: bool, asymmetric_quantize_inputs)
        -> product: number; version 4; NNAPI 6
        # The matrix products of the last two dimensions, either side transposed on demand, the
        others broadcast.""")(_batch_matmul),
    row("""MATRIX_DIAG(diagonal: value T) -> matrix: value T
        # Matrices with the last dimension of the input on their diagonal, zero elsewhere.
        """)(_matrix_diagonal),
    row("""MATRIX_SET_DIAG(matrix: value T, diagonal: value T) -> result: value T
        # The matrices with their diagonals replaced.""")(rules.first_of_rank(2, more=True)),
)
