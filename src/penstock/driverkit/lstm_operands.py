"""Where the operands of LSTM and its sequences stand among the inputs (TFLite's schema)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

INPUT, FORGET, CELL, OUTPUT = range(4)
"""The gates in the order of their parameters. CELL is the gate of new values."""

PARAMETERS: Final = 17
"""Weights and biases of one direction."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions of inputs: *first* of the 17 parameters, *norms* of the four layer normalisation
    coefficients, *auxiliary* of the weights of an auxiliary input, if any.
    """

    first: int
    norms: int
    auxiliary: int | None = None

    def weights(self, gate: int) -> int:
        return self.first + gate

    def recurrent(self, gate: int) -> int:
        return self.first + 4 + gate

    def peephole(self, gate: int) -> int | None:
        """None for the cell gate, which does not use the cell state."""
        return {INPUT: self.first + 8, FORGET: self.first + 9, OUTPUT: self.first + 10}.get(gate)

    def bias(self, gate: int) -> int:
        return self.first + 11 + gate

    @property
    def projection(self) -> int:
        return self.first + 15

    @property
    def projection_bias(self) -> int:
        return self.first + 16

    def norm(self, gate: int) -> int:
        return self.norms + gate

    def all(self) -> list[int]:
        """Every position of a parameter, present or omitted."""
        starts = [start for start in (self.norms, self.auxiliary) if start is not None]
        more = [start + gate for start in starts for gate in range(4)]
        return [*range(self.first, self.first + PARAMETERS), *more]


UNIDIRECTIONAL: Final = Positions(first=1, norms=20)
