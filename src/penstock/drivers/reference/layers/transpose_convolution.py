"""TRANSPOSE_CONV: images NHWC, filters [out, height, width, in]; the output's shape is an input."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from penstock.drivers.reference.kernel import Kernel, Site, kernel
from penstock.drivers.reference.layers.convolution import float_finish
from penstock.drivers.reference.layers.padding import Axis, Steps, slide
from penstock.drivers.reference.numerics.hybrid import (
    MAGNITUDE,
    NARROW,
    HybridFinish,
    quantize_rows,
    weight_scales,
    weight_values,
)
from penstock.drivers.reference.numerics.products import Columns, Finish
from penstock.drivers.reference.numerics.requantize import (
    fused_activation,
    integer_range,
)
from penstock.drivers.reference.numerics.weights import (
    QUANTIZED,
    REAL,
    Scaling,
    centred,
    flattened,
    given,
)
from penstock.interrupts import watched
from penstock.ir import DType, NDArray

Layer: TypeAlias = Callable[[NDArray, NDArray], NDArray]
"""Computes the output from its shape, the operation's first input, and the image."""

Prepare: TypeAlias = Callable[[NDArray, "NDArray | None"], Layer]


@kernel("TRANSPOSE_CONV")
def transpose_conv(site: Site) -> Kernel:
    """Float, quantised (uint8, int8, int16 with weights of 8 bits or fewer) and hybrid."""
    filters, source, target = site.input(1), site.input(2), site.output()
    if source.dtype in REAL and filters.dtype is source.dtype is target.dtype:
        prepare = _float_layer(site)
    elif source.dtype in QUANTIZED and target.dtype is source.dtype:
        prepare = _quantized_layer(site)
    elif source.dtype is target.dtype is DType.FLOAT32 and filters.dtype in NARROW:
        prepare = _hybrid_layer(site)
    else:
        raise site.unsupported_types()
    values, bias, biased = site.constant(1), site.constant(3), site.has(3)
    if values is not None and (bias is not None or not biased):
        layer = prepare(values, bias)
        return lambda inputs: (layer(given(inputs[0]), given(inputs[2])),)
    return lambda inputs: (
        prepare(given(inputs[1]), inputs[3] if biased else None)(
            given(inputs[0]), given(inputs[2])
        ),
    )


def spread(
    image: NDArray,
    columns: NDArray,
    extents: tuple[int, int],
    steps: Steps,
    out: NDArray,
    finish: Finish,
) -> None:
    """Fills *out* [batch, height, width, channels]. Each element of *image*, times the filters, is
    added to the output elements in its window.

    *columns* [channels, height, width, depth] and *image* have the type of the computation. Padding
    is that of the convolution from *out*'s size to the image's.
    """
    if not out.size:
        return
    axes = [slide(out.shape[1 + i], extents[i], steps.stride[i], 1, steps.padding) for i in (0, 1)]
    channels = len(columns)
    for index, picture in enumerate(image):
        sums = _overlap(picture, columns, steps.stride)
        finish(_crop(sums, axes, out.shape).reshape(-1, channels), out[index].reshape(-1, channels))


def _overlap(picture: NDArray, columns: NDArray, stride: tuple[int, int]) -> NDArray:
    """All sums [height, width, channels], before padding is cropped."""
    channels, height, width, depth = columns.shape
    rows, across = picture.shape[:2]
    shape = (rows - 1) * stride[0] + height, (across - 1) * stride[1] + width, channels
    sums = np.zeros(shape, columns.dtype)
    flat = picture.reshape(-1, depth)
    for y in watched(range(height)):
        for x in watched(range(width)):
            part = np.matmul(flat, columns[:, y, x].T).reshape(rows, across, channels)
            bottom, right = y + (rows - 1) * stride[0] + 1, x + (across - 1) * stride[1] + 1
            sums[y : bottom : stride[0], x : right : stride[1]] += part
    return sums


def _crop(sums: NDArray, axes: list[Axis], shape: tuple[int, ...]) -> NDArray:
    """The part of *sums* that belongs to the output. Outputs outside every window are zero."""
    height, width = shape[1:3]
    top, left = axes[0].before, axes[1].before
    part = sums[top : top + height, left : left + width]
    if part.shape[:2] == (height, width):
        return part
    filled = np.zeros((height, width, sums.shape[2]), sums.dtype)
    filled[: part.shape[0], : part.shape[1]] = part
    return filled


def _output(shape: NDArray, image: NDArray, filters: NDArray, site: Site) -> NDArray:
    extents = tuple(int(d) for d in shape.reshape(-1))
    if (
        len(extents) != 4
        or min(extents) < 0
        or (extents[0], extents[3]) != (len(image), len(filters))
    ):
        raise ValueError(
            f"an output of shape {extents} from a batch of {len(image)} and {len(filters)} filters"
        )
    return np.empty(extents, site.output().dtype.numpy)


def _float_layer(site: Site) -> Prepare:
    steps = Steps.of(site.attributes)
    activation = fused_activation(site)

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        columns = filters.astype(np.float32, copy=False)
        finish = float_finish(bias, activation)

        def layer(shape: NDArray, image: NDArray) -> NDArray:
            out = _output(shape, image, filters, site)
            real = image.astype(np.float32, copy=False)
            spread(real, columns, filters.shape[1:3], steps, out, finish)
            return out

        return layer

    return prepare


def _quantized_layer(site: Site) -> Prepare:
    steps = Steps.of(site.attributes)
    scaling = Scaling.of(site, source=2, weights=1, bias=3, axis=0)
    operand = site.input(1)
    zero_point = site.quantization(2).zero_point
    least, greatest = integer_range(site.input(2).dtype)
    magnitude = max(greatest - zero_point, zero_point - least)

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        weights = centred(filters, operand)
        matrix = Columns(flattened(weights), magnitude)
        columns = matrix.values.reshape(filters.shape)
        finish = scaling.requantizer(matrix.bound, np.zeros(len(filters), np.int64), bias)

        def layer(shape: NDArray, image: NDArray) -> NDArray:
            out = _output(shape, image, filters, site)
            real = image.astype(columns.dtype)
            real -= zero_point
            spread(real, columns, filters.shape[1:3], steps, out, finish)
            return out

        return layer

    return prepare


def _hybrid_layer(site: Site) -> Prepare:
    """Inputs are quantised asymmetrically."""
    steps = Steps.of(site.attributes)
    activation = fused_activation(site)
    operand = site.input(1)
    scaling = weight_scales(operand, axis=0)

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        weights = weight_values(filters, operand)
        matrix = Columns(flattened(weights), 2 * MAGNITUDE)
        columns = matrix.values.reshape(filters.shape)

        def layer(shape: NDArray, image: NDArray) -> NDArray:
            out = _output(shape, image, filters, site)
            rows = quantize_rows(flattened(image), asymmetric=True)
            centred_rows = rows.values.astype(columns.dtype)
            centred_rows -= rows.offsets[:, None].astype(columns.dtype)
            for index, values in enumerate(centred_rows.reshape(image.shape)):
                finish = HybridFinish(
                    matrix.sums, scaling, bias, activation, rows.scales[index], np.zeros(1)
                )
                extents = filters.shape[1:3]
                spread(values[None], columns, extents, steps, out[index : index + 1], finish)
            return out

        return layer

    return prepare
