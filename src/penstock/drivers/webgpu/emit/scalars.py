"""Scalar expressions as statements of WGSL, and what of them cannot be printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.compiler.expression import Expression, Step
from penstock.driverkit.site import require
from penstock.drivers.webgpu.emit.types import (
    DOUBLE,
    FLOATS,
    HALF,
    KNOWN,
    SIGNED,
    TWO_WORDS,
    WIDE,
    literal,
    size_of,
    variable,
)
from penstock.ir import DType

Lookup = Callable[[int, str, DType], str]
"""Prints the element of a constant tensor, by the tensor's number and an index of type u32."""

INFIX: Final = {"add": "+", "sub": "-", "mul": "*", "less": "<", "less_equal": "<=", "equal": "=="}
LOGIC: Final = {"and": "&", "or": "|", "xor": "^"}
WIDE_CALLS: Final = {
    "add": "add_64", "sub": "sub_64", "mul": "mul_64", "minimum": "min_64", "maximum": "max_64",
    "abs": "abs_64", "neg": "neg_64", "high_product": "high_product_64",
    "divide_by_power": "divide_by_power_64",
}  # fmt: skip
DOUBLE_CALLS: Final = {
    "add": "add_f64", "sub": "sub_f64", "mul": "mul_f64", "div": "div_f64", "sqrt": "sqrt_f64",
    "minimum": "min_f64", "maximum": "max_f64", "abs": "abs_f64", "neg": "neg_f64",
    "trunc": "trunc_f64", "floor": "floor_f64", "ceil": "ceil_f64", "sign": "sign_of_f64",
    "round_away": "round_away_f64", "round_even": "round_even_f64",
}  # fmt: skip
CALLS: Final = {WIDE: WIDE_CALLS, DOUBLE: DOUBLE_CALLS}
"""Functions of types of two words."""

FLOAT_CALLS: Final = {
    "exp": "exp_f32", "log": "log_f32", "sin": "sin_f32", "cos": "cos_f32", "tanh": "tanh_f32",
    "logistic": "logistic_f32", "expm1": "expm1_f32", "erf": "erf_f32", "power": "power_f32",
    "mod": "modulo_f32", "round_away": "round_away", "round_even": "round", "floor": "floor",
    "ceil": "ceil", "trunc": "trunc", "sqrt": "sqrt", "abs": "abs", "sign": "sign_of",
}  # fmt: skip
FIXED: Final = frozenset(["rescale", "rescale_wide", "high_product", "divide_by_power"])


def check(expression: Expression) -> None:
    """Raises `Refused` for an expression that `Scalars` cannot print."""
    for argument in expression.arguments:
        require(argument in KNOWN, f"{argument.value}: {NO_TYPE}")
    for step in expression.steps:
        require(step.dtype in KNOWN, f"{step.operation} of {step.dtype.value}: {NO_TYPE}")
        given = [expression.dtype_of(a) for a in step.arguments]
        require(_printable(step, given), f"no shader for {step.operation} of {step.dtype.value}")


NO_TYPE: Final = "shaders of WebGPU have no such type"


def _printable(step: Step, given: Sequence[DType]) -> bool:
    operation = step.operation
    if operation in {"constant", "select", "cast", "equal", "less", "less_equal", "lookup"}:
        return operation != "lookup" or given[0] is not WIDE
    if operation == "bitcast":
        return size_of(step.dtype) == size_of(given[0]) and HALF not in {step.dtype, given[0]}
    if given[0] is DOUBLE:
        return step.dtype is DOUBLE and operation in DOUBLE_CALLS
    if operation == "rescale":
        return all(g in SIGNED for g in given)
    if operation == "rescale_wide":
        return given[0] in SIGNED | {WIDE} and all(g in SIGNED for g in given[1:])
    if operation in {"high_product", "divide_by_power"}:
        return given[0] in SIGNED | {WIDE} and given[0] is given[1]
    if operation == "leading_zeros":
        return given[0] not in FLOATS
    if operation in {"shift_left", "shift_right"}:
        return given[0] not in FLOATS and given[1] not in FLOATS
    if step.dtype is DType.BOOL:
        return operation in {*LOGIC, "not"} and all(g is DType.BOOL for g in given)
    if any(g is not step.dtype for g in given):
        return False
    if step.dtype in FLOATS:
        simple = {"add", "sub", "mul", "div", "neg", "minimum", "maximum", "rsqrt"}
        return operation in FLOAT_CALLS or operation in simple
    if step.dtype is WIDE:
        return operation in WIDE_CALLS or operation in {*LOGIC, "not"}
    known = {"add", "sub", "mul", "div", "mod", "neg", "abs", "sign", "minimum", "maximum"}
    return operation in {*known, "power", *LOGIC, "not"}


