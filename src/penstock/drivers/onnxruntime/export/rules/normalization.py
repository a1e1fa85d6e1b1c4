"""L2_NORMALIZATION and LOCAL_RESPONSE_NORMALIZATION, along the last dimension."""

from __future__ import annotations

from penstock.drivers.onnxruntime.export.graph import Graph
from penstock.drivers.onnxruntime.export.rules.rule import rule
from penstock.drivers.onnxruntime.export.types import F32
from penstock.engines.site import Site, require
from penstock.engines.types import activation
from penstock.hal import AccuracyClass

LEAST_LENGTH = 1e-6


def _check_l2(site: Site) -> AccuracyClass:
    require(len(site.shape()) >= 1, "a scalar has no axis")
    activation(site, ["NONE"])
    require(site.input().dtype is F32, "only float32 values are computed here")
    return "faithful"


@rule("L2_NORMALIZATION", check=_check_l2)
def emit_l2(graph: Graph, site: Site) -> None:
    x = graph.get(site.input_indexes[0])
    length = graph.node("ReduceL2", x, graph.whole([-1]), keepdims=1)
    graph.define(site, graph.node("Div", x, graph.node("Max", length, graph.number(LEAST_LENGTH))))


def _check_local(site: Site) -> AccuracyClass:
    require(len(site.shape()) == 4, "an image of another rank")
    require(site.operation.attributes.integer("radius") >= 0, "a negative radius")
    require(site.input().dtype is F32, "only float32 values are computed here")
    return "faithful"


@rule("LOCAL_RESPONSE_NORMALIZATION", check=_check_local)
def emit_local(graph: Graph, site: Site) -> None:
    """ONNX divides alpha by the number of neighbours."""
    attributes = site.operation.attributes
    size = 2 * attributes.integer("radius") + 1
    node = graph.node(
        "LRN",
        graph.get(site.input_indexes[0], first=True),
        size=size,
        alpha=attributes.number("alpha") * size,
        beta=float(attributes.number("beta")),
        bias=float(attributes.number("bias")),
    )
    graph.define(site, node, first=True)
