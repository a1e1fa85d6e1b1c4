"""SLICE and STRIDED_SLICE with constant bounds, and values picked by index."""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.drivers.onnxruntime.export.graph import Graph, Value
from penstock.drivers.onnxruntime.export.rules.elementwise import TARGETS
from penstock.drivers.onnxruntime.export.rules.rule import rule
from penstock.drivers.onnxruntime.export.types import F32, WHOLE, moves
from penstock.engines.site import Site, require
from penstock.hal import AccuracyClass
from penstock.ir import DType


class Bounds(msgspec.Struct, frozen=True):
    """For each dimension the first position, where to stop, and the step, which may be negative."""

    begin: list[int]
    end: list[int]
    step: list[int]


def _slice(site: Site) -> Bounds:
    shape = site.shape()
    begin, sizes = site.integers(1, "its begin"), site.integers(2, "its size")
    require(len(begin) == len(sizes) == len(shape), "bounds of another rank")
    end = [d if n == -1 else b + n for d, b, n in zip(shape, begin, sizes, strict=True)]
    inside = all(0 <= b < e <= d for b, e, d in zip(begin, end, shape, strict=True))
    require(inside, f"[{begin}, {end}) of {shape}")
    return Bounds(begin, end, [1] * len(shape))


def _strided(site: Site) -> Bounds:
    attributes, shape = site.operation.attributes, site.shape()
    for mask in ("ellipsis_mask", "new_axis_mask"):
        require(attributes.integer(mask) == 0, f"a slice with {mask}")
    require(not attributes.flag("offset"), "a slice whose end is an offset")
    given = [site.integers(p, w) for p, w in ((1, "its begin"), (2, "its end"), (3, "its strides"))]
    require(all(len(g) == len(given[0]) <= len(shape) for g in given), "bounds of another rank")
    bounds = Bounds([], [], [])
    for axis, size in enumerate(shape):
        first, last, stride = 0, size, 1
        if axis < len(given[0]):
            first, last, stride = _along(site, axis, size, *(g[axis] for g in given))
        bounds.begin.append(first)
        bounds.end.append(last)
        bounds.step.append(stride)
    return bounds


def _along(
    site: Site, axis: int, size: int, begin: int, end: int, stride: int
) -> tuple[int, int, int]:
    """First position, stop and step along one axis; a stop before the first element is below any size."""
    masks = site.operation.attributes
    require(stride != 0, "a slice in steps of nothing")
    open_begin = masks.integer("begin_mask") >> axis & 1
    if masks.integer("shrink_axis_mask") >> axis & 1:
        at = 0 if open_begin else begin + size if begin < 0 else begin
        require(0 <= at < size, "a slice without elements")
        return at, at + 1, 1
    stop = None if masks.integer("end_mask") >> axis & 1 else end
    first, last, step = slice(None if open_begin else begin, stop, stride).indices(size)
    require(len(range(first, last, step)) > 0, "a slice without elements")
    return first, last if last >= 0 else -size - 1, step


def _bounds(site: Site) -> Bounds:
    return _slice(site) if site.operation.type == "SLICE" else _strided(site)


def _check(site: Site) -> AccuracyClass:
    _bounds(site), site.output_shape()
    return moves(site)


@rule("SLICE", "STRIDED_SLICE", check=_check)
def emit_slice(graph: Graph, site: Site) -> None:
    bounds, shape = _bounds(site), site.shape()
    axes = [
        axis
        for axis, size in enumerate(shape)
        if (bounds.begin[axis], bounds.end[axis], bounds.step[axis]) != (0, size, 1)
    ]
    node = graph.source(site)
    if axes:
        given = [[side[a] for a in axes] for side in (bounds.begin, bounds.end)]
        steps = [bounds.step[a] for a in axes]
        node = graph.node("Slice", node, *(graph.whole(v) for v in (*given, axes, steps)))
    if len(site.output_shape()) != len(shape):
        node = graph.reshape(node, site.output_shape())
    graph.define(site, node)


def _check_indices(site: Site, position: int) -> None:
    require(site.input(position).dtype in WHOLE, "indexes of another type")
    site.shape(position)


def _check_gather(site: Site) -> AccuracyClass:
    require(site.operation.attributes.integer("batch_dims") == 0, "a gather by batches")
    _check_indices(site, 1)
    size = site.shape()[_gather_axis(site)]
    if site.input(1).is_constant:
        indices = site.integers(1, "its indexes")
        require(all(0 <= i < size for i in indices), f"an index outside the {size} there are")
    site.output_shape()
    return moves(site)


def _gather_axis(site: Site) -> int:
    axis, rank = site.operation.attributes.integer("axis"), len(site.shape())
    require(-rank <= axis < rank, f"axis {axis} of {rank} dimensions")
    return axis % rank


@rule("GATHER", check=_check_gather)
def emit_gather(graph: Graph, site: Site) -> None:
    """Indexes of any shape along one dimension."""
    if _gathers_all(site):
        graph.define(site, graph.reshape(graph.source(site), site.output_shape()))
        return
    indices = _indices(graph, site, 1)
    graph.define(site, graph.node("Gather", graph.source(site), indices, axis=_gather_axis(site)))


def _gathers_all(site: Site) -> bool:
    """Whether the one index is that of a dimension of 1."""
    if not site.input(1).is_constant or site.shape()[_gather_axis(site)] != 1:
        return False
    return bool(np.array_equal(site.constant(1, "its indexes").reshape(-1), [0]))


def _indices(graph: Graph, site: Site, position: int) -> Value:
    if site.input(position).is_constant:
        return graph.constant(site.constant(position, "its indexes").astype("int64"))
    return graph.get(site.input_indexes[position])


def _check_gather_nd(site: Site) -> AccuracyClass:
    _check_indices(site, 1)
    depth = site.shape(1)[-1] if site.shape(1) else 1
    require(1 <= depth <= len(site.shape()), f"indexes of {depth} numbers")
    site.output_shape()
    return moves(site)


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
        require(site.constant(position, "a value of it").size == 1, "several values")
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