class Scalars:
    """Writes statements for expressions; names of variables are unique within one `Scalars`.

    *lookup* prints elements of constant tensors.
    """

    def __init__(self, lookup: Lookup) -> None:
        self.lines: list[str] = []
        self._lookup = lookup
        self._count = 0

    def name(self, text: str, dtype: DType) -> str:
        """A variable with the value *text*."""
        name = f"v{self._count}"
        self._count += 1
        self.lines.append(f"let {name}: {variable(dtype)} = {text};")
        return name

    def expression(self, expression: Expression, given: Sequence[str]) -> str:
        """Writes the steps of *expression*. Returns the name of its result."""
        names = list(given)
        for step in expression.steps:
            if step.operation == "constant":
                names.append(literal(step.value or 0, step.dtype))
                continue
            types = [expression.dtype_of(a) for a in step.arguments]
            text = self._step(step, [names[a] for a in step.arguments], types)
            names.append(self.name(text, step.dtype))
        return names[expression.result]

    def place(self, text: str) -> str:
        """A variable of type u32 with the value *text*."""
        return self.name(text, DType.UINT32)

    def _step(self, step: Step, given: Sequence[str], types: Sequence[DType]) -> str:
        dtype, operation = step.dtype, step.operation
        if operation == "select":
            condition, yes, no = given
            return f"select({no}, {yes}, {condition})"
        if operation == "lookup":
            return self._lookup(int(step.value or 0), cast(given[0], types[0], DType.UINT32), dtype)
        if operation == "cast":
            return cast(given[0], types[0], dtype)
        if operation == "bitcast":
            return _bitcast(given[0], types[0], dtype)
        if operation in {"less", "less_equal", "equal"}:
            return _comparison(operation, given, types[0])
        if operation in FIXED:
            return _fixed(step, given, types)
        if operation == "leading_zeros":
            return _leading_zeros(given[0], types[0], dtype)
        return _wrapped(_arithmetic(operation, given, types), dtype)


def cast(value: str, source: DType, target: DType) -> str:
    """*value* of type *source* as *target* (`penstock.compiler.arithmetic`)."""
    if source is target:
        return value
    if DOUBLE in {source, target}:
        return _cast_double(value, source, target)
    if target is DType.BOOL:
        if source is WIDE:
            return f"any({value} != vec2<u32>(0u))"
        # Not by !=, which some compilers of shaders take to be false of a NaN.
        return f"!({value} == {literal(0, source)})"
    if source is DType.BOOL:
        return f"select({literal(0, target)}, {literal(1, target)}, {value})"
    if target in FLOATS:
        if source in FLOATS:
            number = value
        else:
            number = f"f32_of_64({value})" if source is WIDE else f"f32({value})"
        return f"round_half({number})" if target is HALF else number
    if source in FLOATS:
        if target is WIDE:
            return f"i64_of({value})"
        if target is DType.UINT32:
            return f"u32_of({value})"
        return cast(f"i32_of({value})", DType.INT32, target)
    if target is WIDE:
        return f"wide({value})" if source in SIGNED else f"vec2<u32>({value}, 0u)"
    word = f"{value}.x" if source is WIDE else value
    kind = "u32" if source is WIDE else variable(source)
    if (wanted := variable(target)) != kind:
        word = f"bitcast<{wanted}>({word})"
    return _wrapped(word, target)


def _cast_double(value: str, source: DType, target: DType) -> str:
    if target is DOUBLE:
        if source in FLOATS:
            return f"f64_of_f32({value})"
        return f"f64_of_i64({cast(value, source, WIDE)})"
    if target is DType.BOOL:
        return f"!is_zero_f64({value})"
    if target in FLOATS:
        return cast(f"f32_of_f64({value})", DType.FLOAT32, target)
    if target in {WIDE, DType.UINT32}:
        return f"{'i64' if target is WIDE else 'u32'}_of_f64({value})"
    return cast(f"i32_of_f64({value})", DType.INT32, target)


