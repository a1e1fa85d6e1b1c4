"""Searches the arrangement with the lowest predicted cost within the policy's limits.

Proposals come from dynamic programming, from NNAPI's greedy rule, and from each single device with
the other devices as substitutes. The judge prices the partitions of each proposal. The cheapest
proposal that the policy allows is used, so no plan is predicted to cost more than the best single
device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import PlacementError, Refusal, RefusalCode
from penstock.interrupts import polled
from penstock.partitioning import greedy
from penstock.partitioning.dynamic import cheapest, is_chain
from penstock.partitioning.policy import Policy
from penstock.partitioning.prediction import UNDECLARED, Judge, Prices
from penstock.partitioning.show import duration
from penstock.partitioning.support import Arrangement, Partition, SupportTable

ROUNDS: Final = 3
"""Repetitions of dynamic programming, each along the order of the previous partitions."""

MOST_MOVES: Final = 200
"""Maximum number of partition moves tried."""

MOST_VISITS: Final = 50_000
"""Maximum number of operations examined while moving partitions."""

BIASES: Final = (4.0, 16.0, 64.0)
"""Factors on the reference's time, for plans with less on it, as `min_coverage` requires."""

MOST_WAYS: Final = 2_000_000
"""Maximum transitions of dynamic programming that counts steps."""

DEARER: Final = tuple(2.0**power for power in range(1, 17, 2))
"""Factors on the cost of a step, for plans with fewer and larger steps."""


class Proposal(Struct, frozen=True):
    """An assignment (operation to candidate), its partitions, and the judge's price for them."""

    assignment: tuple[int, ...]
    partitions: tuple[Partition, ...]
    cost: float


def arrange_by_cost(table: SupportTable, judge: Judge, policy: Policy) -> Arrangement:
    """The cheapest arrangement found that the policy allows. Raises `PlacementError`."""
    greedy.require_homes(table)
    if (found := _within_limits(table, judge, policy)) is not None:
        return _worth_its_error(table, judge, policy, found)
    words = f"min_coverage={policy.min_coverage:g} keeps it elsewhere"
    covered = _off_reference(table, Refusal(RefusalCode.LIMIT, words))
    try:
        found = _within_limits(covered, judge, policy)
    except PlacementError:
        found = None
    if found is not None:
        return found
    # The fewest operations on the reference: the coverage check reports it if even they are many.
    lax = replace(policy, min_coverage=0.0)
    try:
        found = _within_limits(covered, judge, lax)
    except PlacementError:
        found = _within_limits(table, judge, lax)
    return found or greedy.on_one_device(table, judge.prices.operations, lax, "", greedy.NO_REFUSAL)


CLOSENESS: Final = 0.4
"""Share of the error of predictions by which two single devices must differ to be told apart."""


def _worth_its_error(
    table: SupportTable, judge: Judge, policy: Policy, best: Arrangement
) -> Arrangement:
    """*best*, or a plan that it is not predicted to beat by more than predictions err.

    A plan over several devices must gain more, against each single device, than the error of what
    it moves away from it. Of single devices that differ less, the one with the lowest declared cost
    stays: a small change of the measurements then changes no plan.
    """
    prices = judge.prices
    if prices.declared is None or len(table.candidates) == 1:
        return best
    alone = [_legal(table, judge, one.assignment, policy) for one in _singles(table, judge)]
    singles = {one.assignment: one for one in alone if one is not None}
    if not singles:
        return best
    costs = {assignment: judge.plan(one.partitions) for assignment, one in singles.items()}
    if best.assignment not in singles:
        cost = judge.plan(best.partitions)
        if all(costs[one] - cost > _error_of(prices, one, best.assignment) for one in singles):
            return best
    least = min(costs, key=costs.__getitem__)
    limit = costs[least] * (1 + (prices.error - 1) * CLOSENESS)
    close = [assignment for assignment, cost in costs.items() if cost <= limit]
    declaring = Judge(table.model, prices.declared, judge.apart)
    return singles[min(close, key=lambda one: declaring.plan(singles[one].partitions))]


