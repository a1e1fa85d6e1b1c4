"""The table of rules, the support answers for a model, and the element types that rules move."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.driverkit.checks import F32, one_scale
from penstock.driverkit.moving import moved_operands
from penstock.driverkit.rules import Rules
from penstock.driverkit.site import QUANTIZED, Site, make_sites, require
from penstock.driverkit.support import answered
from penstock.drivers.openvino.graph import PLAIN, STEPPED, Graph, same_grid
from penstock.hal import AccuracyClass, Support
from penstock.ir import Model, Operand

RULES: Final = Rules[Graph]()
"""Filled by the modules of this package."""

rule: Final = RULES.add

MAX_RANK: Final = 5
"""The most dimensions that every plugin supports."""


def judge(site: Site) -> AccuracyClass:
    """The accuracy class of an operation. Raises `Refused` or another error of its check."""
    found = RULES.find(site, "is not translated to OpenVINO's operations")
    for operand in (*site.inputs, *site.outputs):
        if operand is not None and operand.shape is not None:
            rank = len(operand.shape)
            require(rank <= MAX_RANK, f"an operand of {rank} dimensions")
    for position in range(len(site.outputs)):
        site.output_shape(position)
    return found.check(site)


def check_moved(site: Site) -> AccuracyClass:
    """The accuracy class of an operation that moves float32 or quantised values."""
    return moved(site, moved_operands(site))


def moved(site: Site, operands: Iterable[Operand]) -> AccuracyClass:
    """The accuracy class of an operation that moves the values of *operands* unchanged.

    Quantised values that keep their grid are faithful, like the arithmetic around them. If they
    were exact, another device could run them, and their operands would be copied to it and back. If
    the scale changes, TFLite rounds differently.
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
    return "faithful" if all(same_grid(o, every[0]) for o in every) else "stepwise"


def moved_or_plain(site: Site, operands: Iterable[Operand]) -> AccuracyClass:
    """As `moved`, also for int32 and booleans, which shapes and choices are computed from."""
    every = [*operands, *site.outputs]
    for dtype in PLAIN:
        if all(o.dtype is dtype for o in every):
            return "exact"
    return moved(site, every)


SATURATING: Final = (
    "off by up to 124 steps: without VNNI OpenVINO adds pairs of 8-bit products in 16 bits"
)


def examine(
    model: Model, best: AccuracyClass = "exact", *, sums_exactly: bool = True
) -> Sequence[Support]:
    """One answer for each operation, limited to the class *best*, which the plugin was measured to
    meet. 8-bit values are relaxed unless OpenVINO *sums_exactly* on this machine.
    """
    sites = make_sites(model)
    answers = answered(sites, judge, best)
    if sums_exactly:
        return answers
    for at, (site, answer) in enumerate(zip(sites, answers, strict=True)):
        types = {o.dtype for o in (*site.inputs, *site.outputs) if o is not None}
        is_close = answer.supported and answer.accuracy in {"faithful", "stepwise"}
        if is_close and not types.isdisjoint(QUANTIZED):
            answers[at] = Support(True, "", "relaxed", SATURATING)
    return answers
