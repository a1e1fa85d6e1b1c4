"""Elementwise functions: arithmetic, comparison, logic, bits, roots, exponentials, angles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Final, TypeAlias

import numpy as np

from penstock.ir.types import PACKED, DType
from penstock.loaders.onnx.calls import Call, Tensor
from penstock.loaders.onnx.engine import dtype_of
from penstock.loaders.onnx.operators import Lower, operator
from penstock.loaders.onnx.operators.recipes import with_activation
from penstock.loaders.onnx.values import Value, constant, reshaped

HALVES: Final = frozenset({DType.FLOAT32, DType.FLOAT16})


def _second(call: Call) -> Value:
    """Input 1 in a shape that broadcasts; at `axis` in opset 6 with `broadcast`."""
    a, b = call.value(0), call.value(1)
    if call.version >= 7 or not call.node.integer("broadcast", 0) or not call.node.has("axis"):
        return b
    after = (a.rank or 0) - (b.rank or 0) - call.own_axis(a)
    if after <= 0:
        return b
    target = [-1 if d is None else d for d in (*(b.shape or ()), *[1] * after)]
    if b.array is not None:
        return constant(reshaped(b.array, tuple(target)))
    if target.count(-1) > 1:
        raise call.refuse("a broadcast operand with several unknown dimensions")
    return call.get(b).reshape(target).value()


def _broadcast(function: Callable[[Tensor, Tensor], Tensor]) -> Lower:
    """A function of two broadcast inputs."""

    def lower(call: Call) -> Value:
        (a, b), layout = call.aligned([call.value(0), _second(call)])
        return function(a, b).value(layout)

    return lower


ARITHMETIC: Final = {"Add": "ADD", "Sub": "SUB", "Mul": "MUL", "Div": "DIV"}
COMPARISONS: Final = {
    "Equal": "EQUAL", "Greater": "GREATER", "Less": "LESS", "GreaterOrEqual": "GREATER_EQUAL",
    "LessOrEqual": "LESS_EQUAL",
}  # fmt: skip
LOGIC: Final = {"And": "LOGICAL_AND", "Or": "LOGICAL_OR", "Xor": "NOT_EQUAL"}
JOINED: Final = {"Sum": "ADD", "Max": "MAXIMUM", "Min": "MINIMUM", "Mean": "ADD"}
WIDE: Final = frozenset(DType) - {DType.FLOAT64}
UNARY: Final[dict[str, tuple[str, frozenset[DType], str]]] = {
    "Not": ("LOGICAL_NOT", WIDE, ""),
    "Neg": ("NEG", HALVES | {DType.BFLOAT16, DType.INT32, DType.INT64}, "STABLEHLO_NEGATE"),
    "Abs": ("ABS", HALVES | {DType.INT32}, "STABLEHLO_ABS"),
    "Exp": ("EXP", HALVES, "STABLEHLO_EXPONENTIAL"),
    "Log": ("LOG", HALVES, "STABLEHLO_LOG"),
    "Floor": ("FLOOR", HALVES | {DType.BFLOAT16}, "STABLEHLO_FLOOR"),
    "Ceil": ("CEIL", HALVES, ""),
    "Round": ("ROUND", HALVES, ""),
    "Sqrt": ("SQRT", HALVES, ""),
    "Sin": ("SIN", HALVES, ""),
    "Cos": ("COS", HALVES, "STABLEHLO_COSINE"),
    "Sign": ("SIGN", HALVES, ""),
    "Sigmoid": ("LOGISTIC", WIDE, "STABLEHLO_LOGISTIC"),
    "Tanh": ("TANH", WIDE, "STABLEHLO_TANH"),
}
"""TFLite's operation, its types, and the StableHLO operation for all others, if there is one."""

operator(*ARITHMETIC)(
    lambda call: call.pair(ARITHMETIC[call.node.op], call.value(0), _second(call))
)
operator(*COMPARISONS)(_broadcast(lambda a, b: a.compare(COMPARISONS[a.call.node.op], b)))
operator(*LOGIC)(_broadcast(lambda a, b: a.call.emit(LOGIC[a.call.node.op], [a, b], DType.BOOL)))
operator("Identity")(lambda call: call.value(0))


@operator(*UNARY)
def unary(call: Call) -> Value:
    x, (plain, types, stable) = call.value(0), UNARY[call.node.op]
    return call.unary(plain if x.dtype in types or not stable else stable, x)


@operator(*JOINED)
def joined(call: Call) -> Value:
    """Any number of inputs, broadcast and combined pairwise."""
    values = [call.value(i) for i in range(len(call.inputs))]
    found = reduce(lambda a, b: call.pair(JOINED[call.node.op], a, b), values)
    if call.node.op != "Mean":
        return found
    share = constant(np.array(1 / len(values)).astype(found.dtype.numpy))
    return call.pair("MUL", found, share)


