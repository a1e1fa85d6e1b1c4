"""Models with one element type, built operation by operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand, Quantization
from penstock.ir.operand import Lifetime

Shape: TypeAlias = tuple[int, ...]
Attributes: TypeAlias = dict[str, "int | float | str | bool | tuple[int, ...]"]

SEED: Final = 7

UNIT: Final = frozenset({"LOGISTIC", "SOFTMAX"})
"""Operations whose quantised results are real numbers from 0 to 1."""


class Value(Struct, frozen=True):
    """An operand of a draft, and its shape."""

    operand: int
    shape: Shape


class Draft:
    """A model under construction: values of one element type, weights as networks have them."""

    def __init__(self, dtype: DType, weights: DType | None = None) -> None:
        self.builder, self.dtype = ModelBuilder(), dtype
        self.weights = dtype if weights is None else weights
        self.random = np.random.default_rng(SEED)

    @property
    def is_quantized(self) -> bool:
        return not self.dtype.is_float

    @property
    def quantization(self) -> Quantization | None:
        """That of every value, with real numbers of about -3 to 3."""
        if not self.is_quantized:
            return None
        zero = 128 if self.dtype is DType.UINT8 else 0
        return Quantization((0.025,), (zero,))

    def input(self, shape: Shape) -> Value:
        return Value(self.builder.input(self.dtype, shape, "x", self.quantization), shape)

    def add(
        self,
        kind: str,
        inputs: Sequence[Value | int],
        shape: Shape,
        attributes: Attributes | None = None,
    ) -> Value:
        """An operation with one output of the element type and *shape*."""
        quantization = self.quantization
        if self.is_quantized and kind in UNIT:
            quantization = Quantization((2.0**-8,), (-128 if self.dtype is DType.INT8 else 0,))
        given = [one.operand if isinstance(one, Value) else one for one in inputs]
        made = self.builder.operation(kind, given, [(self.dtype, shape, quantization)], attributes)
        return Value(made[0], shape)

    def build(self, output: Value) -> Model:
        return self.builder.build([output.operand])

    def convolution(self, value: Value, outputs: int, kernel: int, stride: int = 1) -> Value:
        """A convolution of a picture with *outputs* channels, and RELU6."""
        batch, high, wide, depth = value.shape
        shape = (batch, -(-high // stride), -(-wide // stride), outputs)
        weights = self.filter((outputs, kernel, kernel, depth), 0)
        return self.add("CONV_2D", [value, weights, self.bias(outputs)], shape, strides(stride))

    def depthwise(self, value: Value, kernel: int, stride: int = 1, times: int = 1) -> Value:
        """A depthwise convolution of a picture with *times* outputs for each channel, and RELU6."""
        batch, high, wide, depth = value.shape
        depth *= times
        shape = (batch, -(-high // stride), -(-wide // stride), depth)
        inputs: list[Value | int] = [
            value,
            self.filter((1, kernel, kernel, depth), 3),
            self.bias(depth),
        ]
        attributes: Attributes = {**strides(stride), "depth_multiplier": times}
        return self.add("DEPTHWISE_CONV_2D", inputs, shape, attributes)

    def connected(self, value: Value, outputs: int) -> Value:
        """A fully connected layer of rows."""
        rows, depth = value.shape
        inputs: list[Value | int] = [value, self.filter((outputs, depth), 0), self.bias(outputs)]
        return self.add("FULLY_CONNECTED", inputs, (rows, outputs))

    def pool(self, value: Value, window: int, stride: int) -> Value:
        batch, high, wide, depth = value.shape
        shape = (batch, -(-high // stride), -(-wide // stride), depth)
        attributes: Attributes = {
            "padding": "SAME", "stride_h": stride, "stride_w": stride, "filter_height": window,
            "filter_width": window,
        }  # fmt: skip
        return self.add("MAX_POOL_2D", [value], shape, attributes)

    def mean(self, value: Value) -> Value:
        """The mean of a picture's places."""
        batch, _, _, depth = value.shape
        inputs: list[Value | int] = [value, self.integers(1, 2)]
        return self.add("MEAN", inputs, (batch, 1, 1, depth), {"keep_dims": True})

    def resize(self, value: Value) -> Value:
        """A picture of twice the height and width."""
        batch, high, wide, depth = value.shape
        inputs: list[Value | int] = [value, self.integers(2 * high, 2 * wide)]
        shape = (batch, 2 * high, 2 * wide, depth)
        return self.add("RESIZE_BILINEAR", inputs, shape, {"half_pixel_centers": True})

    def concatenation(self, *values: Value) -> Value:
        """The values side by side along the last axis."""
        first = values[0].shape
        shape = (*first[:-1], sum(value.shape[-1] for value in values))
        return self.add("CONCATENATION", [*values], shape, {"axis": len(first) - 1})

    def strided_slice(self, value: Value, count: int, start: int = 0) -> Value:
        """*count* elements of the last axis from *start* on."""
        rank, shape = len(value.shape), (*value.shape[:-1], count)
        begin, end = (*[0] * (rank - 1), start), (*shape[:-1], start + count)
        inputs: list[Value | int] = [
            value, self.integers(*begin), self.integers(*end), self.integers(*[1] * rank),
        ]  # fmt: skip
        return self.add("STRIDED_SLICE", inputs, shape)

    def less(self, value: Value, other: Value) -> Value:
        """Whether elements of *value* are less than those of *other*."""
        given = [value.operand, other.operand]
        (found,) = self.builder.operation("LESS", given, [(DType.BOOL, value.shape)])
        return Value(found, value.shape)

    def reshape(self, value: Value, shape: Shape) -> Value:
        return self.add("RESHAPE", [value, self.integers(*shape)], shape)

    def recurrent(self, value: Value, cells: int) -> Value:
        """A long short-term memory over the steps of (steps, 1, inputs), float32."""
        steps, _, depth = value.shape
        weights = [self.filter((cells, depth), 0) for _ in range(4)]
        weights += [self.filter((cells, cells), 0) for _ in range(4)]
        biases = [self.builder.constant(self._normal((cells,))) for _ in range(4)]
        given = [value.operand, *weights, *[self.builder.omitted()] * 3, *biases]
        given += [self.builder.omitted()] * 2
        states = [
            self.builder.operand(Operand(DType.FLOAT32, (1, cells), Lifetime.SUBGRAPH_INPUT, name))
            for name in ("output", "memory")
        ]
        state = Operand(DType.FLOAT32, (1, cells))
        shape = (steps, 1, cells)
        result, *after = self.builder.operation(
            "UNIDIRECTIONAL_SEQUENCE_LSTM",
            [*given, *states],
            [(DType.FLOAT32, shape), state, state],
            {"fused_activation_function": "TANH", "time_major": True},
        )
        for before, changed in zip(states, after, strict=True):
            variable = self.builder.variable(f"v{before}", DType.FLOAT32, (1, cells))
            self.builder.state(variable, before, changed)
        return Value(result, shape)

    def filter(self, shape: Shape, axis: int) -> int:
        """Weights: per channel of *axis* if they are int8."""
        if self.weights is DType.FLOAT32:
            return self.builder.constant(
                self._normal(shape) / np.float32(np.prod(shape[1:]) ** 0.5)
            )
        if self.weights is DType.INT8 and self.is_quantized:
            return self.weights_of(shape, shape[axis], axis)
        return self.weights_of(shape)

    def weights_of(self, shape: Shape, scales: int = 1, axis: int | None = None) -> int:
        """Integer weights with that many *scales*."""
        low, high = (0, 256) if self.weights is DType.UINT8 else (-127, 128)
        array = self.random.integers(low, high, shape, self.weights.numpy)
        zero = 128 if self.weights is DType.UINT8 else 0
        quantization = Quantization((2.0**-9,) * scales, (zero,) * scales, axis)
        return self.builder.constant(array, "", quantization)

    def bias(self, count: int) -> int:
        if not self.is_quantized:
            return self.builder.constant(self._normal((count,)))
        dtype = np.int64 if self.dtype is DType.INT16 else np.int32
        array = self.random.integers(-100, 100, count, dtype)
        scale = 0.025 * 2.0**-9
        if self.weights is DType.INT8:
            return self.builder.constant(array, "", Quantization((scale,) * count, (0,) * count, 0))
        return self.builder.constant(array, "", Quantization((scale,), (0,)))

    def constant(self, shape: Shape) -> int:
        if not self.is_quantized:
            return self.builder.constant(self._normal(shape))
        info = np.iinfo(self.dtype.numpy)
        array = self.random.integers(info.min, info.max, shape, self.dtype.numpy, endpoint=True)
        return self.builder.constant(array, "", self.quantization)

    def integers(self, *values: int) -> int:
        return self.builder.constant(np.array(values, np.int32))

    def _normal(self, shape: Shape) -> NDArray:
        return self.random.standard_normal(shape, np.float32)


def strides(stride: int) -> Attributes:
    """The attributes of a window that moves by *stride*, with padding and RELU6."""
    activation = {"fused_activation_function": "RELU6"}
    return {"padding": "SAME", "stride_h": stride, "stride_w": stride, **activation}
