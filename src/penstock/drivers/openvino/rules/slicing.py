"""SLICE and STRIDED_SLICE with constant bounds."""

from __future__ import annotations

from penstock.driverkit.checks import bounds_of, gather_axis
from penstock.driverkit.site import Site, require
from penstock.drivers.openvino.graph import Graph
from penstock.drivers.openvino.rules.rule import rule
from penstock.drivers.openvino.types import carried, moves
from penstock.hal import AccuracyClass


def _check(site: Site) -> AccuracyClass:
    require(min(bounds_of(site).step) > 0, "a slice that runs backwards")
    site.output_shape()
    return carried(site, [site.input()])


@rule("SLICE", "STRIDED_SLICE", check=_check)
def emit_slice(graph: Graph, site: Site) -> None:
    bounds, shape = bounds_of(site), site.shape()
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
    indices, axis = site.integers(1, "its indexes"), gather_axis(site)
    size = site.shape()[axis]
    require(all(0 <= i < size for i in indices), f"an index outside the {size} there are")
    site.output_shape()
    return moves(site)


@rule("GATHER", check=_check_gather)
def emit_gather(graph: Graph, site: Site) -> None:
    """Constant indexes of any shape along one dimension."""
    node = graph.op.gather(
        graph.get(site.input_indexes[0]),
        graph.whole(site.integers(1, "its indexes")),
        graph.whole([gather_axis(site)]),
    )
    graph.move(site, graph.reshape(node, site.output_shape()))
