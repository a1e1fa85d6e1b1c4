"""Operations on single elements, on pairs of elements with broadcasting, and along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from penstock.driverkit.checks import F32, one_scale, require_shares
from penstock.driverkit.site import QUANTIZED, Site, require
from penstock.drivers.xnnpack.rules.classes import EXACT, EXACT_BUILTIN, FAITHFUL, Classes
from penstock.drivers.xnnpack.rules.rule import among, by_type, clamped, row, rule, scales_of
from penstock.ir import DType

PLAIN: Final = frozenset({DType.INT32, DType.INT64})
MAX_RANK: Final = 4
"""Greatest number of dimensions in which LiteRT's kernels broadcast every element type."""

row("LOGICAL_AND LOGICAL_OR LOGICAL_NOT", "bool")
row("ARG_MAX ARG_MIN", "float32 int8 uint8 int32", constant={1: "its axis"})
row(
    "REDUCE_MAX REDUCE_MIN",
    "float32 int8 uint8 int32 int64",
    "axes: int32",
    constant={1: "its axes"},
    alike=[0],
)
row("REDUCE_ANY REDUCE_ALL", "bool", "axes: int32", constant={1: "its axes"}, alike=[0])

PAIRS: Final = by_type(
    {
        "float32 int8 uint8 int16 int32 int64": "ADD SUB MUL MAXIMUM MINIMUM",
        "float32 int8 int32": "SQUARED_DIFFERENCE",
        "float32": "DIV POW",
    }
)
SUMS: Final = frozenset({"ADD", "SUB"})
MOST_STEPS: Final = 1024.0
"""Most that an operand's (or product's) scale is of the output's: beyond it LiteRT overflows."""

LIKE_OTHERS: Final = frozenset({"MAXIMUM", "MINIMUM"})
"""Operations that compare stored values without rescaling."""


def _check_alike(site: Site, known: str) -> None:
    """Refuses two operands of different types, and more dimensions than LiteRT broadcasts."""
    among(site.input(), known)
    require(site.input(1).dtype is site.input().dtype, "operands of two types")
    rank = max(site.rank(0), site.rank(1))
    require(rank <= MAX_RANK, f"operands of more than {MAX_RANK} dimensions")


@rule(*PAIRS)
def check_pair(site: Site) -> Classes:
    kind, first = site.operation.type, site.input()
    _check_alike(site, PAIRS[kind])
    clamped(site)
    if first.dtype is F32:
        return FAITHFUL
    if first.dtype in PLAIN:
        require(site.activation == "NONE", "integers with a fused activation are not computed here")
        return EXACT
    scales = scales_of(site, (0, 1))
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


UNARY: Final = by_type(
    {
        "float32": "SQUARE SIN COS FLOOR CEIL ROUND",
        "float32 int32": "SIGN",
        "float32 int32 int64": "NEG",
        "float32 int8": "ELU",
        "float32 int8 uint8": "RELU_N1_TO_1 RELU_0_TO_1 HARD_SWISH GELU",
        "float32 int8 uint8 int16": "RELU RELU6 TANH LOGISTIC LEAKY_RELU",
        "float32 int8 int16": "EXP LOG SQRT RSQRT",
        "float32 int8 int16 int32": "ABS",
        "complex64": "COMPLEX_ABS",
    }
)
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
"""The largest result of LiteRT's tables, by the least positive and the greatest input."""


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
    among(site.input(), "float32 int8 uint8")
    require(site.input(1).dtype is site.input().dtype, "operands of two types")
    if site.input().dtype is F32:
        return FAITHFUL
    scales_of(site, (0, 1))
    return EXACT_BUILTIN


