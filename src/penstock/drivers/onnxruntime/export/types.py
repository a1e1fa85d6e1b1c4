"""Which element types a rule takes, and the accuracy that follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.driverkit.site import QUANTIZED, Site
from penstock.driverkit.types import F32, one_scale
from penstock.hal import AccuracyClass
from penstock.ir import DType, Operand

PLAIN: Final = frozenset({F32, DType.INT32, DType.INT64, DType.BOOL})
"""Element types that are moved as they are."""

WHOLE: Final = frozenset({DType.INT32, DType.INT64})


def moves(site: Site, position: int = 0, *, unscaled: bool = False) -> AccuracyClass:
    """The class of an operation that moves values of input *position* and changes none. *unscaled*:
    also 8-bit values that are numbers by themselves.
    """
    return moved(site, [site.input(position)], unscaled=unscaled)


def moved(site: Site, operands: Iterable[Operand], *, unscaled: bool = False) -> AccuracyClass:
    """As `moves`, of *operands*: exact, stepwise where a quantised value gets another scale."""
    given = list(operands)
    bare = unscaled and all(o.quantization is None for o in (*given, *site.outputs))
    for operand in (*given, *site.outputs):
        if operand.dtype in QUANTIZED and not bare:
            one_scale(operand)
        elif operand.dtype not in PLAIN | QUANTIZED:
            site.refuse_types()
    if any(o.dtype is not site.output().dtype for o in given):
        site.refuse_types()
    same = all(o.quantization == t.quantization for o in given for t in site.outputs)
    return "exact" if same else "stepwise"
