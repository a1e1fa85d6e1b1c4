"""Quantised layers against plain loops over Python's integers, from the operations' definitions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import given, strategies as st

from penstock.drivers.reference.kernel import Site, build
from penstock.drivers.reference.numerics.fixed_point import (
    multiply_by_quantized_multiplier,
    quantize_multiplier,
)
from penstock.ir import Attributes, DType, NDArray, Operand, Operation, Quantization
from penstock.ir.operation import AttributeValue

SCALES = st.floats(2.0**-9, 1.0, width=32)


@dataclass(frozen=True)
class Layer:
    """One random quantised layer over an image of one picture."""

    seed: int
    dtype: DType
    size: tuple[int, int]
    extents: tuple[int, int]
    stride: int
    dilation: int
    padding: str
    depth: int
    channels: int
    scales: tuple[float, float, float]

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        return {
            "padding": self.padding,
            "stride_h": self.stride,
            "stride_w": self.stride,
            "dilation_h_factor": self.dilation,
            "dilation_w_factor": self.dilation,
            "fused_activation_function": "NONE",
        }

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, *self.size, self.depth)

    def start(self, axis: int) -> tuple[int, int]:
        """(number of windows, where the first one starts), from the definition of the paddings."""
        size = self.size[axis]
        reach = (self.extents[axis] - 1) * self.dilation + 1
        if self.padding == "VALID":
            return max(0, -(-(size - reach + 1) // self.stride)), 0
        outputs = -(-size // self.stride)
        return outputs, -(max(0, (outputs - 1) * self.stride + reach - size) // 2)

    def windows(self) -> Iterator[tuple[int, int, list[tuple[int, int, int, int]]]]:
        """Each output position with its taps: (filter row, filter column, image row, image
        column).
        """
        (rows, top), (columns, left) = self.start(0), self.start(1)
        for oy, ox in itertools.product(range(rows), range(columns)):
            taps = []
            for ky, kx in itertools.product(*map(range, self.extents)):
                y = top + oy * self.stride + ky * self.dilation
                x = left + ox * self.stride + kx * self.dilation
                if 0 <= y < self.size[0] and 0 <= x < self.size[1]:
                    taps.append((ky, kx, y, x))
            yield oy, ox, taps


LAYERS = st.builds(
    Layer,
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from([DType.INT8, DType.UINT8]),
    size=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    extents=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.sampled_from(["SAME", "VALID"]),
    depth=st.integers(1, 3),
    channels=st.integers(1, 4),
    scales=st.tuples(SCALES, SCALES, st.floats(1.0, 64.0, width=32)),
)


class Case:
    """The operands of a layer with random values, and what its kernel makes of them."""

    def __init__(self, layer: Layer, kind: str, filters: Sequence[int], channels: int) -> None:
        rng = np.random.default_rng(layer.seed)
        dtype = layer.dtype
        low, high = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
        zero = [int(rng.integers(low, high + 1)) for _ in range(3)]
        if dtype is DType.INT8:
            zero[1] = 0
        self.zero, self.limits, self.scales = zero, (low, high), layer.scales
        self.single = dtype is DType.UINT8
        source, weights, target = (
            Quantization((s,), (z,)) for s, z in zip(layer.scales, zero, strict=True)
        )
        self.image = rng.integers(low, high, layer.shape, dtype.numpy, endpoint=True)
        self.filters = rng.integers(low, high, filters, dtype.numpy, endpoint=True)
        self.bias = rng.integers(-5000, 5000, channels).astype(np.int32)
        inputs = (
            Operand(dtype, layer.shape, quantization=source),
            Operand(dtype, tuple(filters), quantization=weights),
            Operand(DType.INT32, (channels,)),
        )
        output = Operand(dtype, None, quantization=target)
        constants = [None, self.filters, self.bias]
        operation = Operation(kind, (0, 1, 2), (3,), Attributes(layer.attributes))
        kernel = build(Site(operation, inputs, (output,), constants.__getitem__))
        (self.result,) = kernel([self.image, self.filters, self.bias])

    def product(self, pixel: object, weight: object) -> int:
        return (int(pixel) - self.zero[0]) * (int(weight) - self.zero[1])  # type: ignore[call-overload, no-any-return]

    def stored(self, total: int) -> int:
        """A sum scaled, shifted to the zero point and clamped."""
        source, weights, target = self.scales
        product = source * weights
        if self.single:
            product = float(np.float32(source) * np.float32(weights))
        pair = quantize_multiplier(product / target)
        scaled = int(multiply_by_quantized_multiplier(np.array([total]), *pair)[0])
        return min(max(scaled + self.zero[2], self.limits[0]), self.limits[1])

    def check(self, expected: NDArray) -> None:
        assert self.result.shape == expected.shape
        np.testing.assert_array_equal(self.result, expected)


@given(LAYERS)
def test_quantised_conv_2d_equals_plain_loops(layer: Layer) -> None:
    case = Case(layer, "CONV_2D", (layer.channels, *layer.extents, layer.depth), layer.channels)
    shape = 1, layer.start(0)[0], layer.start(1)[0], layer.channels
    expected = np.zeros(shape, layer.dtype.numpy)
    for oy, ox, taps in layer.windows():
        for channel in range(layer.channels):
            total = int(case.bias[channel])
            for ky, kx, y, x in taps:
                for d in range(layer.depth):
                    total += case.product(case.image[0, y, x, d], case.filters[channel, ky, kx, d])
            expected[0, oy, ox, channel] = case.stored(total)
    case.check(expected)


@given(LAYERS)
def test_quantised_depthwise_conv_2d_equals_plain_loops(layer: Layer) -> None:
    multiplier = layer.channels
    channels = layer.depth * multiplier
    case = Case(layer, "DEPTHWISE_CONV_2D", (1, *layer.extents, channels), channels)
    shape = 1, layer.start(0)[0], layer.start(1)[0], channels
    expected = np.zeros(shape, layer.dtype.numpy)
    for oy, ox, taps in layer.windows():
        for channel in range(channels):
            total = int(case.bias[channel])
            for ky, kx, y, x in taps:
                pixel = case.image[0, y, x, channel // multiplier]
                total += case.product(pixel, case.filters[0, ky, kx, channel])
            expected[0, oy, ox, channel] = case.stored(total)
    case.check(expected)
