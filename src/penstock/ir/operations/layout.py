"""Rows of operations that reorder, pad or repeat whole dimensions, and trade space for batch or
depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations import rules
from penstock.ir.operations.requirements import same_quantization
from penstock.ir.operations.signature import VALUE, choice, integer, row
from penstock.ir.operations.spec import Port, ShapeContext
from penstock.ir.types import NDArray, Shape

X: Final = Port("input", VALUE, "T")
Y: Final = (Port("output", VALUE, "T"),)


def _transpose(context: ShapeContext) -> Sequence[Shape]:
    shape, order = context.shape(0), rules.constant_integers(context, 1)
    rank = len(shape) if shape is not None else rules.length(context, 1)
    if rank is None:
        return (None,)
    rules.agree(rules.length(context, 1), rank, "length of the permutation and rank")
    if order is None or shape is None:
        return ((None,) * rank,)
    axes = [rules.normalize_axis(axis, rank) for axis in order]
    if len(set(axes)) != rank:
        raise ShapeMismatch(f"{order} is not a permutation of {rank} dimensions")
    return (tuple(shape[axis] for axis in axes),)


def _fold_transpose(value: NDArray, order: NDArray) -> NDArray:
    return value.transpose([int(axis) for axis in order])


def paddings(context: ShapeContext, index: int, rows: int | None) -> list[tuple[int, int]] | None:
    """The [rows, 2] matrix of input *index*: the padding before and after each dimension."""
    shape = rules.ranked(context, index, 2)
    rules.agree(rules.dimension(shape, 0), rows, "rows of the paddings and dimensions")
    rules.agree(rules.dimension(shape, 1), 2, "columns of the paddings")
    values = rules.constant_integers(context, index)
    return None if values is None else list(zip(values[::2], values[1::2], strict=True))


def _pad(context: ShapeContext) -> Sequence[Shape]:
    shape = context.shape(0)
    pads = paddings(context, 1, None if shape is None else len(shape))
    if shape is None:
        rows = rules.dimension(rules.ranked(context, 1, 2), 0)
        return (None if rows is None or rows > rules.MAX_RANK else (None,) * rows,)
    if pads is None:
        return ((None,) * len(shape),)
    if any(min(pair) < 0 for pair in pads):
        raise ShapeMismatch(f"paddings {pads} are negative")
    return (
        tuple(
            None if size is None else rules.bounded(size + before + after)
            for size, (before, after) in zip(shape, pads, strict=True)
        ),
    )


def _pad_with(context: ShapeContext) -> Sequence[Shape]:
    rules.agree(rules.elements(context, 2), 1, "elements of the padding value")
    return _pad(context)


def _mirror_pad(context: ShapeContext) -> Sequence[Shape]:
    """A padding is at most the dimension, or one less if the edge is not repeated."""
    shape = context.shape(0)
    result = _pad(context)
    pads = paddings(context, 1, None)
    if shape is None or pads is None:
        return result
    spare = 1 if context.attributes.text("mode") == "REFLECT" else 0
    for size, pair in zip(shape, pads, strict=True):
        if size is not None and max(pair) > max(size - spare, 0):
            raise ShapeMismatch(f"paddings {pads} exceed what an input of shape {shape} can mirror")
    return result


def _tile(context: ShapeContext) -> Sequence[Shape]:
    shape, repeats = context.shape(0), rules.constant_integers(context, 1)
    if shape is None:
        rank = rules.length(context, 1)
        return (None if rank is None or rank > rules.MAX_RANK else (None,) * rank,)
    rules.agree(rules.length(context, 1), len(shape), "number of multiples and rank")
    if repeats is None:
        return ((None,) * len(shape),)
    if min(repeats, default=0) < 0:
        raise ShapeMismatch(f"multiples {repeats} are negative")
    return (
        tuple(
            0 if count == 0 else None if size is None else rules.bounded(size * count)
            for size, count in zip(shape, repeats, strict=True)
        ),
    )


def _dilate(context: ShapeContext) -> Sequence[Shape]:
    shape, factors = context.shape(0), rules.constant_integers(context, 1)
    rules.ranked(context, 2, 0)
    if shape is None:
        return (None,)
    rules.agree(rules.length(context, 1), len(shape), "number of dilations and rank")
    if factors is None:
        return ((None,) * len(shape),)
    if min(factors, default=1) < 1:
        raise ShapeMismatch(f"dilations {factors} must be positive")
    return (
        tuple(
            None if size is None else 0 if size == 0 else rules.bounded((size - 1) * factor + 1)
            for size, factor in zip(shape, factors, strict=True)
        ),
    )


def _blocks(context: ShapeContext, shape: Shape) -> tuple[int, tuple[int, ...] | None]:
    """The number of blocked dimensions, all but the first and the last, and their block sizes."""
    spatial = None if shape is None else len(shape) - 2
    count = (
        rules.agree(
            rules.length(context, 1), spatial, "number of block sizes and spatial dimensions"
        )
        or 0
    )
    sizes = rules.constant_integers(context, 1)
    if sizes is not None and min(sizes, default=1) < 1:
        raise ShapeMismatch(f"block sizes {sizes} must be positive")
    return count, sizes


def _space_to_batch(context: ShapeContext) -> Sequence[Shape]:
    """Dimensions 1.. are padded and cut into blocks; the elements of blocks become batches."""
    shape = rules.ranked(context, 0, 3, 4)
    count, sizes = _blocks(context, shape)
    pads = paddings(context, 2, rules.length(context, 1))
    if shape is None:
        return (None,)
    rest = shape[count + 1 :]
    if sizes is None or pads is None:
        return ((None, *[None] * count, *rest),)
    batch: rules.Dimension = shape[0]
    spatial: list[rules.Dimension] = []
    for size, block, (before, after) in zip(shape[1:], sizes, pads, strict=False):
        if min(before, after) < 0:
            raise ShapeMismatch(f"paddings {pads} are negative")
        if size is not None and (size + before + after) % block:
            raise ShapeMismatch(
                f"padded size {size + before + after} is not a multiple of block size {block}"
            )
        spatial.append(None if size is None else rules.bounded((size + before + after) // block))
        batch = None if batch is None else rules.bounded(batch * block)
    return ((batch, *spatial, *rest),)


def _batch_to_space(context: ShapeContext) -> Sequence[Shape]:
    shape = rules.ranked(context, 0, 3, 4)
    count, sizes = _blocks(context, shape)
    crops = paddings(context, 2, rules.length(context, 1))
    if shape is None:
        return (None,)
    rest = shape[count + 1 :]
    if sizes is None or crops is None:
        return ((None, *[None] * count, *rest),)
    batch: rules.Dimension = shape[0]
    spatial: list[rules.Dimension] = []
    for size, block, (before, after) in zip(shape[1:], sizes, crops, strict=False):
        if min(before, after) < 0:
            raise ShapeMismatch(f"crops {crops} are negative")
        spatial.append(None if size is None else rules.bounded(size * block - before - after))
        if batch is not None and batch % block:
            raise ShapeMismatch(f"{batch} batches are not a multiple of block size {block}")
        batch = None if batch is None else batch // block
    return ((batch, *spatial, *rest),)


def _space_to_depth(context: ShapeContext) -> Sequence[Shape]:
    shape, block = rules.ranked(context, 0, 4), rules.positive(context, "block_size")
    if shape is None:
        return ((None,) * 4,)
    batch, height, width, depth = shape
    for size in (height, width):
        if size is not None and size % block:
            raise ShapeMismatch(f"size {size} is not a multiple of block size {block}")
    height, width = (None if d is None else d // block for d in (height, width))
    return (
        (batch, height, width, None if depth is None else rules.bounded(depth * block * block)),
    )


def _depth_to_space(context: ShapeContext) -> Sequence[Shape]:
    shape, block = rules.ranked(context, 0, 4), rules.positive(context, "block_size")
    if shape is None:
        return ((None,) * 4,)
    batch, height, width, depth = shape
    if depth is not None and depth % (block * block):
        raise ShapeMismatch(f"{depth} channels are not a multiple of block size {block} squared")
    height, width = (None if d is None else rules.bounded(d * block) for d in (height, width))
    return ((batch, height, width, None if depth is None else depth // (block * block)),)


ROWS: Final = (
    row(
        "TRANSPOSE",
        "input: value T, permutation: sizes -> output: value T",
        _transpose,
        fold=rules.folding(_fold_transpose),
        level=2,
        versions=9,
        doc="The input with its dimensions in another order: output dimension i is input dimension "
        "permutation[i].",
    ),
    row(
        "PAD",
        "input: value T, paddings: sizes|int8 -> output: value T",
        _pad,
        level=2,
        versions=6,
        doc="The input with zeros (quantised: zero points) before and after each dimension.",
    ),
    row(
        "PADV2",
        "input: value T, paddings: sizes|int8, value: value T -> output: value T",
        _pad_with,
        level=3,
        nnapi_name="PAD_V2",
        versions=6,
        doc="The input with a given scalar before and after each dimension.",
    ),
    row(
        "MIRROR_PAD",
        "input: value T, paddings: index -> output: value T",
        _mirror_pad,
        (choice("mode", "REFLECT", "SYMMETRIC"),),
        require=same_quantization,
        level=7,
        versions=3,
        doc="The input with its own mirror image before and after each dimension, "
        "the edge left out (REFLECT) or repeated (SYMMETRIC).",
    ),
    row(
        "TILE",
        "input: value T, multiples: index -> output: value T",
        _tile,
        level=3,
        versions=3,
        doc="The input repeated along each dimension.",
    ),
    row(
        "DILATE",
        "input: value T, dilations: index, padding_value: value T -> output: value T",
        _dilate,
        doc="The input with dilation - 1 copies of a scalar between neighbours along each "
        "dimension.",
    ),
    row(
        "SPACE_TO_BATCH_ND",
        "input: value T, block_shape: sizes, paddings: sizes -> output: value T",
        _space_to_batch,
        require=same_quantization,
        level=2,
        versions=4,
        doc="Blocks of the padded spatial dimensions moved into the batch dimension.",
    ),
    row(
        "BATCH_TO_SPACE_ND",
        "input: value T, block_shape: sizes, crops: sizes -> output: value T",
        _batch_to_space,
        require=same_quantization,
        level=2,
        versions=4,
        doc="Batches laid out as blocks of the spatial dimensions, then cropped.",
    ),
    row(
        "SPACE_TO_DEPTH",
        "input: value T -> output: value T",
        _space_to_depth,
        (integer("block_size"),),
        level=1,
        versions=2,
        doc="Square blocks of an NHWC image moved into the channels.",
    ),
    row(
        "DEPTH_TO_SPACE",
        "input: value T -> output: value T",
        _depth_to_space,
        (integer("block_size"),),
        level=1,
        versions=2,
        doc="Channels of an NHWC image laid out as square blocks.",
    ),
)
