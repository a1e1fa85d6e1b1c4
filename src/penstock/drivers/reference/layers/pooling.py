"""AVERAGE_POOL_2D, MAX_POOL_2D and L2_POOL_2D over NHWC images, and MediaPipe's custom operators.

Padding elements are ignored in pooling. MediaPipe's operators are a transposed convolution with
bias, pooling that records the positions of the greatest values, and its inverse. A position is an
index into the pooling window, counted column by column. It is an unsigned 32-bit number whose bits
are stored in the float tensor. XNNPACK's argmax pooling, which runs these operators in LiteRT, does
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from penstock.drivers.reference.kernel import (
    Inputs,
    Kernel,
    Outputs,
    Site,
    kernel,
    require,
)
from penstock.drivers.reference.layers.forms import float_finish
from penstock.drivers.reference.layers.padding import Steps, Window, pad, patches
from penstock.drivers.reference.layers.transpose_convolution import spread
from penstock.drivers.reference.numerics import requantize
from penstock.drivers.reference.numerics.weights import given
from penstock.interrupts import watched
from penstock.ir import DType, NDArray
from penstock.ir.operations.custom_options import transpose_conv_bias, windowed_pool

QUANTIZED: Final = frozenset({DType.INT8, DType.UINT8, DType.INT16})

Reduce: TypeAlias = Callable[[NDArray, Window], NDArray]


@kernel("MAX_POOL_2D", "AVERAGE_POOL_2D", "L2_POOL_2D")
def pool(site: Site) -> Kernel:
    reduce = REDUCTIONS[site.operation.type]
    site.require_types(reduce is not _root_mean_square or site.input(0).dtype.is_float)
    dtype, quantization = site.output().dtype, site.output().quantization
    site.require_types(site.input(0).dtype is dtype and (dtype.is_float or dtype in QUANTIZED))
    steps = Steps.of(site.attributes)
    extents = site.attributes.integer("filter_height"), site.attributes.integer("filter_width")
    require(min(extents) > 0, f"a pooling window of {extents}")
    activation = requantize.fused_activation(site)
    limits = None
    if not dtype.is_float and activation != "NONE":
        limits = requantize.quantized_range(activation, dtype, quantization)

    def run(inputs: Inputs) -> Outputs:
        image = given(inputs[0])
        rows, columns = steps.over(image.shape, extents)
        axes = rows.trimmed(), columns.trimmed()
        if not (axes[0].outputs and axes[1].outputs):
            shape = len(image), axes[0].outputs, axes[1].outputs, image.shape[3]
            return (np.empty(shape, dtype.numpy),)
        pooled = reduce(image, axes)
        if limits is not None:
            np.clip(pooled, *limits, out=pooled)
        elif dtype.is_float:
            requantize.clamp_to_finite(pooled, activation)
        return (pooled.astype(dtype.numpy, copy=False),)

    return run


def _combine(image: NDArray, axes: Window, function: np.ufunc) -> NDArray:
    """Combines every window of a padded image, first along its height, then along its width.

    The result is a new array of the image's type.
    """
    for dimension, axis in enumerate(axes, start=1):
        before = (slice(None),) * dimension
        reach = (axis.outputs - 1) * axis.stride + 1
        total = image[(*before, slice(0, reach, axis.stride))].copy()
        for start in watched(range(1, axis.extent)):
            part = image[(*before, slice(start, start + reach, axis.stride))]
            function(total, part, out=total)
        image = total
    return image


def _counts(axes: Window) -> NDArray:
    """The number of elements of the image in each window: int64 [height, width, 1]."""
    counts = []
    for axis in axes:
        starts = np.arange(axis.outputs, dtype=np.int64) * axis.stride - axis.before
        ends = np.minimum(starts + axis.extent, axis.size)
        counts.append(ends - np.maximum(starts, 0))
    rows, across = counts
    return np.asarray(rows[:, None, None] * across[:, None])


def _maximum(image: NDArray, axes: Window) -> NDArray:
    """The greatest value; NaN is ignored."""
    least = np.iinfo(image.dtype).min if image.dtype.kind in "iu" else -np.inf
    greatest = _combine(pad(image, axes, least), axes, np.fmax)
    np.fmax(greatest, greatest.dtype.type(least), out=greatest)
    return greatest


def _average(image: NDArray, axes: Window) -> NDArray:
    """The mean; integer means are rounded to the nearest, halves away from zero."""
    counts = _counts(axes)
    if image.dtype.kind not in "iu":
        sums = _combine(pad(image.astype(np.float32, copy=False), axes, 0), axes, np.add)
        return np.divide(sums, counts.astype(np.float32), out=sums)
    sums = _combine(pad(image.astype(np.int64), axes, 0), axes, np.add)
    signs = np.sign(sums)
    np.abs(sums, out=sums)
    sums += counts // 2
    sums //= counts
    sums *= signs
    return sums


def _root_mean_square(image: NDArray, axes: Window) -> NDArray:
    real = image.astype(np.float32)
    squares = _combine(pad(np.square(real, out=real), axes, 0), axes, np.add)
    np.divide(squares, _counts(axes).astype(np.float32), out=squares)
    return np.sqrt(squares, out=squares)


REDUCTIONS: Final[dict[str, Reduce]] = {
    "MAX_POOL_2D": _maximum,
    "AVERAGE_POOL_2D": _average,
    "L2_POOL_2D": _root_mean_square,
}


def _require_float(site: Site) -> None:
    site.require_types(all(o is None or o.dtype is DType.FLOAT32 for o in site.inputs))


@kernel("CUSTOM:Convolution2DTransposeBias")
def convolution_transpose_bias(site: Site) -> Kernel:
    """A transposed convolution with filters [out, height, width, in], plus a bias."""
    _require_float(site)
    options = transpose_conv_bias(site.attributes)
    steps = Steps((options.stride_h, options.stride_w), (1, 1), options.padding)

    def run(inputs: Inputs) -> Outputs:
        image, filters, bias = (given(a) for a in inputs)
        extents = filters.shape[1:3]
        height, width = (
            _spread_size(image.shape[1 + i], extents[i], steps.stride[i], options.padding)
            for i in (0, 1)
        )
        out = np.empty((len(image), height, width, len(filters)), np.float32)
        spread(image, filters, steps, out, float_finish(bias, "NONE", finite=False))
        return [out]

    return run


def _spread_size(size: int, extent: int, stride: int, padding: str) -> int:
    cut = max(extent - (size - 1) % stride - 1, 0) if padding == "SAME" else 0
    return stride * (size - 1) + extent - cut


@kernel("CUSTOM:MaxPoolingWithArgmax2D")
def max_pooling_with_argmax(site: Site) -> Kernel:
    """The greatest value of each window, and its position: the first of equal ones. As in XNNPACK,
    NaN counts only as the first element of a window, and is then the greatest.
    """
    _require_float(site)
    options = windowed_pool(site.attributes)
    requantize.activation_bounds(options.fused_activation_function)
    site.require_types(site.output(1).dtype is DType.FLOAT32)
    steps = Steps((options.stride_h, options.stride_w), (1, 1), options.padding)

    def run(inputs: Inputs) -> Outputs:
        image = given(inputs[0])
        window = steps.over(image.shape, (options.filter_height, options.filter_width))
        windows = patches(pad(image, window, -np.inf), window)
        batch, height, width, tall, wide, depth = windows.shape
        by_column = windows.transpose(0, 1, 2, 4, 3, 5)
        flat = by_column.reshape(batch, height, width, tall * wide, depth)
        lost = np.isnan(flat)
        lost[:, :, :, 0] = False
        places = np.where(lost, -np.inf, flat).argmax(axis=3)
        values = np.take_along_axis(flat, places[:, :, :, None], axis=3)[:, :, :, 0]
        clamped = requantize.clamp_in_place(values, options.fused_activation_function)
        return [clamped, places.astype(np.uint32).view(np.float32)]

    return run


@kernel("CUSTOM:MaxUnpooling2D")
def max_unpooling(site: Site) -> Kernel:
    """Writes each value at its position in its window of the output, else zeros."""
    _require_float(site)
    options = windowed_pool(site.attributes)
    tall, wide = options.filter_height, options.filter_width

    def run(inputs: Inputs) -> Outputs:
        values = given(inputs[0])
        indexes = np.ascontiguousarray(given(inputs[1])).view(np.uint32).astype(np.int64)
        if values.shape != indexes.shape or indexes.max(initial=0) >= tall * wide:
            raise ValueError("unpooling indexes do not lie within their windows")
        batch, height, width, depth = values.shape
        windows = np.zeros((batch, height, width, tall * wide, depth), np.float32)
        np.put_along_axis(windows, indexes[:, :, :, None], values[:, :, :, None], axis=3)
        by_column = windows.reshape(batch, height, width, wide, tall, depth)
        spaced = by_column.transpose(0, 1, 4, 2, 3, 5)
        return [spaced.reshape(batch, height * tall, width * wide, depth)]

    return run
