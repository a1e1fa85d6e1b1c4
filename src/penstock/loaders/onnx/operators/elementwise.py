"""Functions of elements: arithmetic, comparison, logic, bits, roots, exponentials, angles."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from penstock.ir.types import PACKED, DType
from penstock.loaders.onnx.calls import Call, Lower, operator
from penstock.loaders.onnx.operators.common import (
    aligned,
    arithmetic,
    broadcast_all,
    cast,
    cast_value,
    common_layout,
    comparison,
    float_of,
    pair,
    unary,
)
from penstock.loaders.onnx.operators.recipes import with_activation
from penstock.loaders.onnx.tensors import dtype_of
from penstock.loaders.onnx.values import Value, constant, reshaped


def legacy(call: Call, a: Value, b: Value) -> Value:
    """*b* as it broadcasts at `axis`, in opset 6 where `broadcast` was an attribute."""
    if call.version >= 7 or not call.node.integer("broadcast", 0) or not call.node.has("axis"):
        return b
    rank, own = a.rank or 0, b.rank or 0
    after = rank - own - call.axis(call.node.integer("axis"), rank)
    if after <= 0:
        return b
    shape = [*(b.shape or ()), *[1] * after]
    if b.array is not None:
        return constant(reshaped(b.array, tuple(d or 0 for d in shape)))
    target = [-1 if d is None else d for d in shape]
    if target.count(-1) > 1:
        raise call.refuse("a broadcast operand with several unknown dimensions")
    operand = call.emit(
        "RESHAPE",
        [call.get(b), call.emitter.integers(target)],
        b.dtype,
        {"new_shape": tuple(target)},
    )
    return call.wrap(operand)


def _arithmetic(kind: str) -> Lower:
    def lower(call: Call) -> Value:
        a = call.value(0)
        return pair(call, kind, a, legacy(call, a, call.value(1)))

    return lower


for _name, _kind in (("Add", "ADD"), ("Sub", "SUB"), ("Mul", "MUL"), ("Div", "DIV")):
    operator(_name)(_arithmetic(_kind))


@operator("Pow")
def power(call: Call) -> Value:
    """The result has the base's type; a square is a product of the base with itself."""
    a, b = call.value(0), legacy(call, call.value(0), call.value(1))
    if b.array is not None and b.array.size == 1 and a.dtype.is_float:
        exponent = float(b.array.reshape(-1)[0])
        if exponent == 2 and (b.rank or 0) <= (a.rank or 0):
            return pair(call, "MUL", a, a)
        if exponent == 0.5 and (b.rank or 0) <= (a.rank or 0) and a.dtype is DType.FLOAT32:
            return unary(call, "SQRT", a)
    if a.dtype is b.dtype:
        return pair(call, "POW", a, b)
    wide = DType.FLOAT64 if DType.FLOAT64 in {a.dtype, b.dtype} else DType.FLOAT32
    if a.dtype.is_integer and b.dtype.is_integer:
        wide = DType.INT64
    found = pair(call, "POW", cast_value(call, a, wide), cast_value(call, b, wide))
    return cast_value(call, found, a.dtype)


@operator("Mod")
def modulo(call: Call) -> Value:
    """With fmod the sign of the dividend, else of the divisor."""
    a, b = call.value(0), call.value(1)
    operands, layout = aligned(call, [a, b])
    if call.node.integer("fmod", 0):
        found = call.emit("STABLEHLO_REMAINDER", broadcast_all(call, operands), a.dtype)
    elif a.dtype in {DType.INT32, DType.INT64, DType.FLOAT32}:
        found = call.emit("FLOOR_MOD", operands, a.dtype)
    elif a.dtype.is_integer:
        wide = [cast(call, o, DType.INT64) for o in operands]
        found = cast(call, call.emit("FLOOR_MOD", wide, DType.INT64), a.dtype)
    else:
        raise call.refuse(f"the modulus of {a.dtype.value} needs fmod=1")
    return call.wrap(found, layout)


