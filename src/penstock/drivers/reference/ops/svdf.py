"""SVDF: a fully connected layer over a sliding memory, its weights factored into features and time.

The state holds the last `memory` values of each filter, oldest first: [batch, filters * memory].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from penstock.drivers.reference.ops.activation_range import (
    activation_bounds,
    clamp_in_place,
    quantized_range,
)
from penstock.drivers.reference.ops.fixed_point import (
    multiply_by_quantized_multiplier,
    quantize_multiplier,
)
from penstock.drivers.reference.ops.hybrid import (
    NARROW,
    quantize_rows,
    weight_scales,
    weight_values,
)
from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel, tensor_quantization
from penstock.drivers.reference.ops.weights import flattened, given
from penstock.ir import DType, NDArray

Inputs: TypeAlias = Sequence[NDArray | None]
Feature: TypeAlias = Callable[[NDArray, NDArray], NDArray]
"""Inputs and feature weights to the newest value of each filter: [batch, filters]."""


@kernel("SVDF")
def svdf(site: Site) -> Kernel:
    """Float, hybrid, and integer with int8 inputs and an int16 or int8 state."""
    source, features, state = site.input(0), site.input(1), site.input(4)
    if source.dtype is state.dtype is DType.FLOAT32 and features.dtype is DType.FLOAT32:
        return _real(site, lambda inputs, weights: np.matmul(inputs, weights.T))
    if source.dtype is state.dtype is DType.FLOAT32 and features.dtype in NARROW:
        return _real(site, _hybrid_feature(site))
    if source.dtype is DType.INT8 and state.dtype in {DType.INT8, DType.INT16}:
        return _integer(site)
    raise site.unsupported_types()


def _slide(state: NDArray, newest: NDArray, memory: int) -> NDArray:
    """The state [batch, filters, memory] with the oldest values gone and *newest* behind."""
    batch, filters = newest.shape
    before = state.reshape(batch, filters, memory)
    return np.concatenate([before[:, :, 1:], newest[:, :, None].astype(state.dtype)], axis=2)


def _real(site: Site, feature: Feature) -> Kernel:
    rank = site.attributes.integer("rank")
    activation = site.attributes.text("fused_activation_function")
    activation_bounds(activation)
    time = site.input(2)
    scale = weight_scales(time, axis=0) if time.dtype in NARROW else None

    def run(inputs: Inputs) -> Sequence[NDArray]:
        weights = given(inputs[2])
        if scale is not None:
            weights = weight_values(weights, time).astype(np.float32) * scale
        newest = feature(given(inputs[0]), given(inputs[1]))
        state = _slide(given(inputs[4]), newest, weights.shape[1])
        sums = np.einsum("bfm,fm->bf", state, weights)
        out = sums.reshape(len(sums), -1, rank).sum(axis=2)
        if inputs[3] is not None:
            out += inputs[3]
        clamp_in_place(out, activation)
        return (out, flattened(state))[: len(site.outputs)]

    return run


def _hybrid_feature(site: Site) -> Feature:
    operand = site.input(1)
    scale = weight_scales(operand, axis=0)
    asymmetric = site.attributes.flag("asymmetric_quantize_inputs")

    def feature(inputs: NDArray, weights: NDArray) -> NDArray:
        rows = quantize_rows(inputs, asymmetric=asymmetric)
        values = rows.values.astype(np.int64) - rows.offsets[:, None]
        sums = np.matmul(values, weight_values(weights, operand).T).astype(np.float32)
        return np.asarray(sums * (rows.scales[:, None] * scale))

    return feature


def _integer(site: Site) -> Kernel:
    """Both scalings go through quantised multipliers of ratios that are taken in float32.

    Sums over time wrap at 32 bits.
    """
    rank = site.attributes.integer("rank")
    source, features, time, state, target = (
        tensor_quantization(operand, "an operand")
        for operand in (*(site.input(i) for i in (0, 1, 2, 4)), site.output())
    )
    scales = [np.float32(q.scale) for q in (source, features, time, state, target)]
    first = quantize_multiplier(float(scales[0] * scales[1] / scales[3]))
    second = quantize_multiplier(float(scales[3] * scales[2] / scales[4]))
    dtype, activation = site.output().dtype, site.attributes.text("fused_activation_function")
    limits = quantized_range(activation, dtype, target)
    state_limits = quantized_range("NONE", site.input(4).dtype, None)

    def run(inputs: Inputs) -> Sequence[NDArray]:
        centred = given(inputs[0]).astype(np.int64) - source.zero_point
        weights = given(inputs[2]).astype(np.int64)
        sums = np.matmul(centred, given(inputs[1]).astype(np.int64).T)
        newest = np.clip(multiply_by_quantized_multiplier(sums, *first), *state_limits)
        after = _slide(given(inputs[4]), newest, weights.shape[1])
        over_time = np.einsum("bfm,fm->bf", after.astype(np.int64) - state.zero_point, weights)
        out = over_time.reshape(len(over_time), -1, rank).sum(axis=2)
        if inputs[3] is not None:
            out += inputs[3]
        wrapped = out.astype(np.int32)
        scaled = multiply_by_quantized_multiplier(wrapped, *second) + target.zero_point
        stored = np.clip(scaled, *limits).astype(dtype.numpy)
        return (stored, flattened(after))[: len(site.outputs)]

    return run
