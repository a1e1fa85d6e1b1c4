"""`place`: the partition stage as one function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from penstock.errors import InputError, PlacementError
from penstock.hal import PREFERENCES, Device, Preference
from penstock.ir import Model
from penstock.memory.arena import ArenaLayout
from penstock.partitioning.cost import Costs, measure
from penstock.partitioning.fallback import permit_fallback
from penstock.partitioning.greedy import Partition, explain
from penstock.partitioning.limits import Arrangement, arrange
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep, Placement
from penstock.partitioning.policy import Policy
from penstock.partitioning.split import Cutter
from penstock.partitioning.support import REFERENCE_DEVICE, collect_support
from penstock.partitioning.temporaries import plan_temporaries

DEFAULT_POLICY: Final = Policy()


def place(
    model: Model,
    devices: Sequence[Device],
    policy: Policy = DEFAULT_POLICY,
    preference: Preference = "fast_single_answer",
) -> ExecutionPlan:
    """Decides which of *devices* runs each operation of *model*'s entry subgraph, and cuts it accordingly.

    The rule is NNAPI's (section 4.3): for each operation by itself, of the devices that may run it,
    the one whose capabilities declare the smallest execution time (power usage for "low_power") for the
    element type of its first input; of equals the first in order, but "reference" before all. Control
    flow and composites are placed whole. Shapes are taken as the model has them: infer them first.

    Pure: equal arguments give equal plans. Devices are asked what they support, nothing else.

    Raises `PlacementError` for an operation that no device may run, naming its place and each device's
    reason, and where the limits of *policy* cannot be met; `InputError` for a preference that does
    not exist, two devices of one name, and policy keys that mean nothing in this model.
    """
    if preference not in PREFERENCES:
        raise InputError(f"preference must be one of {', '.join(PREFERENCES)}, not {preference!r}")
    table = collect_support(model, devices, policy)
    names = tuple(candidate.name for candidate in table.candidates)
    if not model.operations:
        return ExecutionPlan(model, names, (), (), ArenaLayout())
    costs = measure(table, preference)
    arrangement = arrange(table, costs, policy)
    operations = _placements(arrangement, costs, preference)
    _check_coverage(operations, policy)
    steps = _steps(model, names, arrangement.partitions)
    steps = permit_fallback(steps, table, operations, policy)
    capabilities = {candidate.name: candidate.capabilities for candidate in table.candidates}
    temporaries = plan_temporaries(model, steps, capabilities)
    return ExecutionPlan(model, names, steps, operations, temporaries)


def _placements(
    arrangement: Arrangement, costs: Costs, preference: Preference
) -> tuple[Placement, ...]:
    table = arrangement.table
    entry = table.model.entry
    return tuple(
        Placement(
            index,
            entry.operations[index].type,
            entry.operation_name(index),
            table.candidates[chosen].name,
            explain(table, costs, index, chosen, preference),
            table.candidates[chosen].answers[index].accuracy,
        )
        for index, chosen in enumerate(arrangement.assignment)
    )


def _check_coverage(operations: Sequence[Placement], policy: Policy) -> None:
    left = [placement for placement in operations if placement.device == REFERENCE_DEVICE]
    coverage = (len(operations) - len(left)) / len(operations)
    if coverage >= policy.min_coverage:
        return
    counted: dict[str, Counter[str]] = {}
    for placement in left:
        for device, reason in placement.reasons.items():
            counted.setdefault(device, Counter())[f"{placement.type}: {reason}"] += 1
    reasons = {
        device: "; ".join(f"{reason} ({n})" for reason, n in counter.most_common())
        for device, counter in counted.items()
    }
    raise PlacementError(
        f"{len(left)} of {len(operations)} operations would run on {REFERENCE_DEVICE}: a coverage of "
        f"{coverage:.3g}, where min_coverage={policy.min_coverage:g}",
        reasons,
    )


def _steps(
    model: Model, names: Sequence[str], partitions: Sequence[Partition]
) -> tuple[ExecutionStep, ...]:
    entry = model.entry
    computed = {operand for operation in entry.operations for operand in operation.outputs}
    plain = computed.issuperset(entry.outputs) and len(set(entry.outputs)) == len(entry.outputs)
    if len(partitions) == 1 and plain:
        everything = tuple(range(len(entry.operations)))
        step = ExecutionStep(
            0, names[partitions[0].device], everything, model, entry.inputs, entry.outputs
        )
        return (step,)
    read_from = _read(model, partitions)
    cutter = Cutter(model, (index for partition in read_from for index in partition.operations))
    cuts = [(names[partition.device], cutter.cut(partition.operations)) for partition in read_from]
    return tuple(
        ExecutionStep(at, device, cut.operations, cut.model, cut.inputs, cut.outputs)
        for at, (device, cut) in enumerate(cuts)
    )


def _read(model: Model, partitions: Sequence[Partition]) -> list[Partition]:
    """The partitions of which something is read, by an entry output or by another of them."""
    needed = set(model.entry.outputs)
    kept: list[Partition] = []
    for partition in reversed(partitions):
        operations = [model.operations[index] for index in partition.operations]
        if any(operand in needed for operation in operations for operand in operation.outputs):
            needed |= {operand for operation in operations for operand in operation.inputs}
            kept.append(partition)
    return kept[::-1]
