"""CONV_3D and CONV_3D_TRANSPOSE, and windows that slide over any number of dimensions.

Volumes are float, [batch, spatial ..., depth]. Filters are [depth, height, width, in, out] and
[depth, height, width, out, in].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from penstock.drivers.reference.kernel import Kernel, Site, kernel, require
from penstock.drivers.reference.layers.convolution import float_finish
from penstock.drivers.reference.layers.padding import Axis, slide
from penstock.drivers.reference.numerics.products import (
    TILE_BYTES,
    Finish,
    Multiply,
    float_product,
    multiply_fast,
    multiply_rows,
    tiles,
)
from penstock.drivers.reference.numerics.requantize import fused_activation
from penstock.drivers.reference.numerics.weights import Layer, given, layer_kernel
from penstock.drivers.reference.structure.shape import checked, dimensions
from penstock.errors import ShapeMismatch
from penstock.interrupts import watched
from penstock.ir import Attributes, DType, NDArray

AXES: Final = "dhw"


@dataclass(frozen=True, slots=True)
class Steps:
    """The window attributes, one number for each spatial dimension."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: str

    @classmethod
    def of(cls, attributes: Attributes) -> Steps:
        strides = tuple(attributes.integer(f"stride_{axis}") for axis in AXES)
        dilations = tuple(attributes.integer(f"dilation_{axis}_factor") for axis in AXES)
        require(min(*strides, *dilations) > 0, f"strides {strides} and dilations {dilations}")
        return cls(strides, dilations, attributes.text("padding"))

    def over(self, shape: Sequence[int], extents: Sequence[int]) -> list[Axis]:
        """Windows of *extents* over the spatial dimensions of *shape*, NDHWC."""
        return [
            slide(*sizes, self.padding)
            for sizes in zip(shape[1:4], extents, self.strides, self.dilations, strict=True)
        ]


def _check(site: Site, volume: int) -> tuple[Steps, str]:
    """The windows and the activation of a float operation. Raises `Unsupported` for other types."""
    operands = [site.input(volume), site.input(1), site.output()]
    if any(operand.dtype is not DType.FLOAT32 for operand in operands):
        raise site.unsupported_types()
    activation = fused_activation(site)
    return Steps.of(site.attributes), activation


@kernel("CONV_3D")
def conv_3d(site: Site) -> Kernel:
    steps, activation = _check(site, 0)

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        *extents, depth, channels = filters.shape
        columns = np.ascontiguousarray(filters.reshape(-1, channels).T)
        multiply, rest = float_product(site, bias)
        finish = float_finish(rest, activation)

        def layer(volume: NDArray) -> NDArray:
            if volume.ndim != 5 or volume.shape[4] != depth:
                raise ShapeMismatch(
                    f"a volume of shape {volume.shape} for filters of {filters.shape}"
                )
            window = steps.over(volume.shape, extents)
            shape = (len(volume), *(axis.outputs for axis in window), channels)
            out = np.empty(checked(shape, "a convolution"), np.float32)
            if out.size:
                convolve(pad(volume, window), columns, window, out, finish, multiply)
            return out

        return layer

    return layer_kernel(site, prepare)


@kernel("CONV_3D_TRANSPOSE")
def conv_3d_transpose(site: Site) -> Kernel:
    """The gradient of CONV_3D with respect to its input; the output's shape is the first input."""
    steps, activation = _check(site, 2)
    biased = site.has(3)

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        shape, filters, volume = (
            checked(dimensions(inputs[0]), "a convolution"),
            *map(given, inputs[1:3]),
        )
        *extents, channels, depth = filters.shape
        if (
            len(shape) != 5
            or (shape[0], shape[4]) != (len(volume), channels)
            or volume.shape[4] != depth
        ):
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


MOST_PADDED: Final = 2**26
PADDED_SHARE: Final = 8
"""Padding may create `MOST_PADDED` elements, or this many times the number of elements."""

Window: TypeAlias = Sequence[Axis]
"""One axis for each spatial dimension."""


def check_padded(elements: int, before: int) -> None:
    """Raises `ShapeMismatch` if padding enlarges *before* elements to far more *elements*."""
    if elements > max(MOST_PADDED, PADDED_SHARE * before):
        raise ShapeMismatch(f"an operand of {before} elements padded to {elements}")


