"""SOFTMAX, LOG_SOFTMAX, L2_NORMALIZATION and LOCAL_RESPONSE_NORMALIZATION along the last dimension,
and NNAPI's INSTANCE_NORMALIZATION.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from penstock.driverkit import fixed_point, tables_16
from penstock.drivers.reference.kernel import Inputs, Kernel, Outputs, Site, direct, kernel, require
from penstock.drivers.reference.layers.convolution import channels_first
from penstock.drivers.reference.numerics import one_operand
from penstock.drivers.reference.numerics.requantize import integer_range
from penstock.drivers.reference.numerics.weights import REAL, given
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray, Quantization

DISTANCES: Final = np.arange(256)
"""The differences between 8-bit values and the greatest value of their row."""


WIDE: Final = Quantization((2.0**-16,), (-(2**15),))
"""The scale and zero point of int16 results of 8-bit values that use fixed-point arithmetic."""


@kernel("SOFTMAX")
def softmax(site: Site) -> Kernel:
    """exp(beta * x) over its sum. Quantised outputs have the scale 1/256 (int16: 1/32768). The
    declared scale of uint8 outputs is ignored. int16 outputs of 8-bit inputs may have any scale.
    """
    given, made = site.input(0).dtype, site.output().dtype
    beta = site.attributes.number("beta")
    if given is made is DType.FLOAT32:
        return one_operand.rowwise(lambda x: _float_softmax(x, np.float32(beta)))
    if given is made is DType.FLOAT16:
        return one_operand.rowwise(
            lambda x: _float_softmax(x.astype(np.float32), np.float32(beta)).astype(x.dtype)
        )
    if given is made is DType.INT16:
        return _softmax_16(site, beta)
    if given in one_operand.QUANTIZED_8 and (made is given or made is DType.INT16):
        return _softmax_8(site, beta)
    raise site.unsupported_types()


@kernel("LOG_SOFTMAX")
def log_softmax(site: Site) -> Kernel:
    """The logarithm of softmax. Quantised: scale 1/16 and the greatest zero point."""
    given = site.input(0).dtype
    site.require_types(given is site.output().dtype)
    if given is DType.FLOAT32:
        return one_operand.rowwise(_float_log_softmax)
    if given in one_operand.QUANTIZED_8:
        return _log_softmax_8(site)
    raise site.unsupported_types()


def _float_softmax(x: NDArray, beta: np.float32) -> NDArray:
    powers = np.exp((x - x.max(axis=-1, keepdims=True)) * beta)
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _float_log_softmax(x: NDArray) -> NDArray:
    shifted = x - x.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


class _Scaling(NamedTuple):
    """Converts the differences between 8-bit values and their row's greatest value to Q5 numbers.

    *radius* is the greatest difference whose exponential is not 0. *scaled* are the negative Q5
    numbers of `DISTANCES`, 0 beyond the radius.
    """

    mantissa: int
    shift: int
    radius: int
    scaled: NDArray


def _scaling(beta: float, scale: float) -> _Scaling:
    real = min(beta * scale * 2.0**26, 2.0**31 - 1)
    require(real > 1.0, "a softmax whose input scale times beta is not over 2**-26")
    mantissa, shift = fixed_point.quantize_multiplier(real)
    radius = math.floor(31 * 2.0**26 / 2.0**shift)
    counted = np.where(radius >= DISTANCES, -DISTANCES, 0)
    scaled = fixed_point.rescale(counted, mantissa, shift)
    return _Scaling(mantissa, shift, radius, scaled)


def _powers(scaling: _Scaling) -> NDArray:
    """The exponential of the negative `DISTANCES` in Q0, 0 beyond the radius."""
    return np.where(
        scaling.radius >= DISTANCES, fixed_point.exp_on_negative_values(scaling.scaled), 0
    )


def _softmax_8(site: Site, beta: float) -> Kernel:
    made = site.output().dtype
    given = site.quantization(0)
    if made is DType.INT8 is site.input(0).dtype:
        target = site.output_quantization()
        require(target.zero_point == integer_range(made)[0], "SOFTMAX with this output zero point")
        require(abs(target.scale * 256 - 1) <= 1e-3, "SOFTMAX to another scale than 1/256")
    if made is DType.INT16 and site.output().quantization != WIDE:
        return _softmax_8_to(site, beta)
    powers = _powers(_scaling(beta, given.scale))
    summands = fixed_point.rounding_divide_by_pot(powers, 12)
    least, greatest = integer_range(made)

    def compute(x: NDArray) -> NDArray:
        wide = x.astype(np.int64)
        distances = wide.max(axis=-1, keepdims=True) - wide
        sums = summands[distances].sum(axis=-1, keepdims=True)
        inverse, shift = fixed_point.reciprocal(sums, 12)
        products = fixed_point.doubling_high_mul(powers[distances], inverse)
        results = (
            fixed_point.rounding_divide_by_pot(products, shift + 31 - (made.bits or 8)) + least
        )
        return np.asarray(np.clip(results, least, greatest).astype(made.numpy))

    return one_operand.rowwise(compute)


def _softmax_8_to(site: Site, beta: float) -> Kernel:
    """8-bit inputs to int16 of any scale and zero point, in float32."""
    given, made = site.quantizations()
    powers = np.exp(DISTANCES.astype(np.float32) * np.float32(-beta * given.scale))
    inverse = np.float32(1) / np.float32(made.scale)

    def compute(x: NDArray) -> NDArray:
        wide = x.astype(np.int64)
        terms = powers[wide.max(axis=-1, keepdims=True) - wide]
        shares = terms / terms.sum(axis=-1, keepdims=True)
        results = np.rint(shares * inverse) + made.zero_point
        return np.asarray(np.clip(results, *integer_range(DType.INT16)).astype(np.int16))

    return one_operand.rowwise(compute)


@cache
def _tables_16() -> tuple[NDArray, NDArray]:
    """Exponentials over -10..0 and 1 / (1 + x) over 0..1, as int16 tables of values in Q0.15."""
    whole, (low, high) = 65535, integer_range(DType.INT16)
    powers = tables_16.interpolation_table(
        (10.0 / whole, high), (2.0 / whole, 0), np.exp, np.float64
    )
    inverses = tables_16.interpolation_table(
        (1.0 / whole, low), (2.0 / whole, 0), lambda x: 1.0 / (1.0 + x), np.float64
    )
    return powers, inverses


def _softmax_16(site: Site, beta: float) -> Kernel:
    given, made = site.quantizations()
    require(given.zero_point == made.zero_point == 0, "int16 with a zero point other than 0")
    require(abs(made.scale * 2**15 - 1) <= 1e-3, "SOFTMAX to another int16 scale than 1/32768")
    real = np.float64(np.float32(given.scale) * np.float32(beta)) / (10.0 / 65535.0)
    multiplier = fixed_point.quantize_multiplier(real)
    powers, inverses = _tables_16()
    low, high = integer_range(DType.INT16)
    every = one_operand.interpolate(powers, one_operand.stored_values(DType.INT16))

    def compute(x: NDArray) -> NDArray:
        wide = x.astype(np.int64)
        differences = wide - wide.max(axis=-1, keepdims=True)
        scaled = fixed_point.rescale(differences, *multiplier) + high
        scaled -= low
        terms = every.take(scaled, mode="clip")
        sums = terms.sum(axis=-1, keepdims=True)
        headroom = fixed_point.count_leading_zeros(sums)
        normal = ((sums << (headroom - 1)) + (1 << 13)) >> 14
        inverse = one_operand.interpolate(
            inverses, np.clip(normal - (1 << 15) - (1 << 16), low, high)
        )
        shift = 31 - headroom
        results = (terms * inverse + (np.int64(1) << (shift - 1))) >> shift
        return np.asarray(np.clip(results, 0, high).astype(np.int16))

    return one_operand.rowwise(compute)


def _log_softmax_8(site: Site) -> Kernel:
    dtype = site.input(0).dtype
    given, made = site.quantizations()
    least, greatest = integer_range(dtype)
    require(made.scale == 1 / 16, "LOG_SOFTMAX to another scale than 1/16")
    require(made.zero_point == greatest, "LOG_SOFTMAX with this output zero point")
    scaling = _scaling(1.0, given.scale)
    summands = fixed_point.rounding_divide_by_pot(_powers(scaling), 12)
    back = fixed_point.quantize_multiplier(2.0 ** (31 - scaling.shift) / scaling.mantissa)

    def compute(x: NDArray) -> NDArray:
        wide = x.astype(np.int64)
        distances = wide.max(axis=-1, keepdims=True) - wide
        logarithms = fixed_point.log(summands[distances].sum(axis=-1, keepdims=True))
        lowest = fixed_point.rescale(logarithms - 2**31, *back)
        counted = -distances > np.maximum(-scaling.radius - 1, lowest)
        results = (
            fixed_point.rounding_divide_by_pot(scaling.scaled[distances] - logarithms, 22)
            + greatest
        )
        return np.where(counted, np.clip(results, least, greatest), least).astype(dtype.numpy)

    return one_operand.rowwise(compute)


LEAST_NORM = np.float32(1e-6)


@kernel("L2_NORMALIZATION")
def l2_normalization(site: Site) -> Kernel:
    """Vectors over their length. Quantised: scale 1/128, zero point in mid-range."""
    dtype, activation = site.input(0).dtype, site.attributes.text("fused_activation_function")
    require(activation == "NONE", f"L2_NORMALIZATION with {activation}")
    if dtype is DType.FLOAT32:
        return one_operand.rowwise(_l2_float)
    site.require_types(dtype in one_operand.QUANTIZED_8 and dtype is site.output().dtype)
    zero_point = site.quantization(0).zero_point
    made = site.output_quantization()
    least, middle = (0, 128) if dtype is DType.UINT8 else (-128, 0)
    require(made.scale == 1 / 128, "L2_NORMALIZATION to another scale than 1/128")
    require(made.zero_point == middle, "L2_NORMALIZATION with this output zero point")

    def compute(stored: NDArray) -> NDArray:
        x = stored.astype(np.int64) - zero_point
        mantissas, shifts = fixed_point.inverse_square_root((x * x).sum(axis=-1, keepdims=True))
        if dtype is DType.UINT8:
            scaled = fixed_point.rescale(128 * x, mantissas, shifts)
        else:
            scaled = fixed_point.rescale(x, mantissas, shifts + 7)
        return np.asarray(np.clip(scaled + middle, least, least + 255).astype(dtype.numpy))

    return one_operand.rowwise(compute)


def _l2_float(x: NDArray) -> NDArray:
    length = np.sqrt(np.square(x).sum(axis=-1, keepdims=True))
    return np.asarray(x / np.maximum(length, LEAST_NORM))


def _check_response(site: Site) -> None:
    site.require_types(site.input(0).dtype is DType.FLOAT32)
    require(site.attributes.integer("radius") >= 0, "a negative radius")


@direct("LOCAL_RESPONSE_NORMALIZATION", check=_check_response)
def local_response_normalization(site: Site, inputs: Inputs) -> Outputs:
    """`x / (bias + alpha * sum of squares of its neighbours in depth) ** beta`.

    Neighbours on both sides are included, as in TensorFlow, NNAPI and LiteRT's default kernel.
    LiteRT's reference kernel omits the farthest one above.
    """
    radius = site.attributes.integer("radius")
    bias, alpha, beta = (
        np.float32(site.attributes.number(name)) for name in ("bias", "alpha", "beta")
    )
    x = np.asarray(inputs[0])
    depth = x.shape[-1]
    if depth == 0:
        return (x,)
    reach = min(radius, depth)
    squares = np.pad(np.square(x), [*[(0, 0)] * (x.ndim - 1), (reach, reach)])
    windows = np.lib.stride_tricks.sliding_window_view(squares, 2 * reach + 1, axis=-1)
    total = windows.sum(axis=-1, dtype=np.float32)
    return (x * np.power(bias + alpha * total, -beta),)


@direct(
    "INSTANCE_NORMALIZATION",
    accepts=lambda s: s.input(0).dtype is s.output().dtype and s.output().dtype in REAL,
)
def instance_normalization(site: Site, inputs: Inputs) -> Outputs:
    """(x - mean) * gamma / sqrt(variance + epsilon) + beta (Ulyanov et al., 2016), in float64."""
    dtype = site.output().dtype
    gamma, beta, epsilon = (site.attributes.number(name) for name in ("gamma", "beta", "epsilon"))
    axes = (2, 3) if channels_first(site) else (1, 2)
    x = given(inputs[0])
    if x.ndim != 4:
        raise ShapeMismatch(f"an image batch of shape {x.shape}, which is not of rank 4")
    if not x.size:
        return (x,)
    centred = x.astype(np.float64)
    centred -= centred.mean(axis=axes, keepdims=True)
    variance = np.square(centred).mean(axis=axes, keepdims=True)
    centred *= gamma / np.sqrt(variance + epsilon)
    centred += beta
    return (centred.astype(dtype.numpy),)
