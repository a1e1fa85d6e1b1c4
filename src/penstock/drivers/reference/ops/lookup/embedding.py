"""Rows of tables: picked by id, combined by weight, or found by key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel, require
from penstock.drivers.reference.ops.numerics.hybrid import NARROW, weight_scales, weight_values
from penstock.drivers.reference.ops.numerics.weights import flattened, given
from penstock.drivers.reference.ops.structure.shape import checked, dimensions
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray, Operand


def rows_of(table: NDArray, ids: NDArray) -> NDArray:
    """The rows of *table* that *ids* name; `IndexError` where there is none such."""
    if ids.size and not (ids.min() >= 0 and ids.max() < len(table)):
        raise IndexError(f"an id outside 0..{len(table) - 1}")
    return np.take(table, ids, axis=0)


@kernel("EMBEDDING_LOOKUP")
def embedding_lookup(site: Site) -> Kernel:
    """Rows picked by id. Rows of 8 bits and less become real ones by the table's scale, or by a
    scale a row, where the output is float32, or by a scale a block; everything else is copied.
    """
    table, target = site.input(1), site.output().dtype
    if site.has(2):
        return _scaled_by_blocks(site)
    if table.dtype is target:
        return lambda inputs: (rows_of(given(inputs[1]), given(inputs[0])),)
    if table.dtype not in NARROW or target is not DType.FLOAT32:
        raise site.unsupported_types()
    scales = _row_scales(table)

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        ids, rows = given(inputs[0]), given(inputs[1])
        picked = weight_values(rows_of(rows, ids), table).astype(np.float32)
        factors = scales if scales.size == 1 else rows_of(scales, ids)
        picked *= factors.reshape(-1, *[1] * (rows.ndim - 1))
        return (picked,)

    return run


def _scaled_by_blocks(site: Site) -> Kernel:
    target = site.output().dtype
    if site.input(1).dtype not in BLOCK_SCALED or target not in {DType.FLOAT32, DType.FLOAT16}:
        raise site.unsupported_types()

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        ids, table, scales = (given(x) for x in inputs)
        rows = rows_of(table, ids).astype(np.float32)
        factors = rows_of(scales, ids).astype(np.float32)
        blocks = rows.reshape(*factors.shape, rows.shape[1] // factors.shape[1])
        return ((blocks * factors[:, :, None]).reshape(rows.shape).astype(target.numpy),)

    return run


def _row_scales(table: Operand) -> NDArray:
    scales = weight_scales(table, 0)
    quantization = table.quantization
    require(
        quantization is not None and not any(quantization.zero_points),
        "a table with a zero point",
    )
    return scales


BLOCK_SCALED: Final = frozenset({DType.INT4, DType.INT2})

COMBINERS: Final = frozenset({"SUM", "MEAN", "SQRTN"})


@kernel("EMBEDDING_LOOKUP_SPARSE")
def embedding_lookup_sparse(site: Site) -> Kernel:
    """Weighted sums of rows, one for each run of ids whose index vectors agree but for the last
    element.

    MEAN divides a sum by its weights' sum, SQRTN by the root of the sum of their squares. A later
    run with an earlier one's indices is added to what stands there, and both are divided.
    """
    combiner = site.attributes.text("combiner")
    require(combiner in COMBINERS, f"EMBEDDING_LOOKUP_SPARSE with combiner {combiner}")

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        ids, places, weights, params = (given(inputs[i]) for i in (0, 1, 3, 4))
        outer = dimensions(inputs[2])[:-1]
        checked((*outer, *params.shape[1:]), "EMBEDDING_LOOKUP_SPARSE")
        if places.shape != (len(ids), len(outer) + 1) or weights.shape != ids.shape:
            raise ShapeMismatch(f"indices of shape {places.shape} for {len(ids)} ids")
        rows = flattened(rows_of(params, ids))
        buckets = _buckets(places[:, :-1], outer)
        sums = np.zeros((math.prod(outer), rows.shape[1]), np.float32)
        starts = np.flatnonzero(np.diff(buckets, prepend=-1)).tolist()
        for start, stop in pairwise([*starts, len(ids)]):
            share = weights[start:stop]
            total = sums[buckets[start]]
            for weight, row in zip(share, rows[start:stop], strict=True):
                total += weight * row
            _divide(total, combiner, share)
        return (sums.reshape(*outer, *params.shape[1:]),)

    return run


def _buckets(places: NDArray, outer: tuple[int, ...]) -> NDArray:
    """The flat index in *outer* of every index vector."""
    flat = np.zeros(len(places), np.int64)
    for at, size in enumerate(outer):
        index = places[:, at].astype(np.int64)
        if index.size and (index.min() < 0 or index.max() >= size):
            raise IndexError(f"an index outside 0..{size - 1}")
        flat = flat * size + index
    return flat


def _divide(total: NDArray, combiner: str, weights: NDArray) -> None:
    if combiner == "SUM":
        return
    summed = np.float32(0)
    for weight in weights if combiner == "MEAN" else weights * weights:
        summed += weight
    total /= summed if combiner == "MEAN" else np.sqrt(summed)


@kernel("HASHTABLE_LOOKUP")
def hashtable_lookup(site: Site) -> Kernel:
    """The values of the queried keys, which stand sorted; zeros, or empty strings, where there is
    none, and whether there was. Of equal keys, the one that halving the table meets first counts.
    """
    empty = b"" if site.output().dtype is DType.STRING else 0
    hits = site.output(1).dtype.numpy

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        queries, keys, values = (given(x) for x in inputs)
        if not len(keys):
            raise ShapeMismatch("HASHTABLE_LOOKUP in a table without rows")
        places = _halve(keys, queries)
        picked = values[places]
        picked[places < 0] = empty
        return picked, (places >= 0).astype(hits)

    return run


def _halve(keys: NDArray, queries: NDArray) -> NDArray:
    """Where a binary search of *keys* finds each query; -1 where it does not."""
    low, high = np.zeros(len(queries), np.int64), np.full(len(queries), len(keys))
    found = np.full(len(queries), -1)
    for _ in range(len(keys).bit_length()):
        middle = (low + high) // 2
        open_ = (low < high) & (found < 0)
        key = keys[np.minimum(middle, len(keys) - 1)]
        found = np.where(open_ & (key == queries), middle, found)
        low = np.where(open_ & (key < queries), middle + 1, low)
        high = np.where(open_ & (key > queries), middle, high)
    return found
