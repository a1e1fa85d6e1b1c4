"""The table of rules, how an operation is judged by it, and the element types that rules move."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.driverkit.checks import moved_operands
from penstock.driverkit.rules import Rules
from penstock.driverkit.site import QUANTIZED, Site, require
from penstock.driverkit.types import F32, one_scale
from penstock.drivers.openvino.graph import PLAIN, STEPPED, Graph, alike
from penstock.hal import AccuracyClass
from penstock.ir import Operand

RULES: Final = Rules[Graph]()
"""Filled by the modules of this package."""

rule: Final = RULES.add

MAX_RANK: Final = 5
"""The most dimensions that every plugin supports."""


def judge(site: Site) -> AccuracyClass:
    """The class in which an operation is computed. Raises `Refused`, or what its check raises."""
    found = RULES.find(site, "is not translated to OpenVINO's operations")
    for operand in (*site.inputs, *site.outputs):
        if operand is not None and operand.shape is not None:
            rank = len(operand.shape)
            require(rank <= MAX_RANK, f"an operand of {rank} dimensions")
    for position in range(len(site.outputs)):
        site.output_shape(position)
    return found.check(site)


def check_moved(site: Site) -> AccuracyClass:
    """The class of an operation that moves float32 or quantised values."""
    return moved(site, moved_operands(site))


def moves(site: Site, position: int = 0) -> AccuracyClass:
    """The class of an operation that moves the values of input *position* unchanged."""
    return moved(site, [site.input(position)])


def moved(site: Site, operands: Iterable[Operand]) -> AccuracyClass:
    """As `moves`, of *operands*. Quantised values that keep their grid are faithful, like the
    arithmetic around them: as exact operations of another device they would only be copied to and
    fro. With a change of scale TFLite rounds differently.
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
    """As `moved`; also int32 and truth values, which shapes and choices are computed from."""
    every = [*operands, *site.outputs]
    for dtype in PLAIN:
        if all(o.dtype is dtype for o in every):
            return "exact"
    return moved(site, every)
