"""CONV_2D, DEPTHWISE_CONV_2D, TRANSPOSE_CONV, FULLY_CONNECTED, BATCH_MATMUL and SOFTMAX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from penstock.driverkit import checks
from penstock.driverkit.layout import Values, channels_first, layout_of
from penstock.driverkit.site import Layout, Site, require
from penstock.drivers.openvino.graph import Graph, Node, Padded, is_above_zero
from penstock.drivers.openvino.rules.rounding import NOTHING, away_from_zero, rounded_twice
from penstock.drivers.openvino.rules.rule import rule
from penstock.hal import AccuracyClass
from penstock.ir import DType, NDArray
from penstock.ir.operations.custom_options import transpose_conv_bias

MUCH: Final = 1 << 30
"""The least bias for which the range of sums is computed."""


def _check_layer(site: Site) -> AccuracyClass:
    accuracy = checks.check_layer(site, "faithful")
    if not site.is_quantized:
        return accuracy
    data, bias = checks.layer_inputs(site)
    checks.one_scale(site.input(data))
    if site.has(bias):
        largest = int(np.abs(site.value(bias, "its bias").astype(np.int64)).max(initial=0))
        if largest >= MUCH:
            products = np.abs(site.value(1, "its filter").astype(np.int64)).sum() * 255
            wraps = largest + products >= 1 << 31
            require(not wraps, "sums of more than 32 bits, which TFLite wraps around")
    # OpenVINO adds products of weights with a zero point as float32, which rounds the sums.
    return accuracy if site.input(1).dtype is DType.INT8 else "stepwise"


def add_bias(graph: Graph, site: Site, node: Node, shape: tuple[int, ...]) -> Node:
    """*node* plus the bias in *shape*. An integer bias is in steps of `product_scales`."""
    _, bias = checks.layer_inputs(site)
    if not site.has(bias):
        return node
    operand = site.input(bias)
    if not operand.is_constant:
        return graph.op.add(node, graph.reshape(graph.get(site, bias), shape))
    value = site.value(bias, "its bias").reshape(-1)
    if operand.dtype is not checks.F32:
        value = value.astype(np.float32) * checks.product_scales(site)
    return graph.op.add(node, graph.constant(value.reshape(shape)))


def finish(graph: Graph, site: Site, node: Node) -> None:
    """Adds bias and activation, and names the output of a convolution, channels first."""
    shape = (1, site.output_shape()[3], 1, 1)
    node = add_bias(graph, site, node, shape)
    node, raised = activated(graph, site, node, shape)
    graph.define(site, node, raised=raised)


def activated(graph: Graph, site: Site, node: Node, shape: tuple[int, ...]) -> tuple[Node, NDArray]:
    """The sums of a layer after its activation, and an offset to add before rounding, so that they
    round as TFLite's. *shape* has their channels.
    """
    fused = site.activation
    # Below zero, the offset takes up to a third of the layer's time, and corrects one step in one
    # of a thousand values.
    if not site.is_quantized or not is_above_zero(site.output()):
        return graph.activate(node, fused), NOTHING
    ratio = checks.product_scales(site) / np.float64(checks.one_scale(site.output())[0])
    distance = rounded_twice(site, np.broadcast_to(ratio, math.prod(shape))).reshape(shape)
    if _is_grouped(site):
        node = graph.op.add(node, graph.constant(distance)) if distance.any() else node
        return graph.activate(node, fused), NOTHING
    return away_from_zero(graph, site, node, distance, fused)


def _is_grouped(site: Site) -> bool:
    """Whether each filter reads only some of the channels.

    Behind such a layer OpenVINO (2026.4) may fail or crash on adjusted sums, and on limits that
    differ by channel.
    """
    if site.operation.type == "DEPTHWISE_CONV_2D":
        return True
    return site.operation.type == "CONV_2D" and site.shape(0)[3] != site.shape(1)[3]


def _windowed(graph: Graph, site: Site, weights: Node) -> tuple[Any, ...]:
    """The arguments of a convolution with *weights*: the image channels first, and its windows.
    Their padding includes that of a preceding PAD: OpenVINO would copy the image for it.
    """
    w, image = (
        checks.conv_windows(site),
        graph.padded.get(site.input_indexes[0], Padded(site.input_indexes[0])),
    )
    before = [a + b for a, b in zip(w.before, image.before, strict=True)]
    after = [a + b for a, b in zip(w.after, image.after, strict=True)]
    return graph.read(image.source, first=True), weights, w.strides, before, after, w.dilations


def _check_conv(site: Site) -> AccuracyClass:
    accuracy, filters = _check_layer(site), site.input(1)
    if site.is_quantized and filters.dtype is DType.UINT8 and filters.quantization is not None:
        bare = not any(filters.quantization.zero_points)
        fits = not bare or checks.one_scale(site.input())[1] == 0
        reason = "OpenVINO has no kernel for a filter without a zero point on an image with one"
        require(fits, reason)
    return _of_pictures(site, accuracy)


def _of_pictures(site: Site, accuracy: AccuracyClass) -> AccuracyClass:
    """The accuracy class of a layer on images.

    Quantised sums near the middle of two steps sometimes round to the other step. In a deep network
    this error may exceed LiteRT's own.
    """
    return "stepwise" if site.is_quantized else accuracy


@rule("CONV_2D", check=_check_conv, layout=channels_first)
def emit_conv_2d(graph: Graph, site: Site) -> None:
    """Filter [out, height, width, in]. Grouped if `in` is less than the image's channels."""
    image, filters = site.shape(0), site.shape(1)
    outputs, groups = filters[0], image[3] // filters[3]
    split = (outputs,) if groups == 1 else (groups, outputs // groups)
    inner, places = (filters[3], *filters[1:3]), (*split, 1, 1, 1)
    weights = graph.weights(site, (0, 3, 1, 2), (*split, *inner), places)
    convolve = graph.op.convolution if groups == 1 else graph.op.group_convolution
    finish(graph, site, convolve(*_windowed(graph, site, weights)))


@rule("DEPTHWISE_CONV_2D", check=_check_conv, layout=channels_first)
def emit_depthwise_conv_2d(graph: Graph, site: Site) -> None:
    """Filter [1, height, width, out]: consecutive `out` belong to one input channel."""
    image, filters = site.shape(0), site.shape(1)
    channels = (image[3], filters[3] // image[3], 1)
    weights = graph.weights(site, (3, 0, 1, 2), (*channels, *filters[1:3]), (*channels, 1, 1))
    finish(graph, site, graph.op.group_convolution(*_windowed(graph, site, weights)))


def _check_transpose_conv(site: Site) -> AccuracyClass:
    accuracy = _check_layer(site)
    # OpenVINO uses its integer kernel only for images whose zero point is 0. Some of its results
    # are wrong by hundreds of steps.
    bare = site.is_quantized and checks.one_scale(site.input(2))[1] == 0
    require(not bare, "OpenVINO computes images of 8 bits whose zero point is 0 wrongly")
    return _of_pictures(site, accuracy)


def _transposed_layout(site: Site, _: Values) -> Layout:
    return layout_of(site, True, [2])


@rule("TRANSPOSE_CONV", check=_check_transpose_conv, layout=_transposed_layout)
def emit_transpose_conv(graph: Graph, site: Site) -> None:
    """The gradient of a convolution with respect to its input: filter [out, height, width, in]."""
    node = _transposed(graph, site, 2, *checks.transposed_windows(site))
    finish(graph, site, node)


def _transposed(
    graph: Graph, site: Site, data: int, w: checks.Windows, beyond: Sequence[int]
) -> Node:
    """The gradient with filter [out, height, width, in] at input 1 and output padding *beyond*."""
    filters = site.shape(1)
    shape = (filters[3], filters[0], *filters[1:3])
    weights = graph.weights(site, (3, 0, 1, 2), shape, (1, filters[0], 1, 1))
    return graph.op.convolution_backprop_data(
        graph.get(site, data),
        weights,
        strides=w.strides,
        pads_begin=w.before,
        pads_end=w.after,
        dilations=w.dilations,
        output_padding=list(beyond),
    )


def _check_transpose_bias(site: Site) -> AccuracyClass:
    checks.require_floats(site)
    image, filters, output = site.shape(), site.shape(1), site.output_shape()
    options = transpose_conv_bias(site.attributes)
    require(filters[3] == image[3], "filter and image of different channels")
    for axis, stride in ((1, options.stride_h), (2, options.stride_w)):
        spread = (image[axis] - 1) * stride + filters[axis]
        require(output[axis] <= spread, "an output larger than what its filter reaches")
    return "faithful"


@rule("CUSTOM:Convolution2DTransposeBias", check=_check_transpose_bias, layout=channels_first)
def emit_transpose_conv_bias(graph: Graph, site: Site) -> None:
    """MediaPipe's: filter [out, height, width, in], bias, SAME padding cropped on both sides."""
    node = _transposed(graph, site, 0, checks.cut_windows(site), [0, 0])
    node = add_bias(graph, site, node, (1, site.output_shape()[3], 1, 1))
    graph.define(site, node)


@rule("FULLY_CONNECTED", check=_check_layer)
def emit_fully_connected(graph: Graph, site: Site) -> None:
    """Rows of the input times the transposed weights [units, depth]."""
    units, depth = site.shape(1)
    weights = graph.weights(site, (0, 1), (units, depth), (units, 1))
    x = graph.get(site)
    if len(site.shape()) != 2 or site.shape()[1] != depth:
        x = graph.reshape(x, (-1, depth))
    node = graph.op.matmul(x, weights, False, True)
    node = add_bias(graph, site, node, (1, units))
    if len(site.output_shape()) != 2:
        node = graph.reshape(node, site.output_shape())
    graph.define(site, graph.activate(node, site.activation))


def _check_batch_matmul(site: Site) -> AccuracyClass:
    site.shapes()
    if site.input(0).dtype is DType.INT16:
        return _check_wide(site)
    real = all(site.input(p).dtype is checks.F32 for p in (0, 1))
    require(real, "only float32 matrices are multiplied")
    return checks.activations(site)


def _check_wide(site: Site) -> AccuracyClass:
    """Int16 rows times a constant int8 matrix of one scale."""
    matrix = site.input(1)
    if matrix.dtype is not DType.INT8 or site.output().dtype is not DType.INT16:
        site.refuse_types()
    site.value(1, "its quantised matrix")
    one = matrix.quantization is None or not matrix.quantization.per_channel
    require(one, "TFLite takes the scale of a matrix with one a channel for 0")
    for operand in (site.input(0), matrix, site.output()):
        checks.one_scale(operand)
    return "relaxed"


@rule("BATCH_MATMUL", check=_check_batch_matmul)
def emit_batch_matmul(graph: Graph, site: Site) -> None:
    a, b = (graph.get(site, position) for position in (0, 1))
    adjoint = (site.attributes.flag(name) for name in ("adj_x", "adj_y"))
    graph.define(site, graph.op.matmul(a, b, *adjoint))


@rule("SOFTMAX", check=checks.check_softmax)
def emit_softmax(graph: Graph, site: Site) -> None:
    x, beta = graph.get(site), site.attributes.number("beta")
    if beta != 1.0:
        x = graph.op.multiply(x, graph.number(beta))
    graph.define(site, graph.op.softmax(x, len(site.shape()) - 1))
