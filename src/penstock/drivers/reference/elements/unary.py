"""Functions of one operand that are not activations: element by element, Fourier transforms, and
the parts of complex numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from penstock.driverkit import fixed_point
from penstock.drivers.reference.kernel import (
    Inputs,
    Kernel,
    Outputs,
    Site,
    direct,
    kernel,
    types,
)
from penstock.drivers.reference.numerics import one_operand
from penstock.drivers.reference.numerics.requantize import integer_range
from penstock.drivers.reference.numerics.weights import given
from penstock.errors import InvalidArgument, ShapeMismatch
from penstock.ir import DType, NDArray, Quantization

Function = Callable[[NDArray], NDArray]

SIGNED: Final = types("int8 int16")


@kernel("ABS")
def absolute(site: Site) -> Kernel:
    dtype = site.input(0).dtype
    quantized = dtype is DType.INT8 or (dtype is DType.INT16 and site.input(0).quantization)
    if not quantized:
        site.require_types(dtype in {DType.FLOAT32, DType.INT16, DType.INT32})
        return one_operand.elementwise(np.abs)
    given, made = one_operand.input_and_output(site, SIGNED)
    same = given.scale == made.scale
    multiplier = fixed_point.quantize_multiplier(np.float32(given.scale) / np.float32(made.scale))

    def compute(stored: NDArray) -> NDArray:
        size = np.abs(stored - given.zero_point)
        scaled = size if same else fixed_point.rescale(size, *multiplier)
        return scaled + made.zero_point

    return one_operand.tabulated(site, compute)


@kernel("EXP")
def exp(site: Site) -> Kernel:
    return _real(site, np.exp, one_operand.in_double(np.exp))


@kernel("LOG")
def log(site: Site) -> Kernel:
    """The natural logarithm. A quantised logarithm of zero or less is the output's least value."""
    if site.input(0).dtype is DType.FLOAT32:
        return one_operand.elementwise(np.log)
    made = site.output_quantization()
    least = integer_range(site.output().dtype)[0] - made.zero_point
    floor = np.float32(least) * np.float32(made.scale)
    return _real(site, np.log, lambda x: np.where(x > 0, one_operand.in_double(np.log)(x), floor))


@kernel("RSQRT")
def rsqrt(site: Site) -> Kernel:
    """1 / sqrt(x). Negative quantised values raise; for zero the result is the greatest value."""
    dtype = site.input(0).dtype
    if dtype is DType.FLOAT32:
        return one_operand.elementwise(lambda x: np.float32(1) / np.sqrt(x))
    given, made = one_operand.input_and_output(site, SIGNED)
    greatest = np.float32(2**15 - 1) * np.float32(made.scale)
    if dtype is DType.INT16:
        inner = one_operand.tabulated_reals(
            site, lambda x: np.where(x > 0, np.float32(1) / np.sqrt(x), greatest)
        )
    else:
        inner = one_operand.tabulated(
            site, lambda stored: _rsqrt_8(stored - given.zero_point, given, made)
        )
    return _not_negative(inner, given.zero_point, "RSQRT")


def _not_negative(inner: Kernel, zero_point: int, name: str) -> Kernel:
    """*inner* with a check: it raises for stored values below *zero_point*."""

    def run(inputs: Inputs) -> Outputs:
        if (np.asarray(inputs[0]) < zero_point).any():
            raise ShapeMismatch(f"{name} of a negative value")
        return inner(inputs)

    return run


def _rsqrt_8(x: NDArray, given: Quantization, made: Quantization) -> NDArray:
    real = 1.0 / float(np.sqrt(np.float32(given.scale)) * np.float32(made.scale))
    mantissa, shift = fixed_point.quantize_multiplier(real)
    roots, shifts = fixed_point.inverse_square_root(np.maximum(x, 0))
    fine = fixed_point.rescale(np.ones_like(x), roots, shifts + 20)
    scaled = fixed_point.rescale(fine, mantissa, shift - 20)
    return np.where(x == 0, 2**7 - 1, scaled + made.zero_point)


@kernel("SQRT")
def sqrt(site: Site) -> Kernel:
    """The square root. Quantised results are rounded down; negative quantised values raise."""
    dtype = site.input(0).dtype
    if dtype is DType.FLOAT32:
        return one_operand.elementwise(np.sqrt)
    given, made = one_operand.input_and_output(site, SIGNED)
    scale, out_scale = np.float32(given.scale), np.float32(made.scale)

    def compute(stored: NDArray) -> NDArray:
        real = scale * (stored - given.zero_point).astype(np.float32)
        roots: NDArray = np.floor(np.sqrt(np.maximum(real, 0)) / out_scale)
        return roots + made.zero_point

    return _not_negative(one_operand.tabulated(site, compute), given.zero_point, "SQRT")


FUNCTIONS: Final[dict[str, tuple[Function, str]]] = {
    "NEG": (np.negative, "float32 float16 bfloat16 int8 int16 int32 int64"),
    "SIGN": (np.sign, "float32 float64 int32"),
    "SQUARE": (np.square, "float32"),
    "SIN": (np.sin, "float32 float16"),
    "COS": (np.cos, "float32 float16"),
    "FLOOR": (np.floor, "float32 float16 bfloat16"),
    "CEIL": (np.ceil, "float32"),
    "ROUND": (np.rint, "float32 float16 bfloat16"),
}
"""Functions of stored values, also of quantised ones as in TFLite, and their types."""


@kernel(*FUNCTIONS)
def plain_function(site: Site) -> Kernel:
    function, accepted = FUNCTIONS[site.operation.type]
    site.require_types(site.input(0).dtype in types(accepted))
    return one_operand.elementwise(function)


def _real(site: Site, function: Function, rounded: Function) -> Kernel:
    dtype = site.input(0).dtype
    if dtype is DType.FLOAT32:
        return one_operand.elementwise(function)
    site.require_types(dtype in SIGNED and dtype is site.output().dtype)
    return one_operand.tabulated_reals(site, rounded)


@direct("RFFT2D", accepts=lambda s: s.input(0).dtype is DType.FLOAT32)
def rfft2d(_: Site, inputs: Inputs) -> Outputs:
    """The Fourier transform of the last two dimensions, cropped or zero-padded to the given
    lengths, in float64. The last one keeps its non-negative frequencies. Returns complex64.
    """
    signal, lengths = inputs
    if signal is None or lengths is None:
        raise InvalidArgument("RFFT2D needs a signal and its lengths")
    rows, columns = (int(n) for n in lengths)
    spectrum = np.fft.rfft2(signal.astype(np.float64), (rows, columns))
    return [spectrum.astype(np.complex64)]


PARTS: Final[dict[str, Function]] = {"COMPLEX_ABS": np.abs, "REAL": np.real, "IMAG": np.imag}


@kernel(*PARTS)
def complex_part(site: Site) -> Kernel:
    """Magnitude, real part or imaginary part."""
    site.require_types(site.input(0).dtype in types("complex64 complex128"))
    part = PARTS[site.operation.type]
    return lambda inputs: [np.array(part(given(inputs[0])))]
