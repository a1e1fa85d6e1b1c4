"""What lowerings share: broadcast arithmetic in whatever layout, constants, axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from penstock.errors import ShapeMismatch
from penstock.ir.operation import AttributeValue
from penstock.ir.types import DType, NDArray, is_static, static_shape
from penstock.loaders.onnx.calls import Call
from penstock.loaders.onnx.values import Layout, Value, identity, inverse

MAIN: Final = frozenset({DType.FLOAT32, DType.FLOAT16, DType.INT32, DType.INT64})
"""Types that TFLite's arithmetic takes as plain numbers; others go by StableHLO's operations."""

PLAIN: Final[dict[str, frozenset[DType]]] = {
    "ADD": MAIN,
    "SUB": MAIN,
    "MUL": MAIN,
    "DIV": MAIN - {DType.INT64},
    "POW": frozenset({DType.FLOAT32, DType.FLOAT16, DType.INT32}),
    "MAXIMUM": MAIN,
    "MINIMUM": MAIN,
    "FLOOR_MOD": frozenset({DType.FLOAT32, DType.FLOAT16, DType.INT32, DType.INT64}),
}

STABLE: Final = {
    "ADD": "STABLEHLO_ADD",
    "SUB": "STABLEHLO_SUBTRACT",
    "MUL": "STABLEHLO_MULTIPLY",
    "DIV": "STABLEHLO_DIVIDE",
    "POW": "STABLEHLO_POWER",
    "MAXIMUM": "STABLEHLO_MAXIMUM",
    "MINIMUM": "STABLEHLO_MINIMUM",
    "FLOOR_MOD": "STABLEHLO_REMAINDER",
}

COMPARED: Final = MAIN | {DType.BFLOAT16, DType.INT16}
DIRECTIONS: Final = {
    "EQUAL": "EQ",
    "NOT_EQUAL": "NE",
    "GREATER": "GT",
    "GREATER_EQUAL": "GE",
    "LESS": "LT",
    "LESS_EQUAL": "LE",
}


def common_layout(call: Call, values: Sequence[Value]) -> Layout:
    """The layout to compute a broadcast operation of *values* in."""
    rank = max((v.rank or 0 for v in values), default=0)
    if any(v.shape is None for v in values):
        return identity(rank)
    return call.emitter.layout_of(values, rank)


def aligned(call: Call, values: Sequence[Value]) -> tuple[list[int], Layout]:
    """Operands of *values* in one layout, so that they broadcast as ONNX has it."""
    layout = common_layout(call, values)
    if layout == identity(len(layout)):
        return [call.get(v) for v in values], layout
    operands = []
    for value in values:
        if value.rank == 0:
            operands.append(call.get(value))
        else:
            operands.append(call.get(call.emitter.ranked(value, len(layout)), layout))
    return operands, layout


def broadcast_all(call: Call, operands: Sequence[int]) -> list[int]:
    """*operands* repeated to one shape."""
    emitter = call.emitter
    shapes = [emitter.shape(o) for o in operands]
    if all(s == shapes[0] and is_static(s) for s in shapes):
        return list(operands)
    if all(is_static(s) for s in shapes):
        try:
            target = np.broadcast_shapes(*(static_shape(s) or () for s in shapes))
        except ValueError:
            raise ShapeMismatch(
                f"shapes {shapes} do not broadcast", where=call.node.where
            ) from None
        shape = emitter.integers(target, np.int64)
        return [
            o if s == target else call.emit("BROADCAST_TO", [o, shape], emitter.dtype(o))
            for o, s in zip(operands, shapes, strict=True)
        ]
    sizes = [call.emit("SHAPE", [o], DType.INT64, {"out_type": "INT64"}) for o in operands]
    both = sizes[0]
    for size in sizes[1:]:
        both = call.emit("BROADCAST_ARGS", [both, size], DType.INT64)
    return [call.emit("BROADCAST_TO", [o, both], emitter.dtype(o)) for o in operands]


def arithmetic(call: Call, kind: str, a: int, b: int) -> int:
    """One of TFLite's functions of two broadcast operands, or StableHLO's where TFLite lacks the
    type.
    """
    dtype = call.emitter.dtype(a)
    if dtype is not call.emitter.dtype(b):
        raise call.node.invalid(
            f"operands of two types, {dtype.value} and {call.emitter.dtype(b).value}"
        )
    _require_numbers(call, dtype)
    if dtype in PLAIN[kind]:
        return call.emit(kind, [a, b], dtype)
    return call.emit(STABLE[kind], broadcast_all(call, [a, b]), dtype)


def comparison(call: Call, kind: str, a: int, b: int) -> int:
    dtype = call.emitter.dtype(a)
    if dtype is not call.emitter.dtype(b):
        raise call.node.invalid("operands of two types are compared")
    plain = dtype in COMPARED or (
        kind in {"EQUAL", "NOT_EQUAL"} and dtype in {DType.BOOL, DType.STRING}
    )
    if plain:
        return call.emit(kind, [a, b], DType.BOOL)
    attributes = {
        "comparison_direction": f"STABLEHLO_COMPARISON_DIRECTION_{DIRECTIONS[kind]}",
        "compare_type": "STABLEHLO_COMPARISON_TYPE_NOTYPE",
    }
    return call.emit("STABLEHLO_COMPARE", broadcast_all(call, [a, b]), DType.BOOL, attributes)


def pair(call: Call, kind: str, a: Value, b: Value) -> Value:
    """`arithmetic` of values, in the layout that suits them."""
    _require_numbers(call, a.dtype)
    operands, layout = aligned(call, [a, b])
    return call.wrap(arithmetic(call, kind, *operands), layout)


def unary(
    call: Call, kind: str, x: Value, attributes: Mapping[str, AttributeValue] | None = None
) -> Value:
    """An element-by-element operation of one operand, in the layout it is there in."""
    _require_numbers(call, x.dtype)
    layout = call.emitter.layout_of([x], x.rank or 0)
    return call.wrap(call.emit(kind, [call.get(x, layout)], x.dtype, attributes), layout)


def _require_numbers(call: Call, dtype: DType) -> None:
    if dtype is DType.STRING:
        raise call.refuse("computed for numbers only, not for strings")


def number(call: Call, value: float, dtype: DType) -> int:
    """A constant scalar."""
    return call.scalar(value, dtype)


def cast(call: Call, operand: int, dtype: DType) -> int:
    """*operand* converted, where it is of another type."""
    have = call.emitter.dtype(operand)
    if have is dtype:
        return operand
    attributes = {"in_data_type": have.name, "out_data_type": dtype.name}
    return call.emit("CAST", [operand], dtype, attributes)


def unquantized(call: Call, operand: int) -> int:
    """The stored integers of *operand*, whatever they stand for."""
    if call.emitter.operands[operand].quantization is None:
        return operand
    dtype = call.emitter.dtype(operand)
    attributes = {"in_data_type": dtype.name, "out_data_type": dtype.name}
    return call.emit("CAST", [operand], dtype, attributes)


def cast_value(call: Call, value: Value, dtype: DType) -> Value:
    if value.dtype is dtype:
        return value
    layout = call.emitter.layout_of([value], value.rank or 0)
    return call.wrap(cast(call, call.get(value, layout), dtype), layout)


def reshape(call: Call, operand: int, shape: Sequence[int]) -> int:
    """*operand* in a shape of which one dimension may be -1."""
    target = call.emitter.integers(shape)
    attributes = {"new_shape": tuple(shape)}
    return call.emit("RESHAPE", [operand, target], call.emitter.dtype(operand), attributes)


def transposed(call: Call, operand: int, order: Sequence[int]) -> int:
    if tuple(order) == tuple(range(len(order))):
        return operand
    return call.emit(
        "TRANSPOSE", [operand, call.emitter.integers(order)], call.emitter.dtype(operand)
    )


def expand(call: Call, operand: int, axis: int) -> int:
    """*operand* with a dimension of 1 at *axis*."""
    at = call.emitter.constant(np.array(axis, np.int32))
    return call.emit("EXPAND_DIMS", [operand, at], call.emitter.dtype(operand))


def squeeze(call: Call, operand: int, axes: Sequence[int]) -> int:
    attributes = {"squeeze_dims": tuple(axes)}
    return call.emit("SQUEEZE", [operand], call.emitter.dtype(operand), attributes)


def sizes(call: Call, operand: int) -> int:
    """The dimensions of *operand* as an int64 vector."""
    return call.emit("SHAPE", [operand], DType.INT64, {"out_type": "INT64"})


def concatenate(call: Call, operands: Sequence[int], axis: int) -> int:
    if len(operands) == 1:
        return operands[0]
    every = [call.emitter.operands[o].quantization for o in operands]
    if any(q != every[0] for q in every):
        operands = [unquantized(call, o) for o in operands]
    return call.emit(
        "CONCATENATION", list(operands), call.emitter.dtype(operands[0]), {"axis": axis}
    )


def slice_axis(call: Call, operand: int, axis: int, start: int, end: int, step: int = 1) -> int:
    """`operand[..., start:end:step, ...]` with Python's meaning of bounds; *end* 2**31 - 1 for
    none.
    """
    rank = len(call.shape(operand) or ())
    begin, stop, strides = [0] * rank, [0] * rank, [1] * rank
    begin[axis], stop[axis], strides[axis] = start, end, step
    every = (1 << rank) - 1
    mask = every & ~(1 << axis)
    attributes = {
        "begin_mask": mask,
        "end_mask": mask | (1 << axis if end >= 2**31 - 1 or end < -(2**30) else 0),
    }
    stop[axis] = 0 if attributes["end_mask"] >> axis & 1 else end
    vectors = [call.emitter.integers(v) for v in (begin, stop, strides)]
    return call.emit("STRIDED_SLICE", [operand, *vectors], call.emitter.dtype(operand), attributes)


def pad(
    call: Call, operand: int, pads: Sequence[tuple[int, int]], value: NDArray | float = 0
) -> int:
    """*operand* with a constant before and after each dimension; negative pads cut off."""
    dtype = call.emitter.dtype(operand)
    for axis, (before, after) in enumerate(pads):
        if before < 0 or after < 0:
            end = after if after < 0 else 2**31 - 1
            operand = slice_axis(call, operand, axis, max(-before, 0), end)
    pads = [(max(b, 0), max(a, 0)) for b, a in pads]
    if not any(b or a for b, a in pads):
        return operand
    paddings = call.emitter.constant(np.array(pads, np.int32).reshape(-1, 2))
    filling = np.asarray(value).astype(dtype.numpy).reshape(())
    if not filling:
        return call.emit("PAD", [operand, paddings], dtype)
    return call.emit("PADV2", [operand, paddings, call.emitter.constant(filling)], dtype)


def float_of(call: Call, value: Value) -> DType:
    """The type of a value that must be of floats."""
    if not value.dtype.is_float:
        raise call.refuse(f"computed for floats only, not for {value.dtype.value}")
    return value.dtype


def axis_in(layout: Layout, axis: int) -> int:
    """Where logical dimension *axis* stands in an operand of *layout*."""
    return inverse(layout)[axis]
