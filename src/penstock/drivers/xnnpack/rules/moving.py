"""Operations that move or create elements, or read shapes."""

from __future__ import annotations

from typing import Final

from penstock.driverkit.checks import one_scale
from penstock.driverkit.site import Site, require
from penstock.drivers.xnnpack.rules.rule import (
    EXACT,
    QUANTIZED,
    Classes,
    among,
    rule,
    same_scale,
    types_of,
)
from penstock.ir import DType

ALL: Final = types_of("float32 int8 uint8 int16 int32 int64 bool")
MAX_RANK: Final = 5

SHAPED: Final[dict[str, tuple[int, ...]]] = {
    "RESHAPE": (1,),
    "SQUEEZE": (),
    "EXPAND_DIMS": (1,),
    "TRANSPOSE": (1,),
    "SLICE": (1, 2),
    "TILE": (1,),
    "BROADCAST_TO": (1,),
    "PAD": (1,),
    "MIRROR_PAD": (1,),
    "SPACE_TO_BATCH_ND": (1, 2),
    "BATCH_TO_SPACE_ND": (1, 2),
    "SPACE_TO_DEPTH": (),
    "DEPTH_TO_SPACE": (),
    "STRIDED_SLICE": (1, 2, 3),
}
"""The inputs that determine the shape of the result, for operations on input 0."""

AT_RUN_TIME: Final = frozenset({"RESHAPE", "SLICE", "STRIDED_SLICE", "TILE"})
"""Operations of `SHAPED` whose result shape LiteRT also computes and checks at run time."""

