"""Hybrid (dynamic-range) layers: float inputs quantised at run time to meet integer weights.

Each row, one element of the batch, gets a scale of its own, and an offset where it is quantised
asymmetrically; sums are integers, and become float again by both scales (TFLite's quantised tensor
utilities).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.drivers.reference.ops.activation_range import clamp_in_place
from penstock.drivers.reference.ops.fixed_point import round_half_away_from_zero
from penstock.drivers.reference.ops.weights import channel_scales
from penstock.ir import DType, NDArray, Operand

MAGNITUDE: Final = 128
"""Greatest magnitude of a row's quantised values."""

NARROW: Final = frozenset({DType.INT8, DType.UINT8, DType.INT4, DType.INT2})
"""Types of weights that a hybrid layer may have."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Quantised rows: *values* [rows, length] int8, and per row a float32 scale and an integer offset."""

    values: NDArray
    scales: NDArray
    offsets: NDArray


def quantize_rows(rows: NDArray, *, asymmetric: bool) -> Rows:
    """Quantises float32 *rows* [rows, length], each over its own range; a constant-zero row has scale 1."""
    if not rows.shape[1]:
        count = len(rows)
        return Rows(np.zeros(rows.shape, np.int8), np.ones(count, np.float32), np.zeros(count, int))
    least, greatest = rows.min(axis=1), rows.max(axis=1)
    return _asymmetric(rows, least, greatest) if asymmetric else _symmetric(rows, least, greatest)


def _symmetric(rows: NDArray, least: NDArray, greatest: NDArray) -> Rows:
    reach = np.maximum(np.abs(least), np.abs(greatest))
    empty = reach == 0
    reach = np.where(empty, np.float32(127), reach)
    inverse = np.float32(127) / reach
    values = _round(rows * inverse[:, None])
    np.clip(values, -127, 127, out=values)
    offsets = np.zeros(len(rows), np.int64)
    return Rows(values.astype(np.int8), reach / np.float32(127), offsets)


def _asymmetric(rows: NDArray, least: NDArray, greatest: NDArray) -> Rows:
    """The range is a float32, everything up to the offset a float64."""
    low, high = np.minimum(least, np.float32(0)), np.maximum(greatest, np.float32(0))
    empty = low == high
    steps = np.where(empty, 1.0, (high - low).astype(np.float64) / 255.0)
    below, above = low.astype(np.float64) / steps, high.astype(np.float64) / steps
    nearer_low = 128.0 + np.abs(below) < 127.0 + np.abs(above)
    offsets = np.clip(np.where(nearer_low, -128.0 - below, 127.0 - above), -128.0, 127.0)
    offsets = np.where(empty, 0.0, round_half_away_from_zero(offsets))
    scales = steps.astype(np.float32)
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)
    values = _round(rows * inverse[:, None])
    values += offsets.astype(np.float32)[:, None]
    np.clip(values, -128, 127, out=values)
    return Rows(values.astype(np.int8), scales, offsets.astype(np.int64))


def _round(values: NDArray) -> NDArray:
    """To the nearest integers, halves away from zero, as those utilities round.

    0.49999997 becomes 1: its sum with one half is rounded before the fraction is cut off.
    """
    values += np.copysign(np.float32(0.5), values)
    return np.trunc(values, out=values)


def weight_values(values: NDArray, operand: Operand) -> NDArray:
    """Integer weights, int64. Hybrid weights are symmetric: those of type uint8 hold int8 bytes."""
    if operand.dtype is DType.UINT8:
        return values.view(np.int8).astype(np.int64)
    return values.astype(np.int64)


def weight_scales(operand: Operand, axis: int) -> NDArray:
    """The weights' scales, float32: one, or one a channel along *axis*."""
    return channel_scales(operand, axis).astype(np.float32)


def is_per_channel(operand: Operand) -> bool:
    """Whether channels of the weights differ in scale."""
    return operand.quantization is not None and len(set(operand.quantization.scales)) > 1


@dataclass(frozen=True, slots=True)
class HybridFinish:
    """Integer sums of quantised rows to real results.

    *sums* is the sum of each channel's weights, which a row's offset takes part in; *scale* and
    *offset* are of one row that all results stem from, or one for each row of results.
    """

    sums: NDArray
    scales: NDArray
    bias: NDArray | None
    activation: str
    scale: NDArray
    offset: NDArray

    def __call__(self, sums: NDArray, out: NDArray) -> None:
        if np.any(self.offset):
            sums -= (self.sums * self.offset.reshape(-1, 1)).astype(sums.dtype)
        real = sums.astype(np.float32, copy=False)
        np.multiply(real, self.scales, out=real)
        np.multiply(real, self.scale.reshape(-1, 1), out=real)
        if self.bias is not None:
            np.add(real, self.bias.reshape(-1), out=real)
        np.copyto(out, clamp_in_place(real, self.activation))
