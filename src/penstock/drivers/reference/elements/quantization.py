"""QUANTIZE, DEQUANTIZE and FAKE_QUANT, and NumericVerify, which compares a quantised model with its
float original.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.driverkit import fixed_point
from penstock.drivers.reference.kernel import (
    Inputs,
    Kernel,
    Outputs,
    Site,
    Unsupported,
    kernel,
    require,
    tensor_quantization,
    types,
)
from penstock.drivers.reference.numerics.one_operand import by_parts, look_up
from penstock.drivers.reference.numerics.requantize import integer_range
from penstock.drivers.reference.numerics.weights import given
from penstock.errors import GeneralFailure, ShapeMismatch
from penstock.ir import DType, NDArray, Operand, Quantization
from penstock.ir.operations.custom_options import numeric_verify

STORED: Final = types("int8 uint8 int16 int32 int4 uint4 int2 uint16")
"""Types of stored quantised values."""

BELOW_HALF: Final = np.array(np.nextafter(np.float32(0.5), np.float32(0)))
"""The number that is added before truncation to round halves away from zero."""

SIGN: Final = np.uint32(1 << 31)

TABLED: Final = frozenset({DType.INT8, DType.UINT8})


@kernel("QUANTIZE")
def quantize(site: Site) -> Kernel:
    """Quantises real values, or requantises stored ones."""
    source, target = site.input(0), site.output()
    site.require_types(target.dtype in STORED)
    if source.dtype.is_float:
        return _quantize(target)
    if source.dtype in STORED:
        return _requantize(source, target)
    raise site.unsupported_types()


@kernel("DEQUANTIZE")
def dequantize(site: Site) -> Kernel:
    """Converts stored values to real ones, or 16-bit floats to wider ones."""
    source, target = site.input(0), site.output()
    site.require_types(target.dtype.is_float)
    dtype = target.dtype.numpy
    if source.dtype.is_float:
        return lambda inputs: (given(inputs[0]).astype(dtype),)
    site.require_types(source.dtype in STORED)
    scales, zero_points = _vectors(_quantization(source), source)

    def run(inputs: Inputs) -> Outputs:
        stored = given(inputs[0])
        real = stored.astype(np.float64) if stored.dtype.itemsize > 2 else stored.astype(np.float32)
        real -= zero_points.astype(real.dtype)
        real *= scales.astype(real.dtype)
        return (real.astype(dtype, copy=False),)

    return run


@kernel("FAKE_QUANT")
def fake_quant(site: Site) -> Kernel:
    """Rounds floats to the nearest value of a quantisation of min..max to num_bits.

    The range is moved so that zero is one of the values. NaN becomes the least value. An empty
    range makes every result NaN. TFLite stores the zero point in 16 bits.
    """
    attributes = site.attributes
    bits = attributes.integer("num_bits")
    require(site.input(0).dtype is DType.FLOAT32 and 0 <= bits <= 31, f"{bits} bits of FAKE_QUANT")
    least = np.float32(1 if attributes.flag("narrow_range") else 0)
    greatest = np.float32(2**bits - 1)
    low, high = np.float32(attributes.number("min")), np.float32(attributes.number("max"))
    scale = (high - low) / (greatest - least)
    place = fixed_point.round_half_away_from_zero(np.asarray(least - low / scale))
    zero = np.float32(int(np.clip(place, least, greatest)) % 2**16 if np.isfinite(place) else 0)
    bottom, top = (least - zero) * scale, (greatest - zero) * scale

    def run(inputs: Inputs) -> Outputs:
        values = given(inputs[0])
        values = np.where(bottom < values, values, bottom)
        values = np.where(values < top, values, top)
        values -= bottom
        values *= np.float32(1) / scale
        values = fixed_point.round_half_away_from_zero(values)
        values *= scale
        values += bottom
        return (values,)

    return run


def _quantization(operand: Operand) -> Quantization:
    if operand.quantization is None:
        raise Unsupported(f"{operand.dtype.value} without one scale and zero point")
    return operand.quantization


def _vectors(quantization: Quantization, operand: Operand) -> tuple[NDArray, NDArray]:
    """Scales (float32) and zero points (int64) in a shape that broadcasts along their dimension."""
    scales = np.array(quantization.scales, np.float32)
    zero_points = np.array(quantization.zero_points, np.int64)
    if quantization.dimension is None:
        return scales.reshape(()), zero_points.reshape(())
    if operand.shape is None:
        raise Unsupported("per-channel scales of an operand of unknown rank")
    shape = [1] * len(operand.shape)
    shape[quantization.dimension] = scales.size
    return scales.reshape(shape), zero_points.reshape(shape)


def _quantize(target: Operand) -> Kernel:
    """Quantises real values. Values beyond the range saturate; NaN becomes the zero point."""
    scales, zero_points = _vectors(_quantization(target), target)
    limits, dtype = integer_range(target.dtype), target.dtype.numpy

    real = np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)
    offset = zero_points.astype(real)
    vectors = scales, limits[0] - offset, limits[1] - offset, offset

    def convert(
        values: NDArray, scale: NDArray, low: NDArray, high: NDArray, offset: NDArray
    ) -> NDArray:
        rounded = np.asarray(np.divide(values, scale, dtype=np.float32))
        # Copies the sign bit onto one half: bit operations are faster than `copysign`.
        sign = np.bitwise_and(rounded.view(np.uint32), SIGN)
        rounded += np.bitwise_or(sign, BELOW_HALF.view(np.uint32)).view(np.float32)
        stored = np.trunc(rounded, out=rounded).astype(real, copy=False)
        if not np.isfinite(stored.sum()):
            np.copyto(stored, 0.0, where=np.isnan(stored))
        np.clip(stored, low, high, out=stored)
        stored += offset
        return np.asarray(stored.astype(dtype))

    if scales.ndim:
        return lambda inputs: (by_parts(convert, given(inputs[0]), *vectors),)
    return lambda inputs: (by_parts(lambda x: convert(x, *vectors), given(inputs[0])),)


def _requantize(source: Operand, target: Operand) -> Kernel:
    """Multiplies by the quantised ratio of the scales; 8-bit values use a table."""
    before = tensor_quantization(source, "an input")
    after = tensor_quantization(target, "an output")
    mantissa, shift = fixed_point.quantize_multiplier(before.scale / after.scale)
    limits, dtype = integer_range(target.dtype), target.dtype.numpy

    def convert(stored: NDArray) -> NDArray:
        centred = stored.astype(np.int64) - before.zero_point
        scaled = fixed_point.rescale(centred, mantissa, shift)
        scaled += after.zero_point
        return np.clip(scaled, *limits, out=scaled).astype(dtype)

    if source.dtype not in TABLED:
        return lambda inputs: (convert(given(inputs[0])),)
    every = np.arange(256, dtype=np.uint8)
    table = convert(every.view(source.dtype.numpy))
    moves = table.view(np.uint8) - every if target.dtype in TABLED else every
    if (moves == moves[0]).all():
        return lambda inputs: ((given(inputs[0]).view(np.uint8) + moves[0]).view(dtype),)
    return lambda inputs: (look_up(table, given(inputs[0])),)


LEAST_TOLERANCE: Final = 0.1
"""The least tolerance that fails the run; below it, differences are only returned."""


@kernel("CUSTOM:NumericVerify")
def numeric_verify_kernel(site: Site) -> Kernel:
    """The dequantised input minus the reference.

    With `log_if_failed`, more than `tolerance` quantisation steps (0 for float16) fail the run.
    """
    options = numeric_verify(site.attributes)
    operand = site.input(0)
    scale, zero_point = 0.0, 0
    if operand.dtype is not DType.FLOAT16:
        quantization = tensor_quantization(operand, "the input")
        scale, zero_point = quantization.scale, quantization.zero_point
    strict = options.log_if_failed and options.tolerance >= LEAST_TOLERANCE
    most = options.tolerance * scale

    def run(inputs: Inputs) -> Outputs:
        stored, reference = given(inputs[0]), given(inputs[1])
        if stored.shape != reference.shape:
            raise ShapeMismatch(f"shapes {stored.shape} and {reference.shape}")
        if scale:
            real = (scale * (stored.astype(np.int64) - zero_point)).astype(np.float32)
        else:
            real = stored.astype(np.float32)
        difference = real - reference
        if strict and np.any(np.abs(difference) > most):
            at = int(np.argmax(np.abs(difference) > most))
            raise GeneralFailure(
                f"NumericVerify: {real.flat[at]} stands for {reference.flat[at]}, "
                f"which is more than {options.tolerance} quantisation steps away"
            )
        return [difference][: len(site.outputs)]

    return run
