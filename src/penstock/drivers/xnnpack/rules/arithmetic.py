"""Operations on single elements, on pairs of elements with broadcasting, and along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from penstock.driverkit.checks import F32, one_scale, require_shares
from penstock.driverkit.site import Site, require
from penstock.drivers.xnnpack.rules.rule import (
    EIGHT_BITS,
    EXACT,
    EXACT_BUILTIN,
    FAITHFUL,
    Classes,
    among,
    clamped,
    rule,
    same_scale,
    types,
    types_of,
)
from penstock.ir import DType

PLAIN: Final = types_of("int32 int64")
MAX_RANK: Final = 4
"""Greatest number of dimensions in which LiteRT's kernels broadcast every element type."""

PAIRS: Final = {
    "ADD": types_of("float32 int8 uint8 int16 int32 int64"),
    "SUB": types_of("float32 int8 uint8 int16 int32 int64"),
    "MUL": types_of("float32 int8 uint8 int16 int32 int64"),
    "DIV": types_of("float32"),
    "MAXIMUM": types_of("float32 int8 uint8 int16 int32 int64"),
    "MINIMUM": types_of("float32 int8 uint8 int16 int32 int64"),
    "SQUARED_DIFFERENCE": types_of("float32 int8 int32"),
    "POW": types_of("float32"),
}
SUMS: Final = frozenset({"ADD", "SUB"})
MOST_STEPS: Final = 1024.0
"""The greatest ratio of an operand's (or product's) scale to the output's. Above it LiteRT's
kernels overflow, and may abort the process.
"""

LIKE_OTHERS: Final = frozenset({"MAXIMUM", "MINIMUM"})
"""Operations that compare stored values without rescaling."""


@rule(*PAIRS)
def check_pair(site: Site) -> Classes:
    kind, first = site.operation.type, site.input()
    among(first, PAIRS[kind])
    require(site.input(1).dtype is first.dtype, "operands of two types")
    require(
        max(site.rank(0), site.rank(1)) <= MAX_RANK, f"operands of more than {MAX_RANK} dimensions"
    )
    clamped(site)
    if first.dtype is F32:
        return FAITHFUL
    if first.dtype in PLAIN:
        require(site.activation == "NONE", "integers with a fused activation are not computed here")
        return EXACT
    scales = [one_scale(o) for o in types(site, (0, 1))]
    if kind in SUMS | {"MUL"}:
        one, other, made = (scale for scale, _ in scales)
        largest = one * other if kind == "MUL" else max(one, other)
        require(largest / made < MOST_STEPS, "a scale more than a thousand times the output's")
    if first.dtype is DType.INT16:
        require(not any(zero for _, zero in scales), "int16 values with a zero point")
        require(not site.flag("pot_scale_int16"), "int16 with scales that are powers of two")
        return EXACT
    if kind in LIKE_OTHERS:
        require(len(set(scales)) == 1, "operands of two scales")
        return EXACT
    if kind == "MUL" and site.activation != "NONE":
        return Classes("faithful", None)
    return EXACT_BUILTIN


UNARY: Final = {
    "ABS": types_of("float32 int8 int16 int32"),
    "NEG": types_of("float32 int32 int64"),
    "EXP": types_of("float32 int8 int16"),
    "LOG": types_of("float32 int8 int16"),
    "SQRT": types_of("float32 int8 int16"),
    "RSQRT": types_of("float32 int8 int16"),
    "SQUARE": types_of("float32"),
    "SIN": types_of("float32"),
    "COS": types_of("float32"),
    "FLOOR": types_of("float32"),
    "CEIL": types_of("float32"),
    "ROUND": types_of("float32"),
    "SIGN": types_of("float32 int32"),
    "RELU": types_of("float32 int8 uint8 int16"),
    "RELU6": types_of("float32 int8 uint8 int16"),
    "RELU_N1_TO_1": types_of("float32 int8 uint8"),
    "RELU_0_TO_1": types_of("float32 int8 uint8"),
    "TANH": types_of("float32 int8 uint8 int16"),
    "LOGISTIC": types_of("float32 int8 uint8 int16"),
    "ELU": types_of("float32 int8"),
    "HARD_SWISH": types_of("float32 int8 uint8"),
    "LEAKY_RELU": types_of("float32 int8 uint8 int16"),
    "GELU": types_of("float32 int8 uint8"),
    "COMPLEX_ABS": types_of("complex64"),
}
UNCHANGED: Final = frozenset({"FLOOR", "CEIL", "ROUND", "SIGN", "ABS", "NEG"})
"""Operations whose float result is the same in every implementation."""


