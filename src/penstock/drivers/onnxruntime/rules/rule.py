"""The table of rules, how an operation is judged by it, and the element types that rules move."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.driverkit.checks import moved_operands
from penstock.driverkit.rules import Rules
from penstock.driverkit.site import QUANTIZED, Refused, Site
from penstock.driverkit.support import LEFT_OUT
from penstock.driverkit.types import F32, one_scale
from penstock.drivers.onnxruntime.graph import Graph
from penstock.hal import AccuracyClass
from penstock.ir import DType, Operand

RULES: Final = Rules[Graph]()
"""Filled by the modules of this package."""

rule: Final = RULES.add

PLAIN: Final = frozenset({F32, DType.INT32, DType.INT64, DType.BOOL})
"""Element types that are moved as they are."""

SCALED: Final = frozenset(
    {"DEPTH_TO_SPACE", "RESIZE_NEAREST_NEIGHBOR", "SPACE_TO_DEPTH", "ZEROS_LIKE"}
)
"""Moving operations whose 8-bit values must have a scale."""

WHOLE: Final = frozenset({DType.INT32, DType.INT64})


def judge(site: Site) -> AccuracyClass:
    """The class in which an operation is computed. Raises `Refused`, or what its check raises."""
    if (reason := LEFT_OUT.get(site.operation.key)) is not None:
        raise Refused(reason)
    found = RULES.find(site, "is not written as ONNX")
    for position in range(len(site.outputs)):
        site.output_shape(position)
    return found.check(site)


def check_moved(site: Site) -> AccuracyClass:
    """The class of an operation that moves values: exact, or stepwise where their scale changes."""
    return moved(site, moved_operands(site), unscaled=site.operation.type not in SCALED)


def moves(site: Site, position: int = 0, *, unscaled: bool = False) -> AccuracyClass:
    """The class of an operation that moves the values of input *position* unchanged. *unscaled*:
    also 8-bit values without a scale.
    """
    return moved(site, [site.input(position)], unscaled=unscaled)


def moved(site: Site, operands: Iterable[Operand], *, unscaled: bool = False) -> AccuracyClass:
    """As `moves`, of *operands*: exact, or stepwise if a quantised value changes its scale."""
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
