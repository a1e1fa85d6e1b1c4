"""ADD, SUB, MUL and DIV, broadcast, with fused activations."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.driverkit import fixed_point
from penstock.driverkit.tables_16 import round_half_away
from penstock.drivers.reference.kernel import Inputs, Kernel, Outputs, Site, kernel, require
from penstock.drivers.reference.numerics import one_operand
from penstock.drivers.reference.numerics.requantize import activation_bounds, quantized_range
from penstock.ir import DType, NDArray, Quantization

SUBTRACTED: Final = frozenset({DType.FLOAT32, DType.INT32, DType.INT64})
ADDED: Final = SUBTRACTED | {DType.FLOAT16}


@kernel("ADD", "SUB")
def add(site: Site) -> Kernel:
    subtract = site.operation.type == "SUB"
    if _is_quantized(site):
        return _quantized_sum(site, subtract)
    check_types(site, {DType.INT16} | (SUBTRACTED if subtract else ADDED))
    return _plain(site, np.subtract if subtract else np.add)


@kernel("MUL")
def mul(site: Site) -> Kernel:
    if site.input(0).dtype is DType.COMPLEX64:
        require(site.attributes.text("fused_activation_function") == "NONE", "complex activations")
        return with_pair(np.multiply)
    if _is_quantized(site):
        return _quantized_product(site)
    check_types(
        site, {DType.FLOAT32, DType.FLOAT16, DType.INT16, DType.INT32, DType.INT64, DType.UINT32}
    )
    return _plain(site, np.multiply)


@kernel("DIV")
def div(site: Site) -> Kernel:
    """`a / b`; integers are truncated toward zero, and division by zero raises."""
    if _is_quantized(site):
        return _quantized_quotient(site)
    check_types(site, {DType.FLOAT32, DType.INT32})
    return _plain(site, np.divide if site.input(0).dtype.is_float else _truncated_quotient)


def _is_quantized(site: Site) -> bool:
    """8-bit types are always quantised, int16 only if it has a scale."""
    dtype = site.input(0).dtype
    found = dtype in one_operand.QUANTIZED_8 or (
        dtype is DType.INT16 and bool(site.input(0).quantization)
    )
    if found:
        check_types(site, one_operand.QUANTIZED)
    return found


def _plain(site: Site, function: Pair) -> Kernel:
    """Real or unquantised arithmetic, clamped. Integers wrap; real results stay finite."""
    low, high = activation_bounds(site.attributes.text("fused_activation_function"))
    dtype = site.output().dtype
    if dtype.is_float:
        greatest = float(np.finfo(dtype.numpy).max)
        low = -greatest if low is None else low
        high = greatest if high is None else high
    # A bound below zero would wrap in an unsigned type.
    kind = np.dtype(np.float32) if dtype.is_float else dtype.numpy
    wide = np.float64 if dtype.is_float else np.int64
    least = None if low is None else np.array(low, wide).astype(kind)
    most = None if high is None else np.array(high, wide).astype(kind)

    def compute(a: NDArray, b: NDArray) -> NDArray:
        result = function(a, b)
        result = result if least is None else np.maximum(result, least)
        return result if most is None else np.minimum(result, most)

    return with_pair(compute)


def _truncated_quotient(a: NDArray, b: NDArray) -> NDArray:
    """Quotients truncated toward zero; -2**31 / -1, which exceeds int32, saturates."""
    if not b.all():
        raise ZeroDivisionError("DIV of integers by zero")
    size = np.abs(a.astype(np.int64)) // np.abs(b.astype(np.int64))
    quotient = np.where((a < 0) ^ (b < 0), -size, size)
    return np.minimum(quotient, np.iinfo(a.dtype).max).astype(a.dtype)


@dataclass(frozen=True, slots=True)
class _Quantizations:
    """Scales and zero points of a, b and the result, and the result's clamping range."""

    a: Quantization
    b: Quantization
    result: Quantization
    limits: tuple[int, int]

    @property
    def scales(self) -> tuple[np.float32, np.float32, np.float32]:
        return np.float32(self.a.scale), np.float32(self.b.scale), np.float32(self.result.scale)

    def store(self, values: NDArray, dtype: DType) -> NDArray:
        """Adds the zero point to *values*, clamps them and converts them to stored values."""
        stored: NDArray = np.clip(values + self.result.zero_point, *self.limits)
        return stored.astype(dtype.numpy)


def _quantizations(site: Site) -> _Quantizations:
    a, b = (site.quantization(i) for i in (0, 1))
    result = site.output_quantization()
    activation = site.attributes.text("fused_activation_function")
    dtype = site.output().dtype
    if dtype is DType.INT16:
        points = a.zero_point, b.zero_point, result.zero_point
        require(points == (0, 0, 0), "int16 with a zero point other than 0")
    return _Quantizations(a, b, result, quantized_range(activation, dtype, result))


def _quantized_sum(site: Site, subtract: bool) -> Kernel:
    """Scales both operands to 2**-20 (int16: 2**-15) of twice the larger scale, adds and rescales.
    Results beyond 32 bits saturate (TFLite's own result is undefined there).
    """
    these, dtype = _quantizations(site), site.output().dtype
    scale_a, scale_b, scale = (float(s) for s in these.scales)
    if dtype is DType.INT16 and site.attributes.flag("pot_scale_int16"):
        powers = [fixed_point.power_of_two(float(s)) for s in these.scales]
        if None not in powers:
            return _power_of_two_sum(these, [p or 0 for p in powers], subtract)
    left = 15 if dtype is DType.INT16 else 20
    twice = 2.0 * max(scale_a, scale_b)
    multiplier = fixed_point.quantize_multiplier(twice / (2.0**left * scale))
    prepare_a = scaled(dtype, these.a.zero_point, left, scale_a / twice)
    prepare_b = scaled(dtype, these.b.zero_point, left, scale_b / twice, negate=subtract)

    def compute(a: NDArray, b: NDArray) -> NDArray:
        total = prepare_a(a) + prepare_b(b)
        return these.store(fixed_point.rescale_saturating(total, *multiplier), dtype)

    return with_pair(compute)


