"""What convolutions and FULLY_CONNECTED share: the check of their types, integer weights, biases,
requantisation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.driverkit.site import QUANTIZED, Refused, Site, require
from penstock.driverkit.types import F32, activation, activations, one_scale, one_scale_a_channel
from penstock.drivers.onnxruntime.export.graph import ACTIVATIONS, Graph, Value, raised
from penstock.hal import AccuracyClass
from penstock.ir import DType, NDArray


def check_layer(site: Site, *, data: int = 0, weights: int = 1, bias: int = 2) -> AccuracyClass:
    """The class of a layer: all float32; 8-bit data with constant 8-bit weights and a constant
    int32 bias; or float32 data with constant 8-bit weights, which are dequantised where TFLite
    quantises the data as it runs.
    """
    activation(site, ACTIVATIONS)
    accuracy = activations(site, [data])
    kind = site.input(weights).dtype
    if site.input(data).dtype is not F32:
        _check_quantized(site, data, weights, bias)
        return accuracy
    if site.has(bias):
        require(site.input(bias).dtype is F32, "a bias that is not float32")
        require(len(site.input(bias).shape or ()) == 1, "a bias of another rank than 1")
    if kind is F32:
        return accuracy
    require(kind in QUANTIZED, f"{kind.value} weights beside float32 values are not computed here")
    site.value(weights, "its quantised filter")
    require(site.input(weights).quantization is not None, "quantised weights without a scale")
    one_scale_a_channel(site, weights)
    return "relaxed"


def _check_quantized(site: Site, data: int, weights: int, bias: int) -> None:
    site.value(weights, "its quantised filter")
    operand = site.input(weights)
    if operand.dtype not in QUANTIZED:
        site.refuse_types()
    quantization = operand.quantization
    require(quantization is not None, "quantised weights without a scale")
    if quantization is not None:
        require(min(quantization.scales) > 0, "a filter with a scale of zero")
    one_scale_a_channel(site, weights)
    one_scale(site.input(data))
    if site.has(bias):
        site.value(bias, "its quantised bias")
        require(site.input(bias).dtype is DType.INT32, "a bias that is not int32")


def real_weights(
    graph: Graph, site: Site, position: int, order: Sequence[int], shape: Sequence[int], channels: Sequence[int]
) -> Value:  # fmt: skip
    """The filter at input *position*, real, its dimensions taken in *order* and then laid out as
    *shape*.

    A constant one is laid out here; a quantised one is dequantised, its scales one a channel in the
    layout *channels*: here, or in the graph where that is portable, so that a provider sees its
    integers.
    """
    index, operand = site.input_indexes[position], site.input(position)
    known = graph.model.constant(operand) if operand.is_constant else graph.known(index)
    if known is None:
        return graph.reshape(graph.transpose(graph.get(index), order), shape)
    value = np.ascontiguousarray(known.transpose(order).reshape(shape))
    if graph.portable and operand.dtype in QUANTIZED:
        axis = next((at for at, size in enumerate(channels) if size > 1), 0)
        given = stored_weights(graph, site, position, value)
        return graph.node("DequantizeLinear", *given, axis=axis)
    return graph.constant(_dequantized(value, site, position, channels))


def _dequantized(value: NDArray, site: Site, position: int, channels: Sequence[int]) -> NDArray:
    quantization = site.input(position).quantization
    if site.input(position).dtype is F32 or quantization is None:
        return value
    places = tuple(channels) if quantization.per_channel else (1,) * value.ndim
    zeros = np.array(quantization.zero_points, np.float32).reshape(places)
    real: NDArray = (value.astype(np.float32) - zeros) * np.array(
        quantization.scales, np.float32
    ).reshape(places)
    return real


def real_bias(
    graph: Graph, site: Site, *, data: int = 0, weights: int = 1, bias: int = 2
) -> list[Value]:
    """The bias as a list of one real value, or none; an integer one in steps of input scale times
    weight scale.
    """
    if not site.has(bias):
        return []
    operand = site.input(bias)
    if operand.dtype is F32:
        return [graph.get(site.input_indexes[bias])]
    steps = weight_scales(site, weights) * np.float32(one_scale(site.input(data))[0])
    value = site.value(bias, "its bias").reshape(-1).astype(np.float32)
    return [graph.constant(value * steps)]


def weight_scales(site: Site, weights: int) -> NDArray:
    """The scales of a filter: one, or one a channel."""
    quantization = site.input(weights).quantization
    return np.array(quantization.scales if quantization else (1.0,), np.float32)


def stored_weights(
    graph: Graph, site: Site, position: int, value: NDArray
) -> tuple[Value, Value, Value]:
    """An 8-bit filter *value*, laid out, with its scales and zero points: signed, since that is
    fastest beside unsigned data, or unsigned where the processor's products would saturate.
    """
    operand = site.input(position)
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
    # One pair stands for the whole filter only as a scalar.
    if not quantization.per_channel:
        zeros, scales = zeros.reshape(()), scales.reshape(())
    names = (graph.constant(v) for v in (value, scales, zeros.astype(value.dtype)))
    weights, steps, offsets = names
    return weights, steps, offsets


def stored_bias(site: Site, bias: int, channels: int) -> NDArray:
    """The int32 bias; zeros where there is none."""
    if not site.has(bias):
        return np.zeros(channels, np.int32)
    return site.value(bias, "its bias").reshape(-1)


def rounded_up(site: Site, bias: NDArray) -> NDArray:
    """*bias*, int32, one for each channel, with what is added to the sums of a convolution, so that
    they are rounded more like TFLite's. The largest there is stays: converters write it for what
    they cannot say.

    TFLite's kernels multiply a sum by a 32-bit mantissa and shift it to the right, and round after
    both: a sum that is 1 / (2 * mantissa) below the middle of two steps goes up, or down below zero
    (Jacob et al., "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference", section 2.2 and appendix B). ONNX Runtime's kernels multiply
    by a float and round once. Where no result is below zero, a sum of one more is nearer to that:
    the mantissa is 0.5 to 1. Where some are, it would move half of them away.
    """
    output = site.output()
    scale, zero = one_scale(output)
    ratio = weight_scales(site, 1) * (one_scale(site.input())[0] / scale)
    if zero > np.iinfo(output.dtype.numpy).min:
        return bias
    is_lower = (np.frexp(ratio)[1] < 0) & (bias < np.iinfo(np.int32).max)
    return bias + is_lower.astype(np.int32)
