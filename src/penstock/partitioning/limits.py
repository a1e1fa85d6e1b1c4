"""What the policy and the values allow of an arrangement: sizes, numbers and boundaries of
partitions.

A partition that may not stay is refused on its device, with that as the reason, and the rule is
asked again: its operations go to their next best device, in the end the reference. Refusals only
grow, so this ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import Place, PlacementError, Refusal, RefusalCode, counted
from penstock.hal import ACCURACY_RANK, AccuracyClass
from penstock.interrupts import polled
from penstock.ir.types import static_shape
from penstock.partitioning.cost import Costs
from penstock.partitioning.greedy import best_device, handle_users, partitions_of
from penstock.partitioning.policy import Policy
from penstock.partitioning.support import Arrangement, Partition, SupportTable

NO_REFUSAL: Final = Refusal(RefusalCode.OTHER, "")


def arrange(table: SupportTable, costs: Costs, policy: Policy) -> Arrangement:
    """The greedy arrangement, changed as little as the policy's limits need.

    Raises `PlacementError` where an operation has no device, or the limits cannot be met.
    """
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
    """The place of an operation, with its number in the whole model."""
    model, number = table.model, operation
    if table.numbers:
        number = table.numbers[operation]
    name = model.entry.operation_name(operation)
    kind = model.operations[operation].key
    return Place(model.main, number, type=kind, name=name)


def require_homes(table: SupportTable) -> None:
    """Raises `PlacementError` where an operation has no device."""
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
        if any(why.code is RefusalCode.SHAPE_UNKNOWN for why in refusals.values()):
            message += _open_inputs(table)
        message += laxer_class(table, homeless)
        raise PlacementError(message, refusals, place_of(table, homeless[0]))


def laxer_class(table: SupportTable, homeless: Sequence[int]) -> str:
    """What a caller may ask for where only the accuracy class keeps a device from each of the
    operations *homeless*; "" where more does.
    """
    if not homeless:
        return ""
    found: list[tuple[int, AccuracyClass]] = []
    for operation in homeless:
        refused = [c.answers[operation] for c in table.candidates]
        ranks = [
            (ACCURACY_RANK[a.accuracy], a.accuracy)
            for a in refused
            if a.refusal is not None
            and a.refusal.code is RefusalCode.ACCURACY
            and a.accuracy in ACCURACY_RANK
        ]
        if not ranks:
            return ""
        found.append(max(ranks))
    accuracy = min(found)[1]
    exact = any(c.name == "reference" for c in table.candidates)
    also = "" if exact else ", and the device 'reference' (-d reference) is exact"
    return f"; accuracy={accuracy!r} (--accuracy {accuracy}) permits what is refused for that{also}"


def _open_inputs(table: SupportTable) -> str:
    """Which inputs a caller may give shapes for."""
    entry = table.model.entry
    given = [entry.operands[i] for i in entry.ordinary_inputs]
    hints = [f"{o.name!r}: {o.shape}" for o in given if static_shape(o.shape) is None]
    return f"; shapes={{name: shape}} makes shapes known: {', '.join(hints)}" if hints else ""


def _assign(table: SupportTable, costs: Costs, operations: Sequence[int]) -> list[int]:
    best = [best_device(table, costs, index) for index in polled(operations)]
    return [position for position in best if position is not None]


def complaint_of(
    table: SupportTable, partitions: Sequence[Partition], policy: Policy
) -> tuple[str, Refusal, list[Partition]]:
    """What is wrong with *partitions* (empty: nothing), the refusal of some of them for it, and
    those to refuse: none where none can move.
    """
    if apart := _handles_apart(table, partitions):
        words = "operations that share handles must run together"
        return apart, Refusal(RefusalCode.HANDLES, words), []
    least, most = policy.min_partition_size, policy.max_partitions
    guests = [p for p in partitions if not table.candidates[p.device].is_reference]
    guests.sort(key=lambda p: len(p.operations))
    small = [p for p in guests if len(p.operations) < least]
    if small:
        complaint = f"{len(small)} of {counted(len(partitions), 'partition')} {'is' if len(small) == 1 else 'are'} smaller than min_partition_size={least}"
        reason = f"its partition there would be smaller than min_partition_size={least}"
        refusal = Refusal(RefusalCode.LIMIT, reason)
        return complaint, refusal, _of_one_device([p for p in small if _can_move(table, p)])
    if most is not None and len(partitions) > most:
        complaint = f"the plan has {len(partitions)} partitions, max_partitions={most}"
        reason = f"its partition there is one more than max_partitions={most} allows"
        batch = max(1, (len(partitions) - most) // 4)
        refusal = Refusal(RefusalCode.LIMIT, reason)
        return complaint, refusal, [p for p in guests if _can_move(table, p)][:batch]
    return "", NO_REFUSAL, []


def _of_one_device(partitions: Sequence[Partition]) -> list[Partition]:
    """Those of the device that would lose the fewest operations: the others may grow together then."""
    sizes: dict[int, int] = {}
    for partition in partitions:
        sizes[partition.device] = sizes.get(partition.device, 0) + len(partition.operations)
    return [p for p in partitions if p.device == min(sizes, key=sizes.__getitem__)]


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
    """Everything on the cheapest device that may run it all and satisfies the policy."""
    everything = range(len(table.model.operations))
    best: tuple[float, int] | None = None
    for position, candidate in enumerate(table.candidates):
        small = not candidate.is_reference and len(everything) < policy.min_partition_size
        if small or not all(answer.supported for answer in candidate.answers):
            continue
        cost = sum(costs[index][position] for index in everything)
        if best is None or cost < best[0] or (candidate.is_reference and cost == best[0]):
            best = cost, position
    if best is None:
        reasons = {
            c.name: _first_refusal(table, k) or refusal for k, c in enumerate(table.candidates)
        }
        raise PlacementError(f"{complaint}, and no single device may run everything", reasons)
    for position in range(len(table.candidates)):
        if position != best[1]:
            table = table.refuse(everything, position, refusal)
    assignment = (best[1],) * len(everything)
    return Arrangement(table, assignment, (Partition(best[1], tuple(everything)),))


def _first_refusal(table: SupportTable, position: int) -> str:
    for index, answer in enumerate(table.candidates[position].answers):
        if not answer.supported:
            return f"{place_of(table, index)}: {answer.reason}"
    return ""