CURVES: Final = frozenset({"TANH", "LOGISTIC"})
STEEPEST: Final = 65535 / (3 * 4096)
"""The int16 scale at which a value times LiteRT's multiplier exceeds 32 bits."""

LARGEST: Final[dict[str, Callable[[float, float], float]]] = {
    "EXP": lambda _, most: float(np.exp(most)),
    "LOG": lambda least, most: float(max(abs(np.log(least)), abs(np.log(most)))),
    "SQRT": lambda _, most: most**0.5,
    "RSQRT": lambda least, _: least**-0.5,
    "ELU": lambda _, most: most,
    "GELU": lambda _, most: most,
}
"""The largest result of operations that LiteRT computes with a table, by the least positive input
and the greatest input.
"""


@rule(*UNARY)
def check_unary(site: Site) -> Classes:
    kind, first, result = site.operation.type, site.input(), site.output()
    among(first, UNARY[kind])
    if kind == "COMPLEX_ABS":
        return FAITHFUL
    require(result.dtype is first.dtype, "a result of another type")
    if first.dtype is F32:
        return EXACT if kind in UNCHANGED else FAITHFUL
    if first.dtype in PLAIN:
        return EXACT
    (scale, zero), (made, made_zero) = one_scale(first), one_scale(result)
    bare = zero == made_zero == 0
    require(first.dtype is not DType.INT16 or bare, "int16 values with a zero point")
    if kind in CURVES and first.dtype is DType.INT16:
        require(scale < STEEPEST, "a scale at which LiteRT's sums overflow")
    if kind in LARGEST:
        values = np.iinfo(first.dtype.numpy)
        with np.errstate(over="ignore"):
            largest = LARGEST[kind](scale, scale * (int(values.max) - int(values.min)))
        require(largest / made < 2.0**31, "results beyond LiteRT's table of 32 bits")
    return EXACT_BUILTIN


@rule("PRELU")
def check_prelu(site: Site) -> Classes:
    first, alpha = site.input(), site.input(1)
    among(first, types_of("float32 int8 uint8"))
    require(alpha.dtype is first.dtype, "operands of two types")
    if first.dtype is F32:
        return FAITHFUL
    for operand in types(site, (0, 1)):
        one_scale(operand)
    return EXACT_BUILTIN


COMPARED: Final = types_of("float32 int32 int64")


