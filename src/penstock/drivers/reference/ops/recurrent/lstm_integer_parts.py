"""What integer long short-term memories are made of: scaled products, the cell's update, clips."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.drivers.reference.ops.kernel import Site, tensor_quantization
from penstock.drivers.reference.ops.numerics.fixed_point import (
    multiply_by_quantized_multiplier,
    quantize_multipliers,
    rounding_divide_by_pot,
)
from penstock.drivers.reference.ops.numerics.products import Columns
from penstock.drivers.reference.ops.recurrent.tables import GREATEST, LEAST
from penstock.ir import DType, NDArray, Quantization

INT8_MAGNITUDE = 128


def scale_of(site: Site, position: int) -> np.float32:
    """The one scale of an input, as float32."""
    return np.float32(quantization_of(site, position).scale)


def quantization_of(site: Site, position: int) -> Quantization:
    return tensor_quantization(site.input(position), f"input {position}")


def output_scale(site: Site) -> float:
    """The scale of the first output."""
    return tensor_quantization(site.output(), "the output").scale


def clamp_16(values: NDArray) -> NDArray:
    return np.clip(values, LEAST, GREATEST, out=values)


def clamp_8(values: NDArray) -> NDArray:
    return np.clip(values, -128, 127, out=values)


def quantized_clip(clip: float, scale: float, dtype: DType) -> int:
    """A clip in steps of *scale*, cut off, within the type; 0 for none."""
    if not clip > 0:
        return 0
    least, greatest = (LEAST, GREATEST) if dtype is DType.INT16 else (-128, 127)
    return int(np.clip(np.float32(clip) / np.float32(scale), least, greatest))


class ScaledProduct:
    """Products of int8 vectors with the weights of several gates, plus a bias, scaled per gate.

    *multipliers* has one real multiplier a gate, *zero_point* is that of the vectors, *biases* one
    vector of integers a gate or None.
    """

    def __init__(
        self,
        weights: Sequence[NDArray],
        multipliers: Sequence[np.float32],
        zero_point: int,
        biases: Sequence[NDArray | None],
    ) -> None:
        columns = Columns(np.concatenate(weights).astype(np.int64), INT8_MAGNITUDE)
        counts = [len(w) for w in weights]
        mantissas, shifts = quantize_multipliers([float(m) for m in multipliers])
        self._columns = columns.values
        self._mantissas, self._shifts = (np.repeat(v, counts) for v in (mantissas, shifts))
        added = [
            np.zeros(n, np.int64) if b is None else b.astype(np.int64)
            for b, n in zip(biases, counts, strict=True)
        ]
        self._bias = np.concatenate(added) - zero_point * columns.sums

    def __call__(self, rows: NDArray) -> NDArray:
        """int8 *rows* [rows, depth] to scaled sums [rows, columns], int64."""
        sums = np.matmul(rows.astype(self._columns.dtype), self._columns.T).astype(np.int64)
        sums += self._bias
        return multiply_by_quantized_multiplier(sums, self._mantissas, self._shifts)


def updated_cell(
    cell: NDArray,
    forget: NDArray,
    admit: NDArray | None,
    new: NDArray,
    cell_power: int,
    clip: int,
) -> NDArray:
    """The int16 cell state after one step; its scale is 2**cell_power, gates are in Q0.

    Without an input gate it is 32767 - forget.
    """
    kept = _wrapped(rounding_divide_by_pot(forget * cell, 15))
    if admit is None:
        admit = GREATEST - forget
    added = _wrapped(rounding_divide_by_pot(admit * new, 30 + cell_power))
    cell = clamp_16(kept + added)
    if clip > 0:
        np.clip(cell, -clip, clip, out=cell)
    return cell


def _wrapped(values: NDArray) -> NDArray:
    result: NDArray = values.astype(np.int16).astype(np.int64)
    return result
