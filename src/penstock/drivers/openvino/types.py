"""Which element types a rule takes, and the accuracy that follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from penstock.driverkit.site import QUANTIZED, Site
from penstock.driverkit.types import F32, one_scale
from penstock.hal import AccuracyClass
from penstock.ir import DType, Operand

PLAIN: Final = frozenset({DType.INT32, DType.BOOL})
"""Element types besides float32 that are moved as they are."""

STEPPED: Final = frozenset({*QUANTIZED, DType.INT16})
"""Element types of numbers in steps of a scale, which are real within OpenVINO."""


def range_of(operand: Operand) -> tuple[float, float]:
    """The least and the greatest real value of a quantised operand."""
    scale, zero = one_scale(operand)
    limits = np.iinfo(operand.dtype.numpy)
    return scale * (int(limits.min) - zero), scale * (int(limits.max) - zero)


def alike(one: Operand, other: Operand) -> bool:
    """Whether the values of two operands lie on one grid: int8 and uint8 may do so with zero points
    that are 128 apart.
    """
    if one.quantization == other.quantization and one.dtype is other.dtype:
        return True
    quantized = one.dtype in QUANTIZED and other.dtype in QUANTIZED
    return quantized and range_of(one) == range_of(other)


def is_above_zero(operand: Operand) -> bool:
    """Whether no value of a quantised operand is below zero."""
    return range_of(operand)[0] >= 0


def moves(site: Site, position: int = 0) -> AccuracyClass:
    """The class of an operation that moves values of input *position* and changes none."""
    return moved(site, [site.input(position)])


def moved(site: Site, operands: Iterable[Operand]) -> AccuracyClass:
    """As `moves`, of *operands*. Quantised values that keep their grid count as faithful like the
    arithmetic on both sides of them: moved alone, they would only be carried to and fro. On the way
    to another grid TFLite rounds otherwise.
    """
    every = (*operands, *site.outputs)
    if all(o.dtype is F32 for o in every):
        return "exact"
    for operand in every:
        if operand.dtype not in STEPPED:
            site.refuse_types()
        one_scale(operand)
    if not all(o.dtype in QUANTIZED for o in every):
        return "relaxed"
    return "faithful" if all(alike(o, every[0]) for o in every) else "stepwise"


def carried(site: Site, operands: Iterable[Operand]) -> AccuracyClass:
    """As `moved`, whole numbers of 32 bits and truth values too: what shapes and choices are
    computed of.
    """
    every = [*operands, *site.outputs]
    for dtype in PLAIN:
        if all(o.dtype is dtype for o in every):
            return "exact"
    return moved(site, every)
