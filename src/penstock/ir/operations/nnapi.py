"""Rows of NNAPI's layers that TFLite has no operator for.

NNAPI's scalar operands are attributes here, and its tensors are inputs, in NNAPI's order.
`data_layout` is the position of an image's channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import InvalidAttribute, ShapeMismatch
from penstock.ir.operations import rules
from penstock.ir.operations.recurrent import (
    GATES,
    LSTM_STATES,
    layer_norm,
    lstm_parameters,
    lstm_sizes,
)
from penstock.ir.operations.signature import row
from penstock.ir.operations.spec import ShapeContext
from penstock.ir.types import Shape


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
        rules.quotient(size, groups, "channels")
    return (shape,)


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
    image, (outputs, rows, columns, depth) = (rules.dimensions(context, i, 4) for i in (0, 1))
    groups = rules.positive(context, "groups")
    height, width, channels = image_axes(context)
    rules.agree(image[channels], None if depth is None else depth * groups, "channels")
    rules.quotient(outputs, groups, "filters")
    rules.agree(rules.vector(context, 2), outputs, "bias length and output channels")
    size = _explicit(context, image[height], rows, 1), _explicit(context, image[width], columns, 0)
    return (image_shape(context, image[0], *size, outputs),)


def _multinomial(context: ShapeContext) -> Sequence[Shape]:
    rules.agree(rules.vector(context, 1), 2, "number of seeds")
    return ((rules.dimensions(context, 0, 2)[0], rules.positive(context, "samples")),)


def _lstm_16bit(context: ShapeContext) -> Sequence[Shape]:
    batch, depth = rules.dimensions(context, 0, 2)
    cells: rules.Dimension = None
    for index in range(1, 9):
        rows, columns = rules.dimensions(context, index, 2)
        cells = rules.agree(cells, rows, "rows of the weights")
        rules.agree(columns, depth if index < 5 else cells, "columns of the weights")
    for index in range(9, 13):
        cells = rules.agree(cells, rules.vector(context, index), "bias and cells")
    return ((batch, cells),) * 2


def _lstm_8bit(context: ShapeContext) -> Sequence[Shape]:
    batch, depth = rules.dimensions(context, 0, 2)
    cells, outputs = lstm_sizes(context, depth, 1)
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


ROWS: Final = (
    row("""CHANNEL_SHUFFLE(input: number T; groups: int!, axis: int!) -> output: number T; only
        NNAPI 3 # Channels dealt out to groups: channel g * n + i goes to place i * groups + g.
        """)(_shuffle),
    row("""GROUPED_CONV_2D(input: activation, filter: weights, bias: bias;
        padding: SAME|VALID|EXPLICIT, explicit_padding: ints, stride_w: int!, stride_h: int!,
        groups: int!, fused_activation_function, data_layout) -> output: activation; only NNAPI 3
        # Convolution of each group of input channels with its own group of filters.
        explicit_padding is left, right, top and bottom.""")(_grouped),
    row("""INSTANCE_NORMALIZATION(input: float T; gamma: float!, beta: float!, epsilon: float!,
        data_layout) -> output: float T; only NNAPI 3
        # gamma * (x - mean) / sqrt(variance + epsilon) + beta, over each image and channel.
        """)(rules.first_of_rank(4)),
    row("""RANDOM_MULTINOMIAL(logits: float, seeds: int32; samples: int!) -> samples: int32; only
        NNAPI 3 # For each row of unnormalised log-probabilities, random classes drawn by them;
        seeds of 0 and 0 vary.""")(_multinomial),
    row(f"""QUANTIZED_16BIT_LSTM(input: activation,
        {", ".join(f"input_to_{g}_weights: weights" for g in GATES)},
        {", ".join(f"recurrent_to_{g}_weights: weights" for g in GATES)},
        {", ".join(f"{g}_bias: int32" for g in GATES)}, cell_state: int16, output_state: activation)
        -> new_cell_state: int16, output: activation; only NNAPI 3
        # One step of a long short-term memory with 8-bit activations and a 16-bit cell state.
        """)(_lstm_16bit),
    row(f"""QUANTIZED_LSTM(input: activation, {lstm_parameters()}, {LSTM_STATES}, {layer_norm()};
        cell_clip: float!, proj_clip: float!,
        {", ".join(f"{g}_intermediate_scale: float!" for g in GATES)},
        hidden_state_zero_point: int!, hidden_state_scale: float!) -> new_output_state: activation,
        new_cell_state: int16, output: activation; only NNAPI 4
        # One step of a long short-term memory with signed 8-bit activations and a 16-bit cell
        state.""")(_lstm_8bit),
    row("""DENSIFY_LEVELS(values: number|bool T, traversal_order: int32, block_map?: int32,
        level_formats: int32, level_sizes: int32, segments_and_indices...: int32)
        -> output: number|bool T; only NNAPI DENSIFY
        # A sparse tensor, whose levels are dense (format 0) or compressed (1), as a dense one. For
        each level segments and indices follow, omitted where it is dense. NNAPI's experimental
        DENSIFY.""")(_levels),
)
