"""Operations that move or create elements, or read shapes."""

from __future__ import annotations

from typing import Final

from penstock.driverkit.checks import one_scale
from penstock.driverkit.site import Site, require
from penstock.drivers.xnnpack.rules.classes import EXACT, Classes
from penstock.drivers.xnnpack.rules.rule import among, row, rule, same_scale, types_of
from penstock.ir import DType

NUMBERS: Final = "float32 int8 uint8 int16 int32 int64"
ALL: Final = f"{NUMBERS} bool"
MAX_RANK: Final = 5

row("PACK", NUMBERS, alike=None)
row("UNPACK", ALL, alike=[0])
row("SPLIT", "", NUMBERS, constant={0: "its axis"}, alike=[1])
row("SPLIT_V", NUMBERS, constant={1: "the sizes of its parts", 2: "its axis"}, alike=[0])
row("GATHER GATHER_ND", ALL, "indexes: int32 int64", alike=[0])
row("SCATTER_ND", "indexes: int32", "float32 int32", "shapes: int32", constant={2: "its shape"})
row("DYNAMIC_UPDATE_SLICE", "float32 int8 int32 int64", "", "positions: int32 int64", alike=[0, 1])
row("SHAPE", ALL)
row("RESIZE_NEAREST_NEIGHBOR", "float32 int8 uint8 int16", constant={1: "its size"}, alike=[0])
row("NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5", constant={2: "how many boxes it keeps"})

SHAPED: Final[dict[str, tuple[int, ...]]] = {
    "STRIDED_SLICE": (1, 2, 3),
    **dict.fromkeys(("SLICE", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"), (1, 2)),
    **dict.fromkeys(("RESHAPE", "EXPAND_DIMS", "TRANSPOSE", "TILE", "BROADCAST_TO"), (1,)),
    **dict.fromkeys(("PAD", "MIRROR_PAD"), (1,)),
    **dict.fromkeys(("SQUEEZE", "SPACE_TO_DEPTH", "DEPTH_TO_SPACE"), ()),
}
"""The inputs that determine the shape of the result, for operations on input 0."""

AT_RUN_TIME: Final = frozenset({"RESHAPE", "SLICE", "STRIDED_SLICE", "TILE"})
"""Operations of `SHAPED` whose result shape LiteRT also computes and checks at run time."""

FILLING: Final = frozenset({"PAD", "SPACE_TO_BATCH_ND"})
NARROW: Final = frozenset({"TRANSPOSE", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"})
"""Operations that read 64-bit integers as 32-bit integers."""

OTHER_TYPES: Final = {
    "RESHAPE": f"{ALL} complex64",
    **dict.fromkeys(("SPACE_TO_DEPTH", "DEPTH_TO_SPACE"), "float32 int8 uint8 int32 int64"),
}


@rule(*SHAPED)
def check_moving(site: Site) -> Classes:
    kind = site.operation.type
    first, result = site.input(), site.output()
    among(first, OTHER_TYPES.get(kind, ALL))
    same_scale(first, result)
    rank = max(site.rank(), len(result.shape or ()))
    require(rank <= MAX_RANK, f"more than {MAX_RANK} dimensions")
    for position in SHAPED[kind]:
        if position >= len(site.inputs):
            continue
        if kind not in AT_RUN_TIME:
            site.value(position, "its shape input")
        among(site.input(position), "int32" if kind in NARROW else "int32 int64", "shapes")
    if kind == "SLICE":
        require(site.input(1).dtype is site.input(2).dtype, "beginnings and sizes of two types")
    if kind in FILLING:
        bare = first.dtype in types_of("int8 uint8 int16") or first.quantization is None
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
        require(not site.attributes.integer(mask), f"it has an {mask}")
    begin = site.input(1).shape
    require(begin is not None and begin == (site.rank(),), "it does not name all dimensions")
    among(site.input(1), "int32", "shapes")


@rule("PADV2")
def check_pad_value(site: Site) -> Classes:
    first, value = site.input(), site.input(2)
    among(first, "float32 int8")
    require(value.dtype is first.dtype, "a value of another type")
    same_scale(first, value, site.output())
    require(site.rank() <= 4, "more than 4 dimensions")
    site.value(1, "its padding")
    return EXACT


@rule("CONCATENATION")
def check_concatenation(site: Site) -> Classes:
    """Operands of several scales go to LiteRT's own kernel, which requantises only uint8."""
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


@rule("TOPK_V2")
def check_topk(site: Site) -> Classes:
    among(site.input(), "float32 int8 uint8 int32 int64")
    among(site.input(1), "int32", "counts")
    among(site.output(1), "int32", "positions")
    same_scale(site.input(), site.output())
    return EXACT


@rule("ONE_HOT")
def check_one_hot(site: Site) -> Classes:
    among(site.input(), "int32 int64", "indexes")
    among(site.output(), "float32 int32 int64 bool")
    site.value(1, "its depth")
    return EXACT
