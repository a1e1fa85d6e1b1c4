"""Quantised operators: exactly as ONNX rounds, or as the IR's integer operations where these give
the same.

ONNX rounds halves to even, TFLite's integer kernels away from zero. Between DequantizeLinear and
QuantizeLinear a layer becomes an integer operation only where the ratio of its scales leaves no sum
on a half: a ratio of few binary digits does, one of all 24 does not. Everything else is computed in
float32, and rounded as ONNX does.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir.types import DType, Quantization
from penstock.loaders.onnx.calls import Call, operator
from penstock.loaders.onnx.operators.common import (
    aligned,
    arithmetic,
    cast,
    pair,
)
from penstock.loaders.onnx.operators.convolution import convolution
from penstock.loaders.onnx.operators.matmul import multiplied, product
from penstock.loaders.onnx.operators.recipes import Source
from penstock.loaders.onnx.tensors import dtype_of
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
    """(scale, zero point, axis) as they broadcast over *x*: per tensor, per channel, or per block."""
    if zero is not None and zero.dtype is not DType.INT32 and zero.dtype not in RANGES:
        raise call.refuse(f"quantisation to {zero.dtype.value}")
    rank = x.rank or 0
    if scale.rank == 0 or (scale.rank == 1 and (scale.shape or (None,))[0] == 1):
        return _flat(scale, ()), _flat(zero, ()) if zero is not None else _zero(()), None
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


def _flat(value: Value, shape: tuple[int, ...]) -> Value:
    return value if value.array is None else constant(value.array.reshape(shape))


def _zero(shape: tuple[int, ...]) -> Value:
    return constant(np.zeros(shape, np.int32))


def real_of(call: Call, x: Value, scale: Value, zero: Value) -> Value:
    """(x - zero) * scale in the scale's type."""
    dtype = scale.dtype
    if x.array is not None and scale.array is not None and zero.array is not None:
        call.body.lowering.budget.take(x.array.size * 4, call.node.where)
        whole = x.array.astype(np.int32) - zero.array.astype(np.int32)
        return constant(whole.astype(dtype.numpy) * scale.array)
    layout = call.emitter.layout_of([x], x.rank or 0)
    operand = call.get(x, layout)
    stored = call.emitter.operands[operand].quantization
    if stored is not None and _matches(stored, scale, zero) and dtype is DType.FLOAT32:
        return call.wrap(call.emit("DEQUANTIZE", [operand], dtype), layout)
    wide = call.wrap(cast(call, operand, dtype), layout)
    if zero.array is None or np.any(zero.array):
        own = zero if zero.array is None else constant(zero.array.astype(dtype.numpy))
        if own.array is None:
            own = call.wrap(cast(call, call.get(own), dtype))
        wide = pair(call, "SUB", wide, own)
    return pair(call, "MUL", wide, scale)


def _matches(stored: Quantization, scale: Value, zero: Value) -> bool:
    if scale.array is None or zero.array is None or scale.array.size != 1 or stored.per_channel:
        return False
    return stored.scale == float(scale.array.reshape(-1)[0]) and stored.zero_point == int(
        zero.array.reshape(-1)[0]
    )


@operator("DequantizeLinear")
def dequantize(call: Call) -> Value:
    x = call.tensor(0)
    scale, zero, axis = parameters(call, call.value(1), call.value(2) if call.has(2) else None, x)
    found = real_of(call, x, scale, zero)
    if scale.array is not None and zero.array is not None and (axis is not None or scale.rank == 0):
        if found is x:
            return found
        flat = scale.array.reshape(-1).astype(np.float64), zero.array.reshape(-1).astype(np.int64)
        found.source = Source(x, *flat, axis)
    return found


def stored_of(call: Call, x: Value, scale: Value, zero: Value, dtype: DType) -> Value:
    """round(x / scale) + zero, halves to even, held within the range of *dtype*."""
    low, high = RANGES[dtype]
    ratio = pair(call, "DIV", x, scale)
    layout = call.emitter.layout_of([ratio], ratio.rank or 0)
    rounded = call.wrap(call.emit("ROUND", [call.get(ratio, layout)], ratio.dtype), layout)
    if zero.array is None or np.any(zero.array):
        own = zero.array
        moved = (
            constant(own.astype(ratio.dtype.numpy))
            if own is not None
            else call.wrap(cast(call, call.get(zero), ratio.dtype))
        )
        rounded = pair(call, "ADD", rounded, moved)
    bounds = [constant(np.array(b).astype(ratio.dtype.numpy)) for b in (low, high)]
    held = pair(call, "MINIMUM", pair(call, "MAXIMUM", rounded, bounds[0]), bounds[1])
    operands, layout = aligned(call, [held])
    return call.wrap(cast(call, operands[0], dtype), layout)


@operator("QuantizeLinear")
def quantize(call: Call) -> Value:
    x = call.tensor(0)
    zero = call.value(2) if call.has(2) else None
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
        x = call.wrap(cast(call, call.get(x), scale.dtype))
    return stored_of(call, x, scale, points, dtype)