def _wrapped(text: str, dtype: DType) -> str:
    """The integer *text* within the width of *dtype*; a float16 rounded to it."""
    if dtype is HALF:
        return f"round_half({text})"
    if dtype is DType.INT8:
        return f"wrap8({text})"
    if dtype is DType.INT16:
        return f"wrap16({text})"
    if dtype is DType.UINT8:
        return f"(({text}) & 0xffu)"
    return f"(({text}) & 0xffffu)" if dtype is DType.UINT16 else text


def _bitcast(value: str, source: DType, target: DType) -> str:
    if {source, target} <= TWO_WORDS:
        return value
    if DType.BOOL in {source, target}:
        return cast(value, source, target)
    if size_of(target) < 4:
        return cast(value, source, target)
    kind = variable(target)
    return value if kind == variable(source) else f"bitcast<{kind}>({value})"


def _comparison(operation: str, given: Sequence[str], dtype: DType) -> str:
    a, b = given
    if dtype is DOUBLE:
        return f"{operation}_f64({a}, {b})"
    if dtype is WIDE:
        if operation == "equal":
            return f"all({a} == {b})"
        return f"less_64({a}, {b})" if operation == "less" else f"!less_64({b}, {a})"
    if dtype is DType.BOOL and operation != "equal":
        return f"(!{a} && {b})" if operation == "less" else f"(!{a} || {b})"
    return f"({a} {INFIX[operation]} {b})"


def _fixed(step: Step, given: Sequence[str], types: Sequence[DType]) -> str:
    name, result = step.operation, DType.INT32
    values = list(given)
    if name == "rescale_wide":
        values[0] = cast(values[0], types[0], WIDE)
    elif types[0] is WIDE:
        name, result = WIDE_CALLS[name], WIDE
    return cast(f"{name}({', '.join(values)})", result, step.dtype)


def _leading_zeros(value: str, source: DType, target: DType) -> str:
    # The value counts as one of 32 bits.
    word = f"bitcast<i32>({value}.x)" if source is WIDE else cast(value, source, DType.INT32)
    return cast(f"leading_zeros({word})", DType.INT32, target)


def _arithmetic(operation: str, given: Sequence[str], types: Sequence[DType]) -> str:
    dtype, a = types[0], given[0]
    b = given[1] if len(given) > 1 else ""
    if operation in {"shift_left", "shift_right"}:
        by = cast(b, types[1], DType.UINT32)
        if dtype is WIDE:
            return f"{'left_64' if operation == 'shift_left' else 'right_64'}({a}, {by})"
        return f"({a} {'<<' if operation == 'shift_left' else '>>'} ({by} & 31u))"
    if dtype is DType.BOOL:
        return (
            f"!{a}"
            if operation == "not"
            else f"({a} {'!=' if operation == 'xor' else LOGIC[operation]} {b})"
        )
    if operation in LOGIC:
        return f"({a} {LOGIC[operation]} {b})"
    if operation == "not":
        return f"~{a}"
    if dtype in TWO_WORDS:
        return f"{CALLS[dtype][operation]}({', '.join(given)})"
    if dtype in FLOATS:
        return _float(operation, given)
    if operation in {"minimum", "maximum"}:
        return f"{operation[:3]}({a}, {b})"
    if operation in {"div", "mod"}:
        name = "divide" if operation == "div" else "modulo"
        return f"{name}_{variable(dtype)}({a}, {b})"
    if operation == "power":
        if dtype in SIGNED:
            return f"power_i32({a}, {b})"
        return f"bitcast<u32>(power_i32(bitcast<i32>({a}), bitcast<i32>({b})))"
    if operation == "neg":
        return f"({literal(0, dtype)} - {a})"
    if operation in {"abs", "sign"}:
        if dtype in SIGNED:
            return f"{operation}({a})"
        return a if operation == "abs" else f"min({a}, 1u)"
    return f"({a} {INFIX[operation]} {b})"


def _float(operation: str, given: Sequence[str]) -> str:
    if operation in {"minimum", "maximum"}:
        # The second of two floats is the result where one of them is NaN.
        a, b = given
        return f"select({b}, {a}, {a} {'<' if operation == 'minimum' else '>'} {b})"
    if operation == "neg":
        return f"(-{given[0]})"
    if operation == "rsqrt":
        return f"(1.0 / sqrt({given[0]}))"
    if operation == "div":
        return f"quotient({given[0]}, {given[1]})"
    if operation in FLOAT_CALLS:
        return f"{FLOAT_CALLS[operation]}({', '.join(given)})"
    return f"({given[0]} {INFIX[operation]} {given[1]})"