def _error_of(prices: Prices, alone: Sequence[int], several: Sequence[int]) -> float:
    """The error of what *alone* is predicted to take for the operations that *several* moves."""
    moved = (
        row[own]
        for row, own, new in zip(prices.operations, alone, several, strict=True)
        if own != new
    )
    return (1 - 1 / prices.error) * math.fsum(moved)


def _singles(table: SupportTable, judge: Judge) -> Iterator[Proposal]:
    """The plan of each device that supports something, with the others as substitutes."""
    for position in range(len(table.candidates)):
        proposal = single_device(table, judge, position)
        if position in proposal.assignment:
            yield proposal


def arrange_as(
    table: SupportTable, judge: Judge, assignment: Sequence[str], policy: Policy
) -> Arrangement | None:
    """The arrangement by device names; None if a device or the policy rejects it."""
    position = {candidate.name: k for k, candidate in enumerate(table.candidates)}
    if len(assignment) != len(table.model.operations) or not position.keys() >= set(assignment):
        return None
    places = [position[name] for name in assignment]
    if not all(table.candidates[k].answers[i].supported for i, k in enumerate(places)):
        return None
    return _legal(table, judge, places, policy)


def arrangements(
    table: SupportTable, judge: Judge, policy: Policy
) -> list[tuple[str, Arrangement]]:
    """Arrangements worth measuring, each once: single devices, the predicted one, then guesses."""
    predicted = arrange_by_cost(table, judge, policy)
    found: dict[tuple[int, ...], tuple[str, Arrangement]] = {}
    for position, candidate in enumerate(table.candidates):
        alone = single_device(table, judge, position).assignment
        if position in alone and (given := _legal(table, judge, alone, policy)):
            found.setdefault(alone, (candidate.name, given))
    found.setdefault(predicted.assignment, ("predicted", predicted))
    for name, prices in _beliefs(table, judge.prices):
        try:
            other = arrange_by_cost(table, Judge(table.model, prices, judge.apart), policy)
        except PlacementError:
            continue
        found.setdefault(other.assignment, (name, other))
    return list(found.values())


def _beliefs(table: SupportTable, prices: Prices) -> Iterator[tuple[str, Prices]]:
    for name, factor in (("if steps cost more", 8.0), ("if steps cost less", 0.125)):
        yield name, replace(prices, steps=tuple(ns * factor for ns in prices.steps))
    for position, candidate in enumerate(table.candidates):
        for name, factor in (("faster", 0.5), ("slower", 2.0)):
            rows = tuple(
                tuple(ns * factor if k == position else ns for k, ns in enumerate(row))
                for row in prices.operations
            )
            yield f"if {candidate.name} were {name}", replace(prices, operations=rows)


def _legal(
    table: SupportTable, judge: Judge, assignment: Sequence[int], policy: Policy
) -> Arrangement | None:
    proposal = _judged(table, judge, assignment)
    if greedy.complaint_of(table, proposal.partitions, policy)[0]:
        return None
    covers = _coverage(table, proposal.assignment) >= policy.min_coverage
    return Arrangement(table, proposal.assignment, proposal.partitions) if covers else None


def _coverage(table: SupportTable, assignment: Sequence[int]) -> float:
    """The share of operations that are not on the reference."""
    guests = [not candidate.is_reference for candidate in table.candidates]
    return sum(guests[position] for position in assignment) / len(assignment)


def single_device(table: SupportTable, judge: Judge, position: int) -> Proposal:
    """All operations that one candidate supports on it; the others where they are cheapest."""
    return _judged(table, judge, _cheapest_alone(table, judge, position))


