"""CONV_2D, CONV_3D, CONV_3D_TRANSPOSE, and NNAPI's GROUPED_CONV_2D, which convolves each group of
channels with separate filters.

Filters are [out, height, width, in], in three dimensions [depth, height, width, in, out], and of
the transposed convolution [depth, height, width, out, in]. If an image's depth is a multiple of
`in`, the convolution has groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from penstock.drivers.reference.kernel import (
    Inputs,
    Kernel,
    Outputs,
    Site,
    kernel,
    options_of,
    require,
)
from penstock.drivers.reference.layers.forms import Form, float_finish, float_form, form_of
from penstock.drivers.reference.layers.padding import Axis, Steps, Window, pad, patches, slide
from penstock.drivers.reference.numerics import products
from penstock.drivers.reference.numerics.hybrid import is_per_channel
from penstock.drivers.reference.numerics.requantize import fused_activation
from penstock.drivers.reference.numerics.weights import Layer, Prepare, given, layer_kernel
from penstock.drivers.reference.structure.shape import checked, dimensions
from penstock.errors import ShapeMismatch
from penstock.interrupts import watched
from penstock.ir import DType, NDArray

AXES: Final = "dhw"

Windows: TypeAlias = Callable[[NDArray, NDArray], Window]
"""The windows of filters over images, its arguments."""


def blocks(outputs: Sequence[int], nbytes: int) -> Iterator[tuple[int | slice, ...]]:
    """Parts of *outputs* positions of *nbytes* each, of about `TILE_BYTES` together."""
    if not outputs or nbytes * math.prod(outputs) <= products.TILE_BYTES:
        yield ()
        return
    at, each = 0, nbytes * math.prod(outputs[1:])
    while at < len(outputs) - 1 and each > products.TILE_BYTES:
        at += 1
        each //= outputs[at]
    for before in watched(product(*map(range, outputs[:at]))):
        for part in products.tiles(outputs[at], each):
            yield (*before, part)


def convolve(
    image: NDArray, columns: NDArray, window: Window, out: NDArray, finish: products.Finish,
    multiply: products.Multiply = products.multiply_fast,
) -> None:  # fmt: skip
    """Fills *out* [batch, outputs ..., channels] from a padded *image* [batch, spatial ..., depth].

    *columns* [channels, elements of one filter] has the type of the computation; the last dimension
    of a filter is the depth of a group. The number of groups is the image's depth over a group's.
    *finish* gets the sums of some output positions at a time, all channels.
    """
    if not out.size:
        return
    channels, inner = columns.shape
    depth = inner // math.prod([axis.extent for axis in window])
    groups = image.shape[-1] // depth
    if groups == 1 and inner == depth and all(axis.stride == 1 for axis in window):
        flat = image.reshape(-1, depth)
        products.multiply_rows(flat, columns, out.reshape(-1, channels), finish, multiply)
        return
    view = patches(image, window)
    position = max(inner * groups, channels) * columns.itemsize
    for index in watched(range(len(out))):
        for block in blocks([axis.outputs for axis in window], position):
            sums = _sums(view[(index, *block)], columns, depth, multiply)
            finish(sums, out[(index, *block)].reshape(-1, channels))


def _sums(tile: NDArray, columns: NDArray, depth: int, multiply: products.Multiply) -> NDArray:
    """Sums [positions, channels] of patches [positions ..., extents ..., depth of all groups]."""
    channels, inner = columns.shape
    groups = tile.shape[-1] // depth
    each = channels // groups
    parts = []
    for group in watched(range(groups)):
        part = tile if groups == 1 else tile[..., group * depth : (group + 1) * depth]
        flat = np.empty(part.shape, columns.dtype)
        np.copyto(flat, part)
        rows = columns[group * each : (group + 1) * each]
        parts.append(multiply(flat.reshape(-1, inner), rows))
    return parts[0] if groups == 1 else np.concatenate(parts, axis=1)


def convolution(site: Site, form: Form, windows: Windows, axis: int = 0) -> Prepare:
    """Prepares a convolution with filters whose dimension *axis* is that of the channels."""
    dtype = site.output().dtype.numpy

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        columns, parts, multiply = form(np.moveaxis(filters, axis, 0), bias)

        def layer(image: NDArray) -> NDArray:
            window = windows(image, filters)
            shape = len(image), *(each.outputs for each in window), filters.shape[axis]
            out = np.empty(shape, dtype)
            for index, values, zero, finish in parts(image) if out.size else ():
                padded = pad(values, window, zero)
                convolve(padded, columns, window, out[index], finish, multiply)
            return out

        return layer

    return prepare


@kernel("CONV_2D")
def conv_2d(site: Site) -> Kernel:
    """Float, quantised (uint8, int8, int16 with weights of 8 bits or fewer) and hybrid, whose
    inputs are quantised asymmetrically if channels differ in scale, otherwise symmetrically.
    """
    steps, form = Steps.of(site.attributes), form_of(site, asymmetric=is_per_channel(site.input(1)))
    return layer_kernel(
        site, convolution(site, form, lambda x, filters: steps.over(x.shape, filters.shape[1:3]))
    )


@kernel("CONV_3D")
def conv_3d(site: Site) -> Kernel:
    steps, form = _check_volume(site, 0), float_form(site)

    def windows(volume: NDArray, filters: NDArray) -> Window:
        if volume.ndim != 5 or volume.shape[4] != filters.shape[3]:
            raise ShapeMismatch(f"a volume of shape {volume.shape} for filters of {filters.shape}")
        window = steps.over(volume.shape, filters.shape[:3])
        shape = len(volume), *(each.outputs for each in window), filters.shape[4]
        checked(shape, "a convolution")
        return window

    return layer_kernel(site, convolution(site, form, windows, axis=4), rank=5, axis=4)


def _check_volume(site: Site, volume: int) -> Steps:
    """The windows of a float operation. Raises `Unsupported` for other types."""
    operands = [site.input(volume), site.input(1), site.output()]
    site.require_types(all(operand.dtype is DType.FLOAT32 for operand in operands))
    return Steps.of(site.attributes, AXES)


@kernel("CONV_3D_TRANSPOSE")
def conv_3d_transpose(site: Site) -> Kernel:
    """The gradient of CONV_3D with respect to its input; the output's shape is the first input."""
    steps, activation = _check_volume(site, 2), fused_activation(site)
    biased = site.has(3)

    def run(inputs: Inputs) -> Outputs:
        shape = checked(dimensions(inputs[0]), "a convolution")
        filters, volume = given(inputs[1]), given(inputs[2])
        *extents, channels, depth = filters.shape
        fits = len(shape) == 5 and (shape[0], shape[4]) == (len(volume), channels)
        if not fits or volume.shape[4] != depth:
            raise ShapeMismatch(
                f"an output of shape {shape} of a volume of {volume.shape} "
                f"and filters of {filters.shape}"
            )
        finish = float_finish(inputs[3] if biased else None, activation)
        window = steps.over(shape, extents)
        out = np.zeros(shape, np.float32)
        for part, target in zip(volume, out, strict=True):
            spread(part, filters, window, target)
        sums = out.reshape(-1, channels)
        finish(sums, sums)
        return (out,)

    return run


