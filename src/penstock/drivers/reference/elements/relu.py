"""RELU and other clamps, LEAKY_RELU, PRELU and HARD_SWISH."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.driverkit import fixed_point
from penstock.drivers.reference.kernel import Inputs, Kernel, Outputs, Site, kernel, require
from penstock.drivers.reference.numerics import one_operand
from penstock.drivers.reference.numerics.requantize import integer_range
from penstock.ir import DType, NDArray

BOUNDS: Final = {
    "RELU": (0.0, np.inf),
    "RELU6": (0.0, 6.0),
    "RELU_N1_TO_1": (-1.0, 1.0),
    "RELU_0_TO_1": (0.0, 1.0),
}


@kernel("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1")
def relu(site: Site) -> Kernel:
    """`x` clamped; a quantised input is rescaled to the output's scale first."""
    low, high = BOUNDS[site.operation.type]
    if site.input(0).dtype is DType.FLOAT32:
        return one_operand.elementwise(lambda x: np.clip(x, np.float32(low), np.float32(high)))
    given, made = one_operand.input_and_output(site, one_operand.QUANTIZED)
    multiplier = fixed_point.quantize_multiplier(np.float32(given.scale) / np.float32(made.scale))
    least, greatest = integer_range(site.output().dtype)
    least = max(least, made.zero_point + _steps(low, made.scale))
    if high != np.inf:
        greatest = min(greatest, made.zero_point + _steps(high, made.scale))

    def compute(stored: NDArray) -> NDArray:
        scaled = fixed_point.rescale(stored - given.zero_point, *multiplier)
        return np.asarray(np.minimum(np.maximum(scaled + made.zero_point, least), greatest))

    return one_operand.tabulated(site, compute)


@kernel("LEAKY_RELU")
def leaky_relu(site: Site) -> Kernel:
    """`x` if it is not negative, otherwise `alpha * x`."""
    alpha = np.float32(site.attributes.number("alpha"))
    if site.input(0).dtype is DType.FLOAT32:
        if 0 < alpha <= 1:
            return one_operand.elementwise(lambda x: np.maximum(x, x * alpha))
        return one_operand.elementwise(lambda x: np.where(x > 0, x, x * alpha))
    given, made = one_operand.input_and_output(site, one_operand.QUANTIZED)
    scale, out_scale = np.float32(given.scale), np.float32(made.scale)
    identity = fixed_point.quantize_multiplier(scale / out_scale)
    slope = float(scale * alpha / out_scale)
    mantissa, shift = fixed_point.quantize_multiplier(abs(slope))

    def compute(stored: NDArray) -> NDArray:
        x = stored - given.zero_point
        below = fixed_point.rescale(x, mantissa, shift)
        below = -below if slope < 0 else below
        above = fixed_point.rescale(x, *identity)
        return np.where(x >= 0, above, below) + made.zero_point

    return one_operand.tabulated(site, compute)


@kernel("PRELU")
def prelu(site: Site) -> Kernel:
    """`x`, or `alpha * x` if negative; alpha broadcasts. int16 inputs have int8 slopes."""
    dtype, sloped_by = site.input(0).dtype, site.input(1).dtype
    site.require_types(sloped_by is (DType.INT8 if dtype is DType.INT16 else dtype))
    if dtype is DType.FLOAT32:
        return _float_prelu
    given, made = one_operand.input_and_output(site, one_operand.QUANTIZED)
    slopes = site.quantization(1)
    scale, out_scale = np.float32(given.scale), np.float32(made.scale)
    identity = fixed_point.quantize_multiplier(scale / out_scale)
    sloped = fixed_point.quantize_multiplier(scale * np.float32(slopes.scale) / out_scale)
    centred = one_operand.stored_values(dtype) - given.zero_point
    above = one_operand.by_bits(fixed_point.rescale(centred, *identity), dtype)

    def run(inputs: Inputs) -> Outputs:
        x, alpha = (np.asarray(a) for a in inputs)
        value = x.astype(np.int64) - given.zero_point
        products = value * (alpha.astype(np.int64) - slopes.zero_point)
        below = fixed_point.rescale(products, *sloped)
        result = np.where(value >= 0, one_operand.look_up(above, x), below) + made.zero_point
        return (np.clip(result, *integer_range(dtype)).astype(x.dtype),)

    return run


def _float_prelu(inputs: Inputs) -> Outputs:
    x, alpha = (np.asarray(a) for a in inputs)
    return (np.where(x >= 0, x, x * alpha),)


@kernel("HARD_SWISH")
def hard_swish(site: Site) -> Kernel:
    if site.input(0).dtype is DType.FLOAT32:
        zero, three, six = np.float32(0), np.float32(3), np.float32(6)
        return one_operand.elementwise(lambda x: x * np.clip(x + three, zero, six) / six)
    given, made = one_operand.input_and_output(site, one_operand.QUANTIZED_8)
    fine = np.float32(1 / 128) * np.float32(given.scale)
    mantissa, exponent = fixed_point.quantize_multiplier(fine / np.float32(made.scale))
    require(exponent <= 0, "HARD_SWISH to a scale that is under 1/128 of the input's")
    gate_mantissa, gate_exponent = fixed_point.quantize_multiplier(
        float(fine / np.float32(3 / 32768))
    )
    out_multiplier, gate_multiplier = _to_int16(mantissa), _to_int16(gate_mantissa)

    def compute(stored: NDArray) -> NDArray:
        x = (stored - given.zero_point) * 128
        gate = x
        if gate_exponent > 0:
            gate = _clip16(gate << (gate_exponent - 1))
        gate = _doubling_high_mul_16(gate, gate_multiplier)
        if gate_exponent > 0:
            gate = _clip16(gate << 1)
        elif gate_exponent < 0:
            gate = _divide_16(gate, -gate_exponent)
        gate = (gate + (1 << 15)) >> 1
        product = gate * _doubling_high_mul_16(x, out_multiplier)
        product = np.sign(product) * (np.abs(product) >> 15)
        return _divide_16(product, -exponent) + made.zero_point

    return one_operand.tabulated(site, compute)


def _to_int16(mantissa: int) -> int:
    return 2**15 - 1 if mantissa >= 2**31 - 1 - 2**15 else (mantissa + 2**15) >> 16


def _clip16(x: NDArray) -> NDArray:
    return np.clip(x, -(2**15), 2**15 - 1)


def _doubling_high_mul_16(a: NDArray, b: int) -> NDArray:
    """`a * b / 2**15` to the nearest, halves up, of int16 values."""
    return np.asarray(np.minimum((a * b + (1 << 14)) >> 15, 2**15 - 1))


def _divide_16(x: NDArray, exponent: int) -> NDArray:
    """`rounding_divide_by_pot` in 16 bits: beyond 15 places the result is 1 or -1."""
    if exponent > 15:
        return np.where(x >= 0, 1, -1)
    return fixed_point.rounding_divide_by_pot(x, exponent)


def _steps(real: float, scale: float) -> int:
    return int(fixed_point.round_half_away(np.float32(real) / np.float32(scale)))