def _within_limits(table: SupportTable, judge: Judge, policy: Policy) -> Arrangement | None:
    """The cheapest arrangement that the policy allows; None if no proposal has its coverage.

    If the cheapest one breaks a limit, plans with a higher cost for each step are proposed. After
    that, partitions that break a limit are rejected on their device, and the search is repeated.
    The greedy rule of NNAPI is kept within limits in the same way.
    """
    asked = table
    best: tuple[float, Arrangement | None] = (math.inf, None)
    complaint, refusal = "", greedy.NO_REFUSAL
    while True:
        proposals = _covered(table, _propose(table, judge, policy), policy)
        if not proposals:
            break
        complaint, refusal, victims = greedy.complaint_of(table, proposals[0].partitions, policy)
        if complaint and table is asked:
            more = _with_fewer_steps(table, judge, policy)
            proposals = [proposals[0], *_covered(table, [*proposals[1:], *more], policy)]
        for proposal in proposals:
            if proposal.cost >= best[0]:
                break
            if not greedy.complaint_of(table, proposal.partitions, policy)[0]:
                arrangement = Arrangement(table, proposal.assignment, proposal.partitions)
                best = proposal.cost, arrangement
        if not victims:
            break
        for victim in victims:
            table = table.refuse(victim.operations, victim.device, refusal)
    if best[1] is not None or not complaint:
        return best[1]
    return greedy.on_one_device(asked, judge.prices.operations, policy, complaint, refusal)


def _covered(table: SupportTable, proposals: Iterable[Proposal], policy: Policy) -> list[Proposal]:
    kept = [p for p in proposals if _coverage(table, p.assignment) >= policy.min_coverage]
    return sorted(kept, key=lambda p: p.cost)


def _propose(table: SupportTable, judge: Judge, policy: Policy) -> list[Proposal]:
    """Proposals without duplicates; among equal costs, the earlier is preferred."""
    model = table.model
    if len(table.candidates) == 1:
        return [_judged(table, judge, [0] * len(model.operations))]
    order, chain = range(len(model.operations)), is_chain(model)
    best = _along(table, judge, order)
    found = {best.assignment: best}

    def add(proposal: Proposal) -> Proposal:
        return found.setdefault(proposal.assignment, proposal)

    for _ in range(0 if chain else ROUNDS):
        again = [index for p in best.partitions for index in p.operations]
        other = add(_along(table, judge, again))
        if other.cost >= best.cost:
            break
        best = other
    add(_judged(table, judge, _cheapest_alone(table, judge)))
    for position in range(len(table.candidates)):
        add(single_device(table, judge, position))
    if not chain:
        add(_improve(table, judge, min(found.values(), key=lambda p: p.cost)))
    if _coverage(table, best.assignment) < policy.min_coverage:
        for bias in BIASES:
            add(_along(table, judge, order, reference_bias=bias))
    return list(found.values())


def _with_fewer_steps(table: SupportTable, judge: Judge, policy: Policy) -> Iterator[Proposal]:
    """Plans with fewer steps: the cheapest within `max_partitions`, and some with dearer steps."""
    order = range(len(table.model.operations))
    most = policy.max_partitions
    if most is not None and len(order) * len(table.candidates) ** 2 * most <= MOST_WAYS:
        assignment = cheapest(table, judge, order, most_steps=most)
        if assignment is not None:
            yield _judged(table, judge, assignment)
    for factor in DEARER:
        steps = tuple(ns * factor for ns in judge.prices.steps)
        believed = Judge(table.model, replace(judge.prices, steps=steps), judge.apart)
        assignment = cheapest(table, believed, order)
        if assignment is not None:
            yield _judged(table, judge, assignment)


def _along(
    table: SupportTable, judge: Judge, order: Sequence[int], reference_bias: float = 1.0
) -> Proposal:
    assignment = cheapest(table, judge, order, reference_bias=reference_bias)
    if assignment is None:
        raise PlacementError("an operation has no device", {})
    return _judged(table, judge, assignment)


