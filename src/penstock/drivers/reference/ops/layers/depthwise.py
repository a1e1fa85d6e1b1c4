"""DEPTHWISE_CONV_2D: images NHWC, filters [1, height, width, out]; each input channel has out / in
of its own.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel
from penstock.drivers.reference.ops.layers.by_types import layer_by_types
from penstock.drivers.reference.ops.layers.convolution import float_finish
from penstock.drivers.reference.ops.layers.padding import Axis, Steps, pad
from penstock.drivers.reference.ops.numerics.activation_range import activation_bounds
from penstock.drivers.reference.ops.numerics.hybrid import (
    MAGNITUDE,
    HybridFinish,
    quantize_rows,
    weight_scales,
    weight_values,
)
from penstock.drivers.reference.ops.numerics.products import TILE_BYTES, Columns, Finish
from penstock.drivers.reference.ops.numerics.weights import (
    Layer,
    Prepare,
    Scaling,
    centred,
    flattened,
)
from penstock.interrupts import watched
from penstock.ir import NDArray

STRIP_BYTES: Final = 1 << 18
"""Sums of one strip of output rows: small enough that every tap finds them in the processor's
cache.
"""

STRIP_ROWS: Final = 8
"""Least rows of a strip: rows that two strips read are converted twice."""


@kernel("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(site: Site) -> Kernel:
    """Float, quantised (uint8, int8, int16 with weights of 8 bits or fewer) and hybrid."""
    return layer_by_types(site, _float_layer, _quantized_layer, _hybrid_layer)


def convolve_depthwise(
    image: NDArray, taps: NDArray, window: tuple[Axis, Axis], out: NDArray, finish: Finish
) -> None:
    """Fills *out* [batch, height, width, channels] from a padded *image* [batch, height, width,
    depth].

    *taps* [height, width, channels] is in the type to compute in; *finish* gets the sums of some
    output positions at a time, all channels.
    """
    rows, across = window
    channels = taps.shape[2]
    length = across.outputs * channels
    vectors = None
    if taps.nbytes * across.outputs <= TILE_BYTES:
        vectors = np.tile(taps, (1, 1, across.outputs))
    step = max(STRIP_ROWS, STRIP_BYTES // max(1, length * taps.itemsize))
    for index in watched(range(len(out))):
        for start in watched(range(0, rows.outputs, step)):
            count = min(step, rows.outputs - start)
            top = start * rows.stride
            strip = image[index, top : top + (count - 1) * rows.stride + rows.reach]
            sums = _strip(strip, taps, vectors, window, count)
            target = out[index, start : start + count]
            finish(sums.reshape(-1, channels), target.reshape(-1, channels))


def _strip(
    strip: NDArray, taps: NDArray, vectors: NDArray | None, window: tuple[Axis, Axis], count: int
) -> NDArray:
    """Sums [rows, width * channels] of *count* output rows.

    *vectors* are the taps repeated over a whole row, where they are small enough to be kept.
    """
    rows, across = window
    height, width, channels = taps.shape
    length = across.outputs * channels
    planes = _planes(strip, across, channels, taps.dtype)
    sums = np.empty((count, length), taps.dtype)
    product = np.empty_like(sums)
    for y in watched(range(height)):
        first = y * rows.dilation
        lines = slice(first, first + (count - 1) * rows.stride + 1, rows.stride)
        for x in watched(range(width)):
            offset, phase = divmod(x * across.dilation, across.stride)
            begin = offset * channels
            line = planes[phase][lines, begin : begin + length]
            vector = np.tile(taps[y, x], across.outputs) if vectors is None else vectors[y, x]
            if x == y == 0:
                np.multiply(line, vector, out=sums)
            else:
                np.multiply(line, vector, out=product)
                np.add(sums, product, out=sums)
    return sums


def _planes(
    strip: NDArray, across: Axis, channels: int, dtype: np.dtype[np.generic]
) -> dict[int, NDArray]:
    """The columns of *strip* by their phase in the stride, flat [rows, columns * channels].

    In a plane, neighbouring output positions read neighbouring memory whatever the stride.
    """
    phases = {x * across.dilation % across.stride for x in range(across.extent)}
    planes = {}
    for phase in phases:
        part = strip[:, phase :: across.stride]
        if channels != strip.shape[2]:
            part = np.repeat(part, channels // strip.shape[2], axis=2)
        part = np.ascontiguousarray(part, dtype)
        planes[phase] = flattened(part)
    return planes


def _output(image: NDArray, window: tuple[Axis, Axis], filters: NDArray, site: Site) -> NDArray:
    rows, across = window
    shape = len(image), rows.outputs, across.outputs, filters.shape[3]
    return np.empty(shape, site.output().dtype.numpy)


def _float_layer(site: Site) -> Prepare:
    steps = Steps.of(site.attributes)
    activation = site.attributes.text("fused_activation_function")
    activation_bounds(activation)

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        taps = filters[0].astype(np.float32, copy=False)
        finish = float_finish(bias, activation)

        def layer(image: NDArray) -> NDArray:
            window = steps.over(image.shape, taps.shape[:2])
            out = _output(image, window, filters, site)
            if out.size:
                convolve_depthwise(pad(image, *window, 0), taps, window, out, finish)
            return out

        return layer

    return prepare


def _quantized_layer(site: Site) -> Prepare:
    steps = Steps.of(site.attributes)
    scaling = Scaling.of(site, source=0, weights=1, bias=2, axis=3)
    operand = site.input(1)
    signed = scaling.signed_input

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        weights = centred(filters, operand)[0]
        columns = Columns(weights.reshape(-1, weights.shape[2]).T, signed.magnitude)
        taps = np.ascontiguousarray(columns.values.T).reshape(weights.shape)
        finish = scaling.requantizer(columns.bound, columns.sums, bias)

        def layer(image: NDArray) -> NDArray:
            window = steps.over(image.shape, taps.shape[:2])
            out = _output(image, window, filters, site)
            if out.size:
                padded = pad(signed.signed(image), *window, signed.zero_point)
                convolve_depthwise(padded, taps, window, out, finish)
            return out

        return layer

    return prepare


def _hybrid_layer(site: Site) -> Prepare:
    """Inputs are quantised asymmetrically."""
    steps = Steps.of(site.attributes)
    activation = site.attributes.text("fused_activation_function")
    activation_bounds(activation)
    operand = site.input(1)
    scaling = weight_scales(operand, axis=3)

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        weights = weight_values(filters, operand)[0]
        columns = Columns(weights.reshape(-1, weights.shape[2]).T, 2 * MAGNITUDE)
        taps = np.ascontiguousarray(columns.values.T).reshape(weights.shape)

        def layer(image: NDArray) -> NDArray:
            window = steps.over(image.shape, taps.shape[:2])
            out = _output(image, window, filters, site)
            rows = quantize_rows(flattened(image), asymmetric=True)
            for index, values in enumerate(rows.values.reshape(image.shape)):
                scale, offset = rows.scales[index], rows.offsets[index]
                # Both scales are one factor here, where CONV_2D takes them one after the other.
                factors, one = scaling * scale, np.ones(1, np.float32)
                finish = HybridFinish(columns.sums, factors, bias, activation, one, offset)
                padded = pad(values[None], *window, int(offset))
                if out.size:
                    convolve_depthwise(padded, taps, window, out[index : index + 1], finish)
            return out

        return layer

    return prepare
