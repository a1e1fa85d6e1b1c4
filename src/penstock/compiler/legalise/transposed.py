"""Transposed convolutions, phase by phase.

With a stride of s, output y gets products of the filter's elements k with (y + padding - k) a
multiple of s: the outputs of one phase (y + padding) mod s have the same elements. Each phase is an
ordinary convolution of the image with its own part of the filter, turned around, and is written at
every s-th place of the output. No output is read back.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.products import Layer, Products, emit_layer
from penstock.compiler.program import Position, along
from penstock.driverkit.site import Site, require
from penstock.ir.operations.custom_options import transpose_conv_bias

MOST_PHASES: Final = 64
"""The most phases of a layer, each of which is a kernel."""


class Phase(Struct, frozen=True):
    """The outputs of one phase along one axis: every *stride*-th from *first* on, *count* of them.

    Output q of the phase reads *taps* elements from *start* + q on, and multiplies them with the
    filter's elements from *last* down, in steps of the stride.
    """

    first: int
    count: int
    stride: int
    start: int
    taps: int
    last: int


def phases(size: int, extent: int, stride: int, padding: str) -> list[Phase]:
    """The phases along an axis of *size* outputs."""
    needed = (-(-size // stride) - 1) * stride + extent
    before = max(0, needed - size) // 2 if padding == "SAME" else 0
    found = []
    for tap in range(stride):
        first = (tap - before) % stride
        if first < size:
            taps = max(0, -(-(extent - tap) // stride))
            start = (first + before) // stride - (taps - 1)
            count = -(-(size - first) // stride)
            last = tap + stride * (taps - 1)
            found.append(Phase(first, count, stride, start, taps, last))
    return found


def transposed_products(
    shape: Sequence[int], extents: Sequence[int], strides: Sequence[int], padding: str, depth: int,
    *, channels_behind: bool = False,
) -> list[Products]:  # fmt: skip
    """The products of each phase, for an output of *shape*. Filters are [out, extents ..., in], or
    [extents ..., out, in] if their channels are *channels_behind*.
    """
    require(padding in {"SAME", "VALID"}, f"padding {padding}")
    require(min(*strides, *extents) >= 1, "a window of no size, or one that stands still")
    sides = zip(shape[1:-1], extents, strides, strict=True)
    axes = [phases(size, extent, stride, padding) for size, extent, stride in sides]
    count = math.prod(len(axis) for axis in axes)
    require(count <= MOST_PHASES, f"{count} phases of a transposed convolution")
    rank = len(axes)
    outer, inner = range(1, rank + 1), range(rank + 2, 2 * rank + 2)
    channel, deep = along(rank + 1, 2 * rank + 2)
    return [
        Products(
            (shape[0], *(phase.count for phase in place), shape[-1]),
            (*(phase.taps for phase in place), depth),
            (
                *along(0),
                *(
                    Position(phase.start, ((o, 1), (i, 1)))
                    for phase, o, i in zip(place, outer, inner, strict=True)
                ),
                deep,
            ),
            _filter_positions(place, inner, channel, deep, channels_behind=channels_behind),
            (
                *along(0),
                *(
                    Position(phase.first, ((o, phase.stride),))
                    for phase, o in zip(place, outer, strict=True)
                ),
                channel,
            ),
            channel,
        )
        for place in itertools.product(*axes)
    ]


def _filter_positions(
    place: Sequence[Phase], inner: Sequence[int], channel: Position, deep: Position,
    *, channels_behind: bool,
) -> tuple[Position, ...]:  # fmt: skip
    taps = [
        Position(phase.last, ((i, -phase.stride),)) for phase, i in zip(place, inner, strict=True)
    ]
    return (*taps, channel, deep) if channels_behind else (channel, *taps, deep)


def _strides(site: Site, axes: str) -> list[int]:
    dilations = [int(str(site.attributes.get(f"dilation_{a}_factor", 1))) for a in axes]
    require(set(dilations) == {1}, "a transposed convolution with dilation")
    return [site.attributes.integer(f"stride_{a}") for a in axes]


def _require_finite(site: Site) -> None:
    """Refuses filters with infinities, which would multiply the zeros around an image; the
    reference device adds products of the image alone.
    """
    require(np.isfinite(site.value(1, "its filter")).all(), "a filter with infinite weights")


@legal("TRANSPOSE_CONV")
def transpose_conv(operation: Operation) -> None:
    """Images NHWC, filters [out, height, width, in]."""
    site = operation.site
    filters, image, output = site.shape(1), site.shape(2), site.output_shape()
    require(len(filters) == len(image) == len(output) == 4, "an image of another rank")
    require(
        filters[3] == image[3] and (output[0], output[3]) == (image[0], filters[0]),
        "filter, image and output of different channels",
    )
    padding = site.attributes.text("padding")
    parts = transposed_products(output, filters[1:3], _strides(site, "hw"), padding, filters[3])
    emit_layer(operation, "transposed", Layer(2, 1, 3, asymmetric=True), *parts)


@legal("CUSTOM:Convolution2DTransposeBias")
def transpose_conv_with_bias(operation: Operation) -> None:
    """MediaPipe's, of floats: image, filters, bias."""
    site = operation.site
    image, filters, output = site.shape(0), site.shape(1), site.output_shape()
    require(len(filters) == len(image) == len(output) == 4, "an image of another rank")
    require(filters[3] == image[3] and output[3] == filters[0], "channels that do not fit")
    require(site.input(0).dtype.is_float, "only real values are computed here")
    _require_finite(site)
    options = transpose_conv_bias(site.attributes)
    strides = options.stride_h, options.stride_w
    parts = transposed_products(output, filters[1:3], strides, options.padding, filters[3])
    emit_layer(operation, "transposed", Layer(finite=False), *parts)


@legal("CONV_3D_TRANSPOSE")
def transpose_volume(operation: Operation) -> None:
    """Volumes [batch, depth, height, width, in], filters [depth, height, width, out, in]."""
    site = operation.site
    _require_finite(site)
    filters, volume, output = site.shape(1), site.shape(2), site.output_shape()
    require(len(filters) == len(volume) == len(output) == 5, "a volume of another rank")
    require(
        filters[4] == volume[4] and (output[0], output[4]) == (volume[0], filters[3]),
        "filter, volume and output of different channels",
    )
    require(site.input(2).dtype.is_float, "only real values are computed here")
    padding, strides = site.attributes.text("padding"), _strides(site, "dhw")
    parts = transposed_products(
        output, filters[:3], strides, padding, filters[4], channels_behind=True
    )
    emit_layer(operation, "transposed", Layer(2, 1, 3, axis=3), *parts)
