"""Rows of operations that join operands into one or part one into several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.errors import InvalidOperation, ShapeMismatch
from penstock.ir.operations.attributes import FUSED_ACTIVATION, integer
from penstock.ir.operations.folding import MAX_FOLDED_ELEMENTS, small_values
from penstock.ir.operations.requirements import joined, same_quantization
from penstock.ir.operations.rules import (
    Dimension,
    agree,
    agree_shapes,
    bounded,
    constant_integer,
    constant_integers,
    length,
    normalize_axis,
)
from penstock.ir.operations.spec import OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import INDEX, VALUE
from penstock.ir.types import NDArray, Shape

MANY: Final = (Port("first", VALUE, "T"), Port("more", VALUE, "T", variadic=True))
PARTS: Final = (Port("parts", VALUE, "T", variadic=True),)


def _concatenation(context: ShapeContext) -> Sequence[Shape]:
    shapes = [context.shape(i) for i in range(context.input_count)]
    known = [s for s in shapes if s is not None]
    if not known:
        return (None,)
    axis = normalize_axis(context.attributes.integer("axis"), len(known[0]))
    total: Dimension = 0 if len(known) == len(shapes) else None
    merged: Shape = None
    for shape in known:
        if len(shape) != len(known[0]):
            raise ShapeMismatch(f"inputs of rank {len(known[0])} and {len(shape)} are concatenated")
        open_shape = (*shape[:axis], None, *shape[axis + 1 :])
        merged = agree_shapes(merged, open_shape, "concatenated inputs")
        size = shape[axis]
        total = None if total is None or size is None else bounded(total + size)
    return (None if merged is None else (*merged[:axis], total, *merged[axis + 1 :]),)


def _fold_concatenation(context: ShapeContext) -> Sequence[NDArray] | None:
    values = small_values(context)
    if not values or context.attributes.text("fused_activation_function") != "NONE":
        return None
    if sum(v.size for v in values) > MAX_FOLDED_ELEMENTS:
        return None
    return (np.concatenate(values, context.attributes.integer("axis")),)


def _pack(context: ShapeContext) -> Sequence[Shape]:
    count = context.attributes.integer("values_count")
    if count != context.input_count:
        raise InvalidOperation(f"PACK of {count} values has {context.input_count} inputs")
    shape: Shape = None
    for index in range(context.input_count):
        shape = agree_shapes(shape, context.shape(index), "packed inputs")
    if shape is None:
        return (None,)
    axis = normalize_axis(context.attributes.integer("axis"), len(shape) + 1)
    return ((*shape[:axis], context.input_count, *shape[axis:]),)


def _fold_pack(context: ShapeContext) -> Sequence[NDArray] | None:
    values = small_values(context)
    if not values or sum(v.size for v in values) > MAX_FOLDED_ELEMENTS:
        return None
    return (np.stack(values, context.attributes.integer("axis")),)


def _unpack(context: ShapeContext) -> Sequence[Shape]:
    count = context.attributes.integer("num")
    if count != context.output_count:
        raise InvalidOperation(f"UNPACK into {count} values has {context.output_count} outputs")
    shape = context.shape(0)
    if shape is None:
        return (None,) * count
    axis = normalize_axis(context.attributes.integer("axis"), len(shape))
    agree(shape[axis], count, "unpacked dimension and number of outputs")
    return ((*shape[:axis], *shape[axis + 1 :]),) * count


def _fold_unpack(context: ShapeContext) -> Sequence[NDArray] | None:
    values = small_values(context)
    if values is None:
        return None
    return tuple(np.moveaxis(values[0], context.attributes.integer("axis"), 0))


def _split(context: ShapeContext) -> Sequence[Shape]:
    """The axis is the first input; all parts are equal."""
    count = context.attributes.integer("num_splits")
    if count != context.output_count or count < 1:
        raise InvalidOperation(f"SPLIT into {count} parts has {context.output_count} outputs")
    shape, axis = context.shape(1), constant_integer(context, 0)
    if shape is None or axis is None:
        return (None if shape is None else (None,) * len(shape),) * count
    axis = normalize_axis(axis, len(shape))
    size = shape[axis]
    if size is not None and size % count:
        raise ShapeMismatch(
            f"dimension {axis} of shape {shape} does not split into {count} equal parts"
        )
    return ((*shape[:axis], None if size is None else size // count, *shape[axis + 1 :]),) * count


def _split_v(context: ShapeContext) -> Sequence[Shape]:
    """One size may be -1: it takes what the others leave."""
    count = context.attributes.integer("num_splits")
    if count != context.output_count:
        raise InvalidOperation(f"SPLIT_V into {count} parts has {context.output_count} outputs")
    agree(length(context, 1), count, "number of sizes and outputs")
    shape, sizes, axis = (
        context.shape(0),
        constant_integers(context, 1),
        constant_integer(context, 2),
    )
    if shape is None:
        return (None,) * count
    if axis is None:
        return ((None,) * len(shape),) * count
    axis = normalize_axis(axis, len(shape))
    parts: list[Dimension] = [None] * count
    if sizes is not None:
        parts = list(_parts(sizes, shape[axis]))
    return tuple((*shape[:axis], part, *shape[axis + 1 :]) for part in parts)


def _parts(sizes: tuple[int, ...], whole: Dimension) -> list[Dimension]:
    if min(sizes, default=0) < -1 or sizes.count(-1) > 1:
        raise ShapeMismatch(f"sizes {sizes} are not those of parts: at most one may be -1")
    given = sum(s for s in sizes if s != -1)
    if whole is not None and (given > whole if -1 in sizes else given != whole):
        raise ShapeMismatch(f"parts of sizes {sizes} do not make a dimension of {whole}")
    return [s if s != -1 else None if whole is None else whole - given for s in sizes]


ROWS: Final = (
    OperationSpec(
        "CONCATENATION",
        MANY,
        (Port("output", VALUE, "T"),),
        _concatenation,
        (integer("axis"), FUSED_ACTIVATION),
        fold=_fold_concatenation,
        require=joined,
        feature_level=1,
        doc="The inputs one after another along an axis.",
    ),
    OperationSpec(
        "PACK",
        MANY,
        (Port("output", VALUE, "T"),),
        _pack,
        (integer("values_count"), integer("axis")),
        fold=_fold_pack,
        require=same_quantization,
        feature_level=6,
        doc="Inputs of one shape stacked along a new axis.",
    ),
    OperationSpec(
        "UNPACK",
        (Port("input", VALUE, "T"),),
        PARTS,
        _unpack,
        (integer("num"), integer("axis")),
        fold=_fold_unpack,
        require=same_quantization,
        doc="The slices along an axis, which goes, one an output.",
    ),
    OperationSpec(
        "SPLIT",
        (Port("axis", INDEX), Port("input", VALUE, "T")),
        PARTS,
        _split,
        (integer("num_splits"),),
        feature_level=3,
        doc="Equal parts of the input along an axis, one an output.",
    ),
    OperationSpec(
        "SPLIT_V",
        (Port("input", VALUE, "T"), Port("sizes", INDEX), Port("axis", INDEX)),
        PARTS,
        _split_v,
        (integer("num_splits"),),
        doc="Parts of given sizes along an axis, one an output.",
    ),
)
