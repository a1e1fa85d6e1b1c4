"""GROUPED_CONV_2D: each group of channels convolved with filters of its own (NNAPI)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel, require
from penstock.drivers.reference.ops.layers.by_types import layer_by_types
from penstock.drivers.reference.ops.layers.convolution import convolve, float_finish
from penstock.drivers.reference.ops.layers.image_layout import channels_first, from_nhwc, to_nhwc
from penstock.drivers.reference.ops.layers.padding import Axis, pad, slide
from penstock.drivers.reference.ops.numerics.activation_range import activation_bounds
from penstock.drivers.reference.ops.numerics.products import (
    Columns,
    Finish,
    Multiply,
    float_product,
    multiply_fast,
)
from penstock.drivers.reference.ops.numerics.weights import (
    Layer,
    Prepare,
    Scaling,
    centred,
    flattened,
)
from penstock.errors import ShapeMismatch
from penstock.ir import NDArray


@kernel("GROUPED_CONV_2D")
def grouped_conv_2d(site: Site) -> Kernel:
    """Float, and 8-bit convolution with one scale, or one a channel, of filters [out, height,
    width, in].
    """
    return layer_by_types(site, _float_layer, _quantized_layer)


@dataclass(frozen=True, slots=True)
class Grouping:
    """What the attributes say: strides (height, width) and padding (left, right, top, bottom)."""

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
        """The windows over an NHWC *image*; `ShapeMismatch` where groups do not come out even."""
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


def _layer(
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


def _float_layer(site: Site) -> Prepare:
    grouping = Grouping.of(site)
    activation = site.attributes.text("fused_activation_function")
    activation_bounds(activation)

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        columns = flattened(filters).astype(np.float32, copy=False)
        multiply, rest = float_product(site, bias)
        finish = float_finish(rest, activation)
        return _layer(site, filters, columns, grouping, finish, multiply, 0, lambda x: x)

    return prepare


def _quantized_layer(site: Site) -> Prepare:
    grouping = Grouping.of(site)
    scaling = Scaling.of(site, source=0, weights=1, bias=2, axis=0)
    operand, signed = site.input(1), scaling.signed_input

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        columns = Columns(flattened(centred(filters, operand)), signed.magnitude)
        finish = scaling.requantizer(columns.bound, columns.sums, bias)
        return _layer(
            site, filters, columns.values, grouping, finish, multiply_fast, signed.zero_point,
            signed.signed,
        )  # fmt: skip

    return prepare
