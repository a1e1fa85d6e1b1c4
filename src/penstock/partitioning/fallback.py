"""Which steps the reference device may repeat: what the policy says of it, known before anything fails."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.partitioning.plan import ExecutionStep, Placement
from penstock.partitioning.policy import Policy
from penstock.partitioning.support import REFERENCE_DEVICE, SupportTable, policy_refusal


def permit_fallback(
    steps: Sequence[ExecutionStep],
    table: SupportTable,
    operations: Sequence[Placement],
    policy: Policy,
) -> tuple[ExecutionStep, ...]:
    """*steps* with `may_fall_back` set where the policy lets the reference device repeat them.

    *table* holds the candidates' answers before partitions were refused for their size. A reference
    device among the candidates must have said yes to every operation of the step; one that is not is held
    to *forbid* and *require* alone, and whoever falls back on it asks it first. Of the steps that pass,
    the smallest go first while `min_coverage` holds with all of them on the reference device.
    """
    eligible = [
        step
        for step in steps
        if step.device != REFERENCE_DEVICE
        and all(_may_run(table, index, policy) for index in step.operations)
    ]
    guests = sum(placement.device != REFERENCE_DEVICE for placement in operations)
    granted = set()
    for step in sorted(eligible, key=lambda step: len(step.operations)):
        guests -= len(step.operations)
        if guests / len(operations) < policy.min_coverage:
            break
        granted.add(step.index)
    return tuple(replace(step, may_fall_back=step.index in granted) for step in steps)


def _may_run(table: SupportTable, operation: int, policy: Policy) -> bool:
    for candidate in table.candidates:
        if candidate.is_reference:
            return candidate.answers[operation].supported
    return not policy_refusal(table.model, operation, REFERENCE_DEVICE, policy)
