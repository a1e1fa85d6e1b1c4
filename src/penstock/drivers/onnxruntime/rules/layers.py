"""CONV_2D, DEPTHWISE_CONV_2D, TRANSPOSE_CONV, CONV_3D, FULLY_CONNECTED, BATCH_MATMUL, SOFTMAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.driverkit import checks
from penstock.driverkit.layout import TO_LAST, Values, channels_first, first_if_real, layout_of
from penstock.driverkit.site import QUANTIZED, Layout, Refused, Site, require
from penstock.drivers.onnxruntime.graph import MICROSOFT, Graph, Value, raised
from penstock.drivers.onnxruntime.rules.rule import rule
from penstock.hal import AccuracyClass
from penstock.ir import DType, NDArray


def _check_layer(site: Site) -> AccuracyClass:
    accuracy = checks.check_layer(site, "stepwise")
    data, bias = checks.layer_inputs(site)
    quantization = site.input(1).quantization
    if site.input(data).dtype is not checks.F32 and quantization is not None:
        require(min(quantization.scales) > 0, "a filter with a scale of zero")
        checks.one_scale(site.input(data))
    elif site.has(bias):
        require(len(site.input(bias).shape or ()) == 1, "a bias of another rank than 1")
    return accuracy


def real_weights(
    graph: Graph, site: Site, order: Sequence[int], shape: Sequence[int], channels: Sequence[int]
) -> Value:
    """The real filter at input 1, its dimensions in *order*, then reshaped to *shape*.

    A constant filter is laid out here. A quantised filter is dequantised, with one scale for each
    channel in the layout *channels*: here, or in a portable graph by a node, so that a provider
    sees the integers.
    """
    operand, known = site.input(1), site.constant(1)
    if known is None:
        known = graph.known(site.input_indexes[1])
    if known is None:
        return graph.reshape(graph.transpose(graph.get(site, 1), order), shape)
    value = np.ascontiguousarray(known.transpose(order).reshape(shape))
    if graph.portable and operand.dtype in QUANTIZED:
        axis = next((at for at, size in enumerate(channels) if size > 1), 0)
        return graph.node("DequantizeLinear", *stored_weights(graph, site, value), axis=axis)
    if operand.dtype is not checks.F32 and operand.quantization is not None:
        scales, zeros = checks.filter_scales(operand.quantization, channels, value.ndim)
        value = (value.astype(np.float32) - zeros) * scales
    return graph.constant(value)


def real_bias(graph: Graph, site: Site) -> list[Value]:
    """The real bias in a list, empty without one. An integer bias has the sums' scales."""
    _, bias = checks.layer_inputs(site)
    if not site.has(bias):
        return []
    if site.input(bias).dtype is checks.F32:
        return [graph.get(site, bias)]
    value = site.value(bias, "its bias").reshape(-1).astype(np.float32)
    return [graph.constant(value * checks.product_scales(site))]


def stored_weights(graph: Graph, site: Site, value: NDArray) -> tuple[Value, Value, Value]:
    """An 8-bit filter *value* with its scales and zero points. It is signed, which is fastest with
    unsigned data, or unsigned if the processor's products would saturate.
    """
    operand = site.input(1)
    if operand.dtype is DType.INT8 and graph.wide:
        value, shift = raised(value), 128
    elif operand.dtype is DType.UINT8 and not graph.wide:
        value, shift = (value ^ np.uint8(128)).view(np.int8), -128
    else:
        shift = 0
    quantization = operand.quantization
    if quantization is None:
        raise Refused("quantised weights without a scale")
    zeros = np.array(quantization.zero_points, np.int32) + shift
    scales = np.array(quantization.scales, np.float32)
    # One scale and zero point for the whole filter must be scalars.
    if not quantization.per_channel:
        zeros, scales = zeros.reshape(()), scales.reshape(())
    weights, steps = graph.constant(value), graph.constant(scales)
    return weights, steps, graph.constant(zeros.astype(value.dtype))


def stored_bias(site: Site, channels: int) -> NDArray:
    """The int32 bias; zeros if there is none."""
    if not site.has(2):
        return np.zeros(channels, np.int32)
    return site.value(2, "its bias").reshape(-1)


