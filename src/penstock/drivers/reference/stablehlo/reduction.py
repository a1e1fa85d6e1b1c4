"""Reductions by a region, over dimensions and over windows, STABLEHLO_SORT, and TFLite's
REDUCE_WINDOW.

A region is a subgraph of scalars. If the result is the same, it runs on many elements at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np

from penstock.drivers.reference.kernel import (
    Inputs,
    Kernel,
    Outputs,
    Site,
    kernel,
    require,
)
from penstock.drivers.reference.layers.padding import Steps
from penstock.drivers.reference.numerics.weights import given
from penstock.drivers.reference.stablehlo.elementwise import FUNCTIONS, larger, smaller
from penstock.drivers.reference.stablehlo.structure import padded
from penstock.drivers.reference.structure.shape import dimensions, normal_axis, scalar
from penstock.errors import ShapeMismatch
from penstock.interrupts import watched
from penstock.ir import DType, NDArray, Subgraph

Combine: TypeAlias = Callable[[NDArray, NDArray], Any]

Apply: TypeAlias = "Callable[..., list[NDArray]]"
"""Applies a region to each element of its arguments, which have one shape."""

COMBINERS: Final[dict[str, Combine]] = {
    "ADD": np.add,
    "MUL": np.multiply,
    "MAXIMUM": larger,
    "MINIMUM": smaller,
    "LOGICAL_AND": np.logical_and,
    "LOGICAL_OR": np.logical_or,
    "STABLEHLO_ADD": np.add,
    "STABLEHLO_MULTIPLY": np.multiply,
    "STABLEHLO_MAXIMUM": larger,
    "STABLEHLO_MINIMUM": smaller,
    "STABLEHLO_AND": np.bitwise_and,
    "STABLEHLO_OR": np.bitwise_or,
}
"""Regions that are a single operation, and the NumPy function of each."""

OF_ELEMENTS: Final = (
    "ADD SUB MUL DIV MAXIMUM MINIMUM POW FLOOR_DIV FLOOR_MOD SQUARED_DIFFERENCE "
    "EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL LOGICAL_AND LOGICAL_OR LOGICAL_NOT "
    "ABS NEG EXP LOG SQRT RSQRT SQUARE SIN COS FLOOR CEIL TANH LOGISTIC CAST "
    "STABLEHLO_COMPARE STABLEHLO_CONVERT STABLEHLO_CLAMP STABLEHLO_SELECT"
)
BY_ELEMENT: Final = frozenset(FUNCTIONS) | frozenset(OF_ELEMENTS.split())
"""Operations whose kernels apply to scalars and arrays alike, element by element."""


def is_scalar_region(graph: Subgraph) -> bool:
    """Whether *graph* maps scalars to scalars using operations of `BY_ELEMENT` only."""
    return all(o.type in BY_ELEMENT for o in graph.operations) and all(
        o.shape == () for o in graph.operands if o.has_value
    )


def combiner(graph: Subgraph) -> Combine | None:
    """The single function of two elements that *graph* computes, in either order, or None."""
    if len(graph.operations) != 1 or len(graph.inputs) != 2:
        return None
    (operation,) = graph.operations
    if operation.outputs != graph.outputs or sorted(operation.inputs) != sorted(graph.inputs):
        return None
    if operation.attributes.get("fused_activation_function", "NONE") != "NONE":
        return None
    return COMBINERS.get(operation.type)


def region(site: Site, attribute: str, arguments: int) -> Apply:
    """The subgraph that *attribute* of *site* names, applied element by element.

    Raises `Unsupported` if it has another number of arguments, or an unsupported operation.
    """
    index = site.attributes.integer(attribute)
    graph = site.graphs(index)
    require(
        len(graph.inputs) == arguments,
        f"{site.operation.type} with a region of {len(graph.inputs)} arguments, not {arguments}",
    )
    combine = combiner(graph)
    if combine is not None:
        return applied(combine)
    run = site.subgraphs(index)
    if is_scalar_region(graph):
        return partial(_at_once, run)
    return partial(_one_by_one, run, [graph.operands[i].dtype.numpy for i in graph.outputs])


def applied(combine: Combine) -> Apply:
    """A region that consists of *combine*, in the type of its first argument."""
    return lambda a, b: [np.asarray(combine(a, b)).astype(a.dtype, copy=False)]


def _at_once(run: Kernel, *arrays: NDArray) -> list[NDArray]:
    return [np.broadcast_to(np.asarray(r), arrays[0].shape) for r in run(arrays)]


def _one_by_one(run: Kernel, dtypes: list[np.dtype[Any]], *arrays: NDArray) -> list[NDArray]:
    made = [np.empty(arrays[0].shape, dtype) for dtype in dtypes]
    for place in watched(np.ndindex(arrays[0].shape)):
        results = run([np.asarray(a[place]) for a in arrays])
        for whole, result in zip(made, results, strict=True):
            whole[place] = np.asarray(result).reshape(())
    return made


@kernel("STABLEHLO_REDUCE")
def reduce(site: Site) -> Kernel:
    """Reduces operands together along dimensions, pairwise; the initial values come first."""
    count = _operand_count(site)
    apply = region(site, "body_subgraph_index", 2 * count)
    axes = site.attributes.integers("dimensions")

    def run(inputs: Inputs) -> Outputs:
        arrays = [given(x) for x in inputs]
        rank = arrays[0].ndim
        chosen = sorted({normal_axis(axis, rank) for axis in axes})
        kept = [axis for axis in range(rank) if axis not in chosen]
        shape = tuple(arrays[0].shape[axis] for axis in kept)
        size = math.prod(arrays[0].shape[axis] for axis in chosen)
        rows = [x.transpose(*chosen, *kept).reshape(size, *shape) for x in arrays[:count]]
        first = [np.broadcast_to(scalar(x, "an initial value"), shape) for x in arrays[count:]]
        if not size:
            return [np.array(x) for x in first]
        return [np.array(x) for x in apply(*first, *halved(rows, apply))]

    return run


def halved(rows: list[NDArray], apply: Apply) -> list[NDArray]:
    """Arrays [n, ...], n at least 1, reduced along their first dimension in log2(n) rounds."""
    while (count := len(rows[0])) > 1:
        even = count - count % 2
        results = apply(*(x[0:even:2] for x in rows), *(x[1:even:2] for x in rows))
        if even < count:
            results = [np.concatenate([r, x[even:]]) for r, x in zip(results, rows, strict=True)]
        rows = results
    return [x[0] for x in rows]


def _operand_count(site: Site) -> int:
    """The number of operands, which as many initial values follow."""
    count = len(site.outputs)
    require(count > 0 and len(site.inputs) == 2 * count, f"{len(site.inputs)} inputs")
    return count


def reduce_windows(
    operands: list[NDArray],
    initial: Sequence[NDArray],
    apply: Apply,
    extents: Sequence[int],
    steps: Steps,
) -> list[NDArray]:
    """Reduces windows over every dimension of padded operands. The elements of each are taken in
    row-major order, from the initial values on.
    """
    shape, strides, dilations = operands[0].shape, steps.stride, steps.dilation
    lengths = {len(extents), len(strides), len(dilations), len(shape)}
    if len(lengths) > 1 or min((*extents, *strides, *dilations), default=1) < 1:
        raise ShapeMismatch(
            f"windows {extents}, strides {strides}, dilations {dilations} over a shape {shape}"
        )
    window = steps.over((0, *shape), extents)
    outputs = tuple(axis.outputs for axis in window)
    totals = [np.broadcast_to(scalar(x, "an initial value"), outputs) for x in initial]
    for place in () if 0 in outputs else watched(itertools.product(*map(range, extents))):
        starts = [at * axis.dilation for at, axis in zip(place, window, strict=True)]
        cut = tuple(
            slice(start, start + (axis.outputs - 1) * axis.stride + 1, axis.stride)
            for start, axis in zip(starts, window, strict=True)
        )
        totals = apply(*totals, *(x[cut] for x in operands))
    return [np.array(x) for x in totals]


@kernel("STABLEHLO_REDUCE_WINDOW")
def stablehlo_reduce_window(site: Site) -> Kernel:
    """Reduces windows of operands, padded with their initial values, together."""
    count = _operand_count(site)
    apply = region(site, "body_subgraph_index", 2 * count)
    extents = site.attributes.integers("window_dimensions")
    rank = len(extents)
    strides, base, holes = (
        site.attributes.integers(name) or (1,) * rank
        for name in ("window_strides", "base_dilations", "window_dilations")
    )
    pads = site.attributes.integers("padding") or (0,) * (2 * rank)
    steps = Steps(strides, holes, "VALID")
    require(len(base) == rank and len(pads) == 2 * rank, f"padding {pads} of windows {extents}")
    require(min(base, default=1) > 0, f"base_dilations {base}")
    interior = [factor - 1 for factor in base]

    def run(inputs: Inputs) -> Outputs:
        operands, initial = [given(x) for x in inputs[:count]], [given(x) for x in inputs[count:]]
        wide = [
            padded(x, value, pads[::2], pads[1::2], interior, bounded=True)
            for x, value in zip(operands, initial, strict=True)
        ]
        return reduce_windows(wide, initial, apply, extents, steps)

    return run


@kernel("REDUCE_WINDOW")
def reduce_window(site: Site) -> Kernel:
    name = site.attributes.text("reduce_function")
    logical = {"ALL": "LOGICAL_AND", "ANY": "LOGICAL_OR"}
    combine = COMBINERS.get(logical.get(name, name))
    if combine is None or (name in logical and site.input(0).dtype is not DType.BOOL):
        raise site.unsupported_types()

    def run(inputs: Inputs) -> Outputs:
        x, initial = given(inputs[0]), given(inputs[1])
        extents, strides, dilations = (dimensions(vector) for vector in inputs[2:5])
        return reduce_windows(
            [x], [initial], applied(combine), extents, Steps(strides, dilations, "VALID")
        )

    return run


@kernel("STABLEHLO_SORT")
def sort(site: Site) -> Kernel:
    """Sorts lines along a dimension by the comparator; the sort is stable."""
    count = len(site.inputs)
    index = site.attributes.integer("comparator_subgraph_index")
    results = [site.graphs(index).operands[i].dtype for i in site.graphs(index).outputs]
    require(results == [DType.BOOL], "a comparator that does not give one boolean")
    before = region(site, "comparator_subgraph_index", 2 * count)
    axis = site.attributes.integer("dimension")

    def run(inputs: Inputs) -> Outputs:
        arrays = [given(x) for x in inputs]
        along = normal_axis(axis, arrays[0].ndim)
        lines = [np.moveaxis(x, along, 0) for x in arrays]
        return [
            np.asarray(np.moveaxis(x, 0, along), order="C") for x in sorted_lines(lines, before)
        ]

    return run


def sorted_lines(lines: Sequence[NDArray], before: Apply) -> list[NDArray]:
    """Sorts arrays [n, ...] together along their first dimension, all lines at once.

    Uses Batcher's merge exchange (Knuth, The Art of Computer Programming, 5.2.2, algorithm M):
    every step compares disjoint pairs. Ties are broken by the original position of an element.
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
    """The positions to compare and exchange, step by step, that sort *count* elements."""
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
