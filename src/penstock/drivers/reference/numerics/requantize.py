"""Accumulators of integer products to stored values, bit for bit as TFLite's reference kernels, and
the ranges of fused activations.

Most accumulators can be computed exactly in float64, and NumPy does that several times faster than
in 64-bit integers. The constructor of a `Requantizer` proves from bounds that float64 is exact. If
it cannot, the requantizer computes in integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.driverkit import fixed_point
from penstock.drivers.reference.kernel import Site, require
from penstock.interrupts import watched
from penstock.ir import DType, NDArray, Quantization

BLOCK: Final = 1 << 15
"""Number of elements processed at a time, so that later passes read from the cache."""

PERIOD: Final = 1 << 11
"""The least length of per-channel vectors: NumPy needs long inner loops."""


class Requantizer:
    """Adds the bias, scales, adds the output's zero point and clamps.

    *multipliers* are real, one for each channel or one for all; *bias* is one integer for each
    channel, or None. *bound* is the greatest magnitude of an accumulator before the bias, for each
    channel or for all. *wide* accumulators have 64 bits, and are scaled as TFLite's kernels scale
    them; others have 32 bits.
    """

    def __init__(
        self,
        multipliers: Sequence[float] | NDArray,
        channels: int,
        bound: NDArray | float,
        output: DType,
        zero_point: int,
        limits: tuple[int, int],
        bias: NDArray | None = None,
        *,
        wide: bool = False,
    ) -> None:
        mantissas, shifts = fixed_point.quantize_multipliers(multipliers)
        self._channels = channels
        self._dtype = output.numpy
        self._mantissas, self._shifts = mantissas, shifts
        self._bias = np.zeros(1, np.int64) if bias is None else bias.astype(np.int64)
        self._zero_point, self._limits, self._wide = zero_point, limits, wide
        self._bits = 9 if (output.bits or 64) <= 8 else 17
        self._exact = (output.bits or 64) <= 16 and -(2**15) <= zero_point < 2**15
        if self._exact:
            self._prepare(np.asarray(bound, np.float64))

    def __call__(self, accumulators: NDArray, out: NDArray) -> None:
        """Fills *out* [rows, channels] from *accumulators*, whose type must be exact."""
        if not out.size:
            return
        rows = max(1, BLOCK // self._channels)
        convert = self._in_floats if self._exact else self._in_integers
        if self._exact:
            rows = -(-rows // self._repeats) * self._repeats
        work = np.empty((min(rows, len(out)), self._channels))
        for start in watched(range(0, len(out), rows)):
            part = accumulators[start : start + rows]
            convert(part, out[start : start + rows], work[: len(part)])

    def _prepare(self, bound: NDArray) -> None:
        """Decides whether float64 is exact, and computes the vectors of `_in_floats`.

        Products with the mantissa over 2**31 are multiples of 2**-31, so below 2**22 they are
        exact. They are below 2**22 if the accumulators are. Otherwise only results that do not
        saturate matter: these have fewer than *bits* bits after the right shift. Rounding is
        monotone, so values beyond 2**22 saturate with and without the rounding error. A factor
        moves ties of the second rounding away from zero. It is too small to move any other value
        across a half. Wide products are multiples of 2**(shift - 15) below 2**52 of them, and so
        are the numbers that are added to them.
        """
        bias, total = self._bias, bound + np.abs(self._bias.astype(np.float64))
        left, right = np.maximum(self._shifts, 0), np.maximum(-self._shifts, 0)
        if self._wide:
            mantissas = np.where(
                self._mantissas < 0x7FFF0000, (self._mantissas + (1 << 15)) >> 16, 0x7FFF
            )
            widest = 31 if self._zero_point == 0 else 21
            self._exact = bool(
                np.all(total < 2.0**37) and np.all(left == 0) and np.all(right <= widest)
            )
            scale = mantissas * 2.0 ** (self._shifts - 15)
            self._exact = self._exact and bool(np.all(total * scale < 2.0**31))
            foldable = self._exact
        else:
            small = total * 2.0**left < 2.0**22
            saturating = right <= 22 - self._bits
            self._exact = bool(
                np.all(small | saturating)
                and np.all(total * 2.0**left < 2.0**31)
                and np.all(right <= 49 - 2 * self._bits)
            )
            scale = self._mantissas * 2.0 ** (left - 31)
            foldable = bool(np.all(small))
        if not self._exact:
            return
        self._first = None if foldable else self._vector(bias.astype(np.float64))
        self._scale = self._vector(scale)
        after = bias * scale + 0.5 if foldable else np.full(1, 0.5)
        if self._wide:
            self._offset, self._second = self._vector(after + self._zero_point), None
        else:
            tie = 2.0 ** -(right + self._bits + 1.0)
            self._offset = self._vector(after)
            self._second = self._vector(2.0**-right * (1.0 + tie))
        vectors = (self._scale, self._offset, self._second, self._first)
        repeats = [v.size // self._channels for v in vectors if v is not None and v.size > 1]
        self._repeats = max(repeats, default=1)

    def _vector(self, values: NDArray) -> NDArray:
        """*values* as one number, or repeated so that inner loops are long."""
        if values.size and np.all(values == values.flat[0]):
            return values.reshape(-1)[:1].astype(np.float64)
        repeats = max(1, PERIOD // max(1, self._channels))
        return np.tile(values.astype(np.float64), repeats)

    def _in_floats(self, accumulators: NDArray, out: NDArray, work: NDArray) -> None:
        whole = len(work) - len(work) % self._repeats
        parts = (slice(0, whole), self._repeats), (slice(whole, None), 1)
        for rows, repeats in parts:
            part = work[rows]
            if part.size:
                flat = part.reshape(-1, repeats * self._channels)
                self._steps(accumulators[rows].reshape(flat.shape), flat)
                self._store(part, out[rows])

    def _steps(self, accumulators: NDArray, work: NDArray) -> None:
        length = work.shape[1]
        if self._first is not None:
            np.add(accumulators, self._first[:length], out=work)
            accumulators = work
        np.multiply(accumulators, self._scale[:length], out=work)
        np.add(work, self._offset[:length], out=work)
        if self._second is not None:
            np.floor(work, out=work)
            np.multiply(work, self._second[:length], out=work)
            np.add(work, self._zero_point + 0.5, out=work)

    def _store(self, work: NDArray, out: NDArray) -> None:
        low, high = self._limits
        np.floor(work, out=work)
        np.clip(work, low, high, out=work)
        np.copyto(out, work, casting="unsafe")

    def _in_integers(self, accumulators: NDArray, out: NDArray, work: NDArray) -> None:
        wide = accumulators.astype(np.int64) + self._bias
        if self._wide:
            scaled = fixed_point.rescale_wide(wide, self._mantissas, self._shifts)
        else:
            scaled = fixed_point.rescale(fixed_point.wrapped(wide), self._mantissas, self._shifts)
        scaled += self._zero_point
        np.clip(scaled, *self._limits, out=scaled)
        np.copyto(out, scaled, casting="unsafe")


class RealRequantizer:
    """Scales in float64 and rounds once, halves away from zero, as FULLY_CONNECTED does.

    *multipliers* are real, one for each channel or one for all; *bias* is one integer for each
    channel; *bound* is the greatest magnitude of an accumulator before the bias, for each channel.
    Accumulators wrap at 32 bits, *wide* ones at 64.
    """

    def __init__(
        self,
        multipliers: NDArray,
        zero_point: int,
        limits: tuple[int, int],
        bias: NDArray,
        bound: NDArray,
        *,
        wide: bool,
    ) -> None:
        self._multipliers, self._bias = multipliers, bias
        self._zero_point, self._limits = zero_point, limits
        self._wide = wide
        reach = bound + np.abs(bias.astype(np.float64))
        self._wraps = bool(np.any(reach >= (2.0**63 if wide else 2.0**31)))

    def __call__(self, accumulators: NDArray, out: NDArray) -> None:
        """Fills *out* [rows, channels] from *accumulators*, which contain integers."""
        if self._wraps:
            whole = accumulators.astype(np.int64) + self._bias.astype(np.int64)
            real = (whole if self._wide else fixed_point.wrapped(whole)).astype(np.float64)
        else:
            real = np.add(accumulators, self._bias, dtype=np.float64)
        np.multiply(real, self._multipliers, out=real)
        real = fixed_point.round_half_away_from_zero(real)
        np.add(real, self._zero_point, out=real)
        np.clip(real, *self._limits, out=real)
        np.copyto(out, real, casting="unsafe")


BOUNDS: Final[dict[str, tuple[float | None, float | None]]] = {
    "NONE": (None, None),
    "RELU": (0.0, None),
    "RELU_N1_TO_1": (-1.0, 1.0),
    "RELU6": (0.0, 6.0),
    "TANH": (None, None),
    "SIGN_BIT": (None, None),
}
"""(lowest, highest) real value of each fused activation; None: unbounded.

