"""DEPTHWISE_CONV_2D: images NHWC, filters [1, height, width, out], out / in a channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.drivers.reference.kernel import Kernel, Site, kernel
from penstock.drivers.reference.layers.forms import DEPTHWISE, form_of
from penstock.drivers.reference.layers.padding import Axis, Steps, Window, pad
from penstock.drivers.reference.numerics import products, weights
from penstock.interrupts import watched
from penstock.ir import NDArray

STRIP_BYTES: Final = 1 << 18
"""Size, in bytes, of one strip of output rows. It is so small that its sums stay in the cache."""

STRIP_ROWS: Final = 8
"""Least number of rows of a strip. Rows that two strips read are converted twice."""


@kernel("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(site: Site) -> Kernel:
    """Float, quantised (uint8, int8, int16 with weights of 8 bits or fewer) and hybrid."""
    steps, form = Steps.of(site.attributes), form_of(site, DEPTHWISE)
    dtype = site.output().dtype.numpy

    def prepare(filters: NDArray, bias: NDArray | None) -> weights.Layer:
        *extents, channels = filters.shape[1:]
        ready = form(filters[0].reshape(-1, channels).T, bias)
        taps = np.ascontiguousarray(ready.columns.T).reshape(filters.shape[1:])
        start = None
        if site.sums == "fused":
            start = np.zeros(channels, np.float32)
            start += 0 if bias is None else bias.reshape(-1)

        def layer(image: NDArray) -> NDArray:
            window = steps.over(image.shape, extents)
            shape = len(image), *(axis.outputs for axis in window), channels
            out = np.empty(shape, dtype)
            for index, values, zero, finish in ready.parts(image) if out.size else ():
                padded = pad(values, window, zero)
                convolve_depthwise(padded, taps, window, out[index], finish, start)
            return out

        return layer

    return weights.layer_kernel(site, prepare, axis=3)


def convolve_depthwise(
    image: NDArray,
    taps: NDArray,
    window: Window,
    out: NDArray,
    finish: products.Finish,
    start: NDArray | None = None,
) -> None:
    """Fills *out* [batch, height, width, channels] from a padded *image* [batch, height, width,
    depth].

    *taps* [height, width, channels] has the type of the computation; *finish* gets the sums of some
    output positions at a time, all channels. With *start*, sums begin with it and are added as
    XNNPACK adds them: column by column if each channel has one filter.
    """
    rows, across = window
    channels = taps.shape[2]
    order = list(np.ndindex(*taps.shape[:2]))
    if start is not None and channels == image.shape[-1] > 1:
        order.sort(key=lambda tap: tap[::-1])
    length = across.outputs * channels
    vectors = None
    if taps.nbytes * across.outputs <= products.TILE_BYTES:
        vectors = np.tile(taps, (1, 1, across.outputs))
    step = max(STRIP_ROWS, STRIP_BYTES // max(1, length * taps.itemsize))
    for index in watched(range(len(out))):
        for first in watched(range(0, rows.outputs, step)):
            count = min(step, rows.outputs - first)
            top = first * rows.stride
            strip = image[index, top : top + (count - 1) * rows.stride + rows.reach]
            sums = _strip(strip, taps, vectors, window, count, order, start)
            target = out[index, first : first + count]
            finish(sums.reshape(-1, channels), target.reshape(-1, channels))


def _strip(
    strip: NDArray,
    taps: NDArray,
    vectors: NDArray | None,
    window: Window,
    count: int,
    order: Sequence[tuple[int, ...]],
    start: NDArray | None,
) -> NDArray:
    """Sums [rows, width * channels] of *count* output rows, over the taps in *order*.

    *vectors* are the taps repeated over a whole row, or None if they are too large for that.
    """
    rows, across = window
    channels = taps.shape[2]
    length = across.outputs * channels
    planes = _planes(strip, across, channels, taps.dtype)
    sums = np.empty((count, length), taps.dtype)
    product = np.empty_like(sums)
    if start is not None:
        sums[:] = np.tile(start, across.outputs)
    for number, (y, x) in enumerate(watched(order)):
        first = y * rows.dilation
        lines = slice(first, first + (count - 1) * rows.stride + 1, rows.stride)
        offset, phase = divmod(x * across.dilation, across.stride)
        begin = offset * channels
        line = planes[phase][lines, begin : begin + length]
        vector = np.tile(taps[y, x], across.outputs) if vectors is None else vectors[y, x]
        if start is not None:
            products.add_fused(sums, line, vector)
        elif number == 0:
            np.multiply(line, vector, out=sums)
        else:
            np.multiply(line, vector, out=product)
            np.add(sums, product, out=sums)
    return sums


def _planes(
    strip: NDArray, across: Axis, channels: int, dtype: np.dtype[np.generic]
) -> dict[int, NDArray]:
    """The columns of *strip* by their phase in the stride, flat [rows, columns * channels].

    Within a phase, adjacent output positions read adjacent memory at any stride.
    """
    phases = {x * across.dilation % across.stride for x in range(across.extent)}
    planes = {}
    for phase in phases:
        part = strip[:, phase :: across.stride]
        if channels != strip.shape[2]:
            part = np.repeat(part, channels // strip.shape[2], axis=2)
        part = np.ascontiguousarray(part, dtype)
        planes[phase] = weights.flattened(part)
    return planes
