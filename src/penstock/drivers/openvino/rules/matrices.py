"""FULLY_CONNECTED, BATCH_MATMUL and SOFTMAX."""

from __future__ import annotations

from penstock.driverkit.checks import require_rows
from penstock.driverkit.site import Site, require
from penstock.driverkit.types import F32, activation, activations, one_scale, require_shares
from penstock.drivers.openvino.graph import ACTIVATIONS, Graph
from penstock.drivers.openvino.rules.convolution import add_bias, check_layer
from penstock.drivers.openvino.rules.rule import rule
from penstock.hal import AccuracyClass
from penstock.ir import DType


def _check_fully_connected(site: Site) -> AccuracyClass:
    require_rows(site)
    return check_layer(site)


@rule("FULLY_CONNECTED", check=_check_fully_connected)
def emit_fully_connected(graph: Graph, site: Site) -> None:
    """Rows of the input times the transposed weights [units, depth]."""
    units, depth = site.shape(1)
    weights = graph.weights(site, 1, (0, 1), (units, depth), (units, 1))
    x, rows = graph.get(site.input_indexes[0]), -1
    if len(site.shape()) != 2 or site.shape()[1] != depth:
        x = graph.reshape(x, (rows, depth))
    node = graph.op.matmul(x, weights, False, True)
    node = add_bias(graph, site, node, (1, units))
    if len(site.output_shape()) != 2:
        node = graph.reshape(node, site.output_shape())
    graph.define(site, graph.activate(node, activation(site, ACTIVATIONS)))


def _check_batch_matmul(site: Site) -> AccuracyClass:
    site.shape(0), site.shape(1)
    if site.input(0).dtype is DType.INT16:
        return _check_wide(site)
    require(all(site.input(p).dtype is F32 for p in (0, 1)), "only float32 matrices are multiplied")
    return activations(site)


def _check_wide(site: Site) -> AccuracyClass:
    """Int16 rows times a constant int8 matrix of one scale."""
    matrix = site.input(1)
    if matrix.dtype is not DType.INT8 or site.output().dtype is not DType.INT16:
        site.refuse_types()
    site.value(1, "its quantised matrix")
    require(
        matrix.quantization is None or not matrix.quantization.per_channel,
        "TFLite takes the scale of a matrix with one a channel for 0",
    )
    for operand in (site.input(0), matrix, site.output()):
        one_scale(operand)
    return "relaxed"


@rule("BATCH_MATMUL", check=_check_batch_matmul)
def emit_batch_matmul(graph: Graph, site: Site) -> None:
    a, b = (graph.get(i) for i in site.input_indexes)
    attributes = site.operation.attributes
    node = graph.op.matmul(a, b, attributes.flag("adj_x"), attributes.flag("adj_y"))
    graph.define(site, node)


def _check_softmax(site: Site) -> AccuracyClass:
    require(len(site.shape()) >= 1, "a scalar has no axis")
    if site.is_quantized:
        require_shares(site.output())
    return activations(site, quantized="faithful")


@rule("SOFTMAX", check=_check_softmax)
def emit_softmax(graph: Graph, site: Site) -> None:
    x, beta = graph.get(site.input_indexes[0]), site.operation.attributes.number("beta")
    if beta != 1.0:
        x = graph.op.multiply(x, graph.number(beta))
    graph.define(site, graph.op.softmax(x, len(site.shape()) - 1))
