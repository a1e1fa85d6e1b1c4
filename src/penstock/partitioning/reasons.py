"""Why an operation is not on the devices that did not get it, where the cheapest plan decided."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import Refusal, RefusalCode
from penstock.interrupts import polled
from penstock.partitioning.greedy import handle_users
from penstock.partitioning.prediction import UNDECLARED, Judge, Prices
from penstock.partitioning.support import Arrangement


class Reasons:
    """Reasons for every operation of one arrangement.

    An operation that could run elsewhere is priced there, with what its move would change at the
    boundaries: the steps it would open or end, and the values that would travel.
    """

    def __init__(self, arrangement: Arrangement, judge: Judge, *, energy: bool = False) -> None:
        self._table, self._assignment = arrangement.table, arrangement.assignment
        self._prices: Prices = judge.prices
        self._judge, self._energy = judge, energy
        operations = self._table.model.operations
        self._handles = frozenset(handle_users(self._table.model))
        self._partition = {
            i: at for at, p in enumerate(arrangement.partitions) for i in p.operations
        }
        self._sizes = [len(p.operations) for p in arrangement.partitions]
        writer = {o: i for i, operation in enumerate(operations) for o in operation.outputs}
        self._before: list[set[int]] = [
            {writer[o] for o in operation.inputs if o in writer} for operation in operations
        ]
        self._after: list[set[int]] = [set() for _ in operations]
        for index, earlier in enumerate(polled(self._before)):
            for other in earlier:
                self._after[other].add(index)

    def of(self, operation: int) -> dict[str, Refusal]:
        """Device name -> why *operation* is not there, for every candidate but its own."""
        chosen = self._assignment[operation]
        return {
            candidate.name: (
                candidate.answers[operation].refusal or self._loss(operation, position, chosen)
            )
            for position, candidate in enumerate(self._table.candidates)
            if position != chosen
        }

    def _loss(self, operation: int, position: int, chosen: int) -> Refusal:
        row, names = self._prices.operations[operation], self._table.candidates
        winner = names[chosen].name
        if row[position] >= UNDECLARED > row[chosen]:
            quantity = "power usage" if self._energy else "execution time"
            words = f"declares no {quantity} for this element type; {winner} does"
            return Refusal(RefusalCode.UNDECLARED, words)
        here, boundary = row[chosen], self._boundary(operation, position, chosen)
        there = row[position] + boundary
        if there > here:
            worse = "to take more energy" if self._energy else "slower"
            amounts = f"{self._show(there)} against {self._show(here)} on {winner}"
            words = f"predicted {worse}: {amounts}{', boundary included' if boundary else ''}"
        elif there == here:
            words = f"predicted no better than on {winner}"
        elif operation in self._handles:
            return Refusal(RefusalCode.HANDLES, "operations that share handles must run together")
        else:
            words = f"predicted better alone, but no cheaper plan was found with it there: {winner} has it"
        return Refusal(RefusalCode.PREDICTED, words)

    def _boundary(self, operation: int, position: int, chosen: int) -> float:
        """What moving *operation* alone changes beside its own price."""
        prices, at = self._prices, self._partition[operation]
        neighbours = self._before[operation] | self._after[operation]
        joins = any(self._assignment[other] == position for other in neighbours)
        total = 0.0 if joins else prices.steps[position]
        inside = [
            any(self._partition[other] == at for other in side)
            for side in (self._before[operation], self._after[operation])
        ]
        if self._sizes[at] == 1:
            total -= prices.steps[chosen]
        elif all(inside):
            total += prices.steps[chosen]
        nbytes = self._judge.moved([operation])
        return total + nbytes * (prices.moving[position] + prices.moving[chosen] * any(inside))

    def _show(self, cost: float) -> str:
        if not self._energy:
            return duration(cost)
        return f"{duration(cost)} of the reference's"


def duration(ns: float) -> str:
    """Nanoseconds for people: "1.2 ms"."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


def all_reasons(
    arrangement: Arrangement, judge: Judge, *, energy: bool
) -> Sequence[dict[str, Refusal]]:
    """The reasons of every operation, in order."""
    reasons = Reasons(arrangement, judge, energy=energy)
    return [reasons.of(index) for index in polled(range(len(arrangement.assignment)))]
