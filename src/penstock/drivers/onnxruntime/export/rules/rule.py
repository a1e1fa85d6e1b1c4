"""`Rule`: one operation type's check and its nodes, and the table of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from penstock.drivers.onnxruntime.export.graph import Graph
from penstock.engines.site import Site
from penstock.hal import AccuracyClass

Check: TypeAlias = Callable[[Site], AccuracyClass]
"""The class in which an operation is computed; raises `Refused` where it is not."""

Emit: TypeAlias = Callable[[Graph, Site], None]
"""Adds the nodes of an operation that its check has passed."""


class Rule(msgspec.Struct, frozen=True):
    """How one operation type is taken."""

    check: Check
    emit: Emit


RULES: Final[dict[str, Rule]] = {}
"""Filled by the modules of this package."""


def rule(*types: str, check: Check) -> Callable[[Emit], Emit]:
    """Registers a function as what emits *types*, where *check* passes."""

    def register(emit: Emit) -> Emit:
        RULES.update(dict.fromkeys(types, Rule(check, emit)))
        return emit

    return register