@operator("DynamicQuantizeLinear")
def dynamic_quantize(call: Call) -> list[Value]:
    """To uint8 over the range of the values and 0."""
    x = call.tensor(0)
    operand, dtype = call.get(x), x.dtype
    every = call.emitter.integers(range(x.rank or 0))
    zero = call.scalar(0, dtype)
    low = arithmetic(call, "MINIMUM", call.emit("REDUCE_MIN", [operand, every], dtype), zero)
    high = arithmetic(call, "MAXIMUM", call.emit("REDUCE_MAX", [operand, every], dtype), zero)
    span = arithmetic(call, "SUB", high, low)
    scale = arithmetic(call, "DIV", span, call.scalar(255, dtype))
    none = call.emit("EQUAL", [scale, zero], DType.BOOL)
    scale = call.emit("SELECT_V2", [none, call.scalar(1, dtype), scale], dtype)
    point = call.emit(
        "ROUND", [arithmetic(call, "DIV", call.emit("NEG", [low], dtype), scale)], dtype
    )
    point = arithmetic(call, "MAXIMUM", point, zero)
    point = arithmetic(call, "MINIMUM", point, call.scalar(255, dtype))
    scale_value = call.wrap(scale)
    zero_value = call.wrap(cast(call, point, DType.UINT8))
    return [stored_of(call, x, scale_value, zero_value, DType.UINT8), scale_value, zero_value]


def _real_input(call: Call, at: int, *, channels: int | None = None) -> Value:
    """Inputs *at*, at + 1 and at + 2 (values, scale, zero point) as real values; scales along
    *channels*.
    """
    x, scale, zero = call.tensor(at), call.value(at + 1), call.value(at + 2)
    flat = scale.rank == 0 or (scale.shape or (None,)) == (1,)
    if flat:
        found = real_of(call, x, _flat(scale, ()), _flat(zero, ()))
        axis = None
    else:
        axis = channels
        if scale.array is None or zero.array is None or axis is None:
            raise call.refuse("scales of channels computed while running")
        shape = [-1 if i == axis else 1 for i in range(x.rank or 0)]
        points = np.broadcast_to(zero.array.reshape(-1), scale.array.reshape(-1).shape)
        found = real_of(
            call, x, constant(scale.array.reshape(shape)), constant(points.reshape(shape))
        )
    if scale.array is not None and zero.array is not None:
        scales = scale.array.reshape(-1).astype(np.float64)
        zeros = np.broadcast_to(zero.array.reshape(-1), scales.shape).astype(np.int64)
        found.source = Source(x, scales, zeros, axis)
    return found


def _as_integers(call: Call, x: Value, scale: Value, zero: Value, dtype: DType) -> Value | None:
    """*x* by its recipe, where it has one that gives what ONNX does."""
    if x.recipe is None or scale.array is None or zero.array is None or scale.array.size != 1:
        return None
    step = float(scale.array.reshape(-1)[0])
    if not step > 0:
        return None
    made = x.recipe(call, Quantization((step,), (int(zero.array.reshape(-1)[0]),)), dtype, "NONE")
    return None if made is None else call.wrap(*made)


def _finished(call: Call, made: Value, scale: Value, zero: Value) -> Value:
    whole = _as_integers(call, made, scale, zero, zero.dtype)
    return whole or stored_of(call, made, _flat(scale, ()), _flat(zero, ()), zero.dtype)


@operator("QLinearConv")
def quantized_convolution(call: Call) -> Value:
    """The bias is an int32 vector of scale input times weights."""
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
    if not isinstance(made, Value):
        raise call.node.invalid("a convolution has one output")
    return _finished(call, made, call.value(6), call.value(7))


@operator("QLinearMatMul")
def quantized_matmul(call: Call) -> Value:
    a = _real_input(call, 0, channels=(call.tensor(0).rank or 2) - 2)
    b = _real_input(call, 3, channels=(call.tensor(3).rank or 2) - 1)
    return _finished(call, multiplied(call, a, b), call.value(6), call.value(7))


def _centred(call: Call, x: Value, zero: Value | None) -> Value:
    """Stored values less their zero point, as floats: their products are whole, and exact below
    2**24.
    """
    wide = constant(x.array.astype(np.float32)) if x.array is not None else None
    if wide is None:
        layout = call.emitter.layout_of([x], x.rank or 0)
        wide = call.wrap(cast(call, call.get(x, layout), DType.FLOAT32), layout)
    if zero is None:
        return wide
    if zero.array is not None and zero.array.size == 1:
        point = constant(zero.array.reshape(()).astype(np.float32))
        if wide.array is not None and point.array is not None:
            return constant(wide.array - point.array)
        return pair(call, "SUB", wide, point)
    if zero.rank and (zero.shape or (None,)) != (1,):
        raise call.refuse("zero points of rows or columns")
    return pair(call, "SUB", wide, call.wrap(cast(call, call.get(zero), DType.FLOAT32)))


@operator("MatMulInteger")
def matmul_integer(call: Call) -> Value:
    a = _centred(call, call.tensor(0), call.value(2) if call.has(2) else None)
    b = _centred(call, call.tensor(1), call.value(3) if call.has(3) else None)
    depth = (a.shape or (None,))[-1]
    if depth is not None and depth > 2**24 // (255 * 255):
        raise call.refuse(f"sums of {depth} products, which float32 does not hold exactly")
    return call.wrap(cast(call, product(call, a, b), DType.INT32))


@operator("ConvInteger")
def convolution_integer(call: Call) -> Value:
    x = _centred(call, call.tensor(0), call.value(2) if call.has(2) else None)
    weights = _centred(call, call.tensor(1), call.value(3) if call.has(3) else None)
    shape = weights.shape or ()
    if None not in shape and int(np.prod([d or 0 for d in shape[1:]])) > 2**24 // (255 * 255):
        raise call.refuse("sums of more products than float32 holds exactly")
    made = convolution(Call(call.body, call.node, [x, weights]))
    if not isinstance(made, Value):
        raise call.node.invalid("a convolution has one output")
    layout, operand = next(iter(made.forms.items()))
    return call.wrap(cast(call, operand, DType.INT32), layout)
