"""Rules by which a driver translates operations for its engine, and the table of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

import msgspec

from penstock.driverkit.site import Site
from penstock.hal import AccuracyClass

Graph = TypeVar("Graph")

Check: TypeAlias = Callable[[Site], AccuracyClass]
"""The class in which an operation is computed; raises `Refused` where it is not."""

Emit: TypeAlias = Callable[[Graph, Site], None]
"""Adds the nodes of an operation that its check has passed."""


class Rule(msgspec.Struct, Generic[Graph], frozen=True):
    """How one operation type is taken."""

    check: Check
    emit: Emit[Graph]


class Rules(dict[str, Rule[Graph]]):
    """The rules of an engine by operation type; filled by decorated functions."""

    def add(self, *types: str, check: Check) -> Callable[[Emit[Graph]], Emit[Graph]]:
        """Registers a function as what emits *types*, where *check* passes."""

        def register(emit: Emit[Graph]) -> Emit[Graph]:
            self.update(dict.fromkeys(types, Rule(check, emit)))
            return emit

        return register
