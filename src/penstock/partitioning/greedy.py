"""NNAPI's local greedy rule within the policy's limits (NNAPI sections 4.3 and 4.4)."""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, TypeAlias

from penstock.errors import Place, PlacementError, Refusal, RefusalCode, counted
from penstock.hal import Capabilities, Preference
from penstock.interrupts import checkpoint, polled
from penstock.ir import Model
from penstock.ir.types import static_shape
from penstock.ir.validate import subgraph_references
from penstock.partitioning.placements import asking_for
from penstock.partitioning.policy import Policy
from penstock.partitioning.prediction import declared_cost
from penstock.partitioning.remedies import laxest, strictest
from penstock.partitioning.support import HANDLES, Arrangement, Partition, SupportTable
from penstock.partitioning.work import callees_first

Costs: TypeAlias = "tuple[tuple[float, ...], ...]"
"""Cost of each operation on each candidate relative to the reference; `inf` if undeclared."""

IF_SHARE: Final = 0.5
"""Each branch of an IF is expected to run half of the time."""


def measure(table: SupportTable, preference: Preference) -> Costs:
    """Every operation's declared power usage ("low_power") or execution time on every candidate."""
    energy = preference == "low_power"
    columns = [_column(table.model, c.capabilities, energy=energy) for c in table.candidates]
    return tuple(zip(*columns, strict=True))


def _column(model: Model, capabilities: Capabilities, *, energy: bool) -> list[float]:
    sums: dict[int, float] = {}
    costs: list[float] = []
    for index in callees_first(model):
        costs = []
        for operation in model.subgraphs[index].operations:
            inner = math.fsum(sums[target] for target in subgraph_references(operation))
            share = {"IF": IF_SHARE, "WHILE": 1.0}.get(operation.type)
            own = declared_cost(model, index, operation, capabilities, energy=energy)
            costs.append(own if share is None else own + share * inner)
        sums[index] = math.fsum(costs)
    return costs


def explain(
    table: SupportTable, costs: Costs, operation: int, chosen: int, preference: Preference
) -> dict[str, Refusal]:
    """Device name to the reason why *operation* is not on it, for all candidates but *chosen*."""
    quantity = "power usage" if preference == "low_power" else "execution time"
    winner, best = table.candidates[chosen].name, costs[operation][chosen]
    found: dict[str, Refusal] = {}
    for position, candidate in enumerate(table.candidates):
        if position == chosen:
            continue
        answer, cost = candidate.answers[operation], costs[operation][position]
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
    """The partitions of an assignment (operation to candidate), in a valid execution order.

    Each candidate has a queue of ready operations. The last candidate with a non-empty queue (with
    *first*, the first one) opens a partition and empties its queue, including operations that
    become ready meanwhile. So the other candidates collect more ready inputs. *followers* is the
    result of `followers_of`, if known.
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
    """The entry's operations on handles. They keep the model's order and stay together."""
    opaque = {index for index, operand in enumerate(model.operands) if operand.dtype in HANDLES}
    return [
        index
        for index, operation in enumerate(polled(model.operations))
        if opaque and not opaque.isdisjoint((*operation.inputs, *operation.outputs))
    ]


def followers_of(model: Model) -> list[list[int]]:
    """For each operation, the operations that must wait for it."""
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


NO_REFUSAL: Final = Refusal(RefusalCode.OTHER, "")


def arrange(table: SupportTable, costs: Costs, policy: Policy) -> Arrangement:
    """The greedy arrangement within the policy's limits. Raises `PlacementError`."""
    asked = table
    require_homes(table)
    assignment = _assign(table, costs, range(len(table.model.operations)))
    while True:
        partitions = partitions_of(table.model, assignment, len(table.candidates))
        complaint, refusal, victims = complaint_of(table, partitions, policy)
        if not complaint:
            return Arrangement(table, tuple(assignment), tuple(partitions))
        if not victims:
            return on_one_device(asked, costs, policy, complaint, refusal)
        for victim in victims:
            table = table.refuse(victim.operations, victim.device, refusal)
        moved = [index for victim in victims for index in victim.operations]
        for index, position in zip(moved, _assign(table, costs, moved), strict=True):
            assignment[index] = position


def place_of(table: SupportTable, operation: int) -> Place:
    """The place of an operation, with its index in the whole model."""
    model = table.model
    number = table.numbers[operation] if table.numbers else operation
    name = model.entry.operation_name(operation)
    return Place(model.main, number, type=model.operations[operation].key, name=name)