TFLite's layers clamp and support no other activation: for TANH or SIGN_BIT they apply none.
"""


GREATEST: Final = np.finfo(np.float32).max


def activation_bounds(activation: str) -> tuple[float | None, float | None]:
    """The real bounds of a fused activation. Raises `Unsupported` if TFLite has none such."""
    require(activation in BOUNDS, f"{activation} is not an activation that can be fused")
    return BOUNDS[activation]


def fused_activation(site: Site) -> str:
    """The fused activation of *site*. Raises `Unsupported` if TFLite does not have it."""
    activation = site.attributes.text("fused_activation_function")
    activation_bounds(activation)
    return activation


def clamp_in_place(values: NDArray, activation: str) -> NDArray:
    """Applies a fused activation to real *values* in place and returns them. NaN stays NaN."""
    low, high = activation_bounds(activation)
    if low is not None:
        np.maximum(values, low, out=values)
    if high is not None:
        np.minimum(values, high, out=values)
    return values


def clamp_to_finite(values: NDArray, activation: str) -> NDArray:
    """`clamp_in_place` that also makes infinities the greatest floats, as TFLite's layers."""
    low, high = activation_bounds(activation)
    least = -GREATEST if low is None else np.float32(low)
    return np.clip(values, least, GREATEST if high is None else np.float32(high), out=values)


