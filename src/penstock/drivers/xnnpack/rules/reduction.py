"""Operations along axes."""

from __future__ import annotations

from typing import Final

from penstock.drivers.xnnpack.rules.rule import among, rule, types_of
from penstock.drivers.xnnpack.site import (
    EXACT,
    EXACT_BUILTIN,
    FAITHFUL,
    Classes,
    Site,
    same_scale,
    scale_of,
)
from penstock.engines.site import require
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
    if kind in PICKED:
        same_scale(first, site.output())
        return EXACT
    if first.dtype is F32:
        return FAITHFUL
    if first.dtype in {DType.INT32, DType.INT64}:
        return EXACT
    for operand in (first, site.output()):
        scale_of(operand)
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
    """A quantised share has one scale, which LiteRT takes for given: 1/256, of int16 1/32768. Of int8 it makes
    int16 of any scale.
    """
    first, result = site.input(), site.output()
    among(first, types_of("float32 int8 uint8 int16"))
    require(site.rank() >= 1, "a scalar")
    if first.dtype is F32:
        return FAITHFUL
    scale_of(first)
    if (first.dtype, result.dtype) == (DType.INT8, DType.INT16):
        scale_of(result)
        return FAITHFUL
    expected = {
        (DType.INT8, DType.INT8): (1 / 256, -128),
        (DType.UINT8, DType.UINT8): (1 / 256, 0),
        (DType.INT16, DType.INT16): (1 / 32768, 0),
    }.get((first.dtype, result.dtype))
    require(
        expected is not None, f"{first.dtype.value} to {result.dtype.value} is not computed here"
    )
    require(scale_of(result) == expected, "shares that are not in the scale TFLite has for them")
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
        scale_of(operand)
    return EXACT_BUILTIN
