"""Layers against LiteRT and against plain loops."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.driverkit import fixed_point
from penstock.drivers.reference.kernel import Site, build
from penstock.ir import Attributes, DType, Lifetime, NDArray, Operand, Operation, Quantization
from penstock.ir.operation import AttributeValue
from penstock.ir.operations.signature import ACTIVATIONS
from tests.support_litert import Given, Recorded, Wanted, assert_agrees, q, run_alone

F32, U8, I8, I16, I32, I64, I4 = (
    DType.FLOAT32,
    DType.UINT8,
    DType.INT8,
    DType.INT16,
    DType.INT32,
    DType.INT64,
    DType.INT4,
)
RANGE = {U8: (0, 255), I8: (-128, 127), I16: (-32768, 32767)}
WEIGHT_RANGE = {U8: (0, 255), I8: (-127, 127), I4: (-7, 7)}
"""Symmetric weights leave the least value out, and some of the judge's hybrid kernels rely
on it.
"""

CLAMPS = ACTIVATIONS[:4]


class Maker:
    """Seeded random operands of layers."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def scale(self, low: float = -5, high: float = 0) -> float:
        return float(np.float32(np.exp(self.rng.uniform(low, high))))

    def whole(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def one(self, dtype: DType, scale: float | None = None) -> Quantization:
        """Quantisation of activations: 16 bits are symmetric."""
        zero_point = 0 if dtype is I16 else self.whole(*RANGE[dtype])
        return q(self.scale() if scale is None else scale, zero_point)

    def values(self, dtype: DType, shape: tuple[int, ...]) -> NDArray:
        if dtype is F32:
            return self.rng.standard_normal(shape).astype(np.float32) * np.float32(3)
        return self.rng.integers(*RANGE[dtype], shape, endpoint=True).astype(dtype.numpy)

    def source(self, dtype: DType, shape: tuple[int, ...]) -> Given:
        return Given(self.values(dtype, shape), None if dtype is F32 else self.one(dtype))

    def weights(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        axis: int,
        per_channel: bool,
        constant: bool = True,
    ) -> Given:
        if dtype is F32:
            return Given(self.values(F32, shape), constant=constant)
        value = self.rng.integers(*WEIGHT_RANGE[dtype], shape, endpoint=True).astype(dtype.numpy)
        count = shape[axis] if per_channel else 1
        zero = self.whole(100, 150) if dtype is U8 else 0
        scales = tuple(self.scale() for _ in range(count))
        quantization = Quantization(scales, (zero,) * count, axis if count > 1 else None)
        return Given(value, quantization, constant, dtype)

    def bias(self, dtype: DType, source: Given, weights: Given, channels: int) -> Given:
        if dtype is F32:
            return Given(self.values(F32, (channels,)), constant=True)
        assert source.quantization is not None
        assert weights.quantization is not None
        scales = tuple(
            float(np.float32(source.quantization.scale) * np.float32(s))
            for s in weights.quantization.scales
        )
        value = self.rng.integers(-(2**15), 2**15, channels).astype(dtype.numpy)
        dimension = 0 if len(scales) > 1 else None
        return Given(value, Quantization(scales, (0,) * len(scales), dimension), constant=True)

    def output(self, dtype: DType, source: Given, weights: Given, depth: int) -> Wanted:
        """An output whose scale is such that results spread over its range and a little beyond."""
        if dtype is F32:
            return Wanted(F32)
        assert source.quantization is not None
        assert weights.quantization is not None
        assert source.value is not None
        assert weights.value is not None
        spread = float(np.std(source.value) * np.std(weights.value.astype(np.float64)))
        reach = max(1.0, spread * np.sqrt(depth)) * source.quantization.scale
        steps = 2.0 ** (dtype.bits or 0) / 4
        scale = reach * max(weights.quantization.scales) / steps * self.scale(-1, 1)
        return Wanted(dtype, self.one(dtype, scale))


SCHEMES = {
    "float": (F32, F32, F32, False),
    "uint8": (U8, U8, I32, False),
    "int8": (I8, I8, I32, False),
    "int8-channel": (I8, I8, I32, True),
    "int16x8": (I16, I8, I64, False),
    "int16x8-channel": (I16, I8, I64, True),
    "int4-channel": (I8, I4, I32, True),
    "hybrid": (F32, I8, F32, False),
    "hybrid-channel": (F32, I8, F32, True),
}
FLOAT_TOLERANCE = 1e-5
"""Of the greatest output, which a fused activation may have cut: the order of float32 sums
differs.
"""


def agree(recorded: Recorded) -> None:
    assert_agrees(recorded, FLOAT_TOLERANCE)


def window(maker: Maker) -> dict[str, Any]:
    return {
        "padding": ("SAME", "VALID")[maker.whole(0, 1)],
        "stride_w": maker.whole(1, 3),
        "stride_h": maker.whole(1, 3),
        "fused_activation_function": CLAMPS[maker.whole(0, 3)],
    }


def dilate(options: dict[str, Any], factor: int) -> dict[str, Any]:
    """The judge dilates only what does not stride."""
    if factor > 1:
        options |= {"stride_w": 1, "stride_h": 1}
    return options | {"dilation_w_factor": factor, "dilation_h_factor": factor}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("scheme", SCHEMES)
def test_conv_2d_agrees_with_litert(scheme: str, seed: int) -> None:
    stype, wtype, btype, per_channel = SCHEMES[scheme]
    maker = Maker(seed)
    depth, channels, groups = maker.whole(1, 9), maker.whole(1, 20), 1
    if seed % 4 == 3 and stype is not U8 and "hybrid" not in scheme:
        groups = maker.whole(2, 3)
    size = maker.whole(1, 4), maker.whole(1, 4)
    shape = maker.whole(1, 2), maker.whole(8, 14), maker.whole(8, 14), depth * groups
    source = maker.source(stype, shape)
    filters = maker.weights(wtype, (channels * groups, *size, depth), 0, per_channel)
    bias = maker.bias(btype, source, filters, channels * groups)
    target = maker.output(stype, source, filters, depth * size[0] * size[1])
    options = dilate(window(maker), 1 + (seed % 3 == 2))
    agree(run_alone("CONV_2D", [source, filters, bias], [target], **options))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s != "hybrid"])