def require_homes(table: SupportTable) -> None:
    """Raises `PlacementError` if an operation has no device."""
    homeless = [
        index for index in polled(range(len(table.model.operations))) if not table.takers(index)
    ]
    if homeless:
        message = "no device may run it"
        if len(homeless) > 1:
            message += f" (the first of {len(homeless)} such operations)"
        if not table.candidates:
            message += "; no device is given"
        refusals = table.refusals(homeless[0])
        entry = table.model.entry
        given = [entry.operands[i] for i in entry.ordinary_inputs]
        hints = [f"{o.name!r}: {o.shape}" for o in given if static_shape(o.shape) is None]
        if hints and any(w.code is RefusalCode.SHAPE_UNKNOWN for w in refusals.values()):
            message += f"; shapes={{name: shape}} makes shapes known: {', '.join(hints)}"
        message += laxer_class(table, homeless)
        raise PlacementError(message, refusals, place_of(table, homeless[0]))


def laxer_class(table: SupportTable, homeless: Sequence[int]) -> str:
    """Advice to ask for a laxer accuracy class, if only the class rejects *homeless*; else ""."""
    if not homeless:
        return ""
    classes = [strictest(c.answers[index].refusal for c in table.candidates) for index in homeless]
    if not all(classes):
        return ""
    exact = any(c.name == "reference" for c in table.candidates)
    also = "" if exact else ", and the device 'reference' (-d reference) is exact"
    return f"; {asking_for(laxest(classes))} permits what is refused for that{also}"


def _assign(table: SupportTable, costs: Costs, operations: Sequence[int]) -> list[int]:
    best = [table.cheapest(index, costs[index]) for index in polled(operations)]
    return [position for position in best if position is not None]


def complaint_of(
    table: SupportTable, partitions: Sequence[Partition], policy: Policy
) -> tuple[str, Refusal, list[Partition]]:
    """The fault of *partitions* ("" if none), the refusal for it, and the partitions to refuse."""
    if apart := _handles_apart(table, partitions):
        words = "operations that share handles must run together"
        return apart, Refusal(RefusalCode.HANDLES, words), []
    least, most = policy.min_partition_size, policy.max_partitions
    guests = [p for p in partitions if not table.candidates[p.device].is_reference]
    guests.sort(key=lambda p: len(p.operations))
    small = [p for p in guests if len(p.operations) < least]
    if small:
        complaint = (
            f"{len(small)} of {counted(len(partitions), 'partition')} "
            f"{'is' if len(small) == 1 else 'are'} smaller than min_partition_size={least}"
        )
        reason = f"its partition there would be smaller than min_partition_size={least}"
        movable = [p for p in small if _can_move(table, p)]
        sizes = Counter[int]()
        for partition in movable:
            sizes[partition.device] += len(partition.operations)
        # Only the device that loses the fewest operations: other partitions may grow by that.
        loser = min(sizes, key=sizes.__getitem__, default=None)
        victims = [p for p in movable if p.device == loser]
        return complaint, Refusal(RefusalCode.LIMIT, reason), victims
    if most is not None and len(partitions) > most:
        complaint = f"the plan has {len(partitions)} partitions, max_partitions={most}"
        reason = f"its partition there is one more than max_partitions={most} allows"
        batch = max(1, (len(partitions) - most) // 4)
        refusal = Refusal(RefusalCode.LIMIT, reason)
        return complaint, refusal, [p for p in guests if _can_move(table, p)][:batch]
    return "", NO_REFUSAL, []


def _can_move(table: SupportTable, partition: Partition) -> bool:
    return all(len(table.takers(index)) > 1 for index in partition.operations)


def _handles_apart(table: SupportTable, partitions: Sequence[Partition]) -> str:
    users = frozenset(handle_users(table.model))
    homes = [users.intersection(partition.operations) for partition in polled(partitions)]
    homes = [home for home in homes if home]
    if len(homes) < 2:
        return ""
    places = " and ".join(str(place_of(table, min(home))) for home in homes[:2])
    return f"{places} share handles and would run apart"


def on_one_device(
    table: SupportTable, costs: Costs, policy: Policy, complaint: str, refusal: Refusal
) -> Arrangement:
    """All operations on the cheapest device that may run them and satisfies the policy."""
    everything = range(len(table.model.operations))
    totals: dict[int, tuple[float, bool]] = {}
    for position, candidate in enumerate(table.candidates):
        small = not candidate.is_reference and len(everything) < policy.min_partition_size
        if not small and all(answer.supported for answer in candidate.answers):
            cost = sum(costs[index][position] for index in everything)
            totals[position] = cost, not candidate.is_reference
    if not totals:
        reasons = {
            c.name: _first_refusal(table, k) or refusal for k, c in enumerate(table.candidates)
        }
        raise PlacementError(f"{complaint}, and no single device may run everything", reasons)
    best = min(totals, key=totals.__getitem__)
    for position in range(len(table.candidates)):
        if position != best:
            table = table.refuse(everything, position, refusal)
    assignment = (best,) * len(everything)
    return Arrangement(table, assignment, (Partition(best, tuple(everything)),))


def _first_refusal(table: SupportTable, position: int) -> str:
    for index, answer in enumerate(table.candidates[position].answers):
        if not answer.supported:
            return f"{place_of(table, index)}: {answer.reason}"
    return ""