FILLING: Final = frozenset({"PAD", "SPACE_TO_BATCH_ND"})
NARROW: Final = frozenset({"TRANSPOSE", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"})
"""Operations that read 64-bit integers as 32-bit integers."""

ORDINARY: Final = types_of("float32 int8 uint8 int32 int64")
FEWER_TYPES: Final = {
    "RESHAPE": ALL | {DType.COMPLEX64},
    "SPACE_TO_DEPTH": ORDINARY,
    "DEPTH_TO_SPACE": ORDINARY,
}


@rule(*SHAPED)
def check_moving(site: Site) -> Classes:
    kind = site.operation.type
    first, result = site.input(), site.output()
    among(first, FEWER_TYPES.get(kind, ALL))
    same_scale(first, result)
    require(
        max(site.rank(), len(result.shape or ())) <= MAX_RANK, f"more than {MAX_RANK} dimensions"
    )
    for position in SHAPED[kind]:
        if position >= len(site.inputs):
            continue
        if kind not in AT_RUN_TIME:
            site.value(position, "its shape input")
        among(site.input(position), types_of("int32 int64"), "shapes")
        if kind in NARROW:
            among(site.input(position), types_of("int32"), "shapes")
    if kind == "SLICE":
        require(site.input(1).dtype is site.input(2).dtype, "beginnings and sizes of two types")
    if kind in FILLING:
        bare = first.dtype in QUANTIZED or first.quantization is None
        require(bare, "a quantisation of an unquantised type, whose zero point LiteRT pads with")
    if kind == "EXPAND_DIMS":
        require(first.quantization == result.quantization, "operands of two scales")
    if kind == "STRIDED_SLICE":
        _check_strided(site)
    return EXACT


def _check_strided(site: Site) -> None:
    """LiteRT reads out of bounds with offsets, and computes a wrong shape with an ellipsis."""
    require(not site.flag("offset"), "its ends are offsets")
    for mask in ("ellipsis_mask", "new_axis_mask"):
        require(not site.operation.attributes.integer(mask), f"it has an {mask}")
    begin = site.input(1).shape
    require(begin is not None and begin == (site.rank(),), "it does not name all dimensions")
    among(site.input(1), types_of("int32"), "shapes")


@rule("PADV2")
def check_pad_value(site: Site) -> Classes:
    first, value = site.input(), site.input(2)
    among(first, types_of("float32 int8"))
    require(value.dtype is first.dtype, "a value of another type")
    same_scale(first, value, site.output())
    require(site.rank() <= 4, "more than 4 dimensions")
    site.value(1, "its padding")
    return EXACT


@rule("PACK")
def check_pack(site: Site) -> Classes:
    among(site.input(), types_of("float32 int8 uint8 int16 int32 int64"))
    same_scale(site.output(), *(site.input(k) for k in range(len(site.inputs))))
    return EXACT


@rule("UNPACK")
def check_unpack(site: Site) -> Classes:
    among(site.input(), ALL)
    same_scale(site.input(), *site.outputs)
    return EXACT


@rule("CONCATENATION")
def check_concatenation(site: Site) -> Classes:
    """XNNPACK leaves operands of several scales to LiteRT's own kernel, which requantises only
    uint8.
    """
    result = site.output()
    among(result, ALL)
    require(site.activation == "NONE", "it has a fused activation")
    given = [site.input(k) for k in range(len(site.inputs))]
    require(all(o.dtype is result.dtype for o in given), "operands of two types")
    require(len(result.shape or ()) <= MAX_RANK, f"more than {MAX_RANK} dimensions")
    if result.dtype is DType.INT8:
        same_scale(result, *given)
    elif len({o.quantization for o in (*given, result)}) > 1:
        for operand in (*given, result):
            one_scale(operand)
    return EXACT


@rule("SPLIT")
def check_split(site: Site) -> Classes:
    site.value(0, "its axis")
    among(site.input(1), types_of("float32 int8 uint8 int16 int32 int64"))
    same_scale(site.input(1), *site.outputs)
    return EXACT


@rule("SPLIT_V")
def check_split_v(site: Site) -> Classes:
    among(site.input(), types_of("float32 int8 uint8 int16 int32 int64"))
    site.value(1, "the sizes of its parts"), site.value(2, "its axis")
    same_scale(site.input(), *site.outputs)
    return EXACT


@rule("GATHER")
def check_gather(site: Site) -> Classes:
    among(site.input(), ALL)
    among(site.input(1), types_of("int32 int64"), "indexes")
    same_scale(site.input(), site.output())
    return EXACT


@rule("GATHER_ND")
def check_gather_nd(site: Site) -> Classes:
    among(site.input(), types_of("float32 int8 uint8 int16 int32 int64 bool"))
    among(site.input(1), types_of("int32 int64"), "indexes")
    same_scale(site.input(), site.output())
    return EXACT


@rule("SCATTER_ND")
def check_scatter_nd(site: Site) -> Classes:
    among(site.input(), types_of("int32"), "indexes")
    among(site.input(1), types_of("float32 int32"))
    among(site.input(2), types_of("int32"), "shapes")
    site.value(2, "its shape")
    return EXACT


@rule("DYNAMIC_UPDATE_SLICE")
def check_update_slice(site: Site) -> Classes:
    among(site.input(), types_of("float32 int8 int32 int64"))
    among(site.input(2), types_of("int32 int64"), "positions")
    same_scale(site.input(), site.input(1), site.output())
    return EXACT


@rule("SHAPE")
def check_shape(site: Site) -> Classes:
    among(site.input(), ALL)
    return EXACT


@rule("TOPK_V2")
def check_topk(site: Site) -> Classes:
    among(site.input(), types_of("float32 int8 uint8 int32 int64"))
    among(site.input(1), types_of("int32"), "counts")
    among(site.output(1), types_of("int32"), "positions")
    same_scale(site.input(), site.output())
    return EXACT


@rule("ONE_HOT")
def check_one_hot(site: Site) -> Classes:
    among(site.input(), types_of("int32 int64"), "indexes")
    among(site.output(), types_of("float32 int32 int64 bool"))
    site.value(1, "its depth")
    return EXACT


@rule("RESIZE_NEAREST_NEIGHBOR")
def check_nearest(site: Site) -> Classes:
    among(site.input(), types_of("float32 int8 uint8 int16"))
    same_scale(site.input(), site.output())
    site.value(1, "its size")
    return EXACT


@rule("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def check_suppression(site: Site) -> Classes:
    site.value(2, "how many boxes it keeps")
    return EXACT
