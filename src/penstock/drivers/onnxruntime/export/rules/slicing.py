"""SLICE and STRIDED_SLICE with constant bounds, and values picked by index."""

from __future__ import annotations

import numpy as np

from penstock.driverkit.checks import bounds_of, gather_axis
from penstock.driverkit.site import Site, require
from penstock.driverkit.types import F32
from penstock.drivers.onnxruntime.export.graph import TURNED, Graph, Value
from penstock.drivers.onnxruntime.export.rules.conversion import TARGETS
from penstock.drivers.onnxruntime.export.rules.rule import rule
from penstock.drivers.onnxruntime.export.types import WHOLE, moved, moves
from penstock.hal import AccuracyClass
from penstock.ir import DType


def _check(site: Site) -> AccuracyClass:
    bounds_of(site), site.output_shape()
    return moves(site, unscaled=True)


@rule("SLICE", "STRIDED_SLICE", check=_check)
def emit_slice(graph: Graph, site: Site) -> None:
    bounds, shape = bounds_of(site), site.shape()
    axes = [
        axis
        for axis, size in enumerate(shape)
        if (bounds.begin[axis], bounds.end[axis], bounds.step[axis]) != (0, size, 1)
    ]
    turned = graph.turned(site.input_indexes[0])
    kept = turned is not None and len(site.output_shape()) == len(shape)
    node = turned if turned is not None and kept else graph.source(site)
    if axes:
        given = [[side[a] for a in axes] for side in (bounds.begin, bounds.end)]
        steps = [bounds.step[a] for a in axes]
        along = [TURNED[axis] for axis in axes] if kept else axes
        node = graph.node("Slice", node, *(graph.whole(v) for v in (*given, along, steps)))
    if kept:
        graph.turn(site, node)
        return
    if len(site.output_shape()) != len(shape):
        node = graph.reshape(node, site.output_shape())
    graph.define(site, node)


def _check_update(site: Site) -> AccuracyClass:
    """A block of one dimension, at a place that is known."""
    _update_of(site)
    return moved(site, [site.input(0), site.input(1)], unscaled=True)


def _update_of(site: Site) -> tuple[int, int, int] | None:
    """The dimension of which a part is replaced, and where that part begins and ends; None for the
    whole.
    """
    whole, part = site.shape(0), site.shape(1)
    require(len(whole) == len(part), "a block of another rank")
    starts = site.integers(2, "where it begins")
    axes = [axis for axis, size in enumerate(whole) if part[axis] != size]
    if not axes:
        return None
    require(len(axes) == 1, "a block smaller in several dimensions")
    axis = axes[0]
    begin = min(max(starts[axis], 0), whole[axis] - part[axis])
    return axis, begin, begin + part[axis]


@rule("DYNAMIC_UPDATE_SLICE", check=_check_update)
def emit_update(graph: Graph, site: Site) -> None:
    """What stands before the block, the block, and what stands behind it."""
    block, place = graph.source(site, 1), _update_of(site)
    if place is None:
        graph.define(site, block)
        return
    axis, begin, end = place
    parts = [block]
    for at, start, stop in ((0, 0, begin), (2, end, site.shape(0)[axis])):
        if start < stop:
            bounds = [graph.whole([v]) for v in (start, stop, axis)]
            parts.insert(at, graph.node("Slice", graph.source(site), *bounds))
    graph.define(site, graph.node("Concat", *parts, axis=axis))


def _check_indices(site: Site, position: int) -> None:
    require(site.input(position).dtype in WHOLE, "indexes of another type")
    site.shape(position)


def _check_gather(site: Site) -> AccuracyClass:
    require(site.operation.attributes.integer("batch_dims") == 0, "a gather by batches")
    _check_indices(site, 1)
    size = site.shape()[gather_axis(site)]
    if site.input(1).is_constant:
        indices = site.integers(1, "its indexes")
        require(all(0 <= i < size for i in indices), f"an index outside the {size} there are")
    site.output_shape()
    return moves(site, unscaled=True)