def _comparison(kind: str) -> Lower:
    def lower(call: Call) -> Value:
        a = call.value(0)
        operands, layout = aligned(call, [a, legacy(call, a, call.value(1))])
        return call.wrap(comparison(call, kind, *operands), layout)

    return lower


for _name, _kind in (
    ("Equal", "EQUAL"),
    ("Greater", "GREATER"),
    ("Less", "LESS"),
    ("GreaterOrEqual", "GREATER_EQUAL"),
    ("LessOrEqual", "LESS_EQUAL"),
):
    operator(_name)(_comparison(_kind))


def _logic(kind: str) -> Lower:
    def lower(call: Call) -> Value:
        a = call.value(0)
        operands, layout = aligned(call, [a, legacy(call, a, call.value(1))])
        return call.wrap(call.emit(kind, operands, DType.BOOL), layout)

    return lower


operator("And")(_logic("LOGICAL_AND"))
operator("Or")(_logic("LOGICAL_OR"))
operator("Xor")(_logic("NOT_EQUAL"))


@operator("Not")
def negation(call: Call) -> Value:
    return unary(call, "LOGICAL_NOT", call.value(0))


def _bits(kind: str) -> Lower:
    def lower(call: Call) -> Value:
        operands, layout = aligned(call, [call.value(0), call.value(1)])
        dtype = call.value(0).dtype
        if kind == "BITWISE_XOR" and dtype in {DType.INT64, DType.UINT64}:
            either = call.emit("STABLEHLO_OR", broadcast_all(call, operands), dtype)
            both = call.emit("STABLEHLO_AND", broadcast_all(call, operands), dtype)
            return call.wrap(arithmetic(call, "SUB", either, both), layout)
        if kind != "BITWISE_XOR":
            operands = broadcast_all(call, operands)
        return call.wrap(call.emit(kind, operands, dtype), layout)

    return lower


operator("BitwiseAnd")(_bits("STABLEHLO_AND"))
operator("BitwiseOr")(_bits("STABLEHLO_OR"))
operator("BitwiseXor")(_bits("BITWISE_XOR"))


@operator("BitwiseNot")
def complement(call: Call) -> Value:
    """All ones less x."""
    x = call.value(0)
    signed = x.dtype.value.startswith("int")
    ones = constant(np.array(-1 if signed else 2 ** (x.dtype.bits or 8) - 1).astype(x.dtype.numpy))
    return pair(call, "SUB", ones, x)


@operator("BitShift")
def shift(call: Call) -> Value:
    x = call.value(0)
    operands, layout = aligned(call, [x, call.value(1)])
    if call.node.text("direction") == "LEFT":
        found = call.emit("STABLEHLO_SHIFT_LEFT", broadcast_all(call, operands), x.dtype)
    elif x.dtype is DType.UINT64:
        raise call.refuse("a right shift of uint64")
    else:
        found = call.emit("RIGHT_SHIFT", operands, x.dtype)
    return call.wrap(found, layout)


def _unary(plain: str, types: frozenset[DType], stable: str = "") -> Lower:
    def lower(call: Call) -> Value:
        x = call.value(0)
        if x.dtype in types or not stable:
            return unary(call, plain, x)
        return unary(call, stable, x)

    return lower


HALVES: Final = frozenset({DType.FLOAT32, DType.FLOAT16})
for _name, _plain, _types, _stable in (
    ("Neg", "NEG", HALVES | {DType.BFLOAT16, DType.INT32, DType.INT64}, "STABLEHLO_NEGATE"),
    ("Abs", "ABS", HALVES | {DType.INT32}, "STABLEHLO_ABS"),
    ("Exp", "EXP", HALVES, "STABLEHLO_EXPONENTIAL"),
    ("Log", "LOG", HALVES, "STABLEHLO_LOG"),
    ("Floor", "FLOOR", HALVES | {DType.BFLOAT16}, "STABLEHLO_FLOOR"),
    ("Ceil", "CEIL", HALVES, ""),
    ("Round", "ROUND", HALVES | {DType.BFLOAT16}, ""),
    ("Sqrt", "SQRT", HALVES, ""),
    ("Sin", "SIN", HALVES, ""),
    ("Cos", "COS", HALVES, "STABLEHLO_COSINE"),
    ("Sign", "SIGN", HALVES | {DType.FLOAT64, DType.INT32}, ""),
):
    operator(_name)(_unary(_plain, frozenset(_types), _stable))