def rounded_up(site: Site, bias: NDArray) -> NDArray:
    """The int32 *bias*, one for each channel, with 1 added if this makes the sums round more like
    TFLite's. The greatest int32 stays: converters write it as a marker.

    TFLite's kernels multiply a sum by a 32-bit mantissa, shift it right, and round after both. So a
    sum 1 / (2 * mantissa) below the middle of two steps is rounded away from zero (Jacob et al.,
    "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
    section 2.2 and appendix B). ONNX Runtime's kernels multiply by a float and round once. If no
    result is below zero, adding 1 to the sum comes closer to TFLite's, since the mantissa is 0.5 to
    1. Otherwise it would move half of the results in the wrong direction.
    """
    output = site.output()
    scale, zero = checks.one_scale(output)
    ratio = checks.weight_scales(site) * (checks.one_scale(site.input())[0] / scale)
    if zero > np.iinfo(output.dtype.numpy).min:
        return bias
    is_lower = (np.frexp(ratio)[1] < 0) & (bias < np.iinfo(np.int32).max)
    return bias + is_lower.astype(np.int32)


@rule("CONV_2D", check=_check_layer, layout=first_if_real)
def emit_conv_2d(graph: Graph, site: Site) -> None:
    """Filter [out, height, width, in]. Grouped if `in` is less than the image's channels."""
    filters = site.shape(1)
    order, groups = (0, 3, 1, 2), site.shape()[3] // filters[3]
    shape = (filters[0], filters[3], *filters[1:3])
    _emit(graph, site, order, shape, groups)


@rule("DEPTHWISE_CONV_2D", check=_check_layer, layout=first_if_real)
def emit_depthwise_conv_2d(graph: Graph, site: Site) -> None:
    """Filter [1, height, width, out]: consecutive `out` belong to one input channel."""
    filters = site.shape(1)
    _emit(graph, site, (3, 0, 1, 2), (filters[3], 1, *filters[1:3]), site.shape()[3])


def _emit(
    graph: Graph, site: Site, order: Sequence[int], shape: Sequence[int], groups: int
) -> None:
    named, fused = attributes(checks.conv_windows(site), groups), site.activation
    if graph.portable or site.input().dtype not in QUANTIZED:
        x = graph.real(site)
        weights = real_weights(graph, site, order, shape, (shape[0], 1, 1, 1))
        node = graph.node("Conv", x, weights, *real_bias(graph, site), **named)
        graph.round(site, graph.activate(node, fused))
        return
    value = graph.model.constant(site.input(1)).transpose(order).reshape(shape)
    bias = stored_bias(site, shape[0])
    node = graph.node(
        "QLinearConv",
        graph.get(site),
        *graph.grid(site.input()),
        *stored_weights(graph, site, np.ascontiguousarray(value)),
        *graph.grid(site.output()),
        graph.constant(bias if graph.relaxed else rounded_up(site, bias)),
        domain=MICROSOFT,
        channels_last=1,
        **named,
    )
    graph.put(site, graph.limit(node, site.output(), fused))


def attributes(w: checks.Windows, groups: int = 1) -> dict[str, Any]:
    """A convolution's attributes."""
    return {
        "kernel_shape": w.extents,
        "strides": w.strides,
        "dilations": w.dilations,
        "pads": [*w.before, *w.after],
        "group": groups,
    }


def _check_transpose_conv(site: Site) -> AccuracyClass:
    accuracy = _check_layer(site)
    w, beyond = checks.transposed_windows(site)
    reached = all(b < s or b == 0 for b, s in zip(beyond, w.strides, strict=True))
    require(reached, "an output that goes beyond what its input reaches")
    return accuracy


def _transposed_layout(site: Site, _: Values) -> Layout:
    return layout_of(site, True, [2], outputs=not site.is_quantized)


@rule("TRANSPOSE_CONV", check=_check_transpose_conv, layout=_transposed_layout)
def emit_transpose_conv(graph: Graph, site: Site) -> None:
    """The gradient of a convolution with respect to its input: filter [out, height, width, in].
    Quantised data is computed in float32, because there is no integer kernel.
    """
    w, beyond = checks.transposed_windows(site)
    x = graph.real(site, 2)
    node = _transposed(graph, site, x, w, beyond, real_bias(graph, site))
    node = graph.activate(node, site.activation)
    graph.round(site, graph.transpose(node, TO_LAST[4]) if site.is_quantized else node)


def _transposed(
    graph: Graph, site: Site, x: Value, w: checks.Windows, beyond: list[int], bias: list[Value]
) -> Value:
    filters = site.shape(1)
    shape = (filters[3], filters[0], *filters[1:3])
    weights = real_weights(graph, site, (3, 0, 1, 2), shape, (1, filters[0], 1, 1))
    bounds = {"output_padding": beyond, **attributes(w)}
    return graph.node("ConvTranspose", x, weights, *bias, **bounds)


def _check_transpose_bias(site: Site) -> AccuracyClass:
    checks.require_floats(site)
    site.shapes()
    return "faithful"


