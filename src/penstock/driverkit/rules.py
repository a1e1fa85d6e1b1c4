"""The rules of an engine: by operation type, what is computed, in which layout, and the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeAlias, TypeVar

import msgspec

from penstock.driverkit.layout import Policy, channels_last, lay_out
from penstock.driverkit.site import Refused, Site
from penstock.errors import Cancelled, DriverError, GeneralFailure
from penstock.hal import AccuracyClass
from penstock.interrupts import polled

Graph = TypeVar("Graph")

Check: TypeAlias = Callable[[Site], AccuracyClass]
"""The class in which an operation is computed; raises `Refused` where it is not."""

Emit: TypeAlias = Callable[[Graph, Site], None]
"""Adds the nodes of an operation that its check has passed."""


class Rule(msgspec.Struct, Generic[Graph], frozen=True):
    """How one operation type is translated."""

    check: Check
    emit: Emit[Graph]
    layout: Policy


class Rules(dict[str, Rule[Graph]]):
    """The rules of an engine by operation type; filled by decorated functions."""

    def add(
        self, *types: str, check: Check, layout: Policy = channels_last
    ) -> Callable[[Emit[Graph]], Emit[Graph]]:
        """Registers a function as what emits *types*, where *check* passes."""

        def register(emit: Emit[Graph]) -> Emit[Graph]:
            self.update(dict.fromkeys(types, Rule(check, emit, layout)))
            return emit

        return register

    def find(self, site: Site, missing: str) -> Rule[Graph]:
        """The rule for *site*. Raises `Refused` with the type and *missing* where there is none."""
        rule = self.get(site.operation.key)
        if rule is None:
            raise Refused(f"{site.operation.key} {missing}")
        return rule

    def lay_out(self, sites: Iterable[Site], *, real: bool = True) -> list[Site]:
        """All operations of a subgraph with their layouts; *real* as of `layout.Values`."""
        return lay_out(sites, lambda site: self[site.operation.key].layout, real=real)

    def emit(
        self,
        graph: Graph,
        sites: Iterable[tuple[int, Site]],
        message_of: Callable[[Exception], str] = str,
    ) -> None:
        """Adds the nodes of all *sites*, each with the number that errors and profiles give it.

        Raises `GeneralFailure` with the operation that fails; *message_of* shortens the engine's
        own exceptions.
        """
        for number, site in polled(sites):
            kind = site.operation.key
            try:
                self[kind].emit(graph, site)
            except (DriverError, Cancelled):
                raise
            except Exception as error:
                text = message_of(error)
                raise GeneralFailure(f"operation {number} ({kind}): {text}") from error
