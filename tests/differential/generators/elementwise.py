"""Operations element by element: arithmetic, comparison, selection, functions of one operand."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import DType, NDArray
from penstock.ir.operation import AttributeValue
from penstock.ir.types import PACKED
from tests.differential.draw import Draw
from tests.differential.kinds import Kind
from tests.differential.registry import cases

TABULATED: Final = frozenset({"EXP", "LOG", "SQRT", "RSQRT"})
EVERY_ACTIVATION: Final = ("RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")


@cases("ADD", "SUB", "MUL", "DIV", slots=1, own=[Kind.SCALES, Kind.EDGES])
def arithmetic(draw: Draw, kind: str) -> None:
    dtype = draw.type(0)
    shapes = draw.broadcast(draw.shape(0, 6 if draw.chance(0.1) else 4))
    scaled = draw.has_scale(dtype) or (kind == "DIV" and dtype is DType.INT16)
    low = 1 if kind == "DIV" and dtype.is_integer and not scaled and draw.chance(0.9) else None
    if draw.kind is Kind.SCALES and not scaled:
        raise ValueError("no operand has a scale")
    qs = [draw.quantization(dtype, scaled=scaled) for _ in range(3)]
    if draw.kind is Kind.SCALES and draw.chance(0.5) and draw.has(Kind.SCALES):
        # All three far from one another, or multipliers beyond 1e27 are never drawn.
        exponents = ((0, 25), (-30, 0) if kind == "DIV" else (0, 25), (-30, 0))
        qs = [draw.quantization(dtype, 10.0 ** draw.rng.uniform(*e)) for e in exponents]
    arrays: list[NDArray] | list[None] = [None, None]
    if kind == "DIV" and dtype is DType.INT32 and draw.has(Kind.EDGES):
        # None of the divisors is zero, of which both sides refuse the whole model.
        ends = np.array([-1, 1, 2, -(2**31), 2**31 - 1], np.int32)
        arrays = [ends[draw.rng.integers(0, len(ends), s)] for s in shapes]
    a = draw.value(dtype, shapes[0], qs[0], array=arrays[0])
    b = draw.value(dtype, shapes[1], qs[1], low=low, array=arrays[1])
    attributes: dict[str, AttributeValue] = {
        "fused_activation_function": draw.activation(EVERY_ACTIVATION)
    }
    if kind in {"ADD", "SUB"}:
        attributes["pot_scale_int16"] = draw.chance(0.2)
    draw.operation(kind, [a, b], [draw.output(dtype, qs[2])], **attributes)


@cases("MAXIMUM", "MINIMUM", slots=1)
def extremes(draw: Draw, kind: str) -> None:
    dtype = draw.type(0)
    quantization = draw.quantization(dtype)
    a, b = (draw.value(dtype, s, quantization) for s in draw.broadcast(draw.shape()))
    draw.operation(kind, [a, b], [draw.output(dtype, quantization)])


@cases(
    "SQUARED_DIFFERENCE",
    "POW",
    "FLOOR_DIV",
    "FLOOR_MOD",
    "ATAN2",
    "BITWISE_XOR",
    "RIGHT_SHIFT",
    slots=1,
    own=[Kind.EDGES],
)
def pairs(draw: Draw, kind: str) -> None:
    dtype = draw.type(0)
    shape = draw.shape()
    shapes = (shape, shape) if kind == "ATAN2" else draw.broadcast(shape)
    low = 0 if kind in {"POW", "RIGHT_SHIFT"} and dtype.is_integer else None
    high = 6 if low == 0 else None
    a = draw.quantized_value(dtype, shapes[0])
    b = draw.quantized_value(dtype, shapes[1], low=low, high=high)
    draw.operation(kind, [a, b], [draw.output(dtype, draw.quantization(dtype))])


@cases("ADD_N", slots=1)
def sum_of_all(draw: Draw, kind: str) -> None:
    dtype, shape = draw.type(0), draw.shape()
    values = [draw.quantized_value(dtype, shape) for _ in range(draw.integer(2, 4))]
    draw.operation(kind, values, [draw.output(dtype, draw.quantization(dtype))])


@cases("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", slots=1)
def comparison(draw: Draw, kind: str) -> None:
    dtype = draw.type(0)
    shapes = draw.broadcast(draw.shape())
    same = draw.quantization(dtype)
    qs = (same, same) if draw.chance(0.5) else (same, draw.quantization(dtype))
    a, b = (draw.value(dtype, s, q) for s, q in zip(shapes, qs, strict=True))
    draw.operation(kind, [a, b], [draw.output(DType.BOOL)])


@cases("LOGICAL_AND", "LOGICAL_OR", slots=1)
def logic(draw: Draw, kind: str) -> None:
    a, b = (draw.value(draw.type(0), s) for s in draw.broadcast(draw.shape()))
    draw.operation(kind, [a, b], [draw.output(DType.BOOL)])


@cases("LOGICAL_NOT", slots=1)
def negation(draw: Draw, kind: str) -> None:
    draw.operation(kind, [draw.value(draw.type(0), draw.shape())], [draw.output(DType.BOOL)])


@cases("SELECT", "SELECT_V2", slots=2)
def selection(draw: Draw, kind: str) -> None:
    dtype, truth = draw.type(0), draw.type(1)
    shape = draw.shape()
    quantization = draw.quantization(dtype)
    if kind == "SELECT":
        shapes = shape, shape
        conditions = [shape, (), shape[:1]]
    else:
        shapes = draw.broadcast(shape)
        conditions = [shape, (), tuple(1 if draw.chance(0.3) else d for d in shape), shape[1:]]
    condition = draw.value(truth, draw.pick(conditions))
    a, b = (draw.value(dtype, s, quantization) for s in shapes)
    draw.operation(kind, [condition, a, b], [draw.output(dtype, quantization)])


@cases(
    "NEG", "ABS", "EXP", "LOG", "SQRT", "SQUARE", "SIN", "COS", "FLOOR", "CEIL", "ROUND", "SIGN",
    "RSQRT", "ZEROS_LIKE",
    slots=1,
)  # fmt: skip
def function(draw: Draw, kind: str) -> None:
    dtype = draw.type(0)
    scaled = draw.has_scale(dtype) or (kind in TABULATED and dtype is DType.INT16)
    given = draw.quantization(dtype, scaled=scaled)
    made = given if draw.chance(0.3) else draw.quantization(dtype, scaled=scaled)
    low = None
    if kind in {"LOG", "SQRT", "RSQRT"} and draw.chance(0.9):
        low = 0 if given is None else given.zero_point
    x = draw.value(dtype, draw.shape(), given, low=low)
    draw.operation(kind, [x], [draw.output(dtype, made)])


@cases("REAL", "IMAG", "COMPLEX_ABS", slots=2)
def parts(draw: Draw, kind: str) -> None:
    draw.operation(kind, [draw.value(draw.type(0), draw.shape())], [draw.output(draw.type(1))])


@cases("CAST", "BITCAST", slots=2)
def conversion(draw: Draw, kind: str) -> None:
    source, target = draw.type(0), draw.type(1)
    shape = draw.shape()
    if kind == "BITCAST" and {source, target} & PACKED and source.bits != target.bits:
        raise ValueError("LiteRT counts packed elements as bytes (docs/differences.md)")
    if kind == "BITCAST" and (target.bits or 0) > (source.bits or 0) > 0:
        shape = (*shape[:3], (target.bits or 0) // (source.bits or 1))
    low = 0 if not target.is_integer or target.value.startswith("u") else None
    x = draw.value(source, shape, low=low)
    attributes: dict[str, AttributeValue] = {}
    if kind == "CAST":
        attributes |= {"in_data_type": source.name, "out_data_type": target.name}
    draw.operation(kind, [x], [draw.output(target)], **attributes)