@operator("Pow")
def power(call: Call) -> Value:
    """The result has the type of the base. A square is computed as base times base."""
    a, b = call.value(0), _second(call)
    if b.array is not None and b.array.size == 1 and a.dtype.is_float:
        exponent = float(b.array.reshape(-1)[0])
        if exponent == 2 and (b.rank or 0) <= (a.rank or 0):
            return call.pair("MUL", a, a)
        if exponent == 0.5 and (b.rank or 0) <= (a.rank or 0) and a.dtype is DType.FLOAT32:
            return call.unary("SQRT", a)
    if a.dtype is b.dtype:
        return call.pair("POW", a, b)
    wide = DType.FLOAT64 if DType.FLOAT64 in {a.dtype, b.dtype} else DType.FLOAT32
    if a.dtype.is_integer and b.dtype.is_integer:
        wide = DType.INT64
    found = call.pair("POW", call.cast_value(a, wide), call.cast_value(b, wide))
    return call.cast_value(found, a.dtype)


@operator("Mod")
def modulo(call: Call) -> Value:
    """The remainder has the sign of the dividend with fmod, otherwise of the divisor."""
    a = call.value(0)
    operands, layout = call.aligned([a, call.value(1)])
    if call.node.integer("fmod", 0):
        found = call.emit("STABLEHLO_REMAINDER", call.broadcast(operands))
    elif a.dtype in {DType.INT32, DType.INT64, DType.FLOAT32}:
        found = call.emit("FLOOR_MOD", operands)
    elif a.dtype.is_integer:
        found = call.emit("FLOOR_MOD", [o.cast(DType.INT64) for o in operands]).cast(a.dtype)
    else:
        raise call.refuse(f"the modulus of {a.dtype.value} needs fmod=1")
    return found.value(layout)


