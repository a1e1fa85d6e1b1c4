"""Quantised operators: in float32 with ONNX's rounding, or as integer operations of the IR if both
give the same results.

ONNX rounds halves to even, TFLite's integer kernels away from zero. A layer between
DequantizeLinear and QuantizeLinear becomes an integer operation only if the ratio of its scales
puts no sum on a half. A ratio of few binary digits puts some sums there, a ratio of all 24 digits
does not. Other layers are computed in float32 and rounded as ONNX does.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from penstock.ir.types import DType, Quantization
from penstock.loaders.onnx.calls import Call, Tensor
from penstock.loaders.onnx.engine import dtype_of
from penstock.loaders.onnx.operators import operator
from penstock.loaders.onnx.operators.convolution import convolution
from penstock.loaders.onnx.operators.matmul import multiplied, product
from penstock.loaders.onnx.operators.recipes import Source
from penstock.loaders.onnx.values import Value, constant

RANGES: Final = {
    DType.INT8: (-128, 127),
    DType.UINT8: (0, 255),
    DType.INT16: (-32768, 32767),
    DType.UINT16: (0, 65535),
    DType.INT4: (-8, 7),
    DType.UINT4: (0, 15),
}


def parameters(
    call: Call, scale: Value, zero: Value | None, x: Value
) -> tuple[Value, Value, int | None]:
    """(scale, zero point, axis) that broadcast over *x*: per tensor, channel, or block."""
    if zero is not None and zero.dtype is not DType.INT32 and zero.dtype not in RANGES:
        raise call.refuse(f"quantisation to {zero.dtype.value}")
    rank = x.rank or 0
    if _is_single(scale):
        return _flat(scale), constant(np.zeros((), np.int32)) if zero is None else _flat(zero), None
    block = call.node.integer("block_size", 0)
    axis = call.axis(call.node.integer("axis", 1), rank)
    if scale.array is None or (zero is not None and zero.array is None):
        raise call.refuse("scales of channels computed while running")
    points = None if zero is None else zero.array
    arrays = [scale.array, np.zeros(scale.array.shape, np.int32) if points is None else points]
    if scale.rank == 1 and not block:
        shape = [-1 if i == axis else 1 for i in range(rank)]
        return constant(arrays[0].reshape(shape)), constant(arrays[1].reshape(shape)), axis
    size = (x.shape or ())[axis]
    if size is None or len(arrays[0].shape) != rank or not 0 < block <= size:
        raise call.mismatch(f"scales of shape {arrays[0].shape} over {x.shape}")
    grown = [np.repeat(a, block, axis).take(range(size), axis) for a in arrays]
    return constant(grown[0]), constant(grown[1]), None


def _is_single(scale: Value) -> bool:
    return scale.rank == 0 or scale.shape == (1,)


def _flat(value: Value) -> Value:
    return value if value.array is None else constant(value.array.reshape(()))


def real_of(call: Call, x: Value, scale: Value, zero: Value) -> Value:
    """(x - zero) * scale in the scale's type."""
    dtype = scale.dtype
    if x.array is not None and scale.array is not None and zero.array is not None:
        call.charge(x.array.size * 4)
        whole = x.array.astype(np.int32) - zero.array.astype(np.int32)
        return constant(whole.astype(dtype.numpy) * scale.array)
    operand, layout = call.stored(x)
    stored = call.emitter.operands[operand.index].quantization
    if stored is not None and _matches(stored, scale, zero) and dtype is DType.FLOAT32:
        return operand.fn("DEQUANTIZE", dtype).value(layout)
    wide = operand.cast(dtype).value(layout)
    if zero.array is None or np.any(zero.array):
        wide = call.pair("SUB", wide, _converted(call, zero, dtype))
    return call.pair("MUL", wide, scale)


def _converted(call: Call, value: Value, dtype: DType) -> Value:
    if value.array is not None:
        return constant(value.array.astype(dtype.numpy))
    operand, layout = call.stored(value)
    return operand.cast(dtype).value(layout)