def integer_range(dtype: DType) -> tuple[int, int]:
    """(least, greatest) value of an integer type."""
    bits = dtype.bits or 0
    if dtype.value.startswith("u"):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def saturated(values: NDArray, dtype: DType) -> NDArray:
    """*values* clamped to the range of the integer type *dtype*, and in that type."""
    return np.clip(values, *integer_range(dtype)).astype(dtype.numpy)


def quantized_range(
    activation: str, dtype: DType, quantization: Quantization | None
) -> tuple[int, int]:
    """(least, greatest) stored value after a fused activation: its real bounds as zero point +
    round(bound / scale) in float32, within the type's range (NNAPI section 8.1).

    *quantization* may be None, or per channel, only if the activation is NONE.
    """
    least, greatest = integer_range(dtype)
    low, high = activation_bounds(activation)
    if quantization is None or quantization.per_channel:
        unbounded = low is None and high is None
        require(unbounded, f"{activation} on {dtype.value} without one scale and zero point")
        return least, greatest
    scale, zero_point = np.float32(quantization.scale), quantization.zero_point
    stored = [
        None if b is None else zero_point + int(fixed_point.round_half_away(np.float32(b) / scale))
        for b in (low, high)
    ]
    least = least if stored[0] is None else max(least, stored[0])
    greatest = greatest if stored[1] is None else min(greatest, stored[1])
    return least, greatest
