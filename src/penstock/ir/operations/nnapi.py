"""Rows of NNAPI's layers that TFLite has no operator for.

NNAPI's scalar operands are attributes here, and its tensors are inputs, in NNAPI's order.
`data_layout` is the position of an image's channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import InvalidAttribute, ShapeMismatch
from penstock.ir.operations import rules, signature
from penstock.ir.operations.recurrent import LAYER_NORM, LSTM_STATES, lstm_parameters, lstm_sizes
from penstock.ir.operations.spec import AttributeSpec, OperationSpec, Port, ShapeContext
from penstock.ir.types import DType, Shape

DATA_LAYOUT: Final = signature.choice("data_layout", "NHWC", "NCHW")
STATE16: Final = frozenset({DType.INT16})


def image_axes(context: ShapeContext) -> tuple[int, int, int]:
    """Axes of height, width and channels."""
    return (1, 2, 3) if context.attributes.text("data_layout") == "NHWC" else (2, 3, 1)


def image_shape(
    context: ShapeContext,
    batch: rules.Dimension,
    height: rules.Dimension,
    width: rules.Dimension,
    channels: rules.Dimension,
) -> Shape:
    """The shape of an image batch in the operation's layout."""
    if context.attributes.text("data_layout") == "NHWC":
        return (batch, height, width, channels)
    return (batch, channels, height, width)


def _shuffle(context: ShapeContext) -> Sequence[Shape]:
    shape, groups = context.shape(0), rules.positive(context, "groups")
    if shape is not None:
        size = shape[rules.normalize_axis(context.attributes.integer("axis"), len(shape))]
        if size is not None and size % groups:
            raise ShapeMismatch(f"{size} channels are not a multiple of {groups} groups")
    return (shape,)


def _instance(context: ShapeContext) -> Sequence[Shape]:
    return (rules.ranked(context, 0, 4),)


def _explicit(
    context: ShapeContext, size: rules.Dimension, extent: rules.Dimension, axis: int
) -> rules.Dimension:
    """Output size along the width (axis 0) or height (axis 1)."""
    stride = rules.positive(context, ("stride_w", "stride_h")[axis])
    padding = context.attributes.text("padding")
    if padding != "EXPLICIT":
        return rules.window(size, extent, stride, 1, padding)
    pads = context.attributes.integers("explicit_padding")
    if len(pads) != 4 or min(pads) < 0:
        raise InvalidAttribute(f"explicit_padding needs left, right, top and bottom, not {pads}")
    padded = None if size is None else rules.bounded(size + pads[2 * axis] + pads[2 * axis + 1])
    return rules.window(padded, extent, stride, 1, "VALID")


def _grouped(context: ShapeContext) -> Sequence[Shape]:
    """Filter [out, height, width, in / groups]."""
    image, filters = rules.ranked(context, 0, 4), rules.ranked(context, 1, 4)
    groups = rules.positive(context, "groups")
    height, width, channels = image_axes(context)
    depth, outputs = rules.dimension(filters, 3), rules.dimension(filters, 0)
    rules.agree(
        rules.dimension(image, channels), None if depth is None else depth * groups, "channels"
    )
    if outputs is not None and outputs % groups:
        raise ShapeMismatch(f"{outputs} filters are not a multiple of {groups} groups")
    rules.agree(
        rules.dimension(rules.ranked(context, 2, 1), 0), outputs, "bias length and output channels"
    )
    return (
        image_shape(
            context,
            rules.dimension(image, 0),
            _explicit(context, rules.dimension(image, height), rules.dimension(filters, 1), 1),
            _explicit(context, rules.dimension(image, width), rules.dimension(filters, 2), 0),
            outputs,
        ),
    )


def _multinomial(context: ShapeContext) -> Sequence[Shape]:
    rules.agree(rules.dimension(rules.ranked(context, 1, 1), 0), 2, "number of seeds")
    return ((rules.dimension(rules.ranked(context, 0, 2), 0), rules.positive(context, "samples")),)


def _lstm_16bit(context: ShapeContext) -> Sequence[Shape]:
    shape = rules.ranked(context, 0, 2)
    cells: rules.Dimension = None
    for index in range(1, 9):
        weights = rules.ranked(context, index, 2)
        cells = rules.agree(cells, rules.dimension(weights, 0), "rows of the weights")
        columns = rules.dimension(shape, 1) if index < 5 else cells
        rules.agree(rules.dimension(weights, 1), columns, "columns of the weights")
    for index in range(9, 13):
        cells = rules.agree(
            cells, rules.dimension(rules.ranked(context, index, 1), 0), "bias and cells"
        )
    cell = (rules.dimension(shape, 0), cells)
    return (cell, cell)


def _lstm_8bit(context: ShapeContext) -> Sequence[Shape]:
    shape = rules.ranked(context, 0, 2)
    batch = rules.dimension(shape, 0)
    cells, outputs = lstm_sizes(context, rules.dimension(shape, 1), 1)
    return rules.fill(context, (batch, outputs), (batch, cells), (batch, outputs))


