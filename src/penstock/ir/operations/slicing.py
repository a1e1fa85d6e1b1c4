"""Rows of slices, and of reversals along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from penstock.errors import InvalidAttribute, ShapeMismatch
from penstock.ir.operations.attributes import flag, integer
from penstock.ir.operations.folding import folding, small_values
from penstock.ir.operations.rules import (
    MAX_RANK,
    Dimension,
    agree,
    constant_integers,
    dimension,
    length,
    like,
    normalize_axis,
)
from penstock.ir.operations.spec import OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import INDEX, SIZES, VALUE
from penstock.ir.types import NDArray, Shape

X: Final = Port("input", VALUE, "T")
Y: Final = (Port("output", VALUE, "T"),)


def _slice(context: ShapeContext) -> Sequence[Shape]:
    """A size of -1 reaches to the end of its dimension."""
    shape = context.shape(0)
    begins, sizes = constant_integers(context, 1), constant_integers(context, 2)
    rank = len(shape) if shape is not None else length(context, 1)
    if rank is None:
        return (None,)
    for given in (begins, sizes):
        if given is not None and len(given) != rank:
            raise ShapeMismatch(f"{given} does not give one number for each of {rank} dimensions")
    if sizes is None:
        return ((None,) * rank,)
    result: list[Dimension] = []
    for at, size in enumerate(sizes):
        begin, whole = None if begins is None else begins[at], dimension(shape, at)
        if size < -1 or (begin is not None and begin < 0):
            raise ShapeMismatch(f"slice of dimension {at} begins at {begin} and has size {size}")
        if whole is not None and begin is not None:
            if begin + max(size, 0) > whole:
                raise ShapeMismatch(
                    f"slice [{begin}, {begin + max(size, 0)}) of dimension {at} of size {whole}"
                )
            result.append(whole - begin if size == -1 else size)
        else:
            result.append(None if size == -1 else size)
    return (tuple(result),)


def _fold_slice(value: NDArray, begin: NDArray, size: NDArray) -> NDArray:
    ends = np.where(size == -1, value.shape, begin + size)
    return value[tuple(slice(int(b), int(e)) for b, e in zip(begin, ends, strict=True))]


class SlicedDimension(NamedTuple):
    """One dimension's part of a strided slice: *begin* or *end* None where a mask leaves it open;
    *shrink* takes the element at begin and drops the dimension.
    """

    begin: int | None
    end: int | None
    stride: int
    shrink: bool

    @property
    def slice(self) -> slice:
        return slice(self.begin, self.end, self.stride)


WHOLE: Final = SlicedDimension(None, None, 1, False)


def _reverse_sequence(context: ShapeContext) -> Sequence[Shape]:
    shape = context.shape(0)
    if shape is None:
        return (None,)
    along, batch = (
        normalize_axis(context.attributes.integer(n), len(shape)) for n in ("seq_dim", "batch_dim")
    )
    if along == batch:
        raise ShapeMismatch("seq_dim and batch_dim are the same dimension")
    agree(length(context, 1), shape[batch], "number of lengths and batch dimension")
    return (shape,)


def strided_slice(context: ShapeContext, rank: int) -> tuple[SlicedDimension | None, ...] | None:
    """The arguments of a STRIDED_SLICE of an input of *rank* dimensions, where they are known: one
    item a dimension, in order, and None for each new axis.

    Masks are bits by position in the begin vector (TensorFlow's strided slice): begin and end masks
    leave a bound open, new_axis inserts a dimension, shrink_axis takes one element and drops the
    dimension, one ellipsis stands for the dimensions that the others leave over.
    """
    begins, ends, strides = (constant_integers(context, i) for i in (1, 2, 3))
    if begins is None or ends is None or strides is None:
        return None
    if not len(begins) == len(ends) == len(strides):
        raise ShapeMismatch("begin, end and strides differ in length")
    if len(begins) > MAX_RANK:
        raise ShapeMismatch(f"{len(begins)} sliced dimensions")
    if 0 in strides:
        raise ShapeMismatch("a stride is 0")
    masks = [
        context.attributes.integer(f"{n}_mask")
        for n in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    ]
    open_begin, open_end, ellipsis, new_axis, shrink = masks
    count = len(begins)
    if (ellipsis & (2**count - 1)).bit_count() > 1:
        raise InvalidAttribute("attribute 'ellipsis_mask' has more than one bit")
    taken = sum(not (ellipsis | new_axis) >> at & 1 for at in range(count))
    offset = context.attributes.flag("offset")
    items: list[SlicedDimension | None] = []
    for at in range(count):
        if ellipsis >> at & 1:
            items += [WHOLE] * (rank - taken)
        elif new_axis >> at & 1:
            items.append(None)
        else:
            begin = None if open_begin >> at & 1 else begins[at]
            end = None if open_end >> at & 1 else ends[at] + (begins[at] if offset else 0)
            items.append(SlicedDimension(begin, end, strides[at], bool(shrink >> at & 1)))
    used = sum(item is not None for item in items)
    if used > rank:
        raise ShapeMismatch(f"{used} dimensions sliced of an input of rank {rank}")
    items += [WHOLE] * (rank - used)
    return tuple(items)


def _unknown_slice(context: ShapeContext, rank: int) -> Shape:
    """All that follows from the masks of a strided slice whose bounds are not known."""
    if (count := length(context, 1)) is None or count > MAX_RANK:
        return None
    ellipsis, new_axis, shrink = (
        context.attributes.integer(f"{n}_mask") & (2**count - 1)
        for n in ("ellipsis", "new_axis", "shrink_axis")
    )
    inserted, dropped = new_axis & ~ellipsis, shrink & ~ellipsis & ~new_axis
    unknown: list[Dimension] = [None] * max(rank + inserted.bit_count() - dropped.bit_count(), 0)
    return tuple(unknown)


def _strided_slice(context: ShapeContext) -> Sequence[Shape]:
    shape = context.shape(0)
    if shape is None:
        return (None,)
    arguments = strided_slice(context, len(shape))
    if arguments is None:
        return (_unknown_slice(context, len(shape)),)
    sizes, result = iter(shape), list[Dimension]()
    for item in arguments:
        if item is None:
            result.append(1)
            continue
        size = next(sizes)
        if item.shrink:
            if size is not None and item.begin is not None and not -size <= item.begin < size:
                raise ShapeMismatch(f"element {item.begin} of a dimension of size {size}")
        elif item.begin in (None, 0) and item.end is None and item.stride == 1:
            result.append(size)
        else:
            result.append(None if size is None else len(range(*item.slice.indices(size))))
    return (tuple(result),)


def _fold_strided_slice(context: ShapeContext) -> Sequence[NDArray] | None:
    values = small_values(context)
    arguments = None if values is None else strided_slice(context, values[0].ndim)
    if values is None or arguments is None:
        return None
    index: list[int | slice | None] = []
    for item in arguments:
        if item is None or not item.shrink:
            index.append(item and item.slice)
        else:
            index.append(item.begin if item.begin is not None else 0 if item.stride > 0 else -1)
    return (np.asarray(values[0][tuple(index)]),)


def _dynamic_update(context: ShapeContext) -> Sequence[Shape]:
    """The update is no larger than the operand in any dimension; start indices are clamped."""
    shape, update = context.shape(0), context.shape(1)
    if shape is not None and update is not None:
        if len(shape) != len(update):
            raise ShapeMismatch(f"an update of shape {update} to an operand of shape {shape}")
        if any(
            a is not None and b is not None and b > a for a, b in zip(shape, update, strict=True)
        ):
            raise ShapeMismatch(f"an update of shape {update} exceeds its operand of shape {shape}")
    return (shape,)


ROWS: Final = (
    OperationSpec(
        "SLICE",
        (X, Port("begin", INDEX), Port("size", INDEX)),
        Y,
        _slice,
        fold=folding(_fold_slice),
        feature_level=3,
        doc="A block of the input from begin, of a size; -1 reaches to the end.",
    ),
    OperationSpec(
        "STRIDED_SLICE",
        (X, Port("begin", SIZES), Port("end", SIZES), Port("strides", SIZES)),
        Y,
        _strided_slice,
        (
            integer("begin_mask"),
            integer("end_mask"),
            integer("ellipsis_mask"),
            integer("new_axis_mask"),
            integer("shrink_axis_mask"),
            flag("offset"),
        ),
        fold=_fold_strided_slice,
        feature_level=2,
        doc="Every stride-th element from begin to end in each dimension, with masks for open bounds, "
        "dropped and new dimensions.",
    ),
    OperationSpec(
        "DYNAMIC_UPDATE_SLICE",
        (X, Port("update", VALUE, "T"), Port("start", INDEX)),
        Y,
        _dynamic_update,
        doc="The input with a block replaced, at a start that is clamped so that the block fits.",
    ),
    OperationSpec(
        "REVERSE_V2",
        (X, Port("axis", INDEX)),
        Y,
        like(0),
        feature_level=7,
        nnapi_name="REVERSE",
        doc="The input with the order of elements along the given axes turned round.",
    ),
    OperationSpec(
        "REVERSE_SEQUENCE",
        (X, Port("lengths", INDEX)),
        Y,
        _reverse_sequence,
        (integer("seq_dim"), integer("batch_dim")),
        doc="The first lengths[i] elements along one dimension turned round, for each index i of another.",
    ),
)
