"""FULLY_CONNECTED, BATCH_MATMUL, SOFTMAX and LOG_SOFTMAX."""

from __future__ import annotations

import numpy as np

from penstock.driverkit.checks import require_rows
from penstock.driverkit.site import QUANTIZED, Site, require
from penstock.driverkit.types import activation, activations, require_shares
from penstock.drivers.onnxruntime.export.graph import ACTIVATIONS, MICROSOFT, Graph, Value
from penstock.drivers.onnxruntime.export.rules.layers import (
    check_layer,
    real_bias,
    real_weights,
    stored_bias,
    stored_weights,
)
from penstock.drivers.onnxruntime.export.rules.rule import rule
from penstock.hal import AccuracyClass


def _check_fully_connected(site: Site) -> AccuracyClass:
    require_rows(site)
    return check_layer(site)


@rule("FULLY_CONNECTED", check=_check_fully_connected)
def emit_fully_connected(graph: Graph, site: Site) -> None:
    """Rows of the input times the transposed weights [units, depth]."""
    units, depth = site.shape(1)
    index, fused = site.input_indexes[0], activation(site, ACTIVATIONS)
    real = graph.portable or site.input().dtype not in QUANTIZED
    x = graph.real(index) if real else graph.get(index)
    if len(site.shape()) != 2 or site.shape()[1] != depth:
        x = graph.reshape(x, (-1, depth))
    if not real:
        value = np.ascontiguousarray(graph.model.constant(site.input(1)).T)
        node = graph.node(
            "QGemm",
            x,
            *graph.grid(site.input()),
            *stored_weights(graph, site, 1, value),
            graph.constant(stored_bias(site, 2, units)),
            *graph.grid(site.output()),
            domain=MICROSOFT,
        )
        node = graph.limit(node, site.output(), fused)
    else:
        weights = real_weights(graph, site, 1, (0, 1), (units, depth), (units, 1))
        node = graph.node("Gemm", x, weights, *real_bias(graph, site), transB=1)
        node = graph.activate(node, fused)
    if len(site.output_shape()) != 2:
        node = graph.reshape(node, site.output_shape())
    if real:
        graph.round(site, node)
    else:
        graph.define(site, node)


def _check_batch_matmul(site: Site) -> AccuracyClass:
    site.shape(0), site.shape(1)
    return activations(site)


@rule("BATCH_MATMUL", check=_check_batch_matmul)
def emit_batch_matmul(graph: Graph, site: Site) -> None:
    attributes = site.operation.attributes
    a, b = (
        _matrix(graph, site, position, turned=attributes.flag(name))
        for position, name in ((0, "adj_x"), (1, "adj_y"))
    )
    if graph.portable or not site.is_quantized:
        graph.round(site, graph.node("MatMul", a, b))
        return
    node = graph.node(
        "QLinearMatMul",
        a,
        *graph.grid(site.input(0)),
        b,
        *graph.grid(site.input(1)),
        *graph.grid(site.output()),
    )
    graph.define(site, node)


def _matrix(graph: Graph, site: Site, position: int, *, turned: bool) -> Value:
    index = site.input_indexes[position]
    value = graph.real(index) if graph.portable else graph.get(index)
    if not turned:
        return value
    rank = len(site.shape(position))
    return graph.transpose(value, (*range(rank - 2), rank - 1, rank - 2))


def _check_softmax(site: Site) -> AccuracyClass:
    require(len(site.shape()) >= 1, "a scalar has no axis")
    if site.is_quantized:
        require_shares(site.output())
    return activations(site, quantized="faithful")


@rule("SOFTMAX", check=_check_softmax)
def emit_softmax(graph: Graph, site: Site) -> None:
    x, beta = graph.real(site.input_indexes[0]), site.operation.attributes.number("beta")
    if beta != 1.0:
        x = graph.node("Mul", x, graph.number(beta))
    graph.round(site, graph.node("Softmax", x, axis=-1))


def _check_log_softmax(site: Site) -> AccuracyClass:
    """Of 8 bits TFLite's kernel computes in whole numbers, which is up to six steps off."""
    require(len(site.shape()) >= 1, "a scalar has no axis")
    return activations(site, quantized="relaxed")


@rule("LOG_SOFTMAX", check=_check_log_softmax)
def emit_log_softmax(graph: Graph, site: Site) -> None:
    graph.round(site, graph.node("LogSoftmax", graph.real(site.input_indexes[0]), axis=-1))
