"""`Case`: a model to time, and `Drawing`, which makes one operation with its operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.export.tflite import write
from penstock.ir import DType, ModelBuilder, NDArray, Quantization, infer_shapes
from penstock.ir.operation import AttributeValue

Pair = Quantization | None

BITS8: Final = (DType.INT8, DType.UINT8)
COMMON: Final = (DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16)


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A model as a file, with the inputs of a run.

    *work* counts multiply-accumulates, or elements for an operation without any.
    """

    name: str
    work: float
    unit: str
    file: bytes
    inputs: Sequence[NDArray]


def pair(scale: float, zero_point: int = 0) -> Quantization:
    return Quantization((float(np.float32(scale)),), (zero_point,))


def default_pair(dtype: DType) -> Pair:
    """A typical scale and zero point of activations of *dtype*; None for floats, wide integers."""
    zero_points = {DType.INT8: -3, DType.UINT8: 125, DType.INT16: 0}
    if dtype not in zero_points:
        return None
    return pair(2e-4 if dtype is DType.INT16 else 0.05, zero_points[dtype])


class Drawing:
    """A model under construction: operands with random values. Missing shapes are inferred."""

    def __init__(self) -> None:
        self.builder = ModelBuilder()
        self.rng = np.random.default_rng(7)
        self.feeds: list[NDArray] = []

    def values(
        self, dtype: DType, shape: Sequence[int], low: float = -2.0, high: float = 2.0
    ) -> NDArray:
        """Floats between the bounds; integers of 8 and 16 bits over their whole range, wider ones
        within 100.
        """
        if dtype.is_float:
            return self.rng.uniform(low, high, shape).astype(dtype.numpy)
        if dtype is DType.BOOL:
            return self.rng.integers(0, 2, shape).astype(bool)
        if (dtype.bits or 0) > 16:
            return self.rng.integers(-100, 101, shape).astype(dtype.numpy)
        info = np.iinfo(dtype.numpy)
        return self.rng.integers(info.min + 1, info.max + 1, shape).astype(dtype.numpy)

    def input(
        self, dtype: DType, shape: Sequence[int], low: float = -2.0, high: float = 2.0
    ) -> int:
        name = f"x{len(self.feeds)}"
        self.feeds.append(self.values(dtype, shape, low, high))
        return self.builder.input(dtype, tuple(shape), name, default_pair(dtype))

    def constant(self, array: NDArray, quantization: Pair = None) -> int:
        return self.builder.constant(array, quantization=quantization)

    def integers(self, *values: object) -> int:
        return self.constant(np.array(values, np.int32))

    def operation(
        self,
        kind: str,
        inputs: Sequence[int | None],
        output: DType,
        *,
        scaled: Pair = None,
        **attributes: AttributeValue,
    ) -> int:
        """Appends an operation and returns its result, with scale and zero point *scaled*."""
        made = (output, None, scaled or default_pair(output))
        return self.builder.operation(kind, inputs, [made], attributes)[0]

    def case(self, name: str, output: int, work: float, unit: str = "elements") -> Case:
        """The finished model."""
        model = infer_shapes(self.builder.build([output]))
        return Case(name, work, unit, write(model), self.feeds)
