"""SLICE and STRIDED_SLICE with constant bounds."""

from __future__ import annotations

import msgspec

from penstock.drivers.openvino.graph import Graph
from penstock.drivers.openvino.rules.rule import rule
from penstock.drivers.openvino.types import carried, moves
from penstock.engines.site import Site, require
from penstock.hal import AccuracyClass


class Bounds(msgspec.Struct, frozen=True):
    """For each dimension the first position, the one after the last, and the step; all within the input."""

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
    begin, end, step = [], [], []
    for axis, size in enumerate(shape):
        if axis >= len(given[0]):
            first, last, stride = 0, size, 1
        else:
            first, last, stride = (g[axis] for g in given)
            require(stride > 0, "a slice that runs backwards")
            first = 0 if attributes.integer("begin_mask") >> axis & 1 else _within(first, size)
            if attributes.integer("shrink_axis_mask") >> axis & 1:
                last, stride = first + 1, 1
            else:
                last = size if attributes.integer("end_mask") >> axis & 1 else _within(last, size)
        require(0 <= first < last <= size, "a slice without elements")
        begin.append(first)
        end.append(last)
        step.append(stride)
    return Bounds(begin, end, step)


def _within(position: int, size: int) -> int:
    return min(max(position + size if position < 0 else position, 0), size)


def _bounds(site: Site) -> Bounds:
    return _slice(site) if site.operation.type == "SLICE" else _strided(site)


def _check(site: Site) -> AccuracyClass:
    _bounds(site), site.output_shape()
    return carried(site, [site.input()])


@rule("SLICE", "STRIDED_SLICE", check=_check)
def emit_slice(graph: Graph, site: Site) -> None:
    bounds, shape = _bounds(site), site.shape()
    node = graph.op.slice(
        graph.get(site.input_indexes[0]),
        graph.whole(bounds.begin),
        graph.whole(bounds.end),
        graph.whole(bounds.step),
        graph.whole(range(len(shape))),
    )
    if len(site.output_shape()) != len(shape):
        node = graph.reshape(node, site.output_shape())
    graph.move(site, node)


def _check_gather(site: Site) -> AccuracyClass:
    attributes = site.operation.attributes
    require(attributes.integer("batch_dims") == 0, "a gather by batches")
    indices, axis = site.integers(1, "its indexes"), _gather_axis(site)
    size = site.shape()[axis]
    require(all(0 <= i < size for i in indices), f"an index outside the {size} there are")
    site.output_shape()
    return moves(site)


def _gather_axis(site: Site) -> int:
    axis, rank = site.operation.attributes.integer("axis"), len(site.shape())
    require(-rank <= axis < rank, f"axis {axis} of {rank} dimensions")
    return axis % rank


@rule("GATHER", check=_check_gather)
def emit_gather(graph: Graph, site: Site) -> None:
    """Constant indexes of any shape along one dimension."""
    node = graph.op.gather(
        graph.get(site.input_indexes[0]),
        graph.whole(site.integers(1, "its indexes")),
        graph.whole([_gather_axis(site)]),
    )
    graph.move(site, graph.reshape(node, site.output_shape()))
