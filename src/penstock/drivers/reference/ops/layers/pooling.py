"""AVERAGE_POOL_2D, MAX_POOL_2D and L2_POOL_2D over NHWC images; padding takes no part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, Unsupported, kernel
from penstock.drivers.reference.ops.layers.padding import Axis, Steps, pad
from penstock.drivers.reference.ops.numerics.activation_range import (
    activation_bounds,
    clamp_to_finite,
    quantized_range,
)
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.interrupts import watched
from penstock.ir import DType, NDArray

QUANTIZED: Final = frozenset({DType.INT8, DType.UINT8, DType.INT16})

Reduce: TypeAlias = Callable[[NDArray, tuple[Axis, Axis]], NDArray]


@kernel("MAX_POOL_2D")
def max_pool_2d(site: Site) -> Kernel:
    return _pool(site, _maximum)


@kernel("AVERAGE_POOL_2D")
def average_pool_2d(site: Site) -> Kernel:
    return _pool(site, _average)


@kernel("L2_POOL_2D")
def l2_pool_2d(site: Site) -> Kernel:
    if not site.input(0).dtype.is_float:
        raise site.unsupported_types()
    return _pool(site, _root_mean_square)


def _pool(site: Site, reduce: Reduce) -> Kernel:
    dtype, quantization = site.output().dtype, site.output().quantization
    if site.input(0).dtype is not dtype or not (dtype.is_float or dtype in QUANTIZED):
        raise site.unsupported_types()
    steps = Steps.of(site.attributes)
    extents = site.attributes.integer("filter_height"), site.attributes.integer("filter_width")
    if min(extents) < 1:
        raise Unsupported(f"a pooling window of {extents}")
    activation = site.attributes.text("fused_activation_function")
    activation_bounds(activation)
    limits = None
    if not dtype.is_float and activation != "NONE":
        limits = quantized_range(activation, dtype, quantization)

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
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
            clamp_to_finite(pooled, activation)
        return (pooled.astype(dtype.numpy, copy=False),)

    return run


def _combine(image: NDArray, axes: tuple[Axis, Axis], function: np.ufunc) -> NDArray:
    """Every window of a padded image combined, along its height first, then along its width.

    The result is fresh and has the image's type.
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


def _counts(axes: tuple[Axis, Axis]) -> NDArray:
    """How many elements of the image each window holds: int64 [height, width, 1]."""
    rows, across = (
        np.array(
            [
                min(start + axis.extent, axis.size) - max(start, 0)
                for start in range(
                    -axis.before, axis.outputs * axis.stride - axis.before, axis.stride
                )
            ],
            np.int64,
        )
        for axis in axes
    )
    return np.asarray(rows[:, None, None] * across[:, None])


def _maximum(image: NDArray, axes: tuple[Axis, Axis]) -> NDArray:
    """The greatest value; what is not a number does not count."""
    least = np.iinfo(image.dtype).min if image.dtype.kind in "iu" else -np.inf
    greatest = _combine(pad(image, *axes, least), axes, np.fmax)
    np.fmax(greatest, greatest.dtype.type(least), out=greatest)
    return greatest


def _average(image: NDArray, axes: tuple[Axis, Axis]) -> NDArray:
    """The mean; of integers, rounded to the nearest, halves away from zero."""
    counts = _counts(axes)
    if image.dtype.kind not in "iu":
        sums = _combine(pad(image.astype(np.float32, copy=False), *axes, 0), axes, np.add)
        return np.divide(sums, counts.astype(np.float32), out=sums)
    sums = _combine(pad(image.astype(np.int64), *axes, 0), axes, np.add)
    signs = np.sign(sums)
    np.abs(sums, out=sums)
    sums += counts // 2
    sums //= counts
    sums *= signs
    return sums


def _root_mean_square(image: NDArray, axes: tuple[Axis, Axis]) -> NDArray:
    real = image.astype(np.float32)
    squares = _combine(pad(np.square(real, out=real), *axes, 0), axes, np.add)
    np.divide(squares, _counts(axes).astype(np.float32), out=squares)
    return np.sqrt(squares, out=squares)
