"""Random networks of operations that passes of the compiler fold, fuse and lay out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from penstock.ir import DType, Model, ModelBuilder, NDArray, Quantization

MOST_ELEMENTS: Final = 4000
SCALES: Final = (1 / 256, 0.02, 0.05)


class Value:
    """An operand of the network: its index, shape and quantisation (None: float32)."""

    def __init__(self, index: int, shape: tuple[int, ...], q: Quantization | None) -> None:
        self.index, self.shape, self.q = index, shape, q


class Network:
    """Grows a network of *count* operations from *seed*."""

    def __init__(self, seed: int, count: int = 10) -> None:
        self.rng = np.random.default_rng(seed)
        self.builder = ModelBuilder()
        self.values: list[Value] = []
        self.read: set[int] = set()
        self.bytes = (DType.INT8, DType.UINT8)[int(self.rng.random() < 0.25)]
        for number in range(int(self.rng.integers(1, 3))):
            self._input(number)
        rules: list[Callable[[Value], bool]] = [
            self._pad, self._slice, self._transpose, self._reshape, self._join, self._add,
            self._activate, self._pool, self._reduce, self._convolve, self._softmax, self._split,
            self._mirror, self._requantise, self._depthwise, self._gather, self._connect,
            self._resize, self._strided,
        ]  # fmt: skip
        grown = 0
        while grown < count:
            value = self.values[
                int(self.rng.integers(max(0, len(self.values) - 5), len(self.values)))
            ]
            rule = rules[int(self.rng.integers(len(rules)))]
            grown += rule(value)

    def model(self) -> Model:
        """The network; its outputs are the values that nothing reads."""
        made = [v.index for v in self.values if v.index not in self.read]
        return self.builder.build(made or [self.values[-1].index])

    def _input(self, number: int) -> None:
        shape = (1, *(int(n) for n in self.rng.integers(2, 7, 2)), int(self.rng.integers(1, 6)))
        q = self._quantization() if self.rng.random() < 0.6 else None
        dtype = DType.FLOAT32 if q is None else self.bytes
        index = self.builder.input(dtype, shape, f"x{number}", quantization=q)
        self.values.append(Value(index, shape, q))

    def _quantization(self) -> Quantization:
        scale = float(self.rng.choice(SCALES))
        return Quantization((scale,), (self._middle + int(self.rng.integers(-20, 21)),))

    @property
    def _middle(self) -> int:
        return 0 if self.bytes is DType.INT8 else 128

    def _fixed(self, scale: float) -> Quantization:
        """The scale that TFLite has for results of some operations: shares, or from -1 to 1."""
        return Quantization((scale,), (self._middle if scale == 1 / 128 else self._middle - 128,))

    def _add_operation(
        self, kind: str, inputs: list[int], shape: tuple[int, ...], q: Quantization | None,
        **attributes: Any,
    ) -> bool:  # fmt: skip
        if int(np.prod(shape)) > MOST_ELEMENTS or 0 in shape:
            return False
        out: tuple[Any, ...] = (DType.FLOAT32, shape) if q is None else (self.bytes, shape, q)
        (index,) = self.builder.operation(kind, inputs, [out], attributes)
        self.read |= set(inputs)
        self.values.append(Value(index, shape, q))
        return True

    def _constant(self, values: Any, dtype: Any = np.int32, q: Quantization | None = None) -> int:
        array: NDArray = np.asarray(values, dtype)
        return self.builder.constant(array, quantization=q)

    def _pad(self, x: Value) -> bool:
        pads = self.rng.integers(0, 3, (len(x.shape), 2))
        pads[0] = 0
        shape = tuple(int(n + a + b) for n, (a, b) in zip(x.shape, pads, strict=True))
        return self._add_operation("PAD", [x.index, self._constant(pads)], shape, x.q)

    def _mirror(self, x: Value) -> bool:
        pads = np.minimum(
            self.rng.integers(0, 2, (len(x.shape), 2)), np.array(x.shape)[:, None] - 1
        )
        shape = tuple(int(n + a + b) for n, (a, b) in zip(x.shape, pads, strict=True))
        inputs = [x.index, self._constant(pads)]
        return self._add_operation("MIRROR_PAD", inputs, shape, x.q, mode="REFLECT")

    def _slice(self, x: Value) -> bool:
        begin = [int(self.rng.integers(0, n)) for n in x.shape]
        size = [int(self.rng.integers(1, n - b + 1)) for n, b in zip(x.shape, begin, strict=True)]
        inputs = [x.index, self._constant(begin), self._constant(size)]
        return self._add_operation("SLICE", inputs, tuple(size), x.q)

    def _transpose(self, x: Value) -> bool:
        order = [int(i) for i in self.rng.permutation(len(x.shape))]
        shape = tuple(x.shape[i] for i in order)
        return self._add_operation("TRANSPOSE", [x.index, self._constant(order)], shape, x.q)

    def _reshape(self, x: Value) -> bool:
        if len(x.shape) != 4 or x.shape[0] != 1:
            return False
        _, a, b, c = x.shape
        shapes = [(1, a * b, c), (1, b, a, c), (1, c, a, b), (a * b * c,), (1, 1, a * b, c)]
        shape = shapes[int(self.rng.integers(len(shapes)))]
        return self._add_operation("RESHAPE", [x.index, self._constant(shape)], shape, x.q)

    def _join(self, x: Value) -> bool:
        axis = int(self.rng.integers(len(x.shape)))
        others = [
            v
            for v in self.values
            if v.q == x.q
            and len(v.shape) == len(x.shape)
            and all(
                a == b for i, (a, b) in enumerate(zip(v.shape, x.shape, strict=True)) if i != axis
            )
        ]
        chosen = [x, *(others[int(self.rng.integers(len(others)))] for _ in range(2))]
        total = sum(v.shape[axis] for v in chosen)
        shape = (*x.shape[:axis], total, *x.shape[axis + 1 :])
        indexes = [v.index for v in chosen]
        return self._add_operation("CONCATENATION", indexes, shape, x.q, axis=axis)

    def _add(self, x: Value) -> bool:
        others = [
            v
            for v in self.values
            if (v.q is None) == (x.q is None)
            and len(v.shape) == len(x.shape)
            and all(b in {a, 1} for a, b in zip(x.shape, v.shape, strict=True))
        ]
        other = others[int(self.rng.integers(len(others)))]
        kind = ("ADD", "MUL", "SUB")[int(self.rng.integers(3))]
        q = None if x.q is None else self._quantization()
        return self._add_operation(kind, [x.index, other.index], x.shape, q)

    def _activate(self, x: Value) -> bool:
        kind = ("RELU", "LOGISTIC", "RELU6", "TANH")[int(self.rng.integers(4))]
        fixed = {"LOGISTIC": self._fixed(1 / 256), "TANH": self._fixed(1 / 128)}
        q = None if x.q is None else fixed.get(kind, x.q)
        return self._add_operation(kind, [x.index], x.shape, q)

    def _pool(self, x: Value) -> bool:
        if len(x.shape) != 4 or min(x.shape[1:3]) < 2:
            return False
        kind = ("MAX_POOL_2D", "AVERAGE_POOL_2D")[int(self.rng.integers(2))]
        same = bool(self.rng.random() < 0.5)
        sides = [n if same else n - 1 for n in x.shape[1:3]]
        shape = (x.shape[0], *sides, x.shape[3])
        return self._add_operation(
            kind, [x.index], shape, x.q, padding="SAME" if same else "VALID", stride_w=1,
            stride_h=1, filter_width=2, filter_height=2,
        )  # fmt: skip

    def _reduce(self, x: Value) -> bool:
        axis = int(self.rng.integers(len(x.shape)))
        kind = ("REDUCE_MAX", "MEAN", "SUM")[int(self.rng.integers(3))]
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        inputs = [x.index, self._constant([axis])]
        return self._add_operation(kind, inputs, shape, x.q, keep_dims=True)

    def _parameters(
        self, x: Value, shape: tuple[int, ...], channels: int
    ) -> tuple[int, int, Quantization | None]:
        """Weights of *shape*, biases, and the quantisation of the results."""
        if x.q is None:
            weights = self._constant(self.rng.standard_normal(shape), np.float32)
            return weights, self._constant(self.rng.standard_normal(channels), np.float32), None
        if self.bytes is DType.INT8:
            low, zero = -127, 0
        else:
            low, zero = 0, int(self.rng.integers(100, 156))
        values = self.rng.integers(low, 128, shape)
        kind = np.int8 if self.bytes is DType.INT8 else np.uint8
        weights = self._constant(values, kind, Quantization((0.01,), (zero,)))
        biases = self.rng.integers(-900, 900, channels)
        scale = Quantization((x.q.scales[0] * 0.01,), (0,))
        return weights, self._constant(biases, np.int32, scale), self._quantization()

    def _convolve(self, x: Value) -> bool:
        if len(x.shape) != 4:
            return False
        channels, side = int(self.rng.integers(1, 7)), int(self.rng.choice([1, 3]))
        w, b, q = self._parameters(x, (channels, side, side, x.shape[3]), channels)
        stride = int(self.rng.integers(1, 3))
        sides = [-(-n // stride) for n in x.shape[1:3]]
        return self._add_operation(
            "CONV_2D", [x.index, w, b], (x.shape[0], *sides, channels), q, padding="SAME",
            stride_w=stride, stride_h=stride, fused_activation_function=self._fused(),
        )  # fmt: skip

    def _depthwise(self, x: Value) -> bool:
        if len(x.shape) != 4:
            return False
        times, side = int(self.rng.integers(1, 3)), int(self.rng.choice([2, 3]))
        channels = x.shape[3] * times
        w, b, q = self._parameters(x, (1, side, side, channels), channels)
        return self._add_operation(
            "DEPTHWISE_CONV_2D", [x.index, w, b], (*x.shape[:3], channels), q, padding="SAME",
            stride_w=1, stride_h=1, depth_multiplier=times, fused_activation_function=self._fused(),
        )  # fmt: skip

    def _connect(self, x: Value) -> bool:
        count = int(self.rng.integers(1, 20))
        w, b, q = self._parameters(x, (count, x.shape[-1]), count)
        return self._add_operation(
            "FULLY_CONNECTED", [x.index, w, b], (*x.shape[:-1], count), q, keep_num_dims=True,
            fused_activation_function=self._fused(),
        )  # fmt: skip

    def _fused(self) -> str:
        return "RELU" if self.rng.random() < 0.5 else "NONE"

    def _gather(self, x: Value) -> bool:
        axis = int(self.rng.integers(len(x.shape)))
        count = int(self.rng.integers(1, 6))
        chosen = self._constant(self.rng.integers(0, x.shape[axis], count))
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        return self._add_operation("GATHER", [x.index, chosen], shape, x.q, axis=axis)

    def _resize(self, x: Value) -> bool:
        if len(x.shape) != 4:
            return False
        sides = [int(n) for n in self.rng.integers(1, 9, 2)]
        kind = ("RESIZE_NEAREST_NEIGHBOR", "RESIZE_BILINEAR")[int(self.rng.integers(2))]
        shape = (x.shape[0], *sides, x.shape[3])
        return self._add_operation(kind, [x.index, self._constant(sides)], shape, x.q)

    def _strided(self, x: Value) -> bool:
        steps = [int(n) for n in self.rng.integers(1, 4, len(x.shape))]
        shape = tuple(-(-n // s) for n, s in zip(x.shape, steps, strict=True))
        bounds = [self._constant(v) for v in ([0] * len(steps), x.shape, steps)]
        return self._add_operation("STRIDED_SLICE", [x.index, *bounds], shape, x.q)

    def _softmax(self, x: Value) -> bool:
        q = None if x.q is None else self._fixed(1 / 256)
        return self._add_operation("SOFTMAX", [x.index], x.shape, q, beta=1.0)

    def _split(self, x: Value) -> bool:
        axes = [axis for axis, size in enumerate(x.shape) if size % 2 == 0]
        if not axes:
            return False
        axis = axes[0]
        shape = (*x.shape[:axis], x.shape[axis] // 2, *x.shape[axis + 1 :])
        out: Any = (DType.FLOAT32, shape) if x.q is None else (self.bytes, shape, x.q)
        inputs = [self._constant(axis), x.index]
        parts = self.builder.operation("SPLIT", inputs, [out, out], {"num_splits": 2})
        self.read.add(x.index)
        self.values += [Value(part, shape, x.q) for part in parts]
        return True

    def _requantise(self, x: Value) -> bool:
        if x.q is None:
            return self._add_operation("QUANTIZE", [x.index], x.shape, self._quantization())
        if self.rng.random() < 0.5:
            return self._add_operation("DEQUANTIZE", [x.index], x.shape, None)
        return self._add_operation("QUANTIZE", [x.index], x.shape, self._quantization())