@rule("CUSTOM:Convolution2DTransposeBias", check=_check_transpose_bias, layout=channels_first)
def emit_transpose_conv_bias(graph: Graph, site: Site) -> None:
    """MediaPipe's: filter [out, height, width, in], bias, SAME padding cropped on both sides."""
    x = graph.get(site)
    node = _transposed(graph, site, x, checks.cut_windows(site), [0, 0], [graph.get(site, 2)])
    graph.put(site, node)


def _check_conv_3d(site: Site) -> AccuracyClass:
    checks.require_floats(site)
    checks.activation(site)
    filters = site.shape(1)
    checks.windows(site, site.shape()[1:4], filters[:3], "dhw")
    require(site.shape()[4] == filters[3], "filter and volume of different channels")
    return "faithful"


@rule("CONV_3D", check=_check_conv_3d)
def emit_conv_3d(graph: Graph, site: Site) -> None:
    """Filter [depth, height, width, in, out]."""
    filters = site.shape(1)
    w = checks.windows(site, site.shape()[1:4], filters[:3], "dhw")
    shape = (filters[4], filters[3], *filters[:3])
    weights = real_weights(graph, site, (4, 3, 0, 1, 2), shape, ())
    x = graph.transpose(graph.get(site), (0, 4, 1, 2, 3))
    node = graph.node("Conv", x, weights, *real_bias(graph, site), **attributes(w))
    graph.put(site, graph.transpose(graph.activate(node, site.activation), (0, 2, 3, 4, 1)))


@rule("FULLY_CONNECTED", check=_check_layer)
def emit_fully_connected(graph: Graph, site: Site) -> None:
    """Rows of the input times the transposed weights [units, depth]."""
    units, depth = site.shape(1)
    real = graph.portable or site.input().dtype not in QUANTIZED
    x = graph.real(site) if real else graph.get(site)
    if len(site.shape()) != 2 or site.shape()[1] != depth:
        x = graph.reshape(x, (-1, depth))
    if not real:
        value = np.ascontiguousarray(graph.model.constant(site.input(1)).T)
        given = (x, *graph.grid(site.input()), *stored_weights(graph, site, value))
        bias = graph.constant(stored_bias(site, units))
        node = graph.node("QGemm", *given, bias, *graph.grid(site.output()), domain=MICROSOFT)
        node = graph.limit(node, site.output(), site.activation)
    else:
        weights = real_weights(graph, site, (0, 1), (units, depth), (units, 1))
        node = graph.node("Gemm", x, weights, *real_bias(graph, site), transB=1)
        node = graph.activate(node, site.activation)
    if len(site.output_shape()) != 2:
        node = graph.reshape(node, site.output_shape())
    if real:
        graph.round(site, node)
    else:
        graph.put(site, node)


def _check_batch_matmul(site: Site) -> AccuracyClass:
    site.shapes()
    return checks.activations(site)


@rule("BATCH_MATMUL", check=_check_batch_matmul)
def emit_batch_matmul(graph: Graph, site: Site) -> None:
    a, b = (_matrix(graph, site, p, name) for p, name in ((0, "adj_x"), (1, "adj_y")))
    if graph.portable or not site.is_quantized:
        graph.round(site, graph.node("MatMul", a, b))
        return
    one, other, made = map(graph.grid, (site.input(0), site.input(1), site.output()))
    graph.put(site, graph.node("QLinearMatMul", a, *one, b, *other, *made))


def _matrix(graph: Graph, site: Site, position: int, adjoint: str) -> Value:
    """Input *position*, transposed if the attribute *adjoint* is set."""
    value = graph.real(site, position) if graph.portable else graph.get(site, position)
    if not site.attributes.flag(adjoint):
        return value
    rank = len(site.shape(position))
    return graph.transpose(value, (*range(rank - 2), rank - 1, rank - 2))


@rule("SOFTMAX", check=checks.check_softmax)
def emit_softmax(graph: Graph, site: Site) -> None:
    x, beta = graph.real(site), site.attributes.number("beta")
    if beta != 1.0:
        x = graph.node("Mul", x, graph.number(beta))
    graph.round(site, graph.node("Softmax", x, axis=-1))


def _check_log_softmax(site: Site) -> AccuracyClass:
    """TFLite's 8-bit kernel computes in integers, which is up to six steps off the real result."""
    require(len(site.shape()) >= 1, "a scalar has no axis")
    return checks.activations(site, quantized="relaxed")


@rule("LOG_SOFTMAX", check=_check_log_softmax)
def emit_log_softmax(graph: Graph, site: Site) -> None:
    graph.round(site, graph.node("LogSoftmax", graph.real(site), axis=-1))
