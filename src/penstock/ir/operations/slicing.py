"""Rows of operations that cut and join tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from penstock.errors import InvalidAttribute, InvalidOperation, ShapeMismatch
from penstock.ir.operations import rules
from penstock.ir.operations.requirements import joined, same_quantization
from penstock.ir.operations.signature import row
from penstock.ir.operations.spec import FoldRule, ShapeContext
from penstock.ir.types import NDArray, Shape


def _slice(context: ShapeContext) -> Sequence[Shape]:
    """A size of -1 extends to the end of its dimension."""
    shape = context.shape(0)
    begins, sizes = rules.constant_integers(context, 1), rules.constant_integers(context, 2)
    rank = len(shape) if shape is not None else rules.length(context, 1)
    if rank is None:
        return (None,)
    for given in (begins, sizes):
        if given is not None and len(given) != rank:
            raise ShapeMismatch(f"{given} does not give one number for each of {rank} dimensions")
    if sizes is None:
        return ((None,) * rank,)
    result: list[rules.Dimension] = []
    for at, size in enumerate(sizes):
        begin, whole = None if begins is None else begins[at], rules.dimension(shape, at)
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
    """One dimension of a strided slice. *begin* or *end* is None if a mask leaves it open. *shrink*
    selects the element at *begin* and removes the dimension.
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
        rules.normalize_axis(context.attributes.integer(n), len(shape))
        for n in ("seq_dim", "batch_dim")
    )
    if along == batch:
        raise ShapeMismatch("seq_dim and batch_dim are the same dimension")
    rules.agree(rules.length(context, 1), shape[batch], "number of lengths and batch dimension")
    return (shape,)


def strided_slice(context: ShapeContext, rank: int) -> tuple[SlicedDimension | None, ...] | None:
    """The arguments of a STRIDED_SLICE of an input of *rank* dimensions, if they are known. Has one
    item for each dimension, in order, and None for each new axis.

    Masks are bits by position in the begin vector (TensorFlow's strided slice). Begin and end masks
    leave a bound open, new_axis inserts a dimension, and shrink_axis selects one element and
    removes the dimension. One ellipsis stands for the remaining dimensions.
    """
    begins, ends, strides = (rules.constant_integers(context, i) for i in (1, 2, 3))
    if begins is None or ends is None or strides is None:
        return None
    if not len(begins) == len(ends) == len(strides):
        raise ShapeMismatch("begin, end and strides differ in length")
    if len(begins) > rules.MAX_RANK:
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
    """The shape of a strided slice as far as its masks determine it, if its bounds are unknown."""
    if (count := rules.length(context, 1)) is None or count > rules.MAX_RANK:
        return None
    ellipsis, new_axis, shrink = (
        context.attributes.integer(f"{n}_mask") & (2**count - 1)
        for n in ("ellipsis", "new_axis", "shrink_axis")
    )
    inserted, dropped = new_axis & ~ellipsis, shrink & ~ellipsis & ~new_axis
    known: int = rank + inserted.bit_count() - dropped.bit_count()
    return (None,) * max(known, 0)


def _strided_slice(context: ShapeContext) -> Sequence[Shape]:
    shape = context.shape(0)
    if shape is None:
        return (None,)
    arguments = strided_slice(context, len(shape))
    if arguments is None:
        return (_unknown_slice(context, len(shape)),)
    sizes, result = iter(shape), list[rules.Dimension]()
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
    values = rules.small_values(context)
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
    if shape is None or update is None:
        return (shape,)
    if len(shape) != len(update) or any(
        a is not None and b is not None and b > a for a, b in zip(shape, update, strict=True)
    ):
        raise ShapeMismatch(f"an update of shape {update} exceeds its operand of shape {shape}")
    return (shape,)


def _concatenation(context: ShapeContext) -> Sequence[Shape]:
    return (concatenated(context, context.attributes.integer("axis")),)


def concatenated(context: ShapeContext, axis: int) -> Shape:
    """The shape of all inputs one after another along *axis*, as far as it is known."""
    shapes = [context.shape(i) for i in range(context.input_count)]
    known = [s for s in shapes if s is not None]
    if not known:
        return None
    axis = rules.normalize_axis(axis, len(known[0]))
    total: rules.Dimension = 0 if len(known) == len(shapes) else None
    merged: Shape = None
    for shape in known:
        if len(shape) != len(known[0]):
            raise ShapeMismatch(f"inputs of rank {len(known[0])} and {len(shape)} are concatenated")
        rest = rules.with_dimension(shape, axis, None)
        merged = rules.agree_shapes(merged, rest, "concatenated inputs")
        size = shape[axis]
        total = None if total is None or size is None else rules.bounded(total + size)
    return None if merged is None else rules.with_dimension(merged, axis, total)


def _joining(join: Callable[..., NDArray]) -> FoldRule:
    """A fold rule for *join* of the list of values along the attribute `axis`."""

    def fold(context: ShapeContext) -> Sequence[NDArray] | None:
        values = rules.small_values(context)
        if not values or context.attributes.get("fused_activation_function", "NONE") != "NONE":
            return None
        if sum(v.size for v in values) > rules.MAX_FOLDED_ELEMENTS:
            return None
        return (join(values, context.attributes.integer("axis")),)

    return fold


def _pack(context: ShapeContext) -> Sequence[Shape]:
    count = context.attributes.integer("values_count")
    if count != context.input_count:
        raise InvalidOperation(f"PACK of {count} values has {context.input_count} inputs")
    shape = rules.common_shape(context)
    if shape is None:
        return (None,)
    axis = rules.normalize_axis(context.attributes.integer("axis"), len(shape) + 1)
    return ((*shape[:axis], count, *shape[axis:]),)


