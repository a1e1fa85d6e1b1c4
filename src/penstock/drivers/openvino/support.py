"""What of a model the driver takes: an answer for each operation, without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.drivers.openvino.rules import RULES
from penstock.engines.site import Refused, Site, make_sites
from penstock.errors import PenstockError
from penstock.hal import AccuracyClass, Support
from penstock.ir import Model

MAX_RANK = 5
"""Dimensions of an operand: what every plugin computes with."""


UNSTEADY: Final = frozenset({"CUSTOM:MaxPoolingWithArgmax2D"})
"""Operations that turn the last bit of a float into a position."""


def examine(model: Model, best: AccuracyClass = "exact") -> Sequence[Support]:
    """One answer an operation. No class is better than *best*: what a plugin was measured to meet.

    What an unsteady operation reads in the end is relaxed: float32 rounding there moves whole values later on.
    """
    sites = make_sites(model)
    unsteady = _read_by_unsteady(model)
    return [
        _answer(site, "relaxed" if unsteady.intersection(site.output_indexes) else best)
        for site in sites
    ]


def _read_by_unsteady(model: Model) -> set[int]:
    """The operands of the entry subgraph from which an unsteady operation computes."""
    reached: set[int] = set()
    for operation in reversed(model.operations):
        if operation.key in UNSTEADY or reached.intersection(operation.outputs):
            reached.update(operation.inputs)
    return reached


def _answer(site: Site, best: AccuracyClass) -> Support:
    kind = site.operation.key
    rule = RULES.get(kind)
    if rule is None:
        return Support(False, f"{kind} is not translated to OpenVINO's operations")
    try:
        for operand in (*site.inputs, *site.outputs):
            if operand is not None and operand.shape is not None and len(operand.shape) > MAX_RANK:
                return Support(False, f"an operand of {len(operand.shape)} dimensions")
        for position in range(len(site.outputs)):
            site.output_shape(position)
        accuracy = rule.check(site)
    except Refused as refusal:
        return Support(False, str(refusal))
    except (PenstockError, ValueError, LookupError, ArithmeticError) as error:
        return Support(False, f"not computable as it stands: {error}")
    return Support(True, "", "relaxed" if best == "relaxed" else accuracy)
