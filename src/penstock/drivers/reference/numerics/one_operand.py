"""Functions of one operand: real values element by element, and tables of quantised functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np

from penstock.driverkit.fixed_point import round_half_away_from_zero
from penstock.driverkit.tables_16 import interpolation_table, round_half_away
from penstock.drivers.reference import kernel
from penstock.drivers.reference.numerics.requantize import integer_range
from penstock.drivers.reference.numerics.weights import given
from penstock.interrupts import watched
from penstock.ir import DType, NDArray, Operand, Quantization

QUANTIZED_8: Final = frozenset({DType.INT8, DType.UINT8})
QUANTIZED: Final = QUANTIZED_8 | {DType.INT16}


def stored_values(dtype: DType) -> NDArray:
    """Every value of an integer type, ascending, as int64."""
    low, high = integer_range(dtype)
    return np.arange(low, high + 1)


def by_bits(values: NDArray, dtype: DType) -> NDArray:
    """*values* of `stored_values`, in the order of the stored bits as unsigned numbers."""
    return np.roll(values, integer_range(dtype)[0])


def look_up(table: NDArray, x: NDArray) -> NDArray:
    """The entries of a table in `by_bits` order for the stored values *x*."""
    if x.dtype.itemsize == table.dtype.itemsize == 1:
        # `bytes.translate` is several times faster than indexing an array.
        stored = bytearray(np.ascontiguousarray(x).reshape(-1).data).translate(table.tobytes())
        return np.frombuffer(stored, table.dtype).reshape(x.shape)
    return table.take(x.view(f"u{x.dtype.itemsize}"), mode="clip")


def tabulated(site: kernel.Site, compute: Callable[[NDArray], NDArray]) -> kernel.Kernel:
    """The kernel of a function of one quantised operand.

    *compute* maps stored values (int64) to results, which are clamped to the output's type.
    """
    given, made = site.input(0).dtype, site.output().dtype
    results = np.clip(compute(stored_values(given)), *integer_range(made))
    table = by_bits(results.astype(made.numpy), given)

    return lambda inputs: (look_up(table, np.asarray(inputs[0])),)


def tabulated_reals(site: kernel.Site, function: Callable[[NDArray], NDArray]) -> kernel.Kernel:
    """The kernel of a real function of one quantised operand, as TFLite's lookup tables compute it.

    *function* maps float32 to float32. For 8 bits the table has every result. For int16 it has 512
    steps of input, each corrected by half its error in the middle, and results are interpolated.
    """
    given, made = site.quantizations()
    if site.input(0).dtype is DType.INT16:
        steps = interpolation_table(_affine(given), _affine(made), function, np.float32)
        return tabulated(site, lambda stored: interpolate(steps, stored))
    low, high = integer_range(site.output().dtype)
    return tabulated(
        site, lambda stored: np.clip(_quantized(stored, given, made, function), low, high)
    )


def _affine(quantization: Quantization) -> tuple[float, int]:
    return quantization.scale, quantization.zero_point


def _quantized(
    stored: NDArray, given: Quantization, made: Quantization, function: Callable[[NDArray], NDArray]
) -> NDArray:
    with np.errstate(all="ignore"):
        reals = np.float32(given.scale) * (stored - given.zero_point).astype(np.float32)
        scaled = function(reals) * (np.float32(1) / np.float32(made.scale))
        result: NDArray = round_half_away(scaled) + np.float32(made.zero_point)
    return result


def interpolate(table: NDArray, stored: NDArray) -> NDArray:
    """Values of an `interpolation_table` at int16 values: 9 bits select the step, 7 the position
    within it.

    Slopes and results wrap at 16 bits.
    """
    index = 256 + (stored >> 7)
    slope = (table[index + 1] - table[index]).astype(np.int16).astype(np.int64)
    result = table[index] + ((slope * (stored & 0x7F) + 64) >> 7)
    return np.asarray(result.astype(np.int16).astype(np.int64))


FLOATING: Final = frozenset({DType.FLOAT32, DType.FLOAT16})
STORED: Final = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.UINT16})

Read: TypeAlias = "Callable[[NDArray | None], NDArray]"
"""Converts stored values to float32. The caller must not write to the result."""

Write: TypeAlias = Callable[[NDArray], NDArray]
"""Converts float32 values to the stored values of an output."""


def reader(operand: Operand, role: str) -> Read:
    """Reads *operand* as float32. Raises `Unsupported` for types without real values."""
    if operand.dtype in FLOATING:
        return lambda value: given(value).astype(np.float32, copy=False)
    _require_stored(operand, role)
    quantization = kernel.tensor_quantization(operand, role)
    scale, zero_point = np.float32(quantization.scale), quantization.zero_point

    def read(value: NDArray | None) -> NDArray:
        real: NDArray = (given(value).astype(np.int32) - zero_point).astype(np.float32)
        return np.multiply(real, scale, out=real)

    return read


def writer(operand: Operand, role: str) -> Write:
    """Stores real values as *operand*: rounded halves away, saturated, NaN as zero point."""
    dtype = operand.dtype.numpy
    if operand.dtype in FLOATING:
        return lambda real: real.astype(dtype, copy=False)
    _require_stored(operand, role)
    quantization = kernel.tensor_quantization(operand, role)
    scale, zero_point = np.float32(quantization.scale), np.float32(quantization.zero_point)
    limits = integer_range(operand.dtype)

    def write(real: NDArray) -> NDArray:
        stored = round_half_away_from_zero(real / scale + zero_point)
        np.copyto(stored, zero_point, where=np.isnan(stored))
        np.clip(stored, *limits, out=stored)
        return stored.astype(dtype)

    return write


def _require_stored(operand: Operand, role: str) -> None:
    if operand.dtype not in STORED:
        raise kernel.Unsupported(f"{role} of type {operand.dtype.value}")


BLOCK: Final = 1 << 15
"""The approximate number of elements of a part; smaller arrays are not divided."""

Index: TypeAlias = "tuple[int | slice, ...]"


def by_parts(compute: Callable[..., NDArray], *operands: NDArray) -> NDArray:
    """*compute* of arrays that broadcast, part by part: a function of each position alone."""
    for operand in operands:
        if operand.size > BLOCK:
            break
    else:
        return np.asarray(compute(*operands))
    shape = np.broadcast(*operands).shape
    if all(o.shape == shape and o.flags.c_contiguous for o in operands):
        flat = [o.reshape(-1) for o in operands]
        return _filled(compute, flat, flat[0].shape).reshape(shape)
    return _filled(compute, [np.broadcast_to(o, shape) for o in operands], shape)


def by_rows(compute: Callable[[NDArray], NDArray], x: NDArray) -> NDArray:
    """*compute* of an array, part by part: each row depends on itself only."""
    if x.size <= BLOCK or x.ndim < 2:
        return np.asarray(compute(x))
    rows = x.reshape(-1, x.shape[-1])
    step = max(1, BLOCK // rows.shape[1])
    made = [compute(rows[start : start + step]) for start in range(0, len(rows), step)]
    return np.concatenate(made).reshape(x.shape)


def rowwise(compute: Callable[[NDArray], NDArray]) -> kernel.Kernel:
    """The kernel of a function of each row of one operand, as of `by_rows`."""

    def run(inputs: kernel.Inputs) -> kernel.Outputs:
        x = np.asarray(inputs[0])
        return (by_rows(compute, x) if x.size else x,)

    return run


def _filled(
    compute: Callable[..., NDArray], operands: list[NDArray], shape: tuple[int, ...]
) -> NDArray:
    out: NDArray | None = None
    for part in parts(shape):
        made = compute(*(o[part] for o in operands))
        if out is None:
            out = np.empty(shape, made.dtype)
        out[part] = made
    return np.asarray(compute(*operands)) if out is None else out


def parts(shape: tuple[int, ...]) -> Iterator[Index]:
    """Indexes of parts of about `BLOCK` elements of an array of *shape*, in order."""
    if 0 in shape:
        return
    inner, axis = 1, len(shape)
    while axis and inner * shape[axis - 1] <= BLOCK:
        axis -= 1
        inner *= shape[axis]
    if not axis:
        yield ()
        return
    step = max(1, BLOCK // inner)
    for outer in watched(np.ndindex(shape[: axis - 1])):
        for start in watched(range(0, shape[axis - 1], step)):
            yield (*outer, slice(start, start + step))


SHORT_FLOATS: Final = frozenset({"float16", "bfloat16"})
"""NumPy's names of the 16-bit floats: the types themselves would import ml_dtypes."""


def elementwise(function: Callable[[NDArray], NDArray]) -> kernel.Kernel:
    """The kernel of an elementwise function. 16-bit floats are computed as float32."""

    def compute(x: NDArray) -> NDArray:
        if x.dtype.name in SHORT_FLOATS:
            return function(x.astype(np.float32)).astype(x.dtype)
        return function(x)

    return lambda inputs: (by_parts(compute, np.asarray(inputs[0])),)


def in_double(function: Callable[[NDArray], NDArray]) -> Callable[[NDArray], NDArray]:
    """*function* of float32 values, computed in float64 and rounded once."""
    return lambda x: function(x.astype(np.float64)).astype(np.float32)


def input_and_output(
    site: kernel.Site, accepted: frozenset[DType]
) -> tuple[Quantization, Quantization]:
    """The quantisation of the first input and the output; int16 must be symmetric. Raises
    `Unsupported` unless both have the same *accepted* type.
    """
    dtype = site.input(0).dtype
    site.require_types(dtype in accepted and dtype is site.output().dtype)
    given, made = site.quantizations()
    symmetric = dtype is not DType.INT16 or given.zero_point == made.zero_point == 0
    kernel.require(symmetric, "int16 with a zero point other than 0")
    return given, made