def test_depthwise_conv_2d_agrees_with_litert(scheme: str, seed: int) -> None:
    stype, wtype, btype, per_channel = SCHEMES[scheme]
    maker = Maker(seed)
    depth, multiplier = maker.whole(1, 9), maker.whole(1, 3)
    size = maker.whole(1, 4), maker.whole(1, 4)
    source = maker.source(stype, (maker.whole(1, 2), maker.whole(8, 14), maker.whole(8, 14), depth))
    filters = maker.weights(wtype, (1, *size, depth * multiplier), 3, per_channel)
    bias = maker.bias(btype, source, filters, depth * multiplier)
    target = maker.output(stype, source, filters, size[0] * size[1])
    options = window(maker) | {"depth_multiplier": multiplier}
    options = dilate(options | {"stride_h": options["stride_w"]}, 1 + (seed % 3 == 2))
    agree(run_alone("DEPTHWISE_CONV_2D", [source, filters, bias], [target], **options))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("scheme", SCHEMES)
def test_fully_connected_agrees_with_litert(scheme: str, seed: int) -> None:
    stype, wtype, btype, per_channel = SCHEMES[scheme]
    maker = Maker(seed)
    depth, units = maker.whole(1, 70), maker.whole(1, 20)
    constant = seed % 4 != 2 or wtype is I4
    weights = maker.weights(wtype, (units, depth), 0, per_channel, constant)
    source = maker.source(stype, (2, 3, depth) if seed % 2 else (maker.whole(1, 4), depth))
    given = [source, weights, Given(None)]
    if seed % 3:
        given[2] = maker.bias(btype, source, weights, units)
    target = maker.output(stype, source, weights, depth)
    recorded = run_alone(
        "FULLY_CONNECTED",
        given,
        [target],
        fused_activation_function=CLAMPS[maker.whole(0, 3)],
        keep_num_dims=seed % 4 == 1,
        asymmetric_quantize_inputs=seed % 3 == 0,
    )
    agree(recorded)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("scheme", [s for s in SCHEMES if "int4" not in s])
