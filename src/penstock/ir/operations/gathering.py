"""Rows of operations that select elements by index or key, write them by index, or find indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.errors import InvalidAttribute, ShapeMismatch
from penstock.ir.operations import rules
from penstock.ir.operations.shape import target_shape
from penstock.ir.operations.signature import row
from penstock.ir.operations.spec import OperationSpec, ShapeContext
from penstock.ir.types import NDArray, Shape


def _gather(context: ShapeContext) -> Sequence[Shape]:
    """params[:axis] + indices[batch_dims:] + params[axis + 1:]; the batch dimensions agree."""
    params, indices = context.shape(0), context.shape(1)
    if params is None or indices is None:
        return (None,)
    axis = rules.normalize_axis(context.attributes.integer("axis"), len(params))
    batch = context.attributes.integer("batch_dims")
    if batch < 0:
        batch += len(indices)
    if not 0 <= batch <= min(axis, len(indices)):
        raise ShapeMismatch(
            f"{batch} batch dimensions with axis {axis} and indices of shape {indices}"
        )
    common = rules.agree_shapes(
        params[:batch], indices[:batch], "batch dimensions of params and indices"
    )
    return ((*(common or ()), *params[batch:axis], *indices[batch:], *params[axis + 1 :]),)


def _fold_gather(context: ShapeContext) -> Sequence[NDArray] | None:
    values = rules.small_values(context)
    if values is None or context.attributes.integer("batch_dims") or not values[0].ndim:
        return None
    axis = context.attributes.integer("axis")
    size = values[0].shape[axis] if -values[0].ndim <= axis < values[0].ndim else 0
    if values[1].size > 64 or np.any((values[1] < 0) | (values[1] >= size)):
        return None
    return (np.asarray(np.take(values[0], values[1], axis)),)


def _gather_nd(context: ShapeContext) -> Sequence[Shape]:
    """indices[:-1] + params[n:], where n is the last dimension of the indices."""
    params, indices = rules.at_least(context, 0, 1), rules.at_least(context, 1, 1)
    if params is None or indices is None or indices[-1] is None:
        return (None,)
    if indices[-1] > len(params):
        raise ShapeMismatch(f"indices of shape {indices} into params of shape {params}")
    return ((*indices[:-1], *params[indices[-1] :]),)


def _scatter_nd(context: ShapeContext) -> Sequence[Shape]:
    """Updates have the shape indices[:-1] + target[n:], n the last dimension of the indices."""
    indices, target = rules.at_least(context, 0, 1), target_shape(context, 2)
    if indices is not None and target is not None and indices[-1] is not None:
        if indices[-1] > len(target):
            raise ShapeMismatch(f"indices of shape {indices} into a result of shape {target}")
        written = (*indices[:-1], *target[indices[-1] :])
        rules.agree_shapes(context.shape(1), written, "updates and the elements they change")
    return (target,)


def _sparse_to_dense(context: ShapeContext) -> Sequence[Shape]:
    """Indices are a matrix of vectors, or numbers of a one-dimensional output."""
    indices, values = rules.ranked(context, 0, 0, 1, 2), rules.ranked(context, 2, 0, 1)
    rank = rules.length(context, 1)
    rules.ranked(context, 3, 0)
    if indices is not None:
        width = indices[1] if len(indices) == 2 else 1
        rules.agree(width, rank, "numbers an index and output dimensions")
        if values:
            rules.agree(indices[0] if indices else 1, values[0], "indices and values")
    return (target_shape(context, 1),)


def _one_hot(context: ShapeContext) -> Sequence[Shape]:
    """The new dimension of size *depth* is inserted at the axis; -1 is the last."""
    indices, depth = context.shape(0), rules.constant_integer(context, 1)
    if indices is None:
        return (None,)
    if depth is not None and depth < 0:
        raise ShapeMismatch(f"a depth of {depth}")
    axis = context.attributes.integer("axis")
    if not -1 <= axis <= len(indices):
        raise ShapeMismatch(f"axis {axis} for indices of shape {indices}")
    axis = rules.normalize_axis(axis, len(indices) + 1)
    return ((*indices[:axis], depth, *indices[axis:]),)


def _where(context: ShapeContext) -> Sequence[Shape]:
    shape = context.shape(0)
    return ((None, None if shape is None else len(shape)),)


def _unique(context: ShapeContext) -> Sequence[Shape]:
    return ((None,), (rules.length(context, 0),))


def _segment_sum(context: ShapeContext) -> Sequence[Shape]:
    """The number of rows is one more than the greatest (the last) segment id."""
    shape = rules.at_least(context, 0, 1)
    rules.agree(rules.dimension(shape, 0), rules.vector(context, 1), "rows and segment ids")
    if shape is None:
        return (None,)
    ids = rules.constant_integers(context, 1)
    rows = None if ids is None else rules.bounded(max(ids, default=-1) + 1)
    return ((rows, *shape[1:]),)


def _unsorted_segments(context: ShapeContext) -> Sequence[Shape]:
    """The ids cover the leading dimensions of the data; each segment is one slice."""
    shape, ids, count = context.shape(0), context.shape(1), rules.constant_integer(context, 2)
    if count is not None and count < 0:
        raise ShapeMismatch(f"{count} segments")
    if shape is None or ids is None:
        return (None,)
    if len(ids) > len(shape):
        raise ShapeMismatch(f"segment ids of shape {ids} for data of shape {shape}")
    rules.agree_shapes(shape[: len(ids)], ids, "data and segment ids")
    values = rules.constant_integers(context, 1)
    if count is not None and values is not None and max(values, default=-1) >= count:
        raise ShapeMismatch(f"segment id {max(values)} of {count} segments")
    return ((count, *shape[len(ids) :]),)


def _top_k(context: ShapeContext) -> Sequence[Shape]:
    shape, k = rules.at_least(context, 0, 1), rules.constant_integer(context, 1)
    if shape is None:
        return (None, None)
    if k is not None and (k < 0 or (shape[-1] is not None and k > shape[-1])):
        raise ShapeMismatch(f"the {k} largest of {shape[-1]}")
    return ((*shape[:-1], k),) * 2


def _segments(name: str, what: str) -> OperationSpec:
    return row(f"""UNSORTED_SEGMENT_{name}(data: number T, segment_ids: index, num_segments: index)
        -> output: number T
        # {what} of the slices that share a segment id; negative ids are left out.
        """)(_unsorted_segments)


def _embedding(context: ShapeContext) -> Sequence[Shape]:
    count, values = rules.vector(context, 0), rules.at_least(context, 1, 2)
    rules.check_blocks(context, 2)
    return (None if values is None else (count, *values[1:]),)


def _sparse_embedding(context: ShapeContext) -> Sequence[Shape]:
    """Inputs: ids [n], their index vectors [n, rank], dense shape [rank], weights [n], params."""
    (count, rank), params = rules.dimensions(context, 1, 2), rules.at_least(context, 4, 2)
    count = rules.agree(rules.vector(context, 0), count, "ids and their indices")
    rules.agree(count, rules.vector(context, 3), "ids and their weights")
    rules.agree(rank, rules.vector(context, 2), "rank of indices and of the dense shape")
    sizes = rules.constant_integers(context, 2)
    if sizes is None or params is None:
        return (None,)
    if not sizes or min(sizes) < 0:
        raise ShapeMismatch(f"{sizes} is not a dense shape")
    return ((*sizes[:-1], *params[1:]),)


def _hash_lookup(context: ShapeContext) -> Sequence[Shape]:
    count, values = rules.vector(context, 0), rules.at_least(context, 2, 1)
    rules.agree(rules.vector(context, 1), rules.dimension(values, 0), "keys and values")
    return rules.fill(context, None if values is None else (count, *values[1:]), (count,))


def _projection(context: ShapeContext) -> Sequence[Shape]:
    """Hash [functions, bits]. Sparse: one number for each function; dense: one for each bit."""
    functions, bits = rules.dimensions(context, 0, 2)
    kind = context.attributes.text("type")
    if kind == "UNKNOWN":
        raise InvalidAttribute("attribute 'type' of LSH_PROJECTION must be SPARSE or DENSE")
    if bits is not None and bits > 32:
        raise ShapeMismatch(f"{bits} bits of a hash; 32 is the limit")
    if context.has(2):
        rows = rules.dimension(rules.at_least(context, 1, 1), 0)
        rules.agree(rules.vector(context, 2), rows, "weights and input")
    if kind == "DENSE":
        functions = None if functions is None or bits is None else functions * bits
    return ((functions,),)


ROWS: Final = (
    row("""GATHER(params: value T, indices: int; axis: int, batch_dims: int) -> output: value T;
        version 8; NNAPI 3
        # Slices of params along an axis, picked by index.""")(_gather, fold=_fold_gather),
    row("""GATHER_ND(params: value T, indices: int) -> output: value T; version 6
        # Elements or slices of params, picked by index vectors.""")(_gather_nd),
    row("""SCATTER_ND(indices: index, updates: value T, shape: index) -> output: value T
        # Zeros of a given shape with the updates added at index vectors.""")(_scatter_nd),
    row("""SPARSE_TO_DENSE(indices: index, output_shape: index, values: value T, default: value T;
        validate_indices: bool) -> output: value T; version 3
        # A default value everywhere but at index vectors, where values stand.
        """)(_sparse_to_dense),
    row("""ONE_HOT(indices: index, depth: index, on: value T, off: value T; axis: int)
        -> output: value T
        # A new dimension in which the index's place has the on value and the others the off value.
        """)(_one_hot),
    row("""WHERE(condition: any_number) -> indices: index; version 2
        # The index vectors of the elements that are true or not zero.""")(_where),
    row("""UNIQUE(input: value T; idx_out_type: type = INT32) -> values: value T, indices: index
        # The distinct elements of a vector, in order of first occurrence, and where each element
        went.""")(_unique),
    row("""SEGMENT_SUM(data: number T, segment_ids: index) -> output: number T
        # Sums of the rows that share a segment id; ids do not decrease.""")(_segment_sum),
    _segments("SUM", "Sums"),
    _segments("PROD", "Products"),
    _segments("MAX", "Maxima"),
    _segments("MIN", "Minima"),
    row("""TOPK_V2(input: number T, k: sizes) -> values: number T, indices: sizes; version 3;
        NNAPI 3 # The k largest elements of the last dimension, largest first, and their indices.
        """)(_top_k),
    row("""BUCKETIZE(input: number; boundaries: floats) -> buckets: int32
        # For each element, how many of the sorted boundaries are not above it.""")(rules.like(0)),
    row("""EMBEDDING_LOOKUP(ids: int32, params: value, block_scales?: float16) -> rows: value;
        version 5; NNAPI 1 # Rows of params, picked by id. Integer rows may have a scale for each
        block of their elements.""")(_embedding),
    row("""EMBEDDING_LOOKUP_SPARSE(ids: int32, indices: int32, dense_shape: int32, weights: float,
        params: float; combiner: SUM|MEAN|SQRTN) -> output: float
        # Weighted combinations of the rows of params that share an index vector up to its last
        element.""")(_sparse_embedding),
    row("""HASHTABLE_LOOKUP(queries: int32, keys: int32, values: value T) -> found: value T,
        hits: quant8; NNAPI 1
        # The values of the queried keys, which stand sorted; zeros where there is none, and whether
        there was.""")(_hash_lookup),
    row("""LSH_PROJECTION(hash: float, input: any, weight?: float; type: UNKNOWN|SPARSE|DENSE)
        -> output: int32; NNAPI 1
        # Locality-sensitive hash of the input's rows: a number a hash function, or a number a bit.
        """)(_projection),
    row("""SKIP_GRAM(input: string; ngram_size: int, max_skip_size: int, include_all_ngrams: bool)
        -> output: string
        # The n-grams of a string's words, with words skipped in between.""")(lambda _: ((None,),)),
    row("""CONCAT_EMBEDDINGS(inputs...: any; num_channels: int, num_columns_per_channel: ints,
        embedding_dim_per_channel: ints) -> output: any
        # A name of the format's early days, which no kernel implements.""")(rules.declared),
)
