"""Hybrid (dynamic-range) layers: float inputs are quantised at run time for integer weights.

Each row is one element of the batch. It has its own scale, and an offset if it is quantised
asymmetrically. Sums are integers. Both scales convert them to floats (TFLite's quantised tensor
utilities).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from penstock.driverkit import fixed_point
from penstock.drivers.reference.numerics.requantize import clamp_in_place
from penstock.drivers.reference.numerics.weights import channel_scales
from penstock.ir import DType, NDArray, Operand

MAGNITUDE: Final = 128
"""The greatest magnitude of a row's quantised values."""

LEAST: Final = np.float32(-128)
GREATEST: Final = np.float32(127)
HALF: Final = np.array(0.5, np.float32)
NO_OFFSET: Final = np.float32(0)

Numbers: TypeAlias = "NDArray | np.float32"
"""float32: an array, or a number."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Quantised rows: *values* [rows, length] int8, a float32 scale and an offset for each."""

    values: NDArray
    scales: NDArray
    offsets: NDArray


def quantize_rows(rows: NDArray, *, asymmetric: bool) -> Rows:
    """Quantises float32 *rows* [rows, length], each over its own range; a row of zeros has scale 1.

    The scale of a row with an infinity or NaN, undefined in TFLite, is NaN, and so are its results.
    """
    lost = np.asarray(~np.isfinite(rows).all(axis=1, keepdims=True))
    if lost.any():
        rows = np.where(lost, np.float32(0), rows)
    steps, inverse, offsets, _ = _ranges(rows, asymmetric=asymmetric)
    values = _round(rows * inverse)
    if asymmetric:
        values += offsets
    _limit(values, LEAST if asymmetric else -GREATEST, GREATEST)
    scales = np.where(lost[:, 0], np.float32(np.nan), np.reshape(steps, -1))
    every = np.broadcast_to(np.reshape(offsets, -1), scales.shape)
    return Rows(values.astype(np.int8), scales, every.astype(np.int64))


def centred_rows(rows: NDArray, *, asymmetric: bool) -> tuple[NDArray, Numbers]:
    """The values of `quantize_rows` minus their row's offset, as float32, and the scales, [rows, 1]
    or one number. The magnitude is at most `reach_of` the mode.
    """
    scales, inverse, offsets, unbounded = _ranges(rows, asymmetric=asymmetric)
    values = _round(rows * inverse)
    if asymmetric:
        _limit(values, LEAST - offsets, GREATEST - offsets)
    elif unbounded:
        _limit(values, -GREATEST, GREATEST)
    return values, scales


def reach_of(*, asymmetric: bool) -> int:
    """The greatest magnitude of a quantised value minus its offset."""
    return 255 if asymmetric else 127


_Ranges: TypeAlias = tuple[Numbers, Numbers, Numbers, bool]
"""For each row the step, its inverse and the offset; and whether any inverse is infinite.

The numbers are [rows, 1] float32, or scalars for a single row, which is faster. Only with an
infinite inverse can a value exceed a symmetric range.
"""


def _ranges(rows: NDArray, *, asymmetric: bool) -> _Ranges:
    if not rows.size:
        ones = np.ones((len(rows), 1), np.float32)
        return ones, ones, np.zeros_like(ones), False
    if len(rows) == 1:
        return _asymmetric_row(rows) if asymmetric else _symmetric_row(rows)
    if not asymmetric:
        return _symmetric(rows)
    least = np.minimum.reduce(rows, axis=1, keepdims=True)
    return _asymmetric(least, np.maximum.reduce(rows, axis=1, keepdims=True))


def _symmetric(rows: NDArray) -> _Ranges:
    reach = np.maximum.reduce(np.abs(rows), axis=1, keepdims=True)
    if not reach.all():
        reach[reach == 0] = GREATEST
    inverse = GREATEST / reach
    return reach / GREATEST, inverse, NO_OFFSET, bool((inverse == np.inf).any())


def _symmetric_row(row: NDArray) -> _Ranges:
    reach = np.maximum.reduce(np.abs(row), axis=None) or GREATEST
    inverse = GREATEST / reach
    return reach / GREATEST, inverse, NO_OFFSET, bool(inverse == np.inf)


def _asymmetric(least: NDArray, greatest: NDArray) -> _Ranges:
    """As TFLite, computes the range in float32 and the offset in float64."""
    low, high = np.minimum(least, np.float32(0)), np.maximum(greatest, np.float32(0))
    empty = low == high
    steps = np.where(empty, 1.0, (high - low).astype(np.float64) / 255.0)
    below, above = low.astype(np.float64) / steps, high.astype(np.float64) / steps
    nearer_low = 128.0 + np.abs(below) < 127.0 + np.abs(above)
    offsets = np.clip(np.where(nearer_low, -128.0 - below, 127.0 - above), -128.0, 127.0)
    offsets = np.where(empty, 0.0, fixed_point.round_half_away_from_zero(offsets))
    scales = steps.astype(np.float32)
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)
    return scales, inverse, offsets.astype(np.float32), False


def _asymmetric_row(row: NDArray) -> _Ranges:
    """As `_asymmetric`, for one row."""
    least, greatest = np.minimum.reduce(row, axis=None), np.maximum.reduce(row, axis=None)
    low, high = min(float(least), 0.0), max(float(greatest), 0.0)
    steps = float(np.float32(high - low)) / 255.0
    scale = np.float32(steps)
    if not (math.isfinite(steps) and scale):
        return _asymmetric(np.array([[least]]), np.array([[greatest]]))
    below, above = low / steps, high / steps
    offset = -128.0 - below if 128.0 - below < 127.0 + above else 127.0 - above
    rounded = np.float32(fixed_point.round_half_away(min(max(offset, -128.0), 127.0)))
    return scale, np.float32(1) / scale, rounded, False


def _round(values: NDArray) -> NDArray:
    """Rounds to the nearest integers, halves away from zero, as TFLite's utilities do.

    0.49999997 becomes 1: its sum with one half is rounded before truncation.
    """
    values += np.copysign(HALF, values)
    return np.trunc(values, out=values)


def _limit(values: NDArray, low: Numbers, high: Numbers) -> None:
    values.clip(low, high, out=values)


def weight_values(values: NDArray, operand: Operand) -> NDArray:
    """Integer weights, symmetric, as int64. uint8 weights are the bytes of int8 weights."""
    if operand.dtype is DType.UINT8:
        return values.view(np.int8).astype(np.int64)
    return values.astype(np.int64)


def weight_scales(operand: Operand, axis: int) -> NDArray:
    """The weights' scales, float32: one, or one for each channel along *axis*."""
    return channel_scales(operand, axis).astype(np.float32)


def is_per_channel(operand: Operand) -> bool:
    """Whether the channels of the weights differ in scale."""
    return operand.quantization is not None and len(set(operand.quantization.scales)) > 1


@dataclass(frozen=True, slots=True)
class HybridFinish:
    """Converts integer sums of quantised rows to real results.

    *sums* are the sums of each channel's weights, which are multiplied by a row's offset. *scale*
    and *offset* belong to one row of all results, or to each row of results.
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