def test_transpose_conv_agrees_with_litert(scheme: str, seed: int) -> None:
    stype, wtype, btype, per_channel = SCHEMES[scheme]
    maker = Maker(seed)
    depth, channels = maker.whole(1, 6), maker.whole(1, 6)
    size = maker.whole(1, 4), maker.whole(1, 4)
    shape = maker.whole(1, 2), maker.whole(1, 6), maker.whole(1, 6), depth
    options = window(maker)
    pairs = zip(shape[1:3], size, (options["stride_h"], options["stride_w"]), strict=True)
    same = options["padding"] == "SAME"
    image = [n * s if same else (n - 1) * s + k for n, k, s in pairs]
    extents = Given(np.array([shape[0], *image, channels], np.int32), constant=True)
    source = maker.source(stype, shape)
    filters = maker.weights(wtype, (channels, *size, depth), 0, per_channel)
    given = [extents, filters, source]
    if seed % 3:
        given.append(maker.bias(btype, source, filters, channels))
    target = maker.output(stype, source, filters, depth)
    agree(run_alone("TRANSPOSE_CONV", given, [target], **options))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("left", "right"), [(F32, F32), (I8, I8), (I16, I16), (I16, I8), (F32, I8)]
)
def test_batch_matmul_agrees_with_litert(left: DType, right: DType, seed: int) -> None:
    maker = Maker(seed)
    rows, depth, columns = maker.whole(1, 8), maker.whole(1, 40), maker.whole(1, 8)
    batch = [((2, 3), (2, 3)), ((), ()), ((3,), (1,)), ((1, 2), (3, 1))][seed % 4]
    if (left, right) == (F32, I8):
        batch = ((3,), (3,))  # over two dimensions the judge reads the offsets of the first alone
    adj_x, adj_y = seed % 2 == 1 and left is not F32, seed % 3 == 1
    a = maker.source(left, (*batch[0], *((depth, rows) if adj_x else (rows, depth))))
    shape = (*batch[1], *((columns, depth) if adj_y else (depth, columns)))
    if left is right:
        b = maker.source(right, shape)
    else:
        b = maker.weights(right, shape, 0, per_channel=False, constant=left is F32)
    target = maker.output(left, a, b, depth)
    asymmetric = seed % 2 == 0
    agree(
        run_alone(
            "BATCH_MATMUL",
            [a, b],
            [target],
            adj_x=adj_x,
            adj_y=adj_y,
            asymmetric_quantize_inputs=asymmetric,
        )
    )


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *itertools.product(("AVERAGE_POOL_2D", "MAX_POOL_2D"), (F32, U8, I8, I16)),
        ("L2_POOL_2D", F32),
    ],
)
def test_pooling_agrees_with_litert(kind: str, dtype: DType, seed: int) -> None:
    maker = Maker(seed)
    shape = maker.whole(1, 2), maker.whole(6, 12), maker.whole(6, 12), maker.whole(1, 5)
    source = maker.source(dtype, shape)
    options = window(maker) | {
        "filter_width": maker.whole(1, 6),
        "filter_height": maker.whole(1, 6),
    }
    agree(run_alone(kind, [source], [Wanted(dtype, source.quantization)], **options))


PAIRS = [
    *((F32, d) for d in (U8, I8, I16)),
    *((U8, d) for d in (U8, I8)),
    *((I8, d) for d in (U8, I8, I16)),
    *((I16, d) for d in (I8, I16, I32)),
    *((I32, d) for d in (I8, I16)),
]


def near_halves(maker: Maker, scale: float, count: int) -> NDArray:
    """Values around odd multiples of half a scale, some of them the nearest float32 before or
    after.
    """
    halves = (maker.rng.integers(-140, 140, count) + 0.5).astype(np.float32) * np.float32(scale)
    towards = maker.rng.choice(np.array([-1e9, 0, 1e9], np.float32), count)
    return np.where(maker.rng.random(count) < 0.5, np.nextafter(halves, towards), halves)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_quantize_agrees_with_litert(source: DType, target: DType, seed: int) -> None:
    maker = Maker(seed)

    def quantization(dtype: DType) -> Quantization | None:
        if dtype is F32:
            return None
        if dtype is I32:
            return q(maker.scale(-9, -5))
        return maker.one(dtype, 0.125 if seed == 0 else None)

    before, after = quantization(source), quantization(target)
    if source is F32:
        assert after is not None
        values = near_halves(maker, after.scale, 600)
    elif source is I32:
        values = maker.rng.integers(-(2**20), 2**20, 600).astype(np.int32)
    else:
        values = maker.values(source, (600,))
    agree(run_alone("QUANTIZE", [Given(values, before)], [Wanted(target, after)]))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [U8, I8, I16, DType.FLOAT16])
def test_dequantize_agrees_with_litert(dtype: DType, seed: int) -> None:
    maker = Maker(seed)
    if dtype is DType.FLOAT16:
        source = Given(maker.values(F32, (3, 200)).astype(np.float16))
    else:
        source = maker.source(dtype, (3, 200))
    agree(run_alone("DEQUANTIZE", [source], [Wanted(F32)]))


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
            Operand(dtype, tuple(filters), Lifetime.CONSTANT_COPY, quantization=weights),
            Operand(DType.INT32, (channels,), Lifetime.CONSTANT_COPY),
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
        pair = fixed_point.quantize_multiplier(product / target)
        scaled = int(fixed_point.rescale(np.array([total]), *pair)[0])
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
