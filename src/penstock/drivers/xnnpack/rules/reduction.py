"""Operations along axes."""

from __future__ import annotations

from typing import Final

from penstock.driverkit.site import require
from penstock.driverkit.types import one_scale, require_shares
from penstock.drivers.xnnpack.rules.rule import among, rule, types_of
from penstock.drivers.xnnpack.site import (
    EXACT,
    EXACT_BUILTIN,
    FAITHFUL,
    Classes,
    Site,
    same_scale,
)
from penstock.ir import DType

F32: Final = DType.FLOAT32
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
    site.constant(1, "its axes")
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
    site.constant(1, "its axis")
    return EXACT


@rule("CUMSUM")
def check_cumsum(site: Site) -> Classes:
    among(site.input(), types_of("float32 int32 int64"))
    site.constant(1, "its axis")
    return FAITHFUL if site.input().dtype is F32 else EXACT


@rule("SOFTMAX")
def check_softmax(site: Site) -> Classes:
    """Of int8 LiteRT makes int16 shares of any scale; others have one scale, which it takes for
    given.
    """
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
    """Of quantised values LiteRT's kernel was up to 6 steps off."""
    among(site.input(), types_of("float32"))
    require(site.rank() >= 1, "a scalar")
    return FAITHFUL


@rule("L2_NORMALIZATION")
def check_l2_normalization(site: Site) -> Classes:
    among(site.input(), types_of("float32 int8 uint8"))
    require(site.activation == "NONE", "it has a fused activation")
    if site.input().dtype is F32:
        return FAITHFUL
    for operand in site.types():
        one_scale(operand)
    return EXACT_BUILTIN