def scaled(
    dtype: DType, zero_point: int, left: int, real: float, *, negate: bool = False
) -> Callable[[NDArray], NDArray]:
    """Multiplies stored values by 2**left * *real*, and by -1 on request; 8 bits by a table."""
    multiplier = fixed_point.quantize_multiplier(real)

    def scale(stored: NDArray) -> NDArray:
        wide = (stored.astype(np.int64) - zero_point) << left
        scaled = fixed_point.rescale(wide, *multiplier)
        return -scaled if negate else scaled

    if dtype not in one_operand.QUANTIZED_8:
        return scale
    table = one_operand.by_bits(scale(one_operand.stored_values(dtype)), dtype).astype(np.int32)
    return lambda stored: one_operand.look_up(table, stored)


def _power_of_two_sum(these: _Quantizations, powers: list[int], subtract: bool) -> Kernel:
    """int16 whose scales are powers of two: one operand is shifted right, the sum saturates."""
    shift_a, shift_b = powers[2] - powers[0], powers[2] - powers[1]
    require(
        min(shift_a, shift_b) == 0, "int16 power-of-two scales neither of which is the output's"
    )
    low, high = these.limits

    def compute(a: NDArray, b: NDArray) -> NDArray:
        wide_a = fixed_point.rounding_divide_by_pot(a.astype(np.int64), shift_a)
        wide_b = fixed_point.rounding_divide_by_pot(b.astype(np.int64), shift_b)
        total = wide_a - wide_b if subtract else wide_a + wide_b
        return np.asarray(np.clip(total, low, high).astype(np.int16))

    return with_pair(compute)


def _quantized_product(site: Site) -> Kernel:
    these, dtype = _quantizations(site), site.output().dtype
    scale_a, scale_b, scale = these.scales
    multiplier = fixed_point.quantize_multiplier(scale_a * scale_b / scale)

    def compute(a: NDArray, b: NDArray) -> NDArray:
        wide_a = a.astype(np.int64) - these.a.zero_point
        products = wide_a * (b.astype(np.int64) - these.b.zero_point)
        return these.store(fixed_point.rescale(products, *multiplier), dtype)

    return with_pair(compute)


def _quantized_quotient(site: Site) -> Kernel:
    """`a` times the reciprocal of `b`, in the bits that `a` leaves free. int16 of one shape are
    computed in float32.

    A quotient whose bits are all shifted out is 0; one beyond 32 bits, undefined in TFLite,
    saturates.
    """
    these, dtype = _quantizations(site), site.output().dtype
    scale_a, scale_b, scale = these.scales
    mantissa, shift = fixed_point.quantize_multiplier(scale_a / (scale_b * scale))

    def compute(a: NDArray, b: NDArray) -> NDArray:
        wide_b = b.astype(np.int64) - these.b.zero_point
        if not wide_b.all():
            raise ZeroDivisionError("DIV of quantised values by zero")
        if dtype is DType.INT16 and a.shape == b.shape:
            quotients = a.astype(np.float32) * scale_a / (b.astype(np.float32) * scale_b) / scale
            return these.store(round_half_away(quotients).astype(np.int64), dtype)
        wide_a = (a.astype(np.int64) - these.a.zero_point) * np.sign(wide_b)
        inverse, bits = fixed_point.reciprocal(np.abs(wide_b), 31)
        size = np.abs(wide_a)
        headroom = np.where(
            wide_a < 0,
            fixed_point.count_leading_zeros(2 * size - 1),
            fixed_point.count_leading_zeros(size) - 1,
        )
        fine = fixed_point.doubling_high_mul(wide_a << headroom, inverse)
        scaled = fixed_point.doubling_high_mul(fine, mantissa)
        right = bits + headroom - shift
        saturated = np.clip(
            scaled << np.clip(-right, 0, 31), fixed_point.INT32_MIN, fixed_point.INT32_MAX
        )
        return these.store(
            fixed_point.rounding_divide_by_pot(saturated, np.clip(right, 0, 62)), dtype
        )

    return with_pair(compute, whole=True)


Pair = Callable[[NDArray, NDArray], NDArray]


def with_pair(compute: Pair, *, whole: bool = False) -> Kernel:
    """The kernel of an elementwise function of two arrays, which broadcasts them.

    16-bit floats are computed as float32 and rounded. A function is *whole* if its result depends
    on more than the elements at one position.
    """

    def apply(a: NDArray, b: NDArray) -> NDArray:
        return np.asarray(compute(a, b)) if whole else one_operand.by_parts(compute, a, b)

    def run(inputs: Inputs) -> Outputs:
        a, b = np.asarray(inputs[0]), np.asarray(inputs[1])
        if a.dtype.name not in one_operand.SHORT_FLOATS:
            return (apply(a, b),)
        result = apply(a.astype(np.float32), b.astype(np.float32))
        return (result.astype(a.dtype) if result.dtype == np.float32 else result,)

    return run


def check_types(site: Site, types: Collection[DType]) -> DType:
    """The type of both inputs and the output. Raises `Unsupported` unless it is in *types*."""
    dtypes = {site.input(0).dtype, site.input(1).dtype, site.output().dtype}
    site.require_types(len(dtypes) == 1 and dtypes <= set(types))
    return site.output().dtype
