"""The table of rules, what fills it, and what judges by it."""

from __future__ import annotations

from typing import Final

from penstock.driverkit.rules import Rules
from penstock.driverkit.site import Refused, Site
from penstock.driverkit.support import LEFT_OUT
from penstock.drivers.onnxruntime.export.graph import Graph
from penstock.hal import AccuracyClass

RULES: Final = Rules[Graph]()
"""Filled by the modules of this package."""

rule: Final = RULES.add


def judge(site: Site) -> AccuracyClass:
    """The class in which an operation is computed. Raises `Refused` where it is not, and what a
    check stumbles over.
    """
    kind = site.operation.key
    known = RULES.get(kind)
    if known is None:
        raise Refused(LEFT_OUT.get(kind) or f"{kind} is not written as ONNX")
    for position in range(len(site.outputs)):
        site.output_shape(position)
    return known.check(site)
