"""The rules of an engine by operation type: a check, a layout policy, and an emitter of nodes."""

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
"""Returns the accuracy class of an operation. Raises `Refused` if it is not supported."""

Emit: TypeAlias = Callable[[Graph, Site], None]
"""Adds the nodes of an operation that has passed its check."""


class Rule(msgspec.Struct, Generic[Graph], frozen=True):
    """The check, the layout policy and the emitter of one operation type."""

    check: Check
    emit: Emit[Graph]
    layout: Policy


class Rules(dict[str, Rule[Graph]]):
    """The rules of an engine by operation type. Decorated functions register themselves here."""

    def add(
        self, *types: str, check: Check, layout: Policy = channels_last
    ) -> Callable[[Emit[Graph]], Emit[Graph]]:
        """Registers a function as the emitter of *types*, for operations that *check* accepts."""

        def register(emit: Emit[Graph]) -> Emit[Graph]:
            self.update(dict.fromkeys(types, Rule(check, emit, layout)))
            return emit

        return register

    def find(self, site: Site, missing: str) -> Rule[Graph]:
        """The rule for *site*. If there is none, raises `Refused` with the type and *missing*."""
        rule = self.get(site.operation.key)
        if rule is None:
            raise Refused(f"{site.operation.key} {missing}")
        return rule

    def lay_out(self, sites: Iterable[Site], *, real: bool = True) -> list[Site]:
        """All operations of a subgraph with their layouts. *real* as in `layout.Values`."""
        return lay_out(sites, lambda site: self[site.operation.key].layout, real=real)

    def emit(
        self,
        graph: Graph,
        sites: Iterable[tuple[int, Site]],
        message_of: Callable[[Exception], str] = str,
    ) -> None:
        """Adds the nodes of all *sites*, each with the number that errors and profiles use for it.

        If an operation fails, raises `GeneralFailure` with its name. *message_of* shortens the
        engine's own exceptions.
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
