"""CONV_2D, DEPTHWISE_CONV_2D, TRANSPOSE_CONV and CONV_3D."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.driverkit.checks import Windows, cut_windows, transposed_windows, windows
from penstock.driverkit.site import QUANTIZED, Site, require
from penstock.driverkit.types import F32, activation
from penstock.drivers.onnxruntime.export.graph import (
    ACTIVATIONS,
    MICROSOFT,
    TO_LAST,
    Graph,
    Value,
)
from penstock.drivers.onnxruntime.export.rules.layers import (
    check_layer,
    real_bias,
    real_weights,
    rounded_up,
    stored_bias,
    stored_weights,
)
from penstock.drivers.onnxruntime.export.rules.rule import rule
from penstock.hal import AccuracyClass


def _check_conv(site: Site) -> AccuracyClass:
    image, filters = site.shape(0), site.shape(1)
    site.output_shape()
    windows(site, image[1:3], filters[1:3])
    return check_layer(site)


@rule("CONV_2D", check=_check_conv)
def emit_conv_2d(graph: Graph, site: Site) -> None:
    """Filter [out, height, width, in]; of fewer `in` than the image has channels, a group each."""
    filters = site.shape(1)
    order, groups = (0, 3, 1, 2), site.shape()[3] // filters[3]
    shape = (filters[0], filters[3], *filters[1:3])
    _emit(graph, site, order, shape, groups)


@rule("DEPTHWISE_CONV_2D", check=_check_conv)
def emit_depthwise_conv_2d(graph: Graph, site: Site) -> None:
    """Filter [1, height, width, out]: consecutive `out` belong to one input channel."""
    filters = site.shape(1)
    _emit(graph, site, (3, 0, 1, 2), (filters[3], 1, *filters[1:3]), site.shape()[3])


def _emit(
    graph: Graph, site: Site, order: Sequence[int], shape: Sequence[int], groups: int
) -> None:
    image, fused = site.shape(), activation(site, ACTIVATIONS)
    w = windows(site, image[1:3], shape[2:])
    named = attributes(w, shape[2:], groups)
    if graph.portable or site.input().dtype not in QUANTIZED:
        x = graph.real(site.input_indexes[0], first=True)
        weights = real_weights(graph, site, 1, order, shape, (shape[0], 1, 1, 1))
        node = graph.node("Conv", x, weights, *real_bias(graph, site), **named)
        graph.round(site, graph.activate(node, fused), first=True)
        return
    value = graph.model.constant(site.input(1)).transpose(order).reshape(shape)
    bias = stored_bias(site, 2, shape[0])
    node = graph.node(
        "QLinearConv",
        graph.get(site.input_indexes[0]),
        *graph.grid(site.input()),
        *stored_weights(graph, site, 1, np.ascontiguousarray(value)),
        *graph.grid(site.output()),
        graph.constant(bias if graph.relaxed else rounded_up(site, bias)),
        domain=MICROSOFT,
        channels_last=1,
        **named,
    )
    graph.define(site, graph.limit(node, site.output(), fused))


def attributes(w: Windows, extents: Sequence[int], groups: int = 1) -> dict[str, Any]:
    """A convolution's attributes."""
    return {
        "kernel_shape": list(extents),
        "strides": w.strides,
        "dilations": w.dilations,
        "pads": [*w.before, *w.after],
        "group": groups,
    }


def _check_transpose_conv(site: Site) -> AccuracyClass:
    site.integers(0, "its output shape")
    image, filters = site.shape(2), site.shape(1)
    windows(site, site.output_shape()[1:3], filters[1:3])
    require(filters[3] == image[3], "filter and image of different channels")
    w, beyond = transposed_windows(site)
    require(
        all(b < s or b == 0 for b, s in zip(beyond, w.strides, strict=True)),
        "an output that goes beyond what its input reaches",
    )
    return check_layer(site, data=2, weights=1, bias=3)


@rule("TRANSPOSE_CONV", check=_check_transpose_conv)
def emit_transpose_conv(graph: Graph, site: Site) -> None:
    """The gradient of a convolution over the output: filter [out, height, width, in]. Quantised
    data is computed real: there is no integer kernel.
    """
    w, beyond = transposed_windows(site)
    x = graph.real(site.input_indexes[2], first=True)
    node = _transposed(graph, site, x, w, beyond, real_bias(graph, site, data=2, bias=3))
    node = graph.activate(node, activation(site, ACTIVATIONS))
    if site.is_quantized:
        graph.round(site, graph.transpose(node, TO_LAST))
    else:
        graph.round(site, node, first=True)


def _transposed(
    graph: Graph, site: Site, x: Value, w: Windows, beyond: list[int], bias: list[Value]
) -> Value:
    filters = site.shape(1)
    shape = (filters[3], filters[0], *filters[1:3])
    weights = real_weights(graph, site, 1, (3, 0, 1, 2), shape, (1, filters[0], 1, 1))
    named = attributes(w, filters[1:3])
    return graph.node("ConvTranspose", x, weights, *bias, output_padding=beyond, **named)


def _check_transpose_bias(site: Site) -> AccuracyClass:
    require(all(o.dtype is F32 for o in (*site.inputs, *site.outputs) if o), "only float32")
    site.shape(0), site.shape(1), site.shape(2), site.output_shape()
    return "faithful"


@rule("CUSTOM:Convolution2DTransposeBias", check=_check_transpose_bias)
def emit_transpose_conv_bias(graph: Graph, site: Site) -> None:
    """MediaPipe's: filter [out, height, width, in], a bias, SAME padding cut off both sides."""
    x = graph.get(site.input_indexes[0], first=True)
    node = _transposed(
        graph, site, x, cut_windows(site), [0, 0], [graph.get(site.input_indexes[2])]
    )
    graph.define(site, node, first=True)


def _check_conv_3d(site: Site) -> AccuracyClass:
    require(all(o.dtype is F32 for o in (*site.inputs, *site.outputs) if o), "only float32")
    activation(site, ACTIVATIONS)
    filters = site.shape(1)
    windows(site, site.shape()[1:4], filters[:3], "dhw")
    require(site.shape()[4] == filters[3], "filter and volume of different channels")
    return "faithful"


@rule("CONV_3D", check=_check_conv_3d)
def emit_conv_3d(graph: Graph, site: Site) -> None:
    """Filter [depth, height, width, in, out]."""
    filters = site.shape(1)
    w = windows(site, site.shape()[1:4], filters[:3], "dhw")
    shape = (filters[4], filters[3], *filters[:3])
    weights = real_weights(graph, site, 1, (4, 3, 0, 1, 2), shape, ())
    x = graph.transpose(graph.get(site.input_indexes[0]), (0, 4, 1, 2, 3))
    node = graph.node("Conv", x, weights, *real_bias(graph, site), **attributes(w, filters[:3]))
    node = graph.activate(node, activation(site, ACTIVATIONS))
    graph.define(site, graph.transpose(node, (0, 2, 3, 4, 1)))