@operator("Identity")
def same(call: Call) -> Value:
    return call.value(0)


@operator("Constant")
def constant_node(call: Call) -> Value:
    node = call.node
    given = node.attributes
    if "value" in given:
        return constant(np.asarray(given["value"]))
    if "sparse_value" in given:
        return constant(np.asarray(given["sparse_value"]))
    if "value_float" in given:
        return constant(np.array(node.number("value_float"), np.float32))
    if "value_int" in given:
        return constant(np.array(node.integer("value_int"), np.int64))
    if "value_floats" in given:
        return constant(np.array(node.numbers("value_floats"), np.float32))
    if "value_ints" in given:
        return constant(np.array(node.integers("value_ints"), np.int64))
    if "value_string" in given or "value_strings" in given:
        texts = given.get("value_strings", given.get("value_string"))
        listed = list(texts) if isinstance(texts, list) else [texts]
        array = np.empty(len(listed), object)
        array[:] = listed
        return constant(array if isinstance(texts, list) else array.reshape(()))
    raise node.invalid("a constant without a value")


@operator("Cast")
def convert(call: Call) -> Value:
    x = call.value(0)
    return _cast_to(call, x, dtype_of(call.node.integer("to"), call.node.where))


@operator("CastLike")
def convert_like(call: Call) -> Value:
    return _cast_to(call, call.value(0), call.value(1).dtype)


NARROW: Final = PACKED | {DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2}


def _cast_to(call: Call, x: Value, dtype: DType) -> Value:
    if DType.STRING in {x.dtype, dtype} and x.dtype is not dtype:
        raise call.refuse("conversions from and to strings")
    if dtype in NARROW and x.dtype is not dtype:
        raise call.refuse(f"a conversion to {dtype.value}, which holds values to its range")
    return cast_value(call, x, dtype)


def _many(kind: str) -> Lower:
    """Any number of inputs, broadcast, two by two."""
    return lambda call: _joined(call, kind)


def _joined(call: Call, kind: str) -> Value:
    found = call.value(0)
    for index in range(1, len(call.inputs)):
        found = pair(call, kind, found, call.value(index))
    return found


operator("Sum")(_many("ADD"))
operator("Max")(_many("MAXIMUM"))
operator("Min")(_many("MINIMUM"))


@operator("Mean")
def mean(call: Call) -> Value:
    total = _joined(call, "ADD")
    share = constant(np.array(1 / len(call.inputs)).astype(total.dtype.numpy))
    return pair(call, "MUL", total, share)


@operator("Where")
def where(call: Call) -> Value:
    operands, layout = aligned(call, [call.value(i) for i in range(3)])
    return call.wrap(call.emit("SELECT_V2", operands, call.value(1).dtype), layout)