def _bits(kind: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda a, b: a.call.emit(kind, a.call.broadcast([a, b]))


def _either(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype in {DType.INT64, DType.UINT64}:
        return _bits("STABLEHLO_OR")(a, b) - _bits("STABLEHLO_AND")(a, b)
    return a.call.emit("BITWISE_XOR", [a, b])


operator("BitwiseAnd")(_broadcast(_bits("STABLEHLO_AND")))
operator("BitwiseOr")(_broadcast(_bits("STABLEHLO_OR")))
operator("BitwiseXor")(_broadcast(_either))


@operator("BitwiseNot")
def complement(call: Call) -> Value:
    """The bitwise complement: all ones minus x."""
    x = call.value(0)
    signed = x.dtype.value.startswith("int")
    ones = constant(np.array(-1 if signed else 2 ** (x.dtype.bits or 8) - 1).astype(x.dtype.numpy))
    return call.pair("SUB", ones, x)


@operator("BitShift")
def shift(call: Call) -> Value:
    x = call.value(0)
    operands, layout = call.aligned([x, call.value(1)])
    if call.node.text("direction") == "LEFT":
        return call.emit("STABLEHLO_SHIFT_LEFT", call.broadcast(operands)).value(layout)
    if x.dtype is DType.UINT64:
        raise call.refuse("a right shift of uint64")
    return call.emit("RIGHT_SHIFT", operands).value(layout)


@operator("Constant")
def constant_node(call: Call) -> Value:
    node, given = call.node, call.node.attributes
    for name in ("value", "sparse_value"):
        if name in given:
            return constant(np.asarray(given[name]))
    numbers: dict[str, tuple[Callable[[str], Any], type]] = {
        "value_float": (node.number, np.float32),
        "value_int": (node.integer, np.int64),
        "value_floats": (node.numbers, np.float32),
        "value_ints": (node.integers, np.int64),
    }
    for name, (read, dtype) in numbers.items():
        if name in given:
            return constant(np.array(read(name), dtype))
    if "value_string" in given or "value_strings" in given:
        texts = given.get("value_strings", given.get("value_string"))
        array = strings(list(texts) if isinstance(texts, list) else [texts])
        return constant(array if isinstance(texts, list) else array.reshape(()))
    raise node.invalid("a constant without a value")


def strings(items: Sequence[object]) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    found = np.empty(len(items), object)
    found[:] = items
    return found


@operator("Cast")
def convert(call: Call) -> Value:
    x, dtype = call.value(0), dtype_of(call.node.integer("to"), call.node.where)
    if DType.STRING in {x.dtype, dtype} and x.dtype is not dtype:
        raise call.refuse("conversions from and to strings")
    if dtype in PACKED | {DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2} and x.dtype is not dtype:
        raise call.refuse(f"a conversion to {dtype.value}, which holds values to its range")
    return call.cast_value(x, dtype)


@operator("Where")
def where(call: Call) -> Value:
    operands, layout = call.aligned([call.value(i) for i in range(3)])
    return call.emit("SELECT_V2", operands, call.value(1).dtype).value(layout)


@operator("Clip")
def clip(call: Call) -> Value:
    """Bounds are attributes before opset 11, and inputs since. Both are optional."""
    x = call.value(0)
    bounds: list[Value | None] = [None, None]
    if call.version < 11:
        for at, name in enumerate(("min", "max")):
            if call.node.has(name):
                bounds[at] = constant(np.array(call.node.number(name)).astype(x.dtype.numpy))
    else:
        bounds = [call.optional(i) for i in (1, 2)]
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
            made = call.unary(kind, x)
            return made if kind == "RELU_0_TO_1" else with_activation(x, made, kind)
    for bound, kind in zip(bounds, ("MAXIMUM", "MINIMUM"), strict=True):
        if bound is not None:
            flat = bound if bound.array is None else constant(bound.array.reshape(()))
            x = call.pair(kind, x, flat)
    return x


@operator("Reciprocal")
def reciprocal(call: Call) -> Value:
    x = call.value(0)
    return call.pair("DIV", constant(np.ones((), x.dtype.numpy)), x)


Formula: TypeAlias = Callable[[Tensor], Tensor]


def formula(name: str) -> Callable[[Formula], Formula]:
    """Registers a function of one float operand."""

    def register(function: Formula) -> Formula:
        def lower(call: Call) -> Value:
            x, layout = call.stored(call.value(0))
            if not x.dtype.is_float:
                raise call.refuse(f"computed for floats only, not for {x.dtype.value}")
            return function(x).value(layout)

        operator(name)(lower)
        return function

    return register


@formula("IsInf")
def is_infinite(x: Tensor) -> Tensor:
    bounds = {"detect_positive": math.inf, "detect_negative": -math.inf}
    tests = [x.equals(b) for name, b in bounds.items() if x.call.node.integer(name, 1)]
    if not tests:
        return x < x  # noqa: PLR0124  # false everywhere
    return tests[0] if len(tests) == 1 else x.call.emit("LOGICAL_OR", tests)


def exp(x: Tensor) -> Tensor:
    return x.fn("EXP")


def sqrt(x: Tensor) -> Tensor:
    return x.fn("SQRT")


def polynomial(x: Tensor, first: float, *factors: float) -> Tensor:
    """A polynomial in *x*; coefficients from the highest power on."""
    total = x.call.scalar(first, x.dtype)
    for factor in factors:
        total = total * x + factor
    return total


@formula("Sinh")
def hyperbolic_sine(x: Tensor) -> Tensor:
    """(exp(x) - exp(-x)) / 2. Near 0, where that difference loses all digits, by its series."""
    far = (exp(x) - exp(-x)) * 0.5
    series = polynomial(x * x, 1 / 5040, 1 / 120, 1 / 6, 1.0)
    return x.call.select(abs(x) < 0.5, series * x, far)


def _angle(y: Tensor, x: Tensor) -> Tensor:
    return x.call.emit("ATAN2", [y, x])


def _beside(x: Tensor) -> Tensor:
    """sqrt((1 - x) (1 + x))."""
    return sqrt((1 - x) * (x.like(1) + x))


@formula("Asinh")
def area_sine(x: Tensor) -> Tensor:
    """sign(x) log(|x| + sqrt(x x + 1)), as log1p of the part above 1."""
    size, square = abs(x), x * x
    beyond = square / (x.like(1) + sqrt(square + 1))
    return x.fn("SIGN") * _log1p(size + beyond)


def _log1p(x: Tensor) -> Tensor:
    """log(1 + x), corrected for the digits that 1 + x loses (Kahan)."""
    whole = x.like(1) + x
    lost = whole - 1
    scaled = whole.fn("LOG") * (x / lost)
    return x.call.select(lost.equals(0), x, scaled)


formula("IsNaN")(lambda x: x.compare("NOT_EQUAL", x))
formula("Tan")(lambda x: x.fn("SIN") / x.fn("COS"))
formula("Cosh")(lambda x: (exp(x) + exp(-x)) * 0.5)
formula("Acosh")(lambda x: _log1p(x - 1 + sqrt((x - 1) * (x + 1))))
formula("Asin")(lambda x: _angle(x, _beside(x)))
formula("Acos")(lambda x: _angle(_beside(x), x))
formula("Atan")(lambda x: _angle(x, x * 0 + 1))
formula("Atanh")(lambda x: x.like(0.5) * _log1p(x.like(2) * x / (1 - x)))

ERF: Final = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
ERF_P: Final = 0.3275911


@formula("Erf")
def error_function(x: Tensor) -> Tensor:
    """Abramowitz and Stegun 7.1.26, with an error of 1.5e-7; near 0 the Maclaurin series."""
    size = abs(x)
    t = 1 / (x.like(1) + x.like(ERF_P) * size)
    bell = polynomial(t, *ERF)
    square = x * x
    tail = bell * t * exp(-square)
    far = x.fn("SIGN") * (1 - tail)
    series = polynomial(square, 1 / 216, -1 / 42, 1 / 10, -1 / 3, 1.0)
    close = series * x * (2 / math.sqrt(math.pi))
    return x.call.select(size < 0.5, close, far)
