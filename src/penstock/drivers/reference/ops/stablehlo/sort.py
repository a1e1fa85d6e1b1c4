"""STABLEHLO_SORT: operands sorted together by a region that compares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel, require
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.drivers.reference.ops.stablehlo.region import Apply, region
from penstock.drivers.reference.ops.structure.shape import normal_axis
from penstock.ir import DType, NDArray


@kernel("STABLEHLO_SORT")
def sort(site: Site) -> Kernel:
    """Lines along a dimension in the order of the comparator; equal elements keep theirs."""
    count = len(site.inputs)
    index = site.attributes.integer("comparator_subgraph_index")
    results = [site.graphs(index).operands[i].dtype for i in site.graphs(index).outputs]
    require(results == [DType.BOOL], "a comparator that does not give one boolean")
    before = region(site, "comparator_subgraph_index", 2 * count)
    axis = site.attributes.integer("dimension")

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        arrays = [given(x) for x in inputs]
        along = normal_axis(axis, arrays[0].ndim)
        lines = [np.moveaxis(x, along, 0) for x in arrays]
        return [
            np.asarray(np.moveaxis(x, 0, along), order="C") for x in sorted_lines(lines, before)
        ]

    return run


def sorted_lines(lines: Sequence[NDArray], before: Apply) -> list[NDArray]:
    """Arrays [n, ...] sorted together along their first dimension, all lines at once.

    Batcher's merge exchange (Knuth, The Art of Computer Programming, 5.2.2, algorithm M): every
    step compares pairs that do not touch each other. Ties are broken by the place an element came
    from.
    """
    shape = lines[0].shape
    origin = np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    columns = [*(np.array(x) for x in lines), np.broadcast_to(origin, shape).copy()]
    for first, second in exchanges(shape[0]):
        left, right = [x[first] for x in columns], [x[second] for x in columns]
        forward, backward = _compare(before, left, right), _compare(before, right, left)
        swap = np.where(forward == backward, right[-1] < left[-1], backward)
        for x, a, b in zip(columns, left, right, strict=True):
            x[first], x[second] = np.where(swap, b, a), np.where(swap, a, b)
    return columns[:-1]


def _compare(before: Apply, a: Sequence[NDArray], b: Sequence[NDArray]) -> NDArray:
    (result,) = before(*chain.from_iterable(zip(a[:-1], b[:-1], strict=True)))
    return result


def exchanges(count: int) -> Iterator[tuple[NDArray, NDArray]]:
    """Places to compare and exchange, step by step, so that *count* elements end up sorted."""
    top = (1 << max(count - 1, 0).bit_length()) >> 1
    step = top
    while step > 0:
        reach, offset, distance = top, 0, step
        while True:
            places = np.arange(max(count - distance, 0))
            places = places[(places & step) == offset]
            if places.size:
                yield places, places + distance
            if reach == step:
                break
            distance, reach, offset = reach - step, reach >> 1, step
        step >>= 1