def _check_parts(context: ShapeContext, attribute: str) -> int:
    """The number of outputs, which *attribute* gives too."""
    count = context.attributes.integer(attribute)
    if count != context.output_count:
        raise InvalidOperation(
            f"{context.operation.type} into {count} parts has {context.output_count} outputs"
        )
    return count


def _unpack(context: ShapeContext) -> Sequence[Shape]:
    count, shape = _check_parts(context, "num"), context.shape(0)
    if shape is None:
        return (None,) * count
    axis = rules.normalize_axis(context.attributes.integer("axis"), len(shape))
    rules.agree(shape[axis], count, "unpacked dimension and number of outputs")
    return (rules.with_dimension(shape, axis),) * count


def _fold_unpack(context: ShapeContext) -> Sequence[NDArray] | None:
    values = rules.small_values(context)
    if values is None:
        return None
    return tuple(np.moveaxis(values[0], context.attributes.integer("axis"), 0))


def _split(context: ShapeContext) -> Sequence[Shape]:
    """The axis is the first input; all parts are equal."""
    count = _check_parts(context, "num_splits")
    if count < 1:
        raise InvalidOperation("SPLIT has no outputs")
    shape, axis = context.shape(1), rules.constant_integer(context, 0)
    if shape is None or axis is None:
        return (None if shape is None else (None,) * len(shape),) * count
    axis = rules.normalize_axis(axis, len(shape))
    part = rules.quotient(shape[axis], count, f"elements of dimension {axis}", "the parts'")
    return (rules.with_dimension(shape, axis, part),) * count


def _split_v(context: ShapeContext) -> Sequence[Shape]:
    """One size may be -1, for the remainder."""
    count = _check_parts(context, "num_splits")
    rules.agree(rules.length(context, 1), count, "number of sizes and outputs")
    shape, axis = context.shape(0), rules.constant_integer(context, 2)
    sizes = rules.constant_integers(context, 1)
    if shape is None or axis is None:
        return (None if shape is None else (None,) * len(shape),) * count
    axis = rules.normalize_axis(axis, len(shape))
    parts = [None] * count if sizes is None else _parts(sizes, shape[axis])
    return tuple(rules.with_dimension(shape, axis, part) for part in parts)


def _parts(sizes: tuple[int, ...], whole: rules.Dimension) -> list[rules.Dimension]:
    if min(sizes, default=0) < -1 or sizes.count(-1) > 1:
        raise ShapeMismatch(f"sizes {sizes} are not those of parts: at most one may be -1")
    given = sum(s for s in sizes if s != -1)
    if whole is not None and (given > whole if -1 in sizes else given != whole):
        raise ShapeMismatch(f"parts of sizes {sizes} do not make a dimension of {whole}")
    return [s if s != -1 else None if whole is None else whole - given for s in sizes]


ROWS: Final = (
    row("""SLICE(input: value T, begin: index, size: index) -> output: value T; version 8; NNAPI 3
        # A block of the input from begin, of a size; -1 reaches to the end.
        """)(_slice, fold=rules.folding(_fold_slice)),
    row("""STRIDED_SLICE(input: value T, begin: sizes, end: sizes, strides: sizes; begin_mask: int,
        end_mask: int, ellipsis_mask: int, new_axis_mask: int, shrink_axis_mask: int, offset: bool)
        -> output: value T; version 8; NNAPI 2
        # Every stride-th element from begin to end in each dimension, with masks for open bounds,
        dropped and new dimensions.""")(_strided_slice, fold=_fold_strided_slice),
    row("""DYNAMIC_UPDATE_SLICE(input: value T, update: value T, start: index) -> output: value T;
        version 6 # The input with a block replaced, at a start that is clamped so that the block
        fits.""")(_dynamic_update),
    row("""REVERSE_V2(input: value T, axis: index) -> output: value T; version 4; NNAPI 7 REVERSE
        # The input with the order of elements along the given axes reversed.""")(rules.like(0)),
    row("""REVERSE_SEQUENCE(input: value T, lengths: index; seq_dim: int, batch_dim: int)
        -> output: value T
        # The first lengths[i] elements along one dimension reversed, for each index i of another.
        """)(_reverse_sequence),
    row("""CONCATENATION(first: value T, more...: value T; axis: int, fused_activation_function)
        -> output: value T; version 7; NNAPI 1
        # The inputs one after another along an axis.
        """)(_concatenation, fold=_joining(np.concatenate), require=joined),
    row("""PACK(first: value T, more...: value T; values_count: int, axis: int) -> output: value T;
        version 5; NNAPI 6 # Inputs of one shape stacked along a new axis.
        """)(_pack, fold=_joining(np.stack), require=same_quantization),
    row("""UNPACK(input: value T; num: int, axis: int) -> parts...: value T; version 6
        # The slices along an axis, which goes, one an output.
        """)(_unpack, fold=_fold_unpack, require=same_quantization),
    row("""SPLIT(axis: index, input: value T; num_splits: int) -> parts...: value T; version 5;
        NNAPI 3 # Equal parts of the input along an axis, one an output.""")(_split),
    row("""SPLIT_V(input: value T, sizes: index, axis: index; num_splits: int) -> parts...: value T;
        version 3 # Parts of given sizes along an axis, one an output.""")(_split_v),
)