def pad(volume: NDArray, window: Window) -> NDArray:
    """*volume* with zero padding, cropped to the elements that windows read. A view if nothing is
    padded.
    """
    cut = (slice(None), *(slice(axis.size + min(axis.after, 0)) for axis in window))
    volume = volume[cut]
    if not any(axis.before or axis.after > 0 for axis in window):
        return volume
    spatial = [
        axis.before + size + max(axis.after, 0)
        for axis, size in zip(window, volume.shape[1:-1], strict=True)
    ]
    shape = len(volume), *spatial, volume.shape[-1]
    check_padded(math.prod(shape), volume.size)
    padded = np.zeros(shape, volume.dtype)
    inside = (
        slice(axis.before, axis.before + size)
        for axis, size in zip(window, volume.shape[1:-1], strict=True)
    )
    padded[(slice(None), *inside)] = volume
    return padded


def patches(volume: NDArray, window: Window) -> NDArray:
    """The windows of a padded *volume*: a view [batch, outputs ..., extents ..., depth]."""
    batch, *steps, depth = volume.strides
    return as_strided(
        volume,
        (
            len(volume),
            *(axis.outputs for axis in window),
            *(axis.extent for axis in window),
            volume.shape[-1],
        ),
        (
            batch,
            *(step * axis.stride for step, axis in zip(steps, window, strict=True)),
            *(step * axis.dilation for step, axis in zip(steps, window, strict=True)),
            depth,
        ),
        writeable=False,
    )


def blocks(outputs: Sequence[int], nbytes: int) -> Iterator[tuple[int | slice, ...]]:
    """Contiguous parts of *outputs* positions of *nbytes* each, whose work memory is about
    `TILE_BYTES`.
    """
    if not outputs:
        yield ()
        return
    at = 0
    while at < len(outputs) - 1 and nbytes * math.prod(outputs[at + 1 :]) > TILE_BYTES:
        at += 1
    for before in watched(np.ndindex(*outputs[:at])):
        for part in tiles(outputs[at], nbytes * math.prod(outputs[at + 1 :])):
            yield (*before, part)


def convolve(
    volume: NDArray, columns: NDArray, window: Window,
    out: NDArray, finish: Finish, multiply: Multiply = multiply_fast,
) -> None:  # fmt: skip
    """Fills *out* [batch, outputs ..., channels] from a padded *volume* [batch, spatial ...,
    depth].

    *columns* [channels, elements of one filter] has the type of the computation; the last dimension
    of a filter is the depth of a group. The number of groups is the volume's depth over a group's.
    *finish* gets the sums of some output positions at a time, all channels.
    """
    if not out.size:
        return
    channels, inner = columns.shape
    depth = inner // math.prod(axis.extent for axis in window)
    groups = volume.shape[-1] // depth
    if groups == 1 and all(axis.extent == axis.stride == 1 for axis in window):
        flat = volume.reshape(-1, depth)
        multiply_rows(flat, columns, out.reshape(-1, channels), finish, multiply)
        return
    view = patches(volume, window)
    position = max(inner * groups, channels) * columns.itemsize
    for index in watched(range(len(out))):
        for block in blocks([axis.outputs for axis in window], position):
            target = out[(index, *block)]
            sums = _sums(view[(index, *block)], columns, depth, multiply)
            finish(sums, target.reshape(-1, channels))


def _sums(tile: NDArray, columns: NDArray, depth: int, multiply: Multiply) -> NDArray:
    """Sums [positions, channels] of patches [positions ..., extents ..., depth of all groups]."""
    channels, inner = columns.shape
    groups = tile.shape[-1] // depth
    each = channels // groups
    parts = []
    for group in watched(range(groups)):
        part = tile[..., group * depth : (group + 1) * depth]
        flat = np.empty(part.shape, columns.dtype)
        np.copyto(flat, part)
        rows = columns[group * each : (group + 1) * each]
        parts.append(multiply(flat.reshape(-1, inner), rows))
    return parts[0] if groups == 1 else np.concatenate(parts, axis=1)


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