@rule("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
def check_comparison(site: Site) -> Classes:
    """With quantised operands LiteRT aborts the process if both have the scale 1."""
    _check_alike(site, "float32 int32 int64")
    return EXACT


@rule("FLOOR_DIV", "FLOOR_MOD")
def check_division(site: Site) -> Classes:
    """In LiteRT's FLOOR_MOD the least integer divided by -1 traps, which ends the process."""
    among(site.input(), "float32 int32")
    if site.input().dtype is F32:
        return FAITHFUL
    divisors = site.value(1, "its divisor")
    bad = divisors.size == 0 or np.any((divisors == 0) | (divisors == -1))
    require(not bad, "integers divided by 0 or -1")
    return EXACT


@rule("SELECT", "SELECT_V2")
def check_select(site: Site) -> Classes:
    """LiteRT turns a result of one element into a scalar (docs/differences.md)."""
    among(site.input(1), "float32 int8 uint8 int16 int32 int64 bool")
    shape = site.output().shape
    require(shape and any(d not in {1, None} for d in shape), "a result of one element")
    if site.operation.type == "SELECT":
        require(site.input(1).shape == site.input(2).shape, "operands of two shapes")
        require(site.rank(0) in {0, 1, site.rank(1)}, "a condition of another rank")
    return EXACT


@rule("CAST")
def check_cast(site: Site) -> Classes:
    """Casts of floats outside the integer range differ between platforms."""
    source, target = site.input().dtype, site.output().dtype
    among(site.input(), "float32 int8 uint8 int16 int32 int64 bool")
    among(site.output(), "float32 int8 uint8 int16 int32 int64 bool", "results")
    allowed = source is not F32 or target in {F32, DType.BOOL, DType.INT32}
    require(allowed, "floats to small integers")
    return EXACT


@rule("QUANTIZE")
def check_quantize(site: Site) -> Classes:
    first, result = site.input(), site.output()
    among(result, "int8 uint8 int16 int32", "results")
    one_scale(result)
    if first.dtype is F32:
        require(result.dtype is not DType.INT32, "floats to int32")
        return FAITHFUL
    among(first, "int8 uint8 int16 int32")
    one_scale(first)
    return FAITHFUL if {first.dtype, result.dtype} <= QUANTIZED else EXACT


@rule("DEQUANTIZE")
def check_dequantize(site: Site) -> Classes:
    first = site.input()
    among(first, "int8 uint8 int16 float16")
    among(site.output(), "float32", "results")
    if first.dtype is DType.FLOAT16:
        require(first.quantization is None, "a quantisation of float16 values")
        site.value(0, "its value")
        return EXACT
    one_scale(first)
    return FAITHFUL


@rule("MEAN", "SUM", "REDUCE_PROD")
def check_reduction(site: Site) -> Classes:
    multiplies = site.operation.type == "REDUCE_PROD"
    among(site.input(), "float32 int32 int64" if multiplies else "float32 int8 uint8 int32 int64")
    site.value(1, "its axes")
    among(site.input(1), "int32", "axes")
    if site.input().dtype in PLAIN:
        return EXACT
    if site.input().dtype is not F32:
        scales_of(site)
    return FAITHFUL


@rule("CUMSUM")
def check_cumsum(site: Site) -> Classes:
    among(site.input(), "float32 int32 int64")
    site.value(1, "its axis")
    return FAITHFUL if site.input().dtype is F32 else EXACT


@rule("SOFTMAX")
def check_softmax(site: Site) -> Classes:
    """LiteRT computes int16 results of int8 inputs at any scale, other types at one fixed scale."""
    first, result = site.input(), site.output()
    among(first, "float32 int8 uint8 int16")
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
    among(site.input(), "float32")
    require(site.rank() >= 1, "a scalar")
    return FAITHFUL


@rule("L2_NORMALIZATION")
def check_l2_normalization(site: Site) -> Classes:
    among(site.input(), "float32 int8 uint8")
    require(site.activation == "NONE", "it has a fused activation")
    if site.input().dtype is F32:
        return FAITHFUL
    scales_of(site)
    return EXACT_BUILTIN
