"""Rows of tables selected by id, combined by weight or found by key; hash tables; and SKIP_GRAM,
the n-grams of a string's words.

A hash table is a vector of keys and a vector of values. Of equal keys the first one counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np

from penstock.drivers.reference.kernel import (
    Inputs,
    Kernel,
    Outputs,
    Site,
    direct,
    kernel,
    require,
    types,
)
from penstock.drivers.reference.numerics.hybrid import weight_scales, weight_values
from penstock.drivers.reference.numerics.weights import NARROW, flattened, given
from penstock.drivers.reference.structure.shape import checked, dimensions
from penstock.errors import LimitExceeded, ShapeMismatch
from penstock.ir import DType, NDArray


def rows_of(table: NDArray, ids: NDArray) -> NDArray:
    """The rows of *table* that *ids* name. Raises `IndexError` for an id outside the table."""
    if ids.size and not (ids.min() >= 0 and ids.max() < len(table)):
        raise IndexError(f"an id outside 0..{len(table) - 1}")
    return np.take(table, ids, axis=0)


@kernel("EMBEDDING_LOOKUP")
def embedding_lookup(site: Site) -> Kernel:
    """Rows selected by id.

    If the output is float32, rows of 8 bits and less are dequantised by the table's scale, by one
    scale for each row, or by one scale for each block. Other rows are copied.
    """
    table, target = site.input(1), site.output().dtype
    if site.has(2):
        site.require_types(table.dtype in BLOCK_SCALED and target in types("float32 float16"))
        return partial(_scaled_by_blocks, target.numpy)
    if table.dtype is target:
        return lambda inputs: (rows_of(given(inputs[1]), given(inputs[0])),)
    site.require_types(table.dtype in NARROW and target is DType.FLOAT32)
    scales, quantization = weight_scales(table, 0), table.quantization
    symmetric = quantization is not None and not any(quantization.zero_points)
    require(symmetric, "a table with a zero point")

    def run(inputs: Inputs) -> Outputs:
        ids, rows = given(inputs[0]), given(inputs[1])
        picked = weight_values(rows_of(rows, ids), table).astype(np.float32)
        factors = scales if scales.size == 1 else rows_of(scales, ids)
        picked *= factors.reshape(-1, *[1] * (rows.ndim - 1))
        return (picked,)

    return run


def _scaled_by_blocks(dtype: np.dtype[Any], inputs: Inputs) -> Outputs:
    ids, table, scales = (given(x) for x in inputs)
    rows = rows_of(table, ids).astype(np.float32)
    factors = rows_of(scales, ids).astype(np.float32)
    blocks = rows.reshape(*factors.shape, rows.shape[1] // factors.shape[1])
    return ((blocks * factors[:, :, None]).reshape(rows.shape).astype(dtype),)


BLOCK_SCALED: Final = types("int4 int2")

COMBINERS: Final = frozenset({"SUM", "MEAN", "SQRTN"})


@kernel("EMBEDDING_LOOKUP_SPARSE")
def embedding_lookup_sparse(site: Site) -> Kernel:
    """Weighted sums of rows, one for each run of consecutive ids. The index vectors of a run are
    equal but for the last element.

    MEAN divides a sum by the sum of its weights, SQRTN by the root of the sum of their squares. If
    a later run has the indices of an earlier one, it is added to that result, and both are divided.
    """
    combiner = site.attributes.text("combiner")
    require(combiner in COMBINERS, f"EMBEDDING_LOOKUP_SPARSE with combiner {combiner}")

    def run(inputs: Inputs) -> Outputs:
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


@direct("HASHTABLE_LOOKUP")
def hashtable_lookup(site: Site, inputs: Inputs) -> Outputs:
    """The values of the queried keys, and whether each was found. The table's keys are sorted.

    A missing key's value is zero or empty. Of equal keys, the first that a binary search finds
    counts.
    """
    empty = b"" if site.output().dtype is DType.STRING else 0
    hits = site.output(1).dtype.numpy
    queries, keys, values = (given(x) for x in inputs)
    if not len(keys):
        raise ShapeMismatch("HASHTABLE_LOOKUP in a table without rows")
    places = _halve(keys, queries)
    picked = values[places]
    picked[places < 0] = empty
    return picked, (places >= 0).astype(hits)


def _halve(keys: NDArray, queries: NDArray) -> NDArray:
    """Where a binary search of *keys* finds each query; -1 if it is missing."""
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


Finder = Callable[[NDArray], NDArray]
"""The positions of queried keys, flat. The position of a missing key is the number of keys."""


@kernel("HASHTABLE_FIND")
def hashtable_find(site: Site) -> Kernel:
    """The values of the queried keys, or the default."""
    strings = site.input(0).dtype is DType.STRING
    constant = site.constant(0)
    prepared = None if constant is None else _finder(constant, strings)

    def run(inputs: Inputs) -> Outputs:
        keys, values, queries, default = (given(x) for x in inputs)
        if keys.shape != values.shape or not default.size:
            raise ShapeMismatch(f"{keys.shape} keys, {values.shape} values")
        find = prepared or _finder(keys, strings)
        choices = np.append(values.reshape(-1), default.reshape(-1)[:1])
        return (choices[find(queries.reshape(-1))].reshape(queries.shape),)

    return run


def _finder(keys: NDArray, strings: bool) -> Finder:
    flat = keys.reshape(-1)
    missing = flat.size
    if strings:
        places = {key: at for at, key in reversed(list(enumerate(flat.tolist())))}
        return lambda queries: np.array(
            [places.get(q, missing) for q in queries.tolist()], np.int64
        )
    known, first = np.unique(flat, return_index=True)
    if not missing:
        return lambda queries: np.zeros(queries.shape, np.int64)

    def find(queries: NDArray) -> NDArray:
        at = np.minimum(np.searchsorted(known, queries), len(known) - 1)
        return np.where(known[at] == queries, first[at], missing)

    return find


@direct("HASHTABLE_SIZE")
def hashtable_size(site: Site, inputs: Inputs) -> Outputs:
    dtype = site.output().dtype.numpy
    return (np.array([len(set(given(inputs[0]).reshape(-1).tolist()))], dtype),)


MOST_BYTES: Final = 1 << 28
OVERHEAD: Final = 64
"""The memory overhead of an n-gram, in bytes, without its text."""

SPACES: Final = frozenset(b" \t\n\v\f\r")


@direct("SKIP_GRAM")
def skip_gram(site: Site, inputs: Inputs) -> Outputs:
    """The n-grams: `ngram_size` words of the first string, in order, with up to `max_skip_size`
    omitted words between two of them.

    With `include_all_ngrams`, shorter n-grams follow the n-grams that begin with the same words. A
    string with too few words has no n-grams. Raises `LimitExceeded` beyond `MOST_BYTES`.
    """
    attributes = site.attributes
    size, skip = attributes.integer("ngram_size"), attributes.integer("max_skip_size")
    every = attributes.flag("include_all_ngrams")
    strings = given(inputs[0]).reshape(-1).tolist()
    words = _words(strings[0]) if strings else []
    chosen = _choices(len(words), size, skip, every) if 0 < size <= len(words) else iter(())
    grams: list[bytes] = []
    room = MOST_BYTES
    for places in chosen:
        grams.append(b" ".join(words[i] for i in places))
        room -= len(grams[-1]) + OVERHEAD
        if room < 0:
            raise LimitExceeded(f"SKIP_GRAM would make more than {MOST_BYTES} bytes of n-grams")
    result = np.empty(len(grams), object)
    result[:] = grams
    return (result,)


def _words(text: bytes) -> list[bytes]:
    """The words between spaces. As in TFLite, one after a leading space does not count."""
    words: list[bytes] = []
    start = 0
    for at, character in enumerate(text):
        if at and character in SPACES:
            if at > start and text[start] not in SPACES:
                words.append(text[start:at])
            start = at + 1
    if start < len(text):
        words.append(text[start:])
    return words


def _choices(count: int, size: int, skip: int, every: bool) -> Iterator[tuple[int, ...]]:
    """Ascending choices among *count* words; a longer choice precedes its own prefix."""
    places: list[int] = []
    following = [iter(range(count if every else count - size + 1))]
    while following:
        place = next(following[-1], None)
        if place is None:
            following.pop()
            if places and (every or len(places) == size):
                yield tuple(places)
            if places:
                places.pop()
            continue
        places.append(place)
        left = 0 if every else size - len(places) - 1
        end = min(place + 2 + skip, count - left) if len(places) < size else 0
        following.append(iter(range(place + 1, end)))