@rule("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
def check_comparison(site: Site) -> Classes:
    """With quantised operands LiteRT aborts the process if both have the scale 1."""
    among(site.input(), COMPARED)
    require(site.input(1).dtype is site.input().dtype, "operands of two types")
    require(
        max(site.rank(0), site.rank(1)) <= MAX_RANK, f"operands of more than {MAX_RANK} dimensions"
    )
    return EXACT


@rule("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT")
def check_logical(site: Site) -> Classes:
    among(site.input(), types_of("bool"))
    return EXACT


@rule("FLOOR_DIV", "FLOOR_MOD")
def check_division(site: Site) -> Classes:
    """In LiteRT's FLOOR_MOD the least integer divided by -1 traps, which ends the process."""
    among(site.input(), types_of("float32 int32"))
    if site.input().dtype is F32:
        return FAITHFUL
    divisors = site.value(1, "its divisor")
    bad = divisors.size == 0 or np.any((divisors == 0) | (divisors == -1))
    require(not bad, "integers divided by 0 or -1")
    return EXACT


@rule("SELECT", "SELECT_V2")
def check_select(site: Site) -> Classes:
    """LiteRT turns a result of one element into a scalar (docs/differences.md)."""
    among(site.input(1), types_of("float32 int8 uint8 int16 int32 int64 bool"))
    shape = site.output().shape
    require(shape and any(d not in {1, None} for d in shape), "a result of one element")
    if site.operation.type == "SELECT":
        require(site.input(1).shape == site.input(2).shape, "operands of two shapes")
        require(site.rank(0) in {0, 1, site.rank(1)}, "a condition of another rank")
    return EXACT


@rule("CAST")
def check_cast(site: Site) -> Classes:
    """Casts of floats outside the integer range differ between platforms."""
    among(site.input(), types_of("float32 int8 uint8 int16 int32 int64 bool"))
    among(site.output(), types_of("float32 int8 uint8 int16 int32 int64 bool"), "results")
    from_float = site.input().dtype is F32 and site.output().dtype is not F32
    require(
        not from_float or site.output().dtype in {DType.BOOL, DType.INT32},
        "floats to small integers",
    )
    return EXACT


@rule("QUANTIZE")
def check_quantize(site: Site) -> Classes:
    first, result = site.input(), site.output()
    among(result, types_of("int8 uint8 int16 int32"), "results")
    one_scale(result)
    if first.dtype is F32:
        require(result.dtype in EIGHT_BITS | {DType.INT16}, "floats to int32")
        return Classes("faithful", "faithful")
    among(first, types_of("int8 uint8 int16 int32"))
    one_scale(first)
    narrow = first.dtype in EIGHT_BITS and result.dtype in EIGHT_BITS
    return FAITHFUL if narrow else EXACT


@rule("DEQUANTIZE")
def check_dequantize(site: Site) -> Classes:
    first = site.input()
    among(first, types_of("int8 uint8 int16 float16"))
    among(site.output(), types_of("float32"), "results")
    if first.dtype is DType.FLOAT16:
        require(first.quantization is None, "a quantisation of float16 values")
        site.value(0, "its value")
        return EXACT
    one_scale(first)
    return FAITHFUL


REDUCED: Final = {
    "MEAN": types_of("float32 int8 uint8 int32 int64"),
    "SUM": types_of("float32 int8 uint8 int32 int64"),
    "REDUCE_PROD": types_of("float32 int32 int64"),
    "REDUCE_MAX": types_of("float32 int8 uint8 int32 int64"),
    "REDUCE_MIN": types_of("float32 int8 uint8 int32 int64"),
    "REDUCE_ANY": types_of("bool"),
    "REDUCE_ALL": types_of("bool"),
}
PICKED: Final = frozenset({"REDUCE_MAX", "REDUCE_MIN", "REDUCE_ANY", "REDUCE_ALL"})


@rule(*REDUCED)
def check_reduction(site: Site) -> Classes:
    kind, first = site.operation.type, site.input()
    among(first, REDUCED[kind])
    site.value(1, "its axes")
    among(site.input(1), types_of("int32"), "axes")
    if kind in PICKED:
        same_scale(first, site.output())
        return EXACT
    if first.dtype is F32:
        return FAITHFUL
    if first.dtype in {DType.INT32, DType.INT64}:
        return EXACT
    for operand in (first, site.output()):
        one_scale(operand)
    return FAITHFUL


@rule("ARG_MAX", "ARG_MIN")
def check_arg(site: Site) -> Classes:
    among(site.input(), types_of("float32 int8 uint8 int32"))
    site.value(1, "its axis")
    return EXACT


@rule("CUMSUM")
def check_cumsum(site: Site) -> Classes:
    among(site.input(), types_of("float32 int32 int64"))
    site.value(1, "its axis")
    return FAITHFUL if site.input().dtype is F32 else EXACT


@rule("SOFTMAX")
def check_softmax(site: Site) -> Classes:
    """LiteRT computes int16 results of int8 inputs at any scale, other types at one fixed scale."""
    first, result = site.input(), site.output()
    among(first, types_of("float32 int8 uint8 int16"))
    require(site.rank() >= 1, "a scalar")
    if first.dtype is F32:
        return FAITHFUL
    one_scale(first)
    if (first.dtype, result.dtype) == (DType.INT8, DType.INT16):
        one_scale(result)
        return FAITHFUL
    same = result.dtype is first.dtype
    require(same, f"{first.dtype.value} to {result.dtype.value} is not computed here")
    require_shares(result)
    return FAITHFUL


@rule("LOG_SOFTMAX")
def check_log_softmax(site: Site) -> Classes:
    """Float only: LiteRT's quantised kernel was off by up to 6 quantisation steps."""
    among(site.input(), types_of("float32"))
    require(site.rank() >= 1, "a scalar")
    return FAITHFUL


@rule("L2_NORMALIZATION")
def check_l2_normalization(site: Site) -> Classes:
    among(site.input(), types_of("float32 int8 uint8"))
    require(site.activation == "NONE", "it has a fused activation")
    if site.input().dtype is F32:
        return FAITHFUL
    for operand in types(site):
        one_scale(operand)
    return EXACT_BUILTIN
