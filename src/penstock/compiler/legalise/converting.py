"""Conversions between element types, and between stored and real values."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.compiler.expression import Scope, Value
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.elementwise import F32, I32, I64, MOVED, arguments, emit, stored
from penstock.compiler.legalise.quantised import integer_range, rescale, scale_of
from penstock.driverkit.site import Refused, require
from penstock.ir import DType, NDArray, Operand

F64: Final = DType.FLOAT64
STORED: Final = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32})


@legal("CAST")
def cast(operation: Operation) -> None:
    """Converts numbers. Fractions are truncated; floats beyond an integer type become its least or
    greatest value, NaN the greatest. Integers wrap.
    """
    _, (x,) = arguments(operation, 1)
    target = operation.site.output().dtype
    require(x.dtype in MOVED and target in MOVED, "types of this conversion")
    if x.dtype is target:
        operation.rename(operation.tensor())
        return
    emit(operation, converted(x, target), 1)


def converted(x: Value, target: DType) -> Value:
    """X as *target*, as CAST converts it."""
    scope = x.scope
    if target is DType.BOOL:
        return scope.compare("equal", x, 0).apply("not")
    if not x.dtype.is_float or target.is_float:
        return x.cast(target)
    wide = x.cast(F32) if x.dtype is DType.FLOAT16 else x
    low, high = integer_range(target)
    narrow = (target.bits or 0) < 32
    whole = (wide.clamp(float(low), float(high)) if narrow else wide).cast(target)
    known = scope.compare("equal", wide, wide)
    return scope.select(known, whole, scope.constant(high, target))


@legal("BITCAST")
def bitcast(operation: Operation) -> None:
    """The same bytes as the output's type, of the same width."""
    require(not operation.is_half, "bytes of float16 values as a type of another width")
    _, (x,) = arguments(operation, 1)
    target = operation.site.output().dtype
    plain = MOVED - {DType.BOOL}
    require(x.dtype in plain and target in plain, "types of this conversion")
    require(x.dtype.bits == target.bits, "a type of another width")
    site = operation.site
    given = site.input().is_constant or site.input_indexes[0] in site.around.inputs
    # Integers are promised bit for bit, and the last bits of computed floats are not.
    require(given or not x.dtype.is_float or target.is_float, "the bits of computed floats")
    if x.dtype is target:
        operation.rename(operation.tensor())
        return
    emit(operation, x.bitcast(target), 1)


def _vectors(operation: Operation, operand: Operand, real: DType) -> tuple[list[int], list[float]]:
    """Scale and zero point of *operand*: as tensors that broadcast over it if there are several of
    them, or else as numbers.
    """
    quantization = operand.quantization
    if quantization is None:
        raise Refused(f"{operand.dtype.value} values without a scale")
    scales = np.array(quantization.scales, np.float32)
    zero_points = np.array(quantization.zero_points, np.int64)
    if quantization.dimension is None or scales.size == 1:
        return [], [float(scales[0]), float(zero_points[0])]
    shape = [1] * len(operand.shape or ())
    shape[quantization.dimension] = scales.size

    def made(values: NDArray) -> int:
        return operation.build.constant(real, shape, lambda: values.reshape(shape))

    return [made(scales), made(zero_points)], []


@legal("QUANTIZE")
def quantize(operation: Operation) -> None:
    """Quantises real values (a real division, halves away from zero, NaN as the zero point), or
    rescales stored ones.
    """
    site = operation.site
    source, output = site.input(), site.output()
    require(output.dtype in STORED, "types of this conversion")
    if source.dtype is F32:
        _quantize_reals(operation, output)
        return
    require(source.dtype in STORED, "types of this conversion")
    _, (x,) = arguments(operation, 1)
    given, made = scale_of(source, "the input"), scale_of(output, "a result")
    require(source.dtype is not I32 or not given.zero_point, "int32 with a zero point")
    centred = x.cast(I32) - given.zero_point if given.zero_point else x.cast(I32)
    scaled = rescale(centred, given.scale / made.scale)
    if output.dtype is I32:
        wide = (scaled.cast(I64) + made.zero_point).clamp(*integer_range(I32))
        emit(operation, wide.cast(I32), 1)
        return
    emit(operation, stored(scaled, operation), 1)


def _quantize_reals(operation: Operation, output: Operand) -> None:
    # Types of 32 bits are rounded in float64 after the division, which is one of float32.
    real = F64 if output.dtype is I32 else F32
    tensors, numbers = _vectors(operation, output, real)
    scope = Scope(F32, *[real] * len(tensors))
    x = scope.argument(0)
    low, high = (float(v) for v in integer_range(output.dtype))
    if tensors:
        scale, zero = scope.argument(1).cast(F32), scope.argument(2)
    else:
        scale, zero = scope.constant(numbers[0], F32), scope.constant(numbers[1], real)
    steps = (x / scale).apply("round_away").cast(real)
    known = scope.select(scope.compare("equal", steps, steps), steps, 0.0)
    least, most = scope.constant(low, real) - zero, scope.constant(high, real) - zero
    if not tensors:
        least, most = (scope.constant(v - numbers[1], real) for v in (low, high))
    bounded = known.apply("maximum", least).apply("minimum", most)
    result = scope.finish((bounded + zero).cast(output.dtype))
    operation.elementwise("quantize", result, [operation.tensor(), *tensors])


@legal("DEQUANTIZE")
def dequantize(operation: Operation) -> None:
    """Stored values as real ones, or 16-bit floats as wider ones."""
    site = operation.site
    source, target = site.input(), site.output().dtype
    require(
        target is F32 or (target.is_float and source.dtype.is_float), "types of this conversion"
    )
    if source.dtype.is_float:
        require(source.dtype in MOVED and target in MOVED, "types of this conversion")
        if source.dtype is target:
            operation.rename(operation.tensor())
            return
        _, (x,) = arguments(operation, 1)
        emit(operation, x.cast(target), 1)
        return
    require(source.dtype in STORED, "types of this conversion")
    real = F64 if source.dtype is I32 else F32
    tensors, numbers = _vectors(operation, source, real)
    scope = Scope(source.dtype, *[real] * len(tensors))
    wide = scope.argument(0).cast(real)
    if tensors:
        result = (wide - scope.argument(2)) * scope.argument(1)
    else:
        result = (wide - numbers[1]) * numbers[0]
    operation.elementwise(
        "dequantize", scope.finish(result.cast(F32)), [operation.tensor(), *tensors]
    )
