"""Which element types a rule takes, and the accuracy that follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.engines.site import QUANTIZED, Site
from penstock.engines.types import one_scale
from penstock.hal import AccuracyClass
from penstock.ir import DType, Operand

F32: Final = DType.FLOAT32
PLAIN: Final = frozenset({DType.INT32, DType.BOOL})
"""Element types besides float32 that are moved as they are."""

STEPPED: Final = frozenset({*QUANTIZED, DType.INT16})
"""Element types of numbers in steps of a scale, which are real within OpenVINO."""


def activations(site: Site, positions: Iterable[int] | None = None) -> AccuracyClass:
    """The class of an operation whose inputs at *positions* (None: all) and outputs are float32, or all
    quantised in 8 bits with one scale each.
    """
    given = site.inputs if positions is None else [site.input(p) for p in positions]
    operands = [o for o in (*given, *site.outputs) if o is not None]
    if all(o.dtype is F32 for o in operands):
        return "faithful"
    for operand in operands:
        if operand.dtype not in QUANTIZED:
            site.refuse_types()
        one_scale(operand)
    return "relaxed"


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


def numbers(site: Site) -> AccuracyClass:
    """As `activations`, of all operands; int32 is computed too, exactly."""
    operands = [o for o in (*site.inputs, *site.outputs) if o is not None]
    if all(o.dtype is DType.INT32 for o in operands):
        return "exact"
    return activations(site)