def _levels(context: ShapeContext) -> Sequence[Shape]:
    """Dimensions of the dense tensor, each the product of its levels' sizes."""
    for index in (1, 2, 3, 4):
        rules.ranked(context, index, 1)
    rules.agree(rules.length(context, 1), rules.length(context, 3), "levels and their formats")
    levels = rules.agree(
        rules.length(context, 1), rules.length(context, 4), "levels and their sizes"
    )
    blocks = rules.length(context, 2) if context.has(2) else 0
    if levels is None or blocks is None:
        return (None,)
    rank = rules.bounded(levels - blocks)
    if rank > rules.MAX_RANK:
        raise ShapeMismatch(f"a tensor of rank {rank}")
    order, sizes = rules.constant_integers(context, 1), rules.constant_integers(context, 4)
    block_map = rules.constant_integers(context, 2) if blocks else ()
    if order is None or sizes is None or block_map is None:
        return ((None,) * rank,)
    if sorted(order) != list(range(levels)) or not set(block_map) <= set(range(rank)):
        raise ShapeMismatch(f"levels in the order {order}, blocks of the dimensions {block_map}")
    shape = [1] * rank
    for dimension_or_block, size in zip(order, sizes, strict=True):
        blocked = dimension_or_block >= rank
        axis = block_map[dimension_or_block - rank] if blocked else dimension_or_block
        shape[axis] = rules.bounded(shape[axis] * size)
    return (tuple(shape),)


def required(kind: str, *names: str) -> tuple[AttributeSpec, ...]:
    """Attributes without a default in NNAPI."""
    return tuple(AttributeSpec(name, "int" if kind == "int" else "float") for name in names)


GATES: Final = ("input", "forget", "cell", "output")

ROWS: Final = (
    signature.row(
        "CHANNEL_SHUFFLE",
        "input: number T -> output: number T",
        _shuffle,
        required("int", "groups", "axis"),
        vocabulary="nnapi",
        level=3,
        doc="Channels dealt out to groups: channel g * n + i goes to place i * groups + g.",
    ),
    signature.row(
        "GROUPED_CONV_2D",
        "input: activation, filter: weights, bias: bias -> output: activation",
        _grouped,
        (
            signature.choice("padding", "SAME", "VALID", "EXPLICIT"),
            AttributeSpec("explicit_padding", "ints", (), doc="Left, right, top, bottom."),
            *required("int", "stride_w", "stride_h", "groups"),
            signature.FUSED_ACTIVATION,
            DATA_LAYOUT,
        ),
        vocabulary="nnapi",
        level=3,
        doc="Convolution of each group of input channels with its own group of filters.",
    ),
    signature.row(
        "INSTANCE_NORMALIZATION",
        "input: float T -> output: float T",
        _instance,
        (*required("float", "gamma", "beta", "epsilon"), DATA_LAYOUT),
        vocabulary="nnapi",
        level=3,
        doc="gamma * (x - mean) / sqrt(variance + epsilon) + beta, over each image and channel.",
    ),
    signature.row(
        "RANDOM_MULTINOMIAL",
        "logits: float, seeds: int32 -> samples: int32",
        _multinomial,
        required("int", "samples"),
        vocabulary="nnapi",
        level=3,
        doc="For each row of unnormalised log-probabilities, random classes drawn by them; seeds "
        "of 0 and 0 vary.",
    ),
    OperationSpec(
        "QUANTIZED_16BIT_LSTM",
        (
            Port("input", signature.ACTIVATION),
            *(Port(f"input_to_{g}_weights", signature.WEIGHTS) for g in GATES),
            *(Port(f"recurrent_to_{g}_weights", signature.WEIGHTS) for g in GATES),
            *(Port(f"{g}_bias", signature.INT32) for g in GATES),
            Port("cell_state", STATE16),
            Port("output_state", signature.ACTIVATION),
        ),
        (Port("new_cell_state", STATE16), Port("output", signature.ACTIVATION)),
        _lstm_16bit,
        vocabulary="nnapi",
        feature_level=3,
        doc="One step of a long short-term memory with 8-bit activations and a 16-bit cell state.",
    ),
    OperationSpec(
        "QUANTIZED_LSTM",
        (Port("input", signature.ACTIVATION), *lstm_parameters(), *LSTM_STATES, *LAYER_NORM),
        (
            Port("new_output_state", signature.ACTIVATION),
            Port("new_cell_state", STATE16),
            Port("output", signature.ACTIVATION),
        ),
        _lstm_8bit,
        (
            *required("float", "cell_clip", "proj_clip"),
            *required("float", *(f"{g}_intermediate_scale" for g in GATES)),
            *required("int", "hidden_state_zero_point"),
            *required("float", "hidden_state_scale"),
        ),
        vocabulary="nnapi",
        feature_level=4,
        doc="One step of a long short-term memory with signed 8-bit activations and a 16-bit cell "
        "state.",
    ),
    signature.row(
        "DENSIFY_LEVELS",
        "values: number|bool T, traversal_order: int32, block_map?: int32, level_formats: "
        "int32, level_sizes: int32, segments_and_indices...: int32 -> output: number|bool T",
        _levels,
        vocabulary="nnapi",
        nnapi_name="DENSIFY",
        doc="A sparse tensor, whose levels are dense (format 0) or compressed (1), as a dense one. "
        "For each level"
        "segments and indices follow, omitted where it is dense. NNAPI's experimental DENSIFY.",
    ),
)
