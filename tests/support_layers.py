"""Random layers as wide as vectors and wider, with tails: what templates of generated code take.

The generators of tests/differential draw every attribute of every operation, of few channels. Those
here draw sizes around the widths of vectors, extreme scales and values at both ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from penstock.compiler.legalise import judge
from penstock.driverkit.site import Refused, make_sites
from penstock.ir import DType, Model, ModelBuilder, NDArray, Quantization
from tests.support_selections import detections, suppression
from tests.support_sums import matrices, positions

T = TypeVar("T")

F32, I8, U8, I32 = DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT32

CHANNELS: Final = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 80, 100)
"""Around vectors of 16, 32 and 64 bytes, and multiples of none."""

LARGEST: Final = 400_000
"""The most multiply-accumulates of a layer: the reference device is slow."""


def scaled(scales: tuple[float, ...], axis: int) -> Quantization:
    """One scale, or one for each channel along *axis*; zero points are 0."""
    if len(scales) == 1:
        return Quantization(scales, (0,))
    return Quantization(scales, (0,) * len(scales), axis)


class Layers:
    """Draws the layers of one model."""

    def __init__(self, seed: Sequence[int], dtype: DType | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.build = ModelBuilder()
        self.known: dict[int, tuple[tuple[int, ...], Quantization | None]] = {}
        self.dtype = self.pick((I8, I8, U8, F32)) if dtype is None else dtype

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def scale(self, low: float, high: float) -> float:
        """A scale between the bounds, now and then far from them."""
        if self.chance(0.05):
            return float(np.float32(10 ** self.rng.uniform(-6, 2)))
        return float(np.float32(np.exp(self.rng.uniform(np.log(low), np.log(high)))))

    def quantization(self, dtype: DType | None = None) -> Quantization | None:
        """A scale and a zero point of values, often at an end."""
        dtype = dtype or self.dtype
        if dtype is F32:
            return None
        info = np.iinfo(dtype.numpy)
        ends = int(info.min), int(info.max)
        zero = self.pick(ends) if self.chance(0.4) else self.integer(*ends)
        return Quantization((self.scale(0.01, 0.3),), (zero,))

    def values(self, dtype: DType, shape: Sequence[int]) -> NDArray:
        """Random values; of integers some at both ends."""
        if dtype is F32:
            return self.rng.normal(0, self.pick((0.1, 1, 1, 10)), shape).astype(np.float32)
        info = np.iinfo(dtype.numpy)
        made = self.rng.integers(info.min, info.max + 1, shape)
        if self.chance(0.3):
            ends = self.rng.integers(0, 2, shape) * (int(info.max) - int(info.min)) + int(info.min)
            made = np.where(self.rng.random(shape) < self.pick((0.2, 1.0)), ends, made)
        return made.astype(dtype.numpy)

    def input(self, shape: Sequence[int]) -> int:
        quantization = self.quantization()
        made = self.build.input(self.dtype, tuple(shape), "x", quantization=quantization)
        self.known[made] = tuple(shape), quantization
        return made

    def constant(self, values: NDArray, quantization: Quantization | None = None) -> int:
        made = self.build.constant(values, "", quantization)
        self.known[made] = values.shape, quantization
        return made

    def quantized(self, operand: int) -> Quantization | None:
        return self.known[operand][1]

    def shape(self, operand: int) -> tuple[int, ...]:
        return self.known[operand][0]

    def weights(self, shape: Sequence[int], axis: int) -> int:
        """Constant weights, of int8 mostly with a scale for each channel along *axis*."""
        values = self.values(self.dtype, shape)
        if self.dtype is F32:
            return self.constant(values)
        if self.dtype is U8:
            quantization = self.quantization()
            if quantization is not None and self.chance(0.5):
                # Most weights are near zero, and few are not.
                zero = int(quantization.zero_points[0])
                near = np.clip(self.rng.normal(zero, 20, values.shape), 0, 255)
                values = np.where(self.rng.random(values.shape) < 0.01, values, near)
                values = values.astype(np.uint8)
            return self.constant(values, quantization)
        values = np.maximum(values, -127).astype(np.int8)
        count = shape[axis] if self.chance(0.7) else 1
        scales = tuple(self.scale(0.002, 0.05) for _ in range(count))
        return self.constant(values, scaled(scales, axis))

    def bias(self, data: int, weights: int, channels: int) -> int:
        if self.dtype is F32:
            return self.constant(self.values(F32, (channels,)))
        given, filters = self.quantized(data), self.quantized(weights)
        if given is None or filters is None:
            raise ValueError("8-bit layers are quantised")
        scales = tuple(float(np.float32(given.scales[0] * s)) for s in filters.scales)
        large = self.pick((10, 1000, 100_000))
        values = self.rng.integers(-large, large + 1, channels).astype(np.int32)
        return self.constant(values, scaled(scales, 0))

    def add(
        self, kind: str, inputs: Sequence[int], shape: Sequence[int],
        quantization: Quantization | None = None, **attributes: Any,
    ) -> int:  # fmt: skip
        result = self.dtype, tuple(shape), quantization
        made = self.build.operation(kind, list(inputs), [result], attributes)[0]
        self.known[made] = tuple(shape), quantization
        return made

    def activation(self) -> str:
        """A fused activation. Sums of floats are not cut off: what is left of large ones would be
        mostly rounding errors.
        """
        if self.dtype is F32:
            return self.pick(("NONE", "RELU"))
        return self.pick(("NONE", "NONE", "RELU", "RELU6", "RELU_N1_TO_1"))

    def window(self, size: int, kernel: int, stride: int, dilation: int, padding: str) -> int:
        """The outputs along one axis."""
        if padding == "SAME":
            return -(-size // stride)
        return -(-(size - (kernel - 1) * dilation) // stride)

    # Layers. Each takes an operand and returns its result.

    def convolution(self, x: int, channels: int | None = None) -> int:
        n, h, w, depth = self.shape(x)
        channels = channels or self.pick(CHANNELS)
        kh, kw = self.pick(((1, 1), (1, 1), (3, 3), (1, 3), (5, 2), (2, 2)))
        dilation, stride = self.pick((1, 1, 1, 2)), self.pick((1, 1, 2, 3))
        if dilation > 1:
            stride = 1
        padding = self.pick(("SAME", "VALID"))
        if min(h - (kh - 1) * dilation, w - (kw - 1) * dilation) < 1:
            padding = "SAME"
        rows, columns = (
            self.window(s, k, stride, dilation, padding) for s, k in ((h, kh), (w, kw))
        )
        while channels > 1 and n * rows * columns * channels * kh * kw * depth > LARGEST:
            channels = max(1, channels // 3)
        f = self.weights((channels, kh, kw, depth), 0)
        return self.add(
            "CONV_2D", [x, f, self.bias(x, f, channels)], (n, rows, columns, channels),
            self.quantization(), padding=padding, stride_w=stride, stride_h=stride,
            dilation_w_factor=dilation, dilation_h_factor=dilation,
            fused_activation_function=self.activation(),
        )  # fmt: skip

    def depthwise(self, x: int) -> int:
        n, h, w, depth = self.shape(x)
        times = self.pick((1, 1, 1, 1, 2))
        kh, kw = self.pick(((3, 3), (3, 3), (5, 5), (1, 4), (4, 1), (7, 2), (2, 2)))
        dilation, stride = self.pick((1, 1, 1, 2)), self.pick((1, 1, 2))
        if dilation > 1:
            stride = 1
        padding = self.pick(("SAME", "SAME", "VALID"))
        if min(h - (kh - 1) * dilation, w - (kw - 1) * dilation) < 1:
            padding = "SAME"
        rows, columns = (
            self.window(s, k, stride, dilation, padding) for s, k in ((h, kh), (w, kw))
        )
        f = self.weights((1, kh, kw, depth * times), 3)
        return self.add(
            "DEPTHWISE_CONV_2D", [x, f, self.bias(x, f, depth * times)],
            (n, rows, columns, depth * times), self.quantization(), padding=padding,
            stride_w=stride, stride_h=stride, dilation_w_factor=dilation,
            dilation_h_factor=dilation, depth_multiplier=times,
            fused_activation_function=self.activation(),
        )  # fmt: skip

    def dense(self, x: int) -> int:
        shape = self.shape(x)
        depth = shape[-1]
        rows = int(np.prod(shape[:-1]))
        channels = self.pick((*CHANNELS, 130, 257))
        f = self.weights((channels, depth), 0)
        return self.add(
            "FULLY_CONNECTED", [x, f, self.bias(x, f, channels)], (rows, channels),
            self.quantization(), fused_activation_function=self.activation(),
        )  # fmt: skip

    def pool(self, x: int) -> int:
        n, h, w, depth = self.shape(x)
        kh, kw, stride = min(h, self.integer(1, 4)), min(w, self.integer(1, 4)), self.integer(1, 2)
        padding = self.pick(("SAME", "VALID"))
        rows, columns = (self.window(s, k, stride, 1, padding) for s, k in ((h, kh), (w, kw)))
        shape = n, rows, columns, depth
        return self.add(
            self.pick(("AVERAGE_POOL_2D", "MAX_POOL_2D")), [x], shape, self.quantized(x),
            padding=padding, stride_w=stride, stride_h=stride, filter_width=kw, filter_height=kh,
            fused_activation_function=self.activation(),
        )  # fmt: skip

    def binary(self, x: int, other: int | None = None) -> int:
        """ADD, SUB or MUL with another operand of that shape, a row of it, or one element."""
        shape = self.shape(x)
        if other is None:
            part = self.pick((shape, shape[-1:], (1,)))
            other = self.constant(self.values(self.dtype, part), self.quantization())
        return self.add(
            self.pick(("ADD", "MUL", "SUB")), [x, other], shape, self.quantization(),
            fused_activation_function=self.activation(),
        )  # fmt: skip

    def unary(self, x: int) -> int:
        kinds = ["LOGISTIC", "TANH", "RELU", "RELU6", "HARD_SWISH", "LEAKY_RELU"]
        if self.dtype is F32:
            kinds += ["EXP", "ABS", "NEG", "SQRT", "RSQRT", "SIN", "GELU"]
        kind = self.pick(kinds)
        quantization = self.quantization()
        if self.dtype is not F32 and kind in {"LOGISTIC", "TANH"}:
            low = -128 if self.dtype is I8 else 0
            fixed = {"LOGISTIC": (1 / 256, low), "TANH": (1 / 128, low + 128)}[kind]
            quantization = Quantization((fixed[0],), (fixed[1],))
        given = {"alpha": self.pick((0.1, 0.3, 1.5))} if kind == "LEAKY_RELU" else {}
        return self.add(kind, [x], self.shape(x), quantization, **given)

    def softmax(self, x: int) -> int:
        low = {I8: -128, U8: 0}.get(self.dtype)
        quantization = None if low is None else Quantization((1 / 256,), (low,))
        return self.add("SOFTMAX", [x], self.shape(x), quantization, beta=self.pick((1.0, 0.5)))

    def mean(self, x: int) -> int:
        n, _, _, depth = self.shape(x)
        axes = self.constant(np.array([1, 2], np.int32))
        return self.add("MEAN", [x, axes], (n, depth), self.quantization(), keep_dims=False)

    def pad(self, x: int) -> int:
        shape = self.shape(x)
        pads = np.zeros((4, 2), np.int32)
        pads[1:3] = self.rng.integers(0, 3, (2, 2))
        padded = [d + int(p.sum()) for d, p in zip(shape, pads, strict=True)]
        return self.add("PAD", [x, self.constant(pads)], padded, self.quantized(x))

    def joined(self, x: int, other: int) -> int:
        first, second = self.shape(x), self.shape(other)
        shape = (*first[:-1], first[-1] + second[-1])
        quantization = self.quantized(x)
        if self.dtype is I8 and self.quantized(other) != quantization:
            return self.add(
                "CONCATENATION", [x, x], (*first[:-1], 2 * first[-1]), quantization, axis=3
            )
        if self.chance(0.5):
            quantization = self.quantization() if self.dtype is U8 else quantization
        return self.add("CONCATENATION", [x, other], shape, quantization, axis=3)

    def transposed(self, x: int) -> int:
        shape = self.shape(x)
        order = self.rng.permutation(len(shape)).astype(np.int32)
        made = [shape[i] for i in order]
        return self.add("TRANSPOSE", [x, self.constant(order)], made, self.quantized(x))

    def image(self, channels: int | None = None) -> int:
        """An input of four dimensions."""
        sizes = self.pick((1, 1, 1, 2)), self.integer(1, 9), self.integer(1, 21)
        return self.input((*sizes, channels or self.pick(CHANNELS)))

    def chain(self) -> int:
        """Two to five layers, one behind the other, now and then around a shorter way."""
        x = self.image()
        for _ in range(self.integer(2, 5)):
            before = x
            x = self.pick(IMAGES)(self, x)
            if self.shape(before) == self.shape(x) and self.chance(0.4):
                x = self.binary(x, before)
            elif self.shape(before)[:3] == self.shape(x)[:3] and self.chance(0.2):
                x = self.joined(x, before)
        return x


IMAGES: Final[tuple[Callable[[Layers, int], int], ...]] = (
    Layers.convolution, Layers.convolution, Layers.depthwise, Layers.pool, Layers.binary,
    Layers.unary, Layers.pad,
)  # fmt: skip

FAMILIES: Final[dict[str, Callable[[Layers], int | list[int]]]] = {
    "convolution": lambda d: d.convolution(d.image()),
    "depthwise": lambda d: d.depthwise(d.image()),
    "dense": lambda d: d.dense(d.input((d.pick((1, 1, 2, 7, 33)), d.pick((*CHANNELS, 200, 513))))),
    "pool": lambda d: d.pool(d.image()),
    "binary": lambda d: d.binary(d.image()),
    "unary": lambda d: d.unary(d.image()),
    "softmax": lambda d: d.softmax(d.input((d.integer(1, 5), d.pick((*CHANNELS, 300, 577))))),
    "mean": lambda d: d.mean(d.image()),
    "pad": lambda d: d.convolution(d.pad(d.image())),
    "concatenation": lambda d: d.joined(x := d.image(), d.unary(x)),
    "transpose": lambda d: d.transposed(d.image()),
    "chain": Layers.chain,
    "suppression": suppression,
    "detections": detections,
    "matrices": matrices,
    "positions": positions,
}


def draw_layer(family: str, seed: int, dtype: DType | None = None) -> tuple[Model, list[NDArray]]:
    """The model number *seed* of a family, and its inputs."""
    layers = Layers([seed, sorted(FAMILIES).index(family)], dtype)
    made = FAMILIES[family](layers)
    model = layers.build.build(made if isinstance(made, list) else [made])
    return model, [
        layers.values(o.dtype, tuple(d or 1 for d in o.shape or ())) for o in model.inputs
    ]


def supported_layers(
    family: str, seeds: Sequence[int], dtype: DType | None = None
) -> Iterator[tuple[int, Model, list[NDArray]]]:
    """(seed, model, inputs) of the models of *seeds* that the compiler takes."""
    for seed in seeds:
        model, inputs = draw_layer(family, seed, dtype)
        try:
            for site in make_sites(model):
                judge(site)
        except Refused:
            continue
        yield seed, model, inputs
