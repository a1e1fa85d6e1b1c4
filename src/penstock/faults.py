"""Faults of a model that callers distinguish: codes with their data."""

from __future__ import annotations

import enum


class FaultCode(enum.Enum):
    """Faults of a model that callers distinguish by code. The value is the format of the text."""

    SCHEMA_VERSION = "the schema version is {found}; only {known} is known"
    NO_SUBGRAPH = "the file has no subgraph"
    OPERATOR_CODE = "refers to operator code {found} of {count}"
    NO_ZERO_POINTS = "{scales} scales and no zero points"
    ZERO_POINT_COUNT = "{scales} scales and {zero_points} zero points"
    QUANTIZED_DIMENSION = "quantised dimension {dimension} of a rank-{rank} tensor"


class Fault:
    """A fault of a model: its code and the numbers in its text. `str` gives the text."""

    __slots__ = ("code", "facts")

    def __init__(self, code: FaultCode, **facts: int) -> None:
        self.code, self.facts = code, facts

    def __str__(self) -> str:
        return self.code.value.format(**self.facts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fault) and (self.code, self.facts) == (other.code, other.facts)

    def __hash__(self) -> int:
        return hash((self.code, *sorted(self.facts.items())))
