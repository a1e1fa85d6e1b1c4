"""Fused activations: what they clamp to, in real values and in stored ones."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.drivers.reference.ops.kernel import Unsupported
from penstock.drivers.reference.ops.numerics.fixed_point import round_half_away
from penstock.ir import DType, NDArray, Quantization

BOUNDS: Final[dict[str, tuple[float | None, float | None]]] = {
    "NONE": (None, None),
    "RELU": (0.0, None),
    "RELU_N1_TO_1": (-1.0, 1.0),
    "RELU6": (0.0, 6.0),
    "TANH": (None, None),
    "SIGN_BIT": (None, None),
}
"""(lowest, highest) real value of each fused activation; None: unbounded.

TFLite's layers clamp and know no other activation: where a file asks for TANH or SIGN_BIT, they
apply none.
"""


GREATEST: Final = np.finfo(np.float32).max


def activation_bounds(activation: str) -> tuple[float | None, float | None]:
    """The real bounds of a fused activation; `Unsupported` for one that TFLite has not."""
    if activation not in BOUNDS:
        raise Unsupported(f"{activation} is no activation that may be fused")
    return BOUNDS[activation]


def clamp_in_place(values: NDArray, activation: str) -> NDArray:
    """Applies a fused activation to real *values* in place, and returns them. NaN stays NaN."""
    low, high = activation_bounds(activation)
    if low is not None:
        np.maximum(values, low, out=values)
    if high is not None:
        np.minimum(values, high, out=values)
    return values


def clamp_to_finite(values: NDArray, activation: str) -> NDArray:
    """`clamp_in_place` of float32 values as layers and pooling have it: what the activation does
    not bound ends with the greatest float, so that infinities become finite.
    """
    low, high = activation_bounds(activation)
    least = -GREATEST if low is None else np.float32(low)
    return np.clip(values, least, GREATEST if high is None else np.float32(high), out=values)


def integer_range(dtype: DType) -> tuple[int, int]:
    """(least, greatest) value that an integer type holds."""
    bits = dtype.bits or 0
    if dtype.value.startswith("u"):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def quantized_range(
    activation: str, dtype: DType, quantization: Quantization | None
) -> tuple[int, int]:
    """(least, greatest) stored value after a fused activation: its real bounds as
    zero point + round(bound / scale) in float32, within the type's range (NNAPI section 8.1).

    Only where the activation is NONE, *quantization* may be None, or have a scale a channel.
    """
    least, greatest = integer_range(dtype)
    low, high = activation_bounds(activation)
    if quantization is None or quantization.per_channel:
        if (low, high) != (None, None):
            raise Unsupported(f"{activation} on {dtype.value} without one scale and zero point")
        return least, greatest
    scale, zero_point = np.float32(quantization.scale), quantization.zero_point
    if low is not None:
        least = max(least, zero_point + int(round_half_away(float(np.float32(low) / scale))))
    if high is not None:
        greatest = min(greatest, zero_point + int(round_half_away(float(np.float32(high) / scale))))
    return least, greatest