def _judged(table: SupportTable, judge: Judge, assignment: Sequence[int]) -> Proposal:
    """The assignment with the cheaper of two ways to form partitions."""
    if len(used := set(assignment)) == 1:
        partitions = (Partition(used.pop(), tuple(range(len(assignment)))),)
        return Proposal(tuple(assignment), partitions, judge.plan(partitions))
    if judge.followers is None:
        judge.followers = greedy.followers_of(table.model)
    count = len(table.candidates)
    drawn = [
        greedy.partitions_of(table.model, assignment, count, first=first, followers=judge.followers)
        for first in (False, True)
    ]
    costs = [judge.plan(partitions) for partitions in drawn]
    chosen = 1 if costs[1] < costs[0] else 0
    return Proposal(tuple(assignment), tuple(drawn[chosen]), costs[chosen])


def _cheapest_alone(table: SupportTable, judge: Judge, preferred: int | None = None) -> list[int]:
    """For each operation *preferred* if it supports it, else the cheapest without boundaries."""
    own = None if preferred is None else table.candidates[preferred].answers
    rows = enumerate(polled(judge.prices.operations))
    found = (
        preferred if own is not None and own[index].supported else table.cheapest(index, row)
        for index, row in rows
    )
    return [position for position in found if position is not None]


def _improve(table: SupportTable, judge: Judge, best: Proposal) -> Proposal:
    """Moves whole partitions to other devices while the plan gets cheaper, within bounds."""
    count = len(best.assignment)
    left = min(MOST_MOVES, MOST_VISITS // max(1, count))
    improving = len(best.partitions) > 1
    while improving:
        improving = False
        for partition, device in _moves(table, best):
            if left == 0:
                return best
            left -= 1
            assignment = list(best.assignment)
            for index in partition.operations:
                assignment[index] = device
            other = _judged(table, judge, assignment)
            if other.cost < best.cost:
                best, improving = other, True
                break
    return best


def _moves(table: SupportTable, proposal: Proposal) -> Iterator[tuple[Partition, int]]:
    """Yields partitions, smallest first, with each other device that supports all of them."""
    for partition in sorted(proposal.partitions, key=lambda p: len(p.operations)):
        for device, candidate in enumerate(table.candidates):
            if device != partition.device and all(
                candidate.answers[index].supported for index in partition.operations
            ):
                yield partition, device


def _off_reference(table: SupportTable, refusal: Refusal) -> SupportTable:
    for position, candidate in enumerate(table.candidates):
        if candidate.is_reference:
            movable = [
                index for index in range(len(candidate.answers)) if len(table.takers(index)) > 1
            ]
            return table.refuse(movable, position, refusal)
    return table


class Reasons:
    """The reasons against the other devices, for every operation of one arrangement.

    If another device supports an operation, the reason is its price there. That includes the effect
    of the move at the boundaries: steps opened or closed, and values transferred.
    """

    def __init__(self, arrangement: Arrangement, judge: Judge, *, energy: bool) -> None:
        self._table, self._assignment = arrangement.table, arrangement.assignment
        self._prices: Prices = judge.prices
        self._judge, self._energy = judge, energy
        operations = self._table.model.operations
        self._handles = frozenset(greedy.handle_users(self._table.model))
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

    def every(self) -> list[dict[str, Refusal]]:
        """For each operation, the reason for each candidate but its own, by device name."""
        return [
            {
                candidate.name: (
                    candidate.answers[operation].refusal or self._loss(operation, position, chosen)
                )
                for position, candidate in enumerate(self._table.candidates)
                if position != chosen
            }
            for operation, chosen in enumerate(polled(self._assignment))
        ]

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
            found = "but no cheaper plan was found with it there"
            words = f"predicted better alone, {found}: {winner} has it"
        return Refusal(RefusalCode.PREDICTED, words)

    def _boundary(self, operation: int, position: int, chosen: int) -> float:
        """The boundary cost of moving only *operation*, without its own price."""
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
        return f"{duration(cost)} of the reference's" if self._energy else duration(cost)
