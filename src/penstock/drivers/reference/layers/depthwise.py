"""DEPTHWISE_CONV_2D, and NNAPI's GROUPED_CONV_2D, which convolves each group of channels with
separate filters.

Images are NHWC. Depthwise filters are [1, height, width, out]: each input channel has out / in
filters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.drivers.reference.kernel import Kernel, Site, kernel, require
from penstock.drivers.reference.layers.convolution import (
    channels_first,
    convolve,
    float_finish,
    from_nhwc,
    layer_by_types,
    to_nhwc,
)
from penstock.drivers.reference.layers.padding import Axis, Steps, pad, slide
from penstock.drivers.reference.numerics.hybrid import (
    MAGNITUDE,
    HybridFinish,
    quantize_rows,
    weight_scales,
    weight_values,
)
from penstock.drivers.reference.numerics.products import (
    TILE_BYTES,
    Columns,
    Finish,
    Multiply,
    float_product,
    multiply_fast,
)
from penstock.drivers.reference.numerics.requantize import fused_activation
from penstock.drivers.reference.numerics.weights import Layer, Prepare, Scaling, centred, flattened
from penstock.errors import ShapeMismatch
from penstock.interrupts import watched
from penstock.ir import NDArray

STRIP_BYTES: Final = 1 << 18
"""Size, in bytes, of one strip of output rows. It is so small that its sums stay in the cache."""

STRIP_ROWS: Final = 8
"""Least number of rows of a strip. Rows that two strips read are converted twice."""


@kernel("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(site: Site) -> Kernel:
    """Float, quantised (uint8, int8, int16 with weights of 8 bits or fewer) and hybrid."""
    return layer_by_types(site, _float_layer, _quantized_layer, _hybrid_layer)


def convolve_depthwise(
    image: NDArray, taps: NDArray, window: tuple[Axis, Axis], out: NDArray, finish: Finish
) -> None:
    """Fills *out* [batch, height, width, channels] from a padded *image* [batch, height, width,
    depth].

    *taps* [height, width, channels] has the type of the computation; *finish* gets the sums of some
    output positions at a time, all channels.
    """
    rows, across = window
    channels = taps.shape[2]
    length = across.outputs * channels
    vectors = None
    if taps.nbytes * across.outputs <= TILE_BYTES:
        vectors = np.tile(taps, (1, 1, across.outputs))
    step = max(STRIP_ROWS, STRIP_BYTES // max(1, length * taps.itemsize))
    for index in watched(range(len(out))):
        for start in watched(range(0, rows.outputs, step)):
            count = min(step, rows.outputs - start)
            top = start * rows.stride
            strip = image[index, top : top + (count - 1) * rows.stride + rows.reach]
            sums = _strip(strip, taps, vectors, window, count)
            target = out[index, start : start + count]
            finish(sums.reshape(-1, channels), target.reshape(-1, channels))


def _strip(
    strip: NDArray, taps: NDArray, vectors: NDArray | None, window: tuple[Axis, Axis], count: int
) -> NDArray:
    """Sums [rows, width * channels] of *count* output rows.

    *vectors* are the taps repeated over a whole row, or None if they are too large for that.
    """
    rows, across = window
    height, width, channels = taps.shape
    length = across.outputs * channels
    planes = _planes(strip, across, channels, taps.dtype)
    sums = np.empty((count, length), taps.dtype)
    product = np.empty_like(sums)
    for y in watched(range(height)):
        first = y * rows.dilation
        lines = slice(first, first + (count - 1) * rows.stride + 1, rows.stride)
        for x in watched(range(width)):
            offset, phase = divmod(x * across.dilation, across.stride)
            begin = offset * channels
            line = planes[phase][lines, begin : begin + length]
            vector = np.tile(taps[y, x], across.outputs) if vectors is None else vectors[y, x]
            if x == y == 0:
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
        planes[phase] = flattened(part)
    return planes


def _output(image: NDArray, window: tuple[Axis, Axis], filters: NDArray, site: Site) -> NDArray:
    rows, across = window
    shape = len(image), rows.outputs, across.outputs, filters.shape[3]
    return np.empty(shape, site.output().dtype.numpy)


def _float_layer(site: Site) -> Prepare:
    steps = Steps.of(site.attributes)
    activation = fused_activation(site)

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        taps = filters[0].astype(np.float32, copy=False)
        finish = float_finish(bias, activation)

        def layer(image: NDArray) -> NDArray:
            window = steps.over(image.shape, taps.shape[:2])
            out = _output(image, window, filters, site)
            if out.size:
                convolve_depthwise(pad(image, *window, 0), taps, window, out, finish)
            return out

        return layer

    return prepare


def _quantized_layer(site: Site) -> Prepare:
    steps = Steps.of(site.attributes)
    scaling = Scaling.of(site, source=0, weights=1, bias=2, axis=3)
    operand = site.input(1)
    signed = scaling.signed_input

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        weights = centred(filters, operand)[0]
        columns = Columns(weights.reshape(-1, weights.shape[2]).T, signed.magnitude)
        taps = np.ascontiguousarray(columns.values.T).reshape(weights.shape)
        finish = scaling.requantizer(columns.bound, columns.sums, bias)

        def layer(image: NDArray) -> NDArray:
            window = steps.over(image.shape, taps.shape[:2])
            out = _output(image, window, filters, site)
            if out.size:
                padded = pad(signed.signed(image), *window, signed.zero_point)
                convolve_depthwise(padded, taps, window, out, finish)
            return out

        return layer

    return prepare


def _hybrid_layer(site: Site) -> Prepare:
    """Inputs are quantised asymmetrically."""
    steps = Steps.of(site.attributes)
    activation = fused_activation(site)
    operand = site.input(1)
    scaling = weight_scales(operand, axis=3)

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        weights = weight_values(filters, operand)[0]
        columns = Columns(weights.reshape(-1, weights.shape[2]).T, 2 * MAGNITUDE)
        taps = np.ascontiguousarray(columns.values.T).reshape(weights.shape)

        def layer(image: NDArray) -> NDArray:
            window = steps.over(image.shape, taps.shape[:2])
            out = _output(image, window, filters, site)
            rows = quantize_rows(flattened(image), asymmetric=True)
            for index, values in enumerate(rows.values.reshape(image.shape)):
                scale, offset = rows.scales[index], rows.offsets[index]
                # Both scales are combined into one factor here. CONV_2D applies them one after the
                # other.
                factors, one = scaling * scale, np.ones(1, np.float32)
                finish = HybridFinish(columns.sums, factors, bias, activation, one, offset)
                padded = pad(values[None], *window, int(offset))
                if out.size:
                    convolve_depthwise(padded, taps, window, out[index : index + 1], finish)
            return out

        return layer

    return prepare


@kernel("GROUPED_CONV_2D")
def grouped_conv_2d(site: Site) -> Kernel:
    """Float, and 8-bit with one scale or one for each channel. Filters are [out, height, width,
    in].
    """
    return layer_by_types(site, _float_groups, _quantized_groups)


@dataclass(frozen=True, slots=True)
class Grouping:
    """The attributes: strides (height, width) and padding (left, right, top, bottom)."""

    groups: int
    strides: tuple[int, int]
    padding: str
    pads: tuple[int, ...]
    first: bool

    @classmethod
    def of(cls, site: Site) -> Grouping:
        attributes = site.attributes
        padding, pads = attributes.text("padding"), attributes.integers("explicit_padding")
        grouping = cls(
            attributes.integer("groups"),
            (attributes.integer("stride_h"), attributes.integer("stride_w")),
            padding,
            pads,
            channels_first(site),
        )
        require(min(grouping.groups, *grouping.strides) > 0, f"{grouping.groups} groups")
        if padding == "EXPLICIT":
            require(len(pads) == 4 and min(pads) >= 0, f"a padding of {pads}")
        return grouping

    def windows(self, image: NDArray, filters: NDArray) -> tuple[Axis, Axis]:
        """The windows over an NHWC *image*. Raises `ShapeMismatch` if the channels do not divide
        evenly.
        """
        depth, outputs = filters.shape[3], len(filters)
        if image.shape[3] != depth * self.groups or outputs % self.groups or not depth:
            raise ShapeMismatch(
                f"{image.shape[3]} channels and filters {filters.shape} in {self.groups} groups"
            )
        rows, columns = (
            self._axis(image.shape[1 + at], filters.shape[1 + at], at) for at in (0, 1)
        )
        return rows, columns

    def _axis(self, size: int, extent: int, at: int) -> Axis:
        stride = self.strides[at]
        if self.padding != "EXPLICIT":
            return slide(size, extent, stride, 1, self.padding)
        before, after = (self.pads[2:], self.pads[:2])[at]
        whole = slide(size + before + after, extent, stride, 1, "VALID")
        behind = whole.padded - before - size
        return Axis(size, extent, stride, 1, whole.outputs, before, behind)


def _grouped_layer(
    site: Site,
    filters: NDArray,
    columns: NDArray,
    grouping: Grouping,
    finish: Finish,
    multiply: Multiply,
    padding: float,
    convert: Layer,
) -> Layer:
    dtype, (height, width) = site.output().dtype, filters.shape[1:3]

    def layer(image: NDArray) -> NDArray:
        last = to_nhwc(image, grouping.first)
        window = grouping.windows(last, filters)
        shape = len(last), window[0].outputs, window[1].outputs, len(filters)
        out = np.empty(shape, dtype.numpy)
        padded = pad(convert(np.ascontiguousarray(last)), *window, padding)
        convolve(padded, columns, (height, width), window, out, finish, multiply)
        return from_nhwc(out, grouping.first)

    return layer


def _float_groups(site: Site) -> Prepare:
    grouping = Grouping.of(site)
    activation = fused_activation(site)

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        columns = flattened(filters).astype(np.float32, copy=False)
        multiply, rest = float_product(site, bias)
        finish = float_finish(rest, activation)
        return _grouped_layer(site, filters, columns, grouping, finish, multiply, 0, lambda x: x)

    return prepare


def _quantized_groups(site: Site) -> Prepare:
    grouping = Grouping.of(site)
    scaling = Scaling.of(site, source=0, weights=1, bias=2, axis=0)
    operand, signed = site.input(1), scaling.signed_input

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        columns = Columns(flattened(centred(filters, operand)), signed.magnitude)
        finish = scaling.requantizer(columns.bound, columns.sums, bias)
        return _grouped_layer(
            site, filters, columns.values, grouping, finish, multiply_fast, signed.zero_point,
            signed.signed,
        )  # fmt: skip

    return prepare