def _matches(stored: Quantization, scale: Value, zero: Value) -> bool:
    return not stored.per_channel and _single(scale, zero) == (stored.scale, stored.zero_point)


def _single(scale: Value, zero: Value) -> tuple[float, int] | None:
    """A constant scale and zero point for a whole tensor."""
    if scale.array is None or zero.array is None or scale.array.size != 1:
        return None
    return float(scale.array.reshape(-1)[0]), int(zero.array.reshape(-1)[0])


@operator("DequantizeLinear")
def dequantize(call: Call) -> Value:
    x = call.tensor(0)
    scale, zero, axis = parameters(call, call.value(1), call.optional(2), x)
    found = real_of(call, x, scale, zero)
    if scale.array is not None and zero.array is not None and (axis is not None or scale.rank == 0):
        if found is x:
            return found
        flat = scale.array.reshape(-1).astype(np.float64), zero.array.reshape(-1).astype(np.int64)
        found.source = Source(x, *flat, axis)
    return found


def stored_of(call: Call, x: Value, scale: Value, zero: Value, dtype: DType) -> Value:
    """round(x / scale) + zero, halves to even, clamped to the range of *dtype*."""
    ratio = call.pair("DIV", x, scale)
    rounded = call.unary("ROUND", ratio)
    if zero.array is None or np.any(zero.array):
        rounded = call.pair("ADD", rounded, _converted(call, zero, ratio.dtype))
    low, high = (constant(np.array(b).astype(ratio.dtype.numpy)) for b in RANGES[dtype])
    held = call.pair("MINIMUM", call.pair("MAXIMUM", rounded, low), high)
    (operand,), layout = call.aligned([held])
    return operand.cast(dtype).value(layout)


@operator("QuantizeLinear")
def quantize(call: Call) -> Value:
    x = call.tensor(0)
    zero = call.optional(2)
    dtype = zero.dtype if zero is not None else DType.UINT8
    if zero is None and call.node.integer("output_dtype", 0):
        dtype = dtype_of(call.node.integer("output_dtype"), call.node.where)
    if dtype not in RANGES:
        raise call.refuse(f"quantisation to {dtype.value}")
    scale, points, axis = parameters(call, call.value(1), zero, x)
    if x.recipe is not None and axis is None:
        made = _as_integers(call, x, scale, points, dtype)
        if made is not None:
            return made
    if x.dtype.is_integer:
        x = call.get(x).cast(scale.dtype).value()
    return stored_of(call, x, scale, points, dtype)


@operator("DynamicQuantizeLinear")
def dynamic_quantize(call: Call) -> list[Value]:
    """Quantises to uint8 over the range of the values and 0."""
    x = call.tensor(0)
    operand, dtype = call.get(x), x.dtype
    every, zero = call.vector(range(x.rank or 0)), call.scalar(0, dtype)
    low = call.emit("REDUCE_MIN", [operand, every]).minimum(zero)
    high = call.emit("REDUCE_MAX", [operand, every]).maximum(zero)
    scale = (high - low) / 255
    scale = call.select(scale.equals(zero), 1, scale)
    point = (-low / scale).fn("ROUND").maximum(zero).minimum(255)
    parameters = scale.value(), point.cast(DType.UINT8).value()
    return [stored_of(call, x, *parameters, DType.UINT8), *parameters]


