"""The arrangement that is predicted to cost least, within the policy's limits.

Proposals come from dynamic programming, from NNAPI's greedy rule and from each single device with the others
behind it; the judge prices each with the partitions it really makes. The cheapest that the policy allows is
taken, so that no plan is predicted to cost more than that of the best single device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import PlacementError
from penstock.partitioning.dynamic import cheapest, is_chain
from penstock.partitioning.greedy import followers_of, partitions_of
from penstock.partitioning.limits import (
    complaint_of,
    on_one_device,
    require_homes,
)
from penstock.partitioning.policy import Policy
from penstock.partitioning.prediction import Judge, Prices
from penstock.partitioning.support import Arrangement, Partition, SupportTable

ROUNDS: Final = 3
"""Times that dynamic programming is repeated along the order of the partitions it led to."""

MOST_MOVES: Final = 200
"""Partitions that are tried on another device, at most."""

MOST_VISITS: Final = 50_000
"""Operations that are looked at for it, at most."""

BIASES: Final = (4.0, 16.0, 64.0)
"""What the reference's time counts, step by step, where a plan leaves it more than `min_coverage` allows."""


class Proposal(Struct, frozen=True):
    """An assignment (operation -> candidate), its partitions, and what the judge says they cost."""

    assignment: tuple[int, ...]
    partitions: tuple[Partition, ...]
    cost: float


def arrange_by_cost(table: SupportTable, judge: Judge, policy: Policy) -> Arrangement:
    """The cheapest arrangement found that the policy allows.

    Raises `PlacementError` where an operation has no device, or the limits cannot be met.
    """
    require_homes(table)
    found = _within_limits(table, judge, policy, 1.0)
    if coverage_of(found) >= policy.min_coverage:
        return found
    for bias in BIASES:
        other = _within_limits(table, judge, policy, bias)
        if coverage_of(other) >= policy.min_coverage:
            return other
    covered = _off_reference(table, f"min_coverage={policy.min_coverage:g} keeps it elsewhere")
    try:
        return _within_limits(covered, judge, policy, 1.0)
    except PlacementError:
        return found


def arrange_as(
    table: SupportTable, judge: Judge, assignment: Sequence[str], policy: Policy
) -> Arrangement | None:
    """The arrangement that gives each operation to the device of that name; None where a device refuses one,
    or the policy forbids the result.
    """
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
    """Arrangements worth to be measured, each once, with a name: single devices first, then `arrange_by_cost`,
    then what would be cheapest if a step or a device cost more or less than is believed.
    """
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
    if complaint_of(table, proposal.partitions, policy)[0]:
        return None
    arrangement = Arrangement(table, proposal.assignment, proposal.partitions)
    return arrangement if coverage_of(arrangement) >= policy.min_coverage else None


def coverage_of(arrangement: Arrangement) -> float:
    """The share of operations that are not on the reference."""
    candidates, assignment = arrangement.table.candidates, arrangement.assignment
    return sum(not candidates[position].is_reference for position in assignment) / len(assignment)


def single_device(table: SupportTable, judge: Judge, position: int) -> Proposal:
    """Everything on one candidate that it takes; the rest each where it is cheapest."""
    own = table.candidates[position].answers
    assignment = [
        position if own[index].supported else _cheapest_alone(table, judge, index)
        for index in range(len(own))
    ]
    return _judged(table, judge, assignment)


def _within_limits(
    table: SupportTable, judge: Judge, policy: Policy, reference_bias: float
) -> Arrangement:
    """As NNAPI's rule is kept to them: what breaks a limit is refused where it is, and asked for again."""
    asked = table
    best: tuple[float, Arrangement | None] = (math.inf, None)
    complaint = reason = ""
    while True:
        proposals = sorted(_propose(table, judge, reference_bias), key=lambda p: p.cost)
        legal = next(
            (p for p in proposals if not complaint_of(table, p.partitions, policy)[0]), None
        )
        if legal is not None and legal.cost < best[0]:
            best = legal.cost, Arrangement(table, legal.assignment, legal.partitions)
        if legal is proposals[0]:
            break
        complaint, reason, victims = complaint_of(table, proposals[0].partitions, policy)
        if not victims:
            break
        for victim in victims:
            table = table.refuse(victim.operations, victim.device, reason)
    if best[1] is not None:
        return best[1]
    return on_one_device(asked, judge.prices.operations, policy, complaint, reason)


def _propose(table: SupportTable, judge: Judge, reference_bias: float) -> list[Proposal]:
    """Proposals in order of preference among equals; each assignment once."""
    model = table.model
    if len(table.candidates) == 1:
        return [_judged(table, judge, [0] * len(model.operations))]
    order = range(len(model.operations))
    best = _judged(table, judge, cheapest(table, judge, order, reference_bias))
    found = {best.assignment: best}
    if not is_chain(model):
        for _ in range(ROUNDS):
            again = [index for p in best.partitions for index in p.operations]
            other = _judged(table, judge, cheapest(table, judge, again, reference_bias))
            found.setdefault(other.assignment, other)
            if other.cost >= best.cost:
                break
            best = other
    for proposal in (
        _judged(table, judge, [_cheapest_alone(table, judge, index) for index in order]),
        *(single_device(table, judge, position) for position in range(len(table.candidates))),
    ):
        found.setdefault(proposal.assignment, proposal)
    if not is_chain(model) and reference_bias == 1.0:
        best = min(found.values(), key=lambda p: p.cost)
        improved = _improve(table, judge, best)
        found.setdefault(improved.assignment, improved)
    return list(found.values())


def _judged(table: SupportTable, judge: Judge, assignment: Sequence[int]) -> Proposal:
    """The assignment with the cheaper of two ways to draw its partitions."""
    if len(used := set(assignment)) == 1:
        partitions = (Partition(used.pop(), tuple(range(len(assignment)))),)
        return Proposal(tuple(assignment), partitions, judge.plan(partitions))
    if judge.followers is None:
        judge.followers = followers_of(table.model)
    count = len(table.candidates)
    drawn = [
        partitions_of(table.model, assignment, count, first=first, followers=judge.followers)
        for first in (False, True)
    ]
    costs = [judge.plan(partitions) for partitions in drawn]
    chosen = 1 if costs[1] < costs[0] else 0
    return Proposal(tuple(assignment), tuple(drawn[chosen]), costs[chosen])


def _cheapest_alone(table: SupportTable, judge: Judge, index: int) -> int:
    row = judge.prices.operations[index]
    return min(table.takers(index), key=lambda k: (row[k], not table.candidates[k].is_reference))


def _improve(table: SupportTable, judge: Judge, best: Proposal) -> Proposal:
    """Moves whole partitions to other devices as long as that makes the plan cheaper, within bounds."""
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
    """Partitions, the smallest first, with each other device that takes all of them."""
    for partition in sorted(proposal.partitions, key=lambda p: len(p.operations)):
        for device, candidate in enumerate(table.candidates):
            if device != partition.device and all(
                candidate.answers[index].supported for index in partition.operations
            ):
                yield partition, device


def _off_reference(table: SupportTable, reason: str) -> SupportTable:
    for position, candidate in enumerate(table.candidates):
        if candidate.is_reference:
            movable = [
                index for index in range(len(candidate.answers)) if len(table.takers(index)) > 1
            ]
            return table.refuse(movable, position, reason)
    return table