def spread(volume: NDArray, taps: NDArray, window: Window, out: NDArray) -> None:
    """Adds each element of *volume* [spatial ..., depth] times *taps* [extents ..., channels,
    depth] to the elements of *out* [spatial ..., channels] that they reach.

    *window* is that of the convolution from *out*'s size to the volume's.
    """
    for place in watched(np.ndindex(taps.shape[:-2])):
        source, target = [], []
        for at, axis, size, whole in zip(place, window, volume.shape, out.shape, strict=False):
            offset = at * axis.dilation - axis.before
            first = max(0, -(offset // axis.stride))
            last = max(first, min(size, (whole - 1 - offset) // axis.stride + 1))
            source.append(slice(first, last))
            start = offset + first * axis.stride
            target.append(slice(start, start + (last - first) * axis.stride, axis.stride))
        part = volume[tuple(source)]
        if part.size:
            out[tuple(target)] += np.matmul(part, taps[place].T)


def channels_first(site: Site) -> bool:
    """Whether the images of *site* are NCHW."""
    return site.attributes.text("data_layout") == "NCHW"


def to_nhwc(image: NDArray, first: bool) -> NDArray:
    """A view of *image* with the channels last. *first* says that they are first in *image*. Raises
    `ShapeMismatch` unless the image has four dimensions.
    """
    if image.ndim != 4:
        raise ShapeMismatch(f"an image batch of shape {image.shape}, which is not of rank 4")
    return image.transpose(0, 2, 3, 1) if first else image


def from_nhwc(image: NDArray, first: bool) -> NDArray:
    """The inverse of `to_nhwc`, contiguous."""
    return np.asarray(image.transpose(0, 3, 1, 2), order="C") if first else image


@kernel("GROUPED_CONV_2D")
def grouped_conv_2d(site: Site) -> Kernel:
    """Float, and 8-bit with one scale or one for each channel."""
    grouping, form = options_of(site, Grouping), form_of(site, asymmetric=None)
    least, pads = min(grouping.groups, *grouping.strides), grouping.explicit_padding
    require(least > 0, f"{grouping.groups} groups")
    explicit = grouping.padding == "EXPLICIT"
    require(not explicit or (len(pads) == 4 and min(pads) >= 0), f"a padding of {pads}")
    prepare_last = convolution(site, form, grouping.windows)
    first = channels_first(site)

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        layer = prepare_last(filters, bias)
        return lambda x: from_nhwc(layer(np.ascontiguousarray(to_nhwc(x, first))), first)

    return layer_kernel(site, prepare)


class Grouping(Struct, frozen=True):
    """The attributes; padding is (left, right, top, bottom)."""

    groups: int
    stride_h: int
    stride_w: int
    padding: str
    explicit_padding: tuple[int, ...]

    @property
    def strides(self) -> tuple[int, int]:
        return self.stride_h, self.stride_w

    def windows(self, image: NDArray, filters: NDArray) -> Window:
        """The windows over an NHWC *image*. Raises `ShapeMismatch` if the channels do not fit."""
        depth, outputs = filters.shape[3], len(filters)
        if image.shape[3] != depth * self.groups or outputs % self.groups or not depth:
            raise ShapeMismatch(
                f"{image.shape[3]} channels and filters {filters.shape} in {self.groups} groups"
            )
        return [self._axis(image.shape[1 + at], filters.shape[1 + at], at) for at in (0, 1)]

    def _axis(self, size: int, extent: int, at: int) -> Axis:
        stride = self.strides[at]
        if self.padding != "EXPLICIT":
            return slide(size, extent, stride, 1, self.padding)
        before, after = (self.explicit_padding[2:], self.explicit_padding[:2])[at]
        whole = slide(size + before + after, extent, stride, 1, "VALID")
        return Axis(size, extent, stride, 1, whole.outputs, before, whole.padded - before - size)
