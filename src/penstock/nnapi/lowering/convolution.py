"""Convolution and pooling.

Explicit padding that matches no implicit scheme becomes a PAD before the convolution, or a SLICE
after a transposed one. Pooling ignores padding elements, explicit and implicit.
"""

from __future__ import annotations

import numpy as np

from penstock.errors import InvalidAttribute, NotLowerable, ShapeMismatch
from penstock.ir import AttributeValue, DType
from penstock.nnapi.lowering import windows
from penstock.nnapi.lowering.operation import OperationLowering
from penstock.nnapi.lowering.registry import OLD, lowers

TYPES = {"T": OLD, "W": "f32 q8 f16@3 pc@3 q8s@4", "B": "f32 i32 f16@3"}
WEIGHTED = "input:T filter:W/4 bias:B/1"
TAIL = f"activation:i [{windows.LAYOUT} [dilation_w:i>0@3 dilation_h:i>0@3]] -> output:T"


def _convolve(op: OperationLowering, kind: str, data: int, weights: int, **more: int) -> None:
    """Appends the convolution *kind* of an image with a filter."""
    strides = windows.strides_of(op)
    dilations = op.integer("dilation_h", 1), op.integer("dilation_w", 1)
    extents = (op.dimension(weights, 1), op.dimension(weights, 2))
    padding = windows.padding_of(op).resolved(op.shape(data), extents, strides, dilations)
    result = windows.finish_weighted(
        op,
        kind,
        [windows.padded(op, data, padding.sides), weights, op.tensor("bias")],
        0,
        padding=padding.implicit,
        stride_h=strides[0],
        stride_w=strides[1],
        dilation_h_factor=dilations[0],
        dilation_w_factor=dilations[1],
        fused_activation_function=op.activation(),
        **more,
    )
    windows.bind_image(op, result)


@lowers(
    "CONV_2D",
    *(f"{WEIGHTED} {pads} {windows.STRIDES} {TAIL}" for pads in windows.PADDINGS),
    **TYPES,
)
def conv_2d(op: OperationLowering) -> None:
    windows.check_weights(op, 0)
    data, weights = windows.image(op), op.tensor("filter")
    depth, taken = op.dimension(data, 3), op.dimension(weights, 3)
    if depth is not None and taken is not None and depth != taken:
        raise ShapeMismatch(f"an image of {depth} channels, a filter for {taken}")
    _convolve(op, "CONV_2D", data, weights)


@lowers(
    "DEPTHWISE_CONV_2D",
    *(f"{WEIGHTED} {pads} {windows.STRIDES} multiplier:i>0 {TAIL}" for pads in windows.PADDINGS),
    **TYPES,
)
def depthwise_conv_2d(op: OperationLowering) -> None:
    windows.check_weights(op, 3)
    data, weights = windows.image(op), op.tensor("filter")
    multiplier = op.integer("multiplier")
    if op.dimension(weights, 0) not in {None, 1}:
        raise ShapeMismatch(
            f"a depthwise filter of shape {op.describe(weights)} does not begin with 1"
        )
    depth, made = op.dimension(data, 3), op.dimension(weights, 3)
    if depth is not None and made is not None and depth * multiplier != made:
        raise ShapeMismatch(f"{depth} channels times {multiplier} are not the filter's {made}")
    _convolve(op, "DEPTHWISE_CONV_2D", data, weights, depth_multiplier=multiplier)


@lowers(
    "TRANSPOSE_CONV_2D",
    *(
        f"{WEIGHTED} {pads} {windows.STRIDES} activation:i nchw:b -> output:T"
        for pads in (windows.PADS, "output_shape:i32/1 padding:i")
    ),
    **TYPES,
)
def transpose_conv_2d(op: OperationLowering) -> None:
    """With explicit padding: computes all that the filter reaches, then crops the padding."""
    windows.check_weights(op, 0)
    data, weights = windows.image(op), op.tensor("filter")
    strides, padding = windows.strides_of(op), windows.padding_of(op)
    if padding.scheme == "EXPLICIT":
        target, scheme = _full_extent(op, data, weights, strides), "VALID"
    else:
        shape, scheme = _target_shape(op), padding.scheme
        target = op.tensor("output_shape") if shape is None else op.integers(shape)
    result = windows.finish_weighted(
        op,
        "TRANSPOSE_CONV",
        [target, weights, data, op.tensor("bias")],
        2,
        padding=scheme,
        stride_h=strides[0],
        stride_w=strides[1],
        fused_activation_function=op.activation(),
    )
    windows.bind_image(op, _cut(op, result, padding.sides))


def _full_extent(op: OperationLowering, data: int, weights: int, strides: tuple[int, int]) -> int:
    """NHWC shape of everything that a transposed convolution writes: (n - 1) * stride + filter."""
    filters = [op.dimension(weights, i) for i in range(3)]
    if None in filters:
        raise NotLowerable("explicit padding of TRANSPOSE_CONV_2D needs a filter of known shape")
    outputs, height, width = (d or 0 for d in filters)
    scaled = op.compute("MUL", [op.sizes(data, 0, 3), op.integers((1, *strides))])
    more = (0, height - strides[0], width - strides[1])
    spatial = op.compute("ADD", [scaled, op.integers(more)])
    return op.compute("CONCATENATION", [spatial, op.integers((outputs,))], axis=0)


