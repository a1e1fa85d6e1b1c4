"""Where the inputs of one direction of a long short-term memory stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from penstock.drivers.reference.ops.kernel import Site, Unsupported
from penstock.drivers.reference.ops.recurrent.products import Arrays
from penstock.ir import NDArray

INPUT, FORGET, CELL, OUTPUT = range(4)
"""The gates in the order of their parameters. CELL is the gate of new values."""

PARAMETERS: Final = 17
"""Weights and biases of one direction."""


@dataclass(frozen=True, slots=True)
class Memory:
    """State: the output state [batch, outputs] and the cell state [batch, cells]."""

    output: NDArray
    cell: NDArray


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions of inputs: *first* of the 17 parameters, *norms* of the four layer normalisation
    coefficients, *auxiliary* of the four weights of an auxiliary input, where it may have one.
    """

    first: int
    norms: int
    auxiliary: int | None = None

    def weights(self, gate: int) -> int:
        return self.first + gate

    def recurrent(self, gate: int) -> int:
        return self.first + 4 + gate

    def peephole(self, gate: int) -> int | None:
        """None for the cell gate, which does not see the cell state."""
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
        """Every position of a parameter, given or not."""
        return list(self._all())

    def _all(self) -> Iterator[int]:
        yield from range(self.first, self.first + PARAMETERS)
        for start in (self.norms, self.auxiliary):
            if start is not None:
                yield from range(start, start + 4)


def gates_of(site: Site, positions: Positions, arrays: Arrays) -> list[int]:
    """The gates that this direction computes: all, or all but the input gate (CIFG).

    Input weights without elements are none to TFLite's kernels, whose pointer to them is null: the
    input gate is coupled. `Unsupported` where a gate has only some of its parameters, as TFLite's
    kernels refuse it.
    """
    coupled = not site.has(positions.weights(INPUT))
    gates = [FORGET, CELL, OUTPUT] if coupled else [INPUT, FORGET, CELL, OUTPUT]
    for gate in gates:
        for position in (positions.weights(gate), positions.recurrent(gate), positions.bias(gate)):
            site.input(position)
    if coupled and any(site.has(i) for i in (positions.recurrent(INPUT), positions.bias(INPUT))):
        raise Unsupported("parameters of an input gate without its input weights")
    _all_or_none(site, [positions.peephole(g) for g in gates], "peephole weights")
    _all_or_none(site, [positions.norm(g) for g in gates], "layer normalisation coefficients")
    if site.has(positions.projection_bias) and not site.has(positions.projection):
        raise Unsupported("a projection bias without projection weights")
    if not coupled and not arrays[positions.weights(INPUT)].size:
        gates.remove(INPUT)
    return gates


def _all_or_none(site: Site, positions: list[int | None], what: str) -> None:
    given = {site.has(i) for i in positions if i is not None}
    if len(given) > 1:
        raise Unsupported(f"{what} for some gates only")


def clip_of(site: Site, name: str) -> float:
    """An upper bound of magnitudes, 0 for none; `Unsupported` where it is negative."""
    clip = site.attributes.number(name)
    if not clip >= 0:
        raise Unsupported(f"a {name} of {clip}")
    return clip
