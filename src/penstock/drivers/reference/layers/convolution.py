"""CONV_2D: images NHWC, filters [out, height, width, in].

If the image's depth is a multiple of `in`, the convolution has groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from penstock.drivers.reference.kernel import Kernel, Site, kernel
from penstock.drivers.reference.layers.padding import Axis, Steps, pad, patches
from penstock.drivers.reference.numerics.hybrid import (
    MAGNITUDE,
    NARROW,
    HybridFinish,
    is_per_channel,
    quantize_rows,
    weight_scales,
    weight_values,
)
from penstock.drivers.reference.numerics.products import (
    Columns,
    Finish,
    Multiply,
    float_product,
    multiply_fast,
    multiply_rows,
    tiles,
)
from penstock.drivers.reference.numerics.requantize import (
    activation_bounds,
    clamp_in_place,
    clamp_to_finite,
    fused_activation,
)
from penstock.drivers.reference.numerics.weights import (
    QUANTIZED,
    REAL,
    Layer,
    Prepare,
    Scaling,
    centred,
    flattened,
    layer_kernel,
)
from penstock.errors import ShapeMismatch
from penstock.interrupts import watched
from penstock.ir import DType, NDArray


@kernel("CONV_2D")
def conv_2d(site: Site) -> Kernel:
    """Float, quantised (uint8, int8, int16 with weights of 8 bits or fewer) and hybrid."""
    return layer_by_types(site, _float_layer, _quantized_layer, _hybrid_layer)


def convolve(
    image: NDArray, columns: NDArray, extents: tuple[int, int], window: tuple[Axis, Axis],
    out: NDArray, finish: Finish, multiply: Multiply = multiply_fast,
) -> None:  # fmt: skip
    """Fills *out* [batch, height, width, channels] from a padded *image* [batch, height, width,
    depth].

    *columns* [channels, height * width * depth of one filter] has the type of the computation.
    *finish* gets the sums of some output positions at a time, all channels.
    """
    if not out.size:
        return
    channels, inner = columns.shape
    height, width = extents
    depth = inner // (height * width)
    groups = image.shape[3] // depth
    rows, across = window
    if groups == 1 and inner == depth and rows.stride == across.stride == 1:
        multiply_rows(
            image.reshape(-1, depth), columns, out.reshape(-1, channels), finish, multiply
        )
        return
    view = patches(image, rows, across)
    position = max(inner * groups, channels) * columns.itemsize
    for index in watched(range(len(out))):
        for y in tiles(rows.outputs, across.outputs * position):
            for x in tiles(across.outputs, (y.stop - y.start) * position):
                tile = view[index, y, x]
                sums = _grouped(tile, columns, groups, multiply)
                finish(sums, out[index, y, x].reshape(-1, channels))


def _grouped(tile: NDArray, columns: NDArray, groups: int, multiply: Multiply) -> NDArray:
    """Sums [positions, channels] of patches [height, width, filter height, filter width, depth]."""
    positions, inner = tile.shape[0] * tile.shape[1], columns.shape[1]
    if groups == 1:
        flat = np.empty(tile.shape, columns.dtype)
        np.copyto(flat, tile)
        return multiply(flat.reshape(positions, inner), columns)
    depth, each = tile.shape[4] // groups, len(columns) // groups
    sums = np.empty((positions, len(columns)), columns.dtype)
    for group in watched(range(groups)):
        flat = np.empty((*tile.shape[:4], depth), columns.dtype)
        np.copyto(flat, tile[..., group * depth : (group + 1) * depth])
        channels = slice(group * each, (group + 1) * each)
        sums[:, channels] = multiply(flat.reshape(positions, inner), columns[channels])
    return sums


def _extents(filters: NDArray) -> tuple[int, int]:
    height, width = filters.shape[1:3]
    return height, width


def _output(image: NDArray, window: tuple[Axis, Axis], filters: NDArray, dtype: DType) -> NDArray:
    rows, across = window
    return np.empty((len(image), rows.outputs, across.outputs, len(filters)), dtype.numpy)


def float_finish(bias: NDArray | None, activation: str, *, finite: bool = True) -> Finish:
    """A function that adds the bias to sums in place, applies the fused activation and stores them.
    With *finite*, infinities become the greatest floats.
    """
    activation_bounds(activation)
    clamp = clamp_to_finite if finite else clamp_in_place
    offset = None if bias is None else bias.reshape(-1).astype(np.float32)

    def finish(sums: NDArray, out: NDArray) -> None:
        if offset is not None:
            np.add(sums, offset, out=sums)
        np.copyto(out, clamp(sums, activation), casting="unsafe")

    return finish


def _float_layer(site: Site) -> Prepare:
    steps = Steps.of(site.attributes)
    activation = fused_activation(site)
    dtype = site.output().dtype

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        columns = flattened(filters).astype(np.float32, copy=False)
        multiply, rest = float_product(site, bias)
        finish = float_finish(rest, activation)
        extents = _extents(filters)

        def layer(image: NDArray) -> NDArray:
            window = steps.over(image.shape, extents)
            out = _output(image, window, filters, dtype)
            convolve(pad(image, *window, 0), columns, extents, window, out, finish, multiply)
            return out

        return layer

    return prepare


def _quantized_layer(site: Site) -> Prepare:
    steps = Steps.of(site.attributes)
    scaling = Scaling.of(site, source=0, weights=1, bias=2, axis=0)
    operand, dtype = site.input(1), site.output().dtype
    signed = scaling.signed_input

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        weights = centred(filters, operand)
        columns = Columns(flattened(weights), signed.magnitude)
        finish = scaling.requantizer(columns.bound, columns.sums, bias)
        extents = _extents(filters)

        def layer(image: NDArray) -> NDArray:
            window = steps.over(image.shape, extents)
            out = _output(image, window, filters, dtype)
            padded = pad(signed.signed(image), *window, signed.zero_point)
            convolve(padded, columns.values, extents, window, out, finish)
            return out

        return layer

    return prepare


def _hybrid_layer(site: Site) -> Prepare:
    """Inputs are quantised asymmetrically if channels differ in scale, otherwise symmetrically."""
    steps = Steps.of(site.attributes)
    activation = fused_activation(site)
    operand = site.input(1)
    scaling = weight_scales(operand, axis=0)
    asymmetric = is_per_channel(operand)

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        weights = flattened(weight_values(filters, operand))
        columns = Columns(weights, 2 * MAGNITUDE)
        extents = _extents(filters)

        def layer(image: NDArray) -> NDArray:
            window = steps.over(image.shape, extents)
            out = _output(image, window, filters, DType.FLOAT32)
            rows = quantize_rows(flattened(image), asymmetric=asymmetric)
            for index, values in enumerate(rows.values.reshape(image.shape)):
                scale, offset = rows.scales[index], rows.offsets[index]
                finish = HybridFinish(columns.sums, scaling, bias, activation, scale, offset)
                padded = pad(values[None], *window, int(offset))
                convolve(padded, columns.values, extents, window, out[index : index + 1], finish)
            return out

        return layer

    return prepare


Form: TypeAlias = Callable[[Site], Prepare]
"""Prepares a layer in one numeric form."""


def layer_by_types(site: Site, real: Form, quantized: Form, hybrid: Form | None = None) -> Kernel:
    """The kernel of a layer (image, weights, optional bias) in the form that its types select.
    Raises `Unsupported` if none of the given forms matches the types.
    """
    source, weights, target = site.input(0), site.input(1), site.output()
    if source.dtype in REAL and weights.dtype is source.dtype is target.dtype:
        return layer_kernel(site, real(site))
    if source.dtype in QUANTIZED and target.dtype is source.dtype:
        return layer_kernel(site, quantized(site))
    if (
        hybrid is not None
        and source.dtype is target.dtype is DType.FLOAT32
        and weights.dtype in NARROW
    ):
        return layer_kernel(site, hybrid(site))
    raise site.unsupported_types()


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