def _target_shape(op: OperationLowering) -> tuple[int, ...] | None:
    """The output's NHWC shape, if known. The argument has it in the operation's layout."""
    value = op.constant("output_shape")
    if value is None:
        if op.flag("nchw"):
            raise NotLowerable("an output shape in NCHW is known only at run time")
        return None
    shape = tuple(int(v) for v in value.reshape(-1))
    if len(shape) != 4 or min(shape) < 0:
        raise InvalidAttribute(f"output shape {shape} of TRANSPOSE_CONV_2D is that of no image")
    return (shape[0], shape[2], shape[3], shape[1]) if op.flag("nchw") else shape


def _cut(op: OperationLowering, result: int, sides: windows.Sides) -> int:
    """*result* with the padding cropped."""
    (top, bottom), (left, right) = sides
    if not any((top, bottom, left, right)):
        return result
    for axis, margin in ((1, top + bottom), (2, left + right)):
        size = op.dimension(result, axis)
        if size is not None and size <= margin:
            raise ShapeMismatch(f"padding of {margin} leaves nothing of an output of {size}")
    bounds = ((0, top, left, 0), (0, -bottom, -right, 0), (1, 1, 1, 1))
    end_mask = sum(1 << axis for axis, end in enumerate(bounds[1]) if end == 0)
    return op.emit("STRIDED_SLICE", [result, *map(op.integers, bounds)], end_mask=end_mask)


WINDOW = f"{windows.STRIDES} filter_w:i>0 filter_h:i>0 activation:i [{windows.LAYOUT}]"
FORMS = tuple(f"input:T {pads} {WINDOW} -> output:T" for pads in windows.PADDINGS)
MAX_ONES = 1 << 16
"""Greatest size of an image of ones that is stored as a constant. A run computes larger ones."""

Steps = dict[str, AttributeValue]


def _window(op: OperationLowering) -> tuple[int, windows.Padding, Steps]:
    """The NHWC image, its padding, and the attributes of the windows."""
    data, strides = windows.image(op), windows.strides_of(op)
    extents = op.integer("filter_h"), op.integer("filter_w")
    padding = windows.padding_of(op)
    for (before, after), extent in zip(padding.sides, extents, strict=True):
        op.require(max(before, after) < extent, "a window that lies in the padding altogether")
    names = ("stride_h", "stride_w", "filter_height", "filter_width")
    steps: Steps = dict(zip(names, strides + extents, strict=True))
    return data, padding.resolved(op.shape(data), extents, strides), steps


def _pool(op: OperationLowering, data: int, padding: windows.Padding, steps: Steps) -> None:
    """The pooling operation itself, with implicit padding."""
    steps = {**steps, "padding": padding.implicit, "fused_activation_function": op.activation()}
    windows.bind_image(op, op.emit(op.type, [data], op.result_type(), **steps))


@lowers("MAX_POOL_2D", *FORMS, same="input output", T=OLD)
def max_pool_2d(op: OperationLowering) -> None:
    """Explicit padding is filled with the least value."""
    data, padding, steps = _window(op)
    if padding.scheme == "EXPLICIT":
        dtype, quantization = op.value_type(data)
        least = np.iinfo(dtype.numpy).min if dtype.is_integer else -np.inf
        value = op.graph.constant(np.array(least, dtype.numpy), quantization)
        data = op.emit("PADV2", [data, op.integers([(0, 0), *padding.sides, (0, 0)]), value])
    _pool(op, data, padding, steps)


@lowers("AVERAGE_POOL_2D", *FORMS, same="input output", T=OLD)
@lowers("L2_POOL_2D", *FORMS, T="f32 f16@3")
def _mean_pool(op: OperationLowering) -> None:
    """Pooling by the mean with explicit padding: the mean of the padded image over that of a padded
    image of ones.

    For L2 pooling: the norm over the root of that mean.
    """
    data, padding, steps = _window(op)
    if padding.scheme != "EXPLICIT":
        _pool(op, data, padding, steps)
        return
    if not op.dtype(data).is_float:
        data = op.emit("DEQUANTIZE", [data], (DType.FLOAT32, None))

    def pooled(kind: str, values: int) -> int:
        return op.emit(kind, [windows.padded(op, values, padding.sides)], padding="VALID", **steps)

    share = pooled("AVERAGE_POOL_2D", _ones(op, data))
    if op.type == "L2_POOL_2D":
        share = op.emit("SQRT", [share])
    quotient, kind = [pooled(op.type, data), share], op.result_type()
    result = op.emit("DIV", quotient, fused_activation_function=op.activation())
    windows.bind_image(op, result if kind[0].is_float else op.emit("QUANTIZE", [result], kind))


def _ones(op: OperationLowering, data: int) -> int:
    """Ones of an image's size, [1, height, width, 1]."""
    shape, dtype = op.shape(data), op.dtype(data)
    height, width = (None, None) if shape is None else shape[1:3]
    if height is not None and width is not None and height * width <= MAX_ONES:
        return op.graph.constant(np.ones((1, height, width, 1), dtype.numpy))
    one = op.integers((1,))
    target = op.emit("CONCATENATION", [one, op.sizes(data, 1, 3), one], axis=0)
    return op.emit("FILL", [target, op.number(1, data)], (dtype, None))
