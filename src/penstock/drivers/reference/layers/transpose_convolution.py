"""TRANSPOSE_CONV: images NHWC, filters [out, height, width, in]; the output's shape is an input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.drivers.reference.kernel import Kernel, Site, kernel
from penstock.drivers.reference.layers.forms import TRANSPOSED, form_of
from penstock.drivers.reference.layers.padding import Axis, Steps, slide
from penstock.drivers.reference.numerics.products import Finish
from penstock.drivers.reference.numerics.weights import (
    layer_kernel,
)
from penstock.interrupts import watched
from penstock.ir import NDArray


@kernel("TRANSPOSE_CONV")
def transpose_conv(site: Site) -> Kernel:
    """Float, quantised (uint8, int8, int16 with weights of 8 bits or fewer) and hybrid."""
    steps, form = Steps.of(site.attributes), form_of(site, TRANSPOSED)

    def prepare(filters: NDArray, bias: NDArray | None) -> Callable[[NDArray, NDArray], NDArray]:
        ready = form(filters, bias)
        columns = ready.columns.reshape(filters.shape)

        def layer(shape: NDArray, image: NDArray) -> NDArray:
            out = _output(shape, image, filters, site)
            for index, values, zero, finish in ready.parts(image):
                real = values.astype(columns.dtype, copy=False)
                real = real - columns.dtype.type(zero) if zero else real
                spread(real, columns, steps, out[index], finish)
            return out

        return layer

    return layer_kernel(site, prepare, sources=(0, 2), bias=3)


def spread(
    image: NDArray,
    columns: NDArray,
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
    axes = [
        slide(out.shape[1 + i], columns.shape[1 + i], steps.stride[i], 1, steps.padding)
        for i in (0, 1)
    ]
    channels = len(columns)
    for index, picture in enumerate(image):
        sums = _overlap(picture, columns, steps.stride)
        finish(_crop(sums, axes, out.shape).reshape(-1, channels), out[index].reshape(-1, channels))


def _overlap(picture: NDArray, columns: NDArray, stride: tuple[int, ...]) -> NDArray:
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