def _real_input(call: Call, at: int, *, channels: int | None = None) -> Value:
    """Inputs *at* to *at* + 2 (values, scale, zero point) as reals; scales along *channels*."""
    x, scale, zero = call.tensor(at), call.value(at + 1), call.value(at + 2)
    axis = None if _is_single(scale) else channels
    if _is_single(scale):
        found = real_of(call, x, _flat(scale), _flat(zero))
    else:
        if axis is None or scale.array is None or zero.array is None:
            raise call.refuse("scales of channels computed while running")
        shape = [-1 if i == axis else 1 for i in range(x.rank or 0)]
        points = np.broadcast_to(zero.array.reshape(-1), scale.array.reshape(-1).shape)
        factors = constant(scale.array.reshape(shape))
        found = real_of(call, x, factors, constant(points.reshape(shape)))
    if scale.array is not None and zero.array is not None:
        scales = scale.array.reshape(-1).astype(np.float64)
        zeros = np.broadcast_to(zero.array.reshape(-1), scales.shape).astype(np.int64)
        found.source = Source(x, scales, zeros, axis)
    return found


def _as_integers(call: Call, x: Value, scale: Value, zero: Value, dtype: DType) -> Value | None:
    """*x* by its recipe, if it has a recipe that gives ONNX's result; otherwise None."""
    single, recipe = _single(scale, zero), x.recipe
    if recipe is None or single is None or not single[0] > 0:
        return None
    made: Value | None = recipe(call, Quantization(single[:1], single[1:]), dtype, "NONE")
    return made


def _finished(call: Call, made: Value) -> Value:
    scale, zero = call.value(6), call.value(7)
    whole = _as_integers(call, made, scale, zero, zero.dtype)
    return whole or stored_of(call, made, _flat(scale), _flat(zero), zero.dtype)


@operator("QLinearConv")
def quantized_convolution(call: Call) -> Value:
    """The bias is an int32 vector in units of input scale times weight scale."""
    x, weights = _real_input(call, 0), _real_input(call, 3, channels=0)
    inputs: list[Value | None] = [x, weights]
    if call.has(8):
        one, other = call.value(1).array, call.value(4).array
        if one is None or other is None:
            raise call.refuse("scales computed while running beside a bias")
        scale = one.reshape(-1) * other.reshape(-1)
        bias = call.constant(8, "the bias")
        real = constant((bias * scale).astype(np.float32))
        real.source = Source(constant(bias), scale.astype(np.float64), np.zeros(1, np.int64), 0)
        inputs.append(real)
    made = convolution(Call(call.body, call.node, inputs))
    return _finished(call, made)


@operator("QLinearMatMul")
def quantized_matmul(call: Call) -> Value:
    a = _real_input(call, 0, channels=(call.tensor(0).rank or 2) - 2)
    b = _real_input(call, 3, channels=(call.tensor(3).rank or 2) - 1)
    return _finished(call, multiplied(call, a, b))


MOST_PRODUCTS: Final = 2**24 // (255 * 255)
"""Products of 8-bit integers whose sum is exact in float32."""


def _centred(call: Call, x: Value, zero: Value | None) -> Value:
    """Stored values minus their zero point, as floats. Their products are exact below 2**24."""
    wide = _converted(call, x, DType.FLOAT32)
    if zero is None:
        return wide
    if not _is_single(zero) and (zero.array is None or zero.array.size != 1):
        raise call.refuse("zero points of rows or columns")
    point = _converted(call, _flat(zero), DType.FLOAT32)
    if wide.array is not None and point.array is not None:
        return constant(wide.array - point.array)
    return call.pair("SUB", wide, point)


@operator("MatMulInteger", "ConvInteger")
def integer_product(call: Call) -> Value:
    a, b = (_centred(call, call.tensor(i), call.optional(i + 2)) for i in (0, 1))
    multiplies = call.node.op == "MatMulInteger"
    summed = (a.shape or (None,))[-1:] if multiplies else (b.shape or ())[1:]
    count = math.prod(d or 0 for d in summed)
    if None not in summed and count > MOST_PRODUCTS:
        raise call.refuse(f"sums of {count} products, which float32 does not hold exactly")
    if multiplies:
        return product(call, a, b).cast(DType.INT32).value()
    made = convolution(Call(call.body, call.node, [a, b]))
    layout, operand = next(iter(made.forms.items()))
    return Tensor(call, operand).cast(DType.INT32).value(layout)
