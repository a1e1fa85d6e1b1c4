"""Which element types a rule takes, and the accuracy that follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.engines.site import QUANTIZED, Site
from penstock.engines.types import F32, one_scale
from penstock.hal import AccuracyClass
from penstock.ir import DType, Operand

PLAIN: Final = frozenset({DType.INT32, DType.BOOL})
"""Element types besides float32 that are moved as they are."""

STEPPED: Final = frozenset({*QUANTIZED, DType.INT16})
"""Element types of numbers in steps of a scale, which are real within OpenVINO."""


def moves(site: Site, position: int = 0) -> AccuracyClass:
    """The class of an operation that moves values of input *position* and changes none."""
    return moved(site, [site.input(position)])


def moved(site: Site, operands: Iterable[Operand]) -> AccuracyClass:
    """As `moves`, of *operands*. Quantised values count as relaxed like the arithmetic on both sides of
    them: moved alone, they would only be carried to and fro.
    """
    every = (*operands, *site.outputs)
    if all(o.dtype is F32 for o in every):
        return "exact"
    for operand in every:
        if operand.dtype not in STEPPED:
            site.refuse_types()
        one_scale(operand)
    return "relaxed"


def carried(site: Site, operands: Iterable[Operand]) -> AccuracyClass:
    """As `moved`, whole numbers of 32 bits and truth values too: what shapes and choices are computed of."""
    every = [*operands, *site.outputs]
    for dtype in PLAIN:
        if all(o.dtype is dtype for o in every):
            return "exact"
    return moved(site, every)