@operator("Clip")
def clip(call: Call) -> Value:
    """Bounds are attributes before opset 11, and inputs since; either may be left out."""
    x = call.value(0)
    bounds: list[Value | None] = [None, None]
    if call.version < 11:
        for at, name in enumerate(("min", "max")):
            if call.node.has(name):
                bounds[at] = constant(np.array(call.node.number(name)).astype(x.dtype.numpy))
    else:
        bounds = [call.value(i) if call.has(i) else None for i in (1, 2)]
    low, high = (
        None if b is None or b.array is None or b.array.size != 1 else float(b.array.reshape(-1)[0])
        for b in bounds
    )
    known = all(b is None or b.array is not None for b in bounds)
    if known and x.dtype in HALVES:
        fused: dict[tuple[float | None, float | None], str]
        fused = {(0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1", (0.0, 1.0): "RELU_0_TO_1"}
        kind = "RELU" if low == 0.0 and bounds[1] is None else fused.get((low, high))
        if kind is not None:
            made = unary(call, kind, x)
            return made if kind == "RELU_0_TO_1" else with_activation(x, made, kind)
    for bound, kind in zip(bounds, ("MAXIMUM", "MINIMUM"), strict=True):
        if bound is not None:
            flat = bound if bound.array is None else constant(bound.array.reshape(()))
            x = pair(call, kind, x, flat)
    return x


@operator("IsNaN")
def is_nan(call: Call) -> Value:
    x = call.value(0)
    layout = common_layout(call, [x])
    operand = call.get(x, layout)
    return call.wrap(comparison(call, "NOT_EQUAL", operand, operand), layout)


@operator("IsInf")
def is_infinite(call: Call) -> Value:
    x = call.value(0)
    layout, dtype = common_layout(call, [x]), float_of(call, x)
    operand, infinity = call.get(x, layout), call.scalar(math.inf, dtype)
    negative = call.scalar(-math.inf, dtype)
    tests = [
        comparison(call, "EQUAL", operand, bound)
        for name, bound in (("detect_positive", infinity), ("detect_negative", negative))
        if call.node.integer(name, 1)
    ]
    if not tests:
        return call.wrap(comparison(call, "LESS", operand, operand), layout)
    found = tests[0] if len(tests) == 1 else call.emit("LOGICAL_OR", tests, DType.BOOL)
    return call.wrap(found, layout)


@operator("Reciprocal")
def reciprocal(call: Call) -> Value:
    x = call.value(0)
    return pair(call, "DIV", constant(np.ones((), x.dtype.numpy)), x)


class Formula:
    """Arithmetic on operands of one float type, written as Python has it."""

    def __init__(self, call: Call, x: Value) -> None:
        self.call, self.dtype = call, float_of(call, x)
        self.layout = common_layout(call, [x])
        self.x = call.get(x, self.layout)

    def of(self, number: float) -> int:
        return self.call.scalar(number, self.dtype)

    def add(self, a: int, b: int) -> int:
        return arithmetic(self.call, "ADD", a, b)

    def sub(self, a: int, b: int) -> int:
        return arithmetic(self.call, "SUB", a, b)

    def mul(self, a: int, b: int) -> int:
        return arithmetic(self.call, "MUL", a, b)

    def div(self, a: int, b: int) -> int:
        return arithmetic(self.call, "DIV", a, b)

    def max(self, a: int, b: int) -> int:
        return arithmetic(self.call, "MAXIMUM", a, b)

    def min(self, a: int, b: int) -> int:
        return arithmetic(self.call, "MINIMUM", a, b)

    def fn(self, kind: str, a: int) -> int:
        return self.call.emit(kind, [a], self.dtype)

    def where(self, condition: int, a: int, b: int) -> int:
        return self.call.emit("SELECT_V2", [condition, a, b], self.dtype)

    def test(self, kind: str, a: int, b: int) -> int:
        return comparison(self.call, kind, a, b)

    def done(self, operand: int) -> Value:
        return self.call.wrap(operand, self.layout)


def formula(
    *names: str,
) -> Callable[[Callable[[Formula, int], int]], Callable[[Formula, int], int]]:
    """Registers a function of one float operand."""

    def register(function: Callable[[Formula, int], int]) -> Callable[[Formula, int], int]:
        def lower(call: Call) -> Value:
            f = Formula(call, call.value(0))
            return f.done(function(f, f.x))

        operator(*names)(lower)
        return function

    return register


@formula("Tan")
def tangent(f: Formula, x: int) -> int:
    return f.div(f.fn("SIN", x), f.fn("COS", x))


@formula("Sinh")
def hyperbolic_sine(f: Formula, x: int) -> int:
    """(exp(x) - exp(-x)) / 2; by its series near 0, where the difference has no digits left."""
    grown, shrunk = f.fn("EXP", x), f.fn("EXP", f.fn("NEG", x))
    far = f.mul(f.sub(grown, shrunk), f.of(0.5))
    square = f.mul(x, x)
    series = f.of(1 / 5040)
    for factor in (1 / 120, 1 / 6, 1.0):
        series = f.add(f.mul(series, square), f.of(factor))
    near = f.test("LESS", f.fn("ABS", x), f.of(0.5))
    return f.where(near, f.mul(series, x), far)


@formula("Cosh")
def hyperbolic_cosine(f: Formula, x: int) -> int:
    return f.mul(f.add(f.fn("EXP", x), f.fn("EXP", f.fn("NEG", x))), f.of(0.5))


def _angle(f: Formula, y: int, x: int) -> int:
    return f.call.emit("ATAN2", [y, x], f.dtype)


def _beside(f: Formula, x: int) -> int:
    """sqrt((1 - x) (1 + x))."""
    return f.fn("SQRT", f.mul(f.sub(f.of(1), x), f.add(f.of(1), x)))


@formula("Asin")
def arc_sine(f: Formula, x: int) -> int:
    return _angle(f, x, _beside(f, x))


@formula("Acos")
def arc_cosine(f: Formula, x: int) -> int:
    return _angle(f, _beside(f, x), x)


@formula("Atan")
def arc_tangent(f: Formula, x: int) -> int:
    return _angle(f, x, f.add(f.mul(x, f.of(0)), f.of(1)))


@formula("Asinh")
def area_sine(f: Formula, x: int) -> int:
    """sign(x) log(|x| + sqrt(x x + 1)), as log1p of what is beyond 1."""
    size = f.fn("ABS", x)
    square = f.mul(x, x)
    beyond = f.div(square, f.add(f.of(1), f.fn("SQRT", f.add(square, f.of(1)))))
    return f.mul(f.fn("SIGN", x), _log1p(f, f.add(size, beyond)))


@formula("Acosh")
def area_cosine(f: Formula, x: int) -> int:
    root = f.fn("SQRT", f.mul(f.sub(x, f.of(1)), f.add(x, f.of(1))))
    return _log1p(f, f.add(f.sub(x, f.of(1)), root))


@formula("Atanh")
def area_tangent(f: Formula, x: int) -> int:
    return f.mul(f.of(0.5), _log1p(f, f.div(f.mul(f.of(2), x), f.sub(f.of(1), x))))


def _log1p(f: Formula, x: int) -> int:
    """log(1 + x) with the digits that 1 + x drops put back (Kahan)."""
    whole = f.add(f.of(1), x)
    lost = f.sub(whole, f.of(1))
    scaled = f.mul(f.fn("LOG", whole), f.div(x, lost))
    return f.where(f.test("EQUAL", lost, f.of(0)), x, scaled)


ERF: Final = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
ERF_P: Final = 0.3275911


@formula("Erf")
def error_function(f: Formula, x: int) -> int:
    """Abramowitz and Stegun 7.1.26, which errs by 1.5e-7; near 0 the Maclaurin series."""
    size = f.fn("ABS", x)
    t = f.div(f.of(1), f.add(f.of(1), f.mul(f.of(ERF_P), size)))
    polynomial = f.of(ERF[4])
    for factor in ERF[3::-1]:
        polynomial = f.add(f.mul(polynomial, t), f.of(factor))
    square = f.mul(x, x)
    tail = f.mul(f.mul(polynomial, t), f.fn("EXP", f.fn("NEG", square)))
    far = f.mul(f.fn("SIGN", x), f.sub(f.of(1), tail))
    series = f.of(1 / 216)
    for factor in (-1 / 42, 1 / 10, -1 / 3, 1.0):
        series = f.add(f.mul(series, square), f.of(factor))
    close = f.mul(f.mul(series, x), f.of(2 / math.sqrt(math.pi)))
    return f.where(f.test("LESS", size, f.of(0.5)), close, far)
