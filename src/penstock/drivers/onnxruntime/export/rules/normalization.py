"""L2_NORMALIZATION and LOCAL_RESPONSE_NORMALIZATION, along the last dimension."""

from __future__ import annotations

from penstock.driverkit.checks import LEAST_LENGTH, check_l2, check_local
from penstock.driverkit.site import Site
from penstock.drivers.onnxruntime.export.graph import Graph
from penstock.drivers.onnxruntime.export.rules.rule import rule


@rule("L2_NORMALIZATION", check=check_l2)
def emit_l2(graph: Graph, site: Site) -> None:
    x = graph.get(site.input_indexes[0])
    length = graph.node("ReduceL2", x, graph.whole([-1]), keepdims=1)
    graph.define(site, graph.node("Div", x, graph.node("Max", length, graph.number(LEAST_LENGTH))))


@rule("LOCAL_RESPONSE_NORMALIZATION", check=check_local)
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
