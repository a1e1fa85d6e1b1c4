"""`Rule`: one operation type's check and its nodes, and the table of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from penstock.drivers.onnxruntime.export.graph import Graph
from penstock.engines.site import Refused, Site
from penstock.hal import AccuracyClass

Check: TypeAlias = Callable[[Site], AccuracyClass]
"""The class in which an operation is computed; raises `Refused` where it is not."""

Emit: TypeAlias = Callable[[Graph, Site], None]
"""Adds the nodes of an operation that its check has passed."""


class Rule(msgspec.Struct, frozen=True):
    """How one operation type is taken."""

    check: Check
    emit: Emit


LEFT_OUT: Final = {
    "WHILE": "its rounds are known only when it runs, or too many to be written out; the runtime stops it in time",
}

UNSTEADY: Final = frozenset({"CUSTOM:MaxPoolingWithArgmax2D"})
"""Operations that turn the last bit of a float into a position."""

RULES: Final[dict[str, Rule]] = {}
"""Filled by the modules of this package."""


def rule(*types: str, check: Check) -> Callable[[Emit], Emit]:
    """Registers a function as what emits *types*, where *check* passes."""

    def register(emit: Emit) -> Emit:
        RULES.update(dict.fromkeys(types, Rule(check, emit)))
        return emit

    return register


def judge(site: Site) -> AccuracyClass:
    """The class in which an operation is computed. Raises `Refused` where it is not, and what a check stumbles over."""
    kind = site.operation.key
    known = RULES.get(kind)
    if known is None:
        raise Refused(LEFT_OUT.get(kind) or f"{kind} is not written as ONNX")
    for position in range(len(site.outputs)):
        site.output_shape(position)
    return known.check(site)
