"""Hash tables, given as vectors of keys and values; of equal keys the first counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray

Finder = Callable[[NDArray], NDArray]
"""Queried keys, flat, to their places; the number of keys where there is none such."""


@kernel("HASHTABLE_FIND")
def hashtable_find(site: Site) -> Kernel:
    """The values of the queried keys, or the default."""
    strings = site.input(0).dtype is DType.STRING
    constant = site.constant(0)
    prepared = None if constant is None else _finder(constant, strings)

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
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


@kernel("HASHTABLE_SIZE")
def hashtable_size(site: Site) -> Kernel:
    """How many different keys there are."""
    dtype = site.output().dtype.numpy

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        return (np.array([len(set(given(inputs[0]).reshape(-1).tolist()))], dtype),)

    return run
