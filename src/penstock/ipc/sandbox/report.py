"""What a sandbox consists of, and what became of each part."""

from __future__ import annotations

from typing import NamedTuple


class Measure(NamedTuple):
    """One barrier: whether it *holds*, and how far, or why not."""

    name: str
    holds: bool
    detail: str


class SandboxReport(NamedTuple):
    """The *measures* in the order they were taken."""

    measures: tuple[Measure, ...]

    @property
    def missing(self) -> tuple[Measure, ...]:
        """Those that do not hold."""
        return tuple(m for m in self.measures if not m.holds)

    def lines(self) -> tuple[tuple[str, str], ...]:
        """Each measure by name, and what became of it in words."""
        return tuple(
            (m.name, m.detail if m.holds else f"missing: {m.detail}") for m in self.measures
        )
