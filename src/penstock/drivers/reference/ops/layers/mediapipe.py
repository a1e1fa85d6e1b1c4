"""MediaPipe's custom operators: a transposed convolution with bias, pooling that remembers where
the greatest values were, and its inverse.

An index counts the places of a pooling window column by column, and is an unsigned 32-bit number
whose bits stand in the float tensor: so do XNNPACK's argmax pooling and unpooling, which run these
operators in LiteRT.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel
from penstock.drivers.reference.ops.layers.convolution import float_finish
from penstock.drivers.reference.ops.layers.padding import Steps, pad, patches
from penstock.drivers.reference.ops.layers.transpose_convolution import spread
from penstock.drivers.reference.ops.numerics.activation_range import (
    activation_bounds,
    clamp_in_place,
)
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.ir import DType, NDArray
from penstock.ir.operations.custom_options import (
    WindowedPool,
    transpose_conv_bias,
    windowed_pool,
)


def _require_float(site: Site) -> None:
    if any(o is not None and o.dtype is not DType.FLOAT32 for o in site.inputs):
        raise site.unsupported_types()


@kernel("CUSTOM:Convolution2DTransposeBias")
def convolution_transpose_bias(site: Site) -> Kernel:
    """Filters [out, height, width, in] spread over the output, plus a bias for each of its
    channels.
    """
    _require_float(site)
    options = transpose_conv_bias(site.attributes)
    steps = Steps((options.stride_h, options.stride_w), (1, 1), options.padding)

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        image, filters, bias = (given(a) for a in inputs)
        extents = filters.shape[1:3]
        height, width = (
            _spread_size(image.shape[1 + i], extents[i], steps.stride[i], options.padding)
            for i in (0, 1)
        )
        out = np.empty((len(image), height, width, len(filters)), np.float32)
        spread(image, filters, extents, steps, out, float_finish(bias, "NONE", finite=False))
        return [out]

    return run


def _spread_size(size: int, extent: int, stride: int, padding: str) -> int:
    cut = max(extent - (size - 1) % stride - 1, 0) if padding == "SAME" else 0
    return stride * (size - 1) + extent - cut


@kernel("CUSTOM:MaxPoolingWithArgmax2D")
def max_pooling_with_argmax(site: Site) -> Kernel:
    """The greatest value of each window, and its place there; the first of equals. What is not a
    number counts only where a window begins with it, and then nothing is greater (XNNPACK).
    """
    _require_float(site)
    options = windowed_pool(site.attributes)
    activation_bounds(options.fused_activation_function)
    if site.output(1).dtype is not DType.FLOAT32:
        raise site.unsupported_types()

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        image = given(inputs[0])
        rows, columns = _steps(options).over(
            image.shape, (options.filter_height, options.filter_width)
        )
        windows = patches(pad(image, rows, columns, -np.inf), rows, columns)
        batch, height, width, tall, wide, depth = windows.shape
        by_column = windows.transpose(0, 1, 2, 4, 3, 5)
        flat = by_column.reshape(batch, height, width, tall * wide, depth)
        lost = np.isnan(flat)
        lost[:, :, :, 0] = False
        places = np.where(lost, -np.inf, flat).argmax(axis=3)
        values = np.take_along_axis(flat, places[:, :, :, None], axis=3)[:, :, :, 0]
        clamped = clamp_in_place(values, options.fused_activation_function)
        return [clamped, places.astype(np.uint32).view(np.float32)]

    return run


@kernel("CUSTOM:MaxUnpooling2D")
def max_unpooling(site: Site) -> Kernel:
    """Each value at its place in its window of the output, zero elsewhere."""
    _require_float(site)
    options = windowed_pool(site.attributes)
    tall, wide = options.filter_height, options.filter_width

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
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


def _steps(options: WindowedPool) -> Steps:
    return Steps((options.stride_h, options.stride_w), (1, 1), options.padding)
