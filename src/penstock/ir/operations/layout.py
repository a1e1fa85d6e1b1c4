"""Rows of operations that reorder, pad or repeat whole dimensions, and trade space for batch or
depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations import rules
from penstock.ir.operations.requirements import same_quantization
from penstock.ir.operations.signature import row
from penstock.ir.operations.spec import ShapeContext
from penstock.ir.types import NDArray, Shape


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
        return (rules.of_rank(rules.dimensions(context, 1, 2)[0]),)
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


def _factors(context: ShapeContext, least: int) -> tuple[int, ...] | None:
    """The numbers in input 1, one for each dimension of input 0, if they are known."""
    shape, factors = context.shape(0), rules.constant_integers(context, 1)
    if shape is not None:
        rules.agree(rules.length(context, 1), len(shape), "length of input 1 and rank")
        if factors is not None and min(factors, default=least) < least:
            raise ShapeMismatch(f"{factors} are less than {least}")
    return factors


def _tile(context: ShapeContext) -> Sequence[Shape]:
    shape, repeats = context.shape(0), _factors(context, 0)
    if shape is None:
        return (rules.of_rank(rules.length(context, 1)),)
    if repeats is None:
        return ((None,) * len(shape),)
    return (
        tuple(
            0 if count == 0 else rules.scaled(size, count)
            for size, count in zip(shape, repeats, strict=True)
        ),
    )


def _dilate(context: ShapeContext) -> Sequence[Shape]:
    shape, factors = context.shape(0), _factors(context, 1)
    rules.ranked(context, 2, 0)
    if shape is None or factors is None:
        return (None if shape is None else (None,) * len(shape),)
    return (tuple(map(rules.dilated, shape, factors)),)


def _blocks(context: ShapeContext, *, merge: bool) -> Sequence[Shape]:
    """All dimensions but the first and the last have a block size. The elements of blocks become
    batches, or with *merge* batches become the elements of blocks. Input 2 pads what is cut into
    blocks, and crops what is merged.
    """
    shape, count = rules.ranked(context, 0, 3, 4), rules.length(context, 1)
    rules.agree(
        count,
        None if shape is None else len(shape) - 2,
        "number of block sizes and spatial dimensions",
    )
    sizes = rules.constant_integers(context, 1)
    if sizes is not None and min(sizes, default=1) < 1:
        raise ShapeMismatch(f"block sizes {sizes} must be positive")
    pads = paddings(context, 2, count)
    if shape is None:
        return (None,)
    batch, *spatial, channels = shape
    if sizes is None or pads is None:
        return ((*[None] * (len(shape) - 1), channels),)
    if any(min(pair) < 0 for pair in pads):
        raise ShapeMismatch(f"paddings or crops {pads} are negative")
    result: list[rules.Dimension] = []
    for size, block, (before, after) in zip(spatial, sizes, pads, strict=True):
        if merge:
            whole = None if size is None else size * block - before - after
            batch = rules.quotient(batch, block, "batches", "block size")
        else:
            padded = None if size is None else size + before + after
            whole = rules.quotient(padded, block, "padded elements", "block size")
            batch = rules.scaled(batch, block)
        result.append(None if whole is None else rules.bounded(whole))
    return ((batch, *result, channels),)


def _space_to_depth(context: ShapeContext) -> Sequence[Shape]:
    batch, *image, depth = rules.dimensions(context, 0, 4)
    block = rules.positive(context, "block_size")
    size = [rules.quotient(whole, block, "rows or columns", "block size") for whole in image]
    return ((batch, *size, rules.scaled(depth, block * block)),)


def _depth_to_space(context: ShapeContext) -> Sequence[Shape]:
    batch, *image, depth = rules.dimensions(context, 0, 4)
    block = rules.positive(context, "block_size")
    size = [rules.scaled(whole, block) for whole in image]
    return ((batch, *size, rules.quotient(depth, block * block, "channels", "a block's")),)


ROWS: Final = (
    row("""TRANSPOSE(input: value T, permutation: sizes) -> output: value T; version 9; NNAPI 2
        # The input with its dimensions in another order: output dimension i is input dimension
        permutation[i].""")(_transpose, fold=rules.folding(_fold_transpose)),
    row("""PAD(input: value T, paddings: sizes|int8) -> output: value T; version 6; NNAPI 2
        # The input with zeros (quantised: zero points) before and after each dimension.""")(_pad),
    row("""PADV2(input: value T, paddings: sizes|int8, value: value T) -> output: value T;
        version 6; NNAPI 3 PAD_V2
        # The input with a given scalar before and after each dimension.""")(_pad_with),
    row("""MIRROR_PAD(input: value T, paddings: index; mode: REFLECT|SYMMETRIC) -> output: value T;
        version 3; NNAPI 7
        # The input with its own mirror image before and after each dimension, the edge left out
        (REFLECT) or repeated (SYMMETRIC).""")(_mirror_pad, require=same_quantization),
    row("""TILE(input: value T, multiples: index) -> output: value T; version 3; NNAPI 3
        # The input repeated along each dimension.""")(_tile),
    row("""DILATE(input: value T, dilations: index, padding_value: value T) -> output: value T
        # The input with dilation - 1 copies of a scalar between neighbours along each dimension.
        """)(_dilate),
    row("""SPACE_TO_BATCH_ND(input: value T, block_shape: sizes, paddings: sizes)
        -> output: value T; version 4; NNAPI 2
        # Blocks of the padded spatial dimensions moved into the batch dimension.
        """)(partial(_blocks, merge=False), require=same_quantization),
    row("""BATCH_TO_SPACE_ND(input: value T, block_shape: sizes, crops: sizes) -> output: value T;
        version 4; NNAPI 2 # Batches laid out as blocks of the spatial dimensions, then cropped.
        """)(partial(_blocks, merge=True), require=same_quantization),
    row("""SPACE_TO_DEPTH(input: value T; block_size: int) -> output: value T; version 2; NNAPI 1
        # Square blocks of an NHWC image moved into the channels.""")(_space_to_depth),
    row("""DEPTH_TO_SPACE(input: value T; block_size: int) -> output: value T; version 2; NNAPI 1
        # Channels of an NHWC image laid out as square blocks.""")(_depth_to_space),
)
