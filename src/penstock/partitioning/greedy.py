"""NNAPI's local greedy rule (NNAPI sections 4.3 and 4.4): the best device for each operation by
itself, then partitions by draining one queue of ready operations after another.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Sequence

from penstock.errors import Refusal, RefusalCode
from penstock.hal import Preference
from penstock.interrupts import checkpoint, polled
from penstock.ir import Model
from penstock.partitioning.cost import Costs
from penstock.partitioning.support import HANDLES, Partition, SupportTable


def best_device(table: SupportTable, costs: Costs, operation: int) -> int | None:
    """The candidate with the smallest value; of equals the first, save that the reference device
    beats them all. None where no candidate may run the operation.
    """
    best: int | None = None
    for position in table.takers(operation):
        cost = costs[operation][position]
        tie = table.candidates[position].is_reference
        if (
            best is None
            or cost < costs[operation][best]
            or (tie and cost == costs[operation][best])
        ):
            best = position
    return best


def explain(
    table: SupportTable, costs: Costs, operation: int, chosen: int, preference: Preference
) -> dict[str, Refusal]:
    """Device name -> why *operation* is not there, for every candidate but the chosen one."""
    quantity = "power usage" if preference == "low_power" else "execution time"
    winner = table.candidates[chosen].name
    found: dict[str, Refusal] = {}
    for position, candidate in enumerate(table.candidates):
        if position == chosen:
            continue
        answer, cost, best = (
            candidate.answers[operation],
            costs[operation][position],
            costs[operation][chosen],
        )
        if answer.refusal is not None:
            refusal = answer.refusal
        elif cost == best:
            words = f"{quantity} no better than on {winner}, which goes first"
            refusal = Refusal(RefusalCode.DECLARED, words)
        elif math.isinf(cost):
            words = f"declares no {quantity} for this element type; {winner} does"
            refusal = Refusal(RefusalCode.UNDECLARED, words)
        else:
            words = f"{quantity} {cost:g}, on {winner} {best:g}"
            refusal = Refusal(RefusalCode.DECLARED, words)
        found[candidate.name] = refusal
    return found


def partitions_of(
    model: Model,
    assignment: Sequence[int],
    candidates: int,
    *,
    first: bool = False,
    followers: Sequence[Sequence[int]] | None = None,
) -> list[Partition]:
    """The partitions of an assignment (operation -> candidate), in an order in which they can run.

    One first-in-first-out queue of ready operations for each candidate. The last candidate whose
    queue is not empty, or with *first* the first one, opens a partition and drains its queue, what
    becomes ready meanwhile included: the other candidates get more chances to gather inputs.
    *followers* is `followers_of` the model, where it is known already.
    """
    opening = min if first else max
    followers = followers_of(model) if followers is None else followers
    waiting = [0] * len(model.operations)
    for index in itertools.chain.from_iterable(followers):
        waiting[index] += 1
    queues: list[deque[int]] = [deque() for _ in range(candidates)]
    for index, count in enumerate(waiting):
        if count == 0:
            queues[assignment[index]].append(index)
    partitions: list[Partition] = []
    while any(queues):
        device = opening(k for k, queue in enumerate(queues) if queue)
        drained: list[int] = []
        checkpoint()
        while queues[device]:
            index = queues[device].popleft()
            drained.append(index)
            for later in followers[index]:
                waiting[later] -= 1
                if waiting[later] == 0:
                    queues[assignment[later]].append(later)
        partitions.append(Partition(device, tuple(drained)))
    return partitions


def handle_users(model: Model) -> list[int]:
    """The operations of the entry subgraph that touch a handle. What they do to each other shows in
    no value, so they keep the model's order and stay together.
    """
    opaque = {index for index, operand in enumerate(model.operands) if operand.dtype in HANDLES}
    return [
        index
        for index, operation in enumerate(polled(model.operations))
        if opaque and not opaque.isdisjoint((*operation.inputs, *operation.outputs))
    ]


def followers_of(model: Model) -> list[list[int]]:
    """For each operation those that must wait for it."""
    writer = {
        o: index for index, operation in enumerate(model.operations) for o in operation.outputs
    }
    followers: list[list[int]] = [[] for _ in model.operations]
    for index, operation in enumerate(polled(model.operations)):
        for earlier in {writer[operand] for operand in operation.inputs if operand in writer}:
            followers[earlier].append(index)
    users = handle_users(model)
    for earlier, index in itertools.pairwise(users):
        followers[earlier].append(index)
    return followers
