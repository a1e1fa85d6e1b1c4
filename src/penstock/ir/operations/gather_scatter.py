"""Rows of operations that pick elements by index, put them by index, or find indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.errors import ShapeMismatch
from penstock.ir.operations.attributes import integer, tensor_type
from penstock.ir.operations.folding import small_values
from penstock.ir.operations.rules import (
    agree,
    agree_shapes,
    at_least,
    bounded,
    constant_integer,
    constant_integers,
    dimension,
    length,
    like,
    normalize_axis,
    ranked,
)
from penstock.ir.operations.shape import target_shape
from penstock.ir.operations.spec import AttributeSpec, OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import ANY_NUMBER, INDEX, INT, INT32, NUMBER, SIZES, VALUE
from penstock.ir.types import NDArray, Shape

Y: Final = (Port("output", VALUE, "T"),)


def _gather(context: ShapeContext) -> Sequence[Shape]:
    """params[:axis] + indices[batch_dims:] + params[axis + 1:]; the batch dimensions agree."""
    params, indices = context.shape(0), context.shape(1)
    if params is None or indices is None:
        return (None,)
    axis = normalize_axis(context.attributes.integer("axis"), len(params))
    batch = context.attributes.integer("batch_dims")
    if batch < 0:
        batch += len(indices)
    if not 0 <= batch <= min(axis, len(indices)):
        raise ShapeMismatch(
            f"{batch} batch dimensions with axis {axis} and indices of shape {indices}"
        )
    common = agree_shapes(params[:batch], indices[:batch], "batch dimensions of params and indices")
    return ((*(common or ()), *params[batch:axis], *indices[batch:], *params[axis + 1 :]),)


def _fold_gather(context: ShapeContext) -> Sequence[NDArray] | None:
    values = small_values(context)
    if values is None or context.attributes.integer("batch_dims") or not values[0].ndim:
        return None
    axis = context.attributes.integer("axis")
    size = values[0].shape[axis] if -values[0].ndim <= axis < values[0].ndim else 0
    if values[1].size > 64 or np.any((values[1] < 0) | (values[1] >= size)):
        return None
    return (np.asarray(np.take(values[0], values[1], axis)),)


def _gather_nd(context: ShapeContext) -> Sequence[Shape]:
    """indices[:-1] + params[n:], where n is the last dimension of the indices."""
    params, indices = at_least(context, 0, 1), at_least(context, 1, 1)
    if params is None or indices is None or indices[-1] is None:
        return (None,)
    if indices[-1] > len(params):
        raise ShapeMismatch(f"indices of shape {indices} into params of shape {params}")
    return ((*indices[:-1], *params[indices[-1] :]),)


def _scatter_nd(context: ShapeContext) -> Sequence[Shape]:
    """Updates have the shape indices[:-1] + target[n:], n the last dimension of the indices."""
    indices, updates, target = at_least(context, 0, 1), context.shape(1), target_shape(context, 2)
    if indices is not None and target is not None and indices[-1] is not None:
        if indices[-1] > len(target):
            raise ShapeMismatch(f"indices of shape {indices} into a result of shape {target}")
        agree_shapes(
            updates, (*indices[:-1], *target[indices[-1] :]), "updates and the places they go to"
        )
    return (target,)


def _sparse_to_dense(context: ShapeContext) -> Sequence[Shape]:
    """Indices are a matrix of vectors, or numbers of a one-dimensional output."""
    indices, values, rank = (
        ranked(context, 0, 0, 1, 2),
        ranked(context, 2, 0, 1),
        length(context, 1),
    )
    ranked(context, 3, 0)
    if indices is not None:
        agree(
            indices[1] if len(indices) == 2 else 1, rank, "numbers an index and output dimensions"
        )
        if values:
            agree(indices[0] if indices else 1, values[0], "indices and values")
    return (target_shape(context, 1),)


def _one_hot(context: ShapeContext) -> Sequence[Shape]:
    """The new dimension of size *depth* stands at axis, -1 for last."""
    indices, depth = context.shape(0), constant_integer(context, 1)
    if indices is None:
        return (None,)
    if depth is not None and depth < 0:
        raise ShapeMismatch(f"a depth of {depth}")
    axis = context.attributes.integer("axis")
    if not -1 <= axis <= len(indices):
        raise ShapeMismatch(f"axis {axis} for indices of shape {indices}")
    axis = normalize_axis(axis, len(indices) + 1)
    return ((*indices[:axis], depth, *indices[axis:]),)


def _where(context: ShapeContext) -> Sequence[Shape]:
    shape = context.shape(0)
    return ((None, None if shape is None else len(shape)),)


def _unique(context: ShapeContext) -> Sequence[Shape]:
    return ((None,), (length(context, 0),))


def _segment_sum(context: ShapeContext) -> Sequence[Shape]:
    """As many rows as the largest (the last) segment id says."""
    shape, segments = at_least(context, 0, 1), ranked(context, 1, 1)
    agree(dimension(shape, 0), dimension(segments, 0), "rows and segment ids")
    if shape is None:
        return (None,)
    ids = constant_integers(context, 1)
    rows = None if ids is None else bounded(max(ids, default=-1) + 1)
    return ((rows, *shape[1:]),)


def _unsorted_segments(context: ShapeContext) -> Sequence[Shape]:
    """The ids cover the leading dimensions of the data; one slice a segment."""
    shape, ids, count = context.shape(0), context.shape(1), constant_integer(context, 2)
    if count is not None and count < 0:
        raise ShapeMismatch(f"{count} segments")
    if shape is None or ids is None:
        return (None,)
    if len(ids) > len(shape):
        raise ShapeMismatch(f"segment ids of shape {ids} for data of shape {shape}")
    agree_shapes(shape[: len(ids)], ids, "data and segment ids")
    values = constant_integers(context, 1)
    if count is not None and values is not None and max(values, default=-1) >= count:
        raise ShapeMismatch(f"segment id {max(values)} of {count} segments")
    return ((count, *shape[len(ids) :]),)


def _top_k(context: ShapeContext) -> Sequence[Shape]:
    shape, k = at_least(context, 0, 1), constant_integer(context, 1)
    if shape is None:
        return (None, None)
    if k is not None and (k < 0 or (shape[-1] is not None and k > shape[-1])):
        raise ShapeMismatch(f"the {k} largest of {shape[-1]}")
    return ((*shape[:-1], k),) * 2


def _segments(name: str, doc: str) -> OperationSpec:
    return OperationSpec(
        name,
        (Port("data", NUMBER, "T"), Port("segment_ids", INDEX), Port("num_segments", INDEX)),
        (Port("output", NUMBER, "T"),),
        _unsorted_segments,
        doc=doc,
    )


ROWS: Final = (
    OperationSpec(
        "GATHER",
        (Port("params", VALUE, "T"), Port("indices", INT)),
        Y,
        _gather,
        (integer("axis"), integer("batch_dims")),
        fold=_fold_gather,
        feature_level=3,
        doc="Slices of params along an axis, picked by index.",
    ),
    OperationSpec(
        "GATHER_ND",
        (Port("params", VALUE, "T"), Port("indices", INT)),
        Y,
        _gather_nd,
        doc="Elements or slices of params, picked by index vectors.",
    ),
    OperationSpec(
        "SCATTER_ND",
        (Port("indices", INDEX), Port("updates", VALUE, "T"), Port("shape", INDEX)),
        Y,
        _scatter_nd,
        doc="Zeros of a given shape with the updates added at index vectors.",
    ),
    OperationSpec(
        "SPARSE_TO_DENSE",
        (
            Port("indices", INDEX),
            Port("output_shape", INDEX),
            Port("values", VALUE, "T"),
            Port("default", VALUE, "T"),
        ),
        Y,
        _sparse_to_dense,
        (AttributeSpec("validate_indices", "bool", False),),
        doc="A default value everywhere but at index vectors, where values stand.",
    ),
    OperationSpec(
        "ONE_HOT",
        (
            Port("indices", INDEX),
            Port("depth", INDEX),
            Port("on", VALUE, "T"),
            Port("off", VALUE, "T"),
        ),
        Y,
        _one_hot,
        (integer("axis"),),
        doc="A new dimension in which the index's place has the on value and the others the off value.",
    ),
    OperationSpec(
        "WHERE",
        (Port("condition", ANY_NUMBER),),
        (Port("indices", INDEX),),
        _where,
        doc="The index vectors of the elements that are true or not zero.",
    ),
    OperationSpec(
        "UNIQUE",
        (Port("input", VALUE, "T"),),
        (Port("values", VALUE, "T"), Port("indices", INDEX)),
        _unique,
        (tensor_type("idx_out_type", "INT32"),),
        doc="The distinct elements of a vector, in order of first occurrence, and where each element went.",
    ),
    OperationSpec(
        "SEGMENT_SUM",
        (Port("data", NUMBER, "T"), Port("segment_ids", INDEX)),
        (Port("output", NUMBER, "T"),),
        _segment_sum,
        doc="Sums of the rows that share a segment id; ids do not decrease.",
    ),
    _segments(
        "UNSORTED_SEGMENT_SUM",
        "Sums of the slices that share a segment id; negative ids are left out.",
    ),
    _segments(
        "UNSORTED_SEGMENT_PROD",
        "Products of the slices that share a segment id; negative ids are left out.",
    ),
    _segments(
        "UNSORTED_SEGMENT_MAX",
        "Maxima of the slices that share a segment id; negative ids are left out.",
    ),
    _segments(
        "UNSORTED_SEGMENT_MIN",
        "Minima of the slices that share a segment id; negative ids are left out.",
    ),
    OperationSpec(
        "TOPK_V2",
        (Port("input", NUMBER, "T"), Port("k", SIZES)),
        (Port("values", NUMBER, "T"), Port("indices", SIZES)),
        _top_k,
        feature_level=3,
        doc="The k largest elements of the last dimension, largest first, and their indices.",
    ),
    OperationSpec(
        "BUCKETIZE",
        (Port("input", NUMBER),),
        (Port("buckets", INT32),),
        like(0),
        (AttributeSpec("boundaries", "floats", ()),),
        doc="For each element, how many of the sorted boundaries are not above it.",
    ),
)
