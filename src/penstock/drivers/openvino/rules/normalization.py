"""L2_NORMALIZATION and LOCAL_RESPONSE_NORMALIZATION, along the last dimension."""

from __future__ import annotations

from penstock.driverkit.checks import LEAST_LENGTH, check_l2, check_local
from penstock.driverkit.site import Site, require
from penstock.drivers.openvino.graph import Graph
from penstock.drivers.openvino.rules.rule import rule
from penstock.hal import AccuracyClass


@rule("L2_NORMALIZATION", check=check_l2)
def emit_l2(graph: Graph, site: Site) -> None:
    axis = graph.whole([len(site.shape()) - 1])
    x = graph.get(site.input_indexes[0])
    length = graph.op.sqrt(graph.op.reduce_sum(graph.op.multiply(x, x), axis, True))
    graph.define(site, graph.op.divide(x, graph.op.maximum(length, graph.number(LEAST_LENGTH))))


def _check_local(site: Site) -> AccuracyClass:
    require(site.operation.attributes.number("bias") > 0, "a bias that is not positive")
    return check_local(site)


@rule("LOCAL_RESPONSE_NORMALIZATION", check=_check_local)
def emit_local(graph: Graph, site: Site) -> None:
    """OpenVINO divides alpha by the number of neighbours, and (2026.4, on the CPU) takes every bias
    for 1: so x / (bias + alpha s)**beta is bias**-beta x / (1 + alpha / bias s)**beta.
    """
    attributes = site.operation.attributes
    size = 2 * attributes.integer("radius") + 1
    bias, beta = attributes.number("bias"), float(attributes.number("beta"))
    node = graph.op.lrn(
        graph.get(site.input_indexes[0], first=True),
        graph.whole([1]),
        alpha=attributes.number("alpha") / bias * size,
        beta=beta,
        bias=1.0,
        size=size,
    )
    if bias != 1.0:
        node = graph.op.multiply(node, graph.number(bias**-beta))
    graph.define(site, node, first=True)