@rule("GATHER", check=_check_gather)
def emit_gather(graph: Graph, site: Site) -> None:
    """Indexes of any shape along one dimension."""
    if _gathers_all(site):
        graph.define(site, graph.reshape(graph.source(site), site.output_shape()))
        return
    indices = _indices(graph, site, 1)
    graph.define(site, graph.node("Gather", graph.source(site), indices, axis=gather_axis(site)))


def _gathers_all(site: Site) -> bool:
    """Whether the one index is that of a dimension of 1."""
    if not site.input(1).is_constant or site.shape()[gather_axis(site)] != 1:
        return False
    return bool(np.array_equal(site.value(1, "its indexes").reshape(-1), [0]))


def _indices(graph: Graph, site: Site, position: int) -> Value:
    if site.input(position).is_constant:
        return graph.constant(site.value(position, "its indexes").astype("int64"))
    return graph.get(site.input_indexes[position])


def _check_gather_nd(site: Site) -> AccuracyClass:
    _check_indices(site, 1)
    depth = site.shape(1)[-1] if site.shape(1) else 1
    require(1 <= depth <= len(site.shape()), f"indexes of {depth} numbers")
    site.output_shape()
    same = site.input().quantization == site.output().quantization
    require(same, "values of another scale, which TFLite moves as they are")
    return moves(site, unscaled=True)


@rule("GATHER_ND", check=_check_gather_nd)
def emit_gather_nd(graph: Graph, site: Site) -> None:
    indices = _indices(graph, site, 1)
    if not site.input(1).is_constant:
        indices = graph.node("Cast", indices, to=TARGETS[DType.INT64])
    graph.define(site, graph.node("GatherND", graph.source(site), indices))


def _check_one_hot(site: Site) -> AccuracyClass:
    _check_indices(site, 0)
    depth = site.integers(1, "its depth")
    require(len(depth) == 1 and depth[0] >= 1, f"a depth of {depth}")
    for position in (2, 3):
        require(site.value(position, "a value of it").size == 1, "several values")
    require(site.output().dtype in {F32, *WHOLE}, "marks of another type")
    site.output_shape()
    return "exact"


@rule("ONE_HOT", check=_check_one_hot)
def emit_one_hot(graph: Graph, site: Site) -> None:
    """An index outside the depth marks nothing; the engine would count a negative one from the end."""
    depth, axis = site.integers(1, "its depth")[0], site.operation.attributes.integer("axis")
    rank = len(site.shape())
    axis = rank if axis == -1 else axis
    x = graph.get(site.input_indexes[0])
    shape = site.shape()
    x = graph.reshape(x, (*shape[:axis], 1, *shape[axis:]))
    places = [1] * (rank + 1)
    places[axis] = depth
    marks = np.arange(depth, dtype=site.input().dtype.numpy)
    known = graph.constant(marks.reshape(places))
    on, off = (graph.reshape(graph.get(site.input_indexes[p]), ()) for p in (2, 3))
    graph.define(site, graph.node("Where", graph.node("Equal", x, known), on, off))


def _check_top_k(site: Site) -> AccuracyClass:
    k, shape = site.integers(1, "its number"), site.shape()
    require(len(k) == 1 and len(shape) >= 1 and 1 <= k[0] <= shape[-1], f"the best {k}")
    require(site.input().dtype in {F32, *WHOLE}, "only float32 and whole numbers are ordered here")
    require(site.output(1).dtype is DType.INT32, "positions of another type")
    return "exact"


@rule("TOPK_V2", check=_check_top_k)
def emit_top_k(graph: Graph, site: Site) -> None:
    k = graph.whole(site.integers(1, "its number"))
    given = [graph.get(site.input_indexes[0]), k]
    values, positions = graph.node_of("TopK", given, 2, axis=-1, largest=1, sorted=1)
    graph.define(site, values)
    graph.define(site, graph.node("Cast", positions, to=TARGETS[DType.INT32]), output=1)
