"""Chooses, at planning time, the fallback devices of each step. Applies the policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from penstock.distribution import FALLBACK_DEVICE, LAST_RESORT
from penstock.hal.device import is_isolated
from penstock.interrupts import polled
from penstock.ir import Model
from penstock.partitioning.placements import Placement
from penstock.partitioning.plan import WHOLE, ExecutionPlan, ExecutionStep
from penstock.partitioning.policy import Policy
from penstock.partitioning.split import Cutter
from penstock.partitioning.support import SupportTable, live_operations, policy_refusal

NOT_ALLOWED: Final = "no fallback is allowed (allow_fallback=False)"


def permit_fallback(
    steps: Sequence[ExecutionStep],
    table: SupportTable,
    operations: Sequence[Placement],
    policy: Policy,
) -> tuple[ExecutionStep, ...]:
    """*steps* with their `fallbacks`: the other candidates in order, then the reference device.

    - A candidate qualifies if it supports every operation of the step. *table* holds the
      candidates' answers before small partitions were rejected.
    - The reference device qualifies even if it is no candidate. Then only the policy's *forbid* and
      *require* apply, and the fallback queries its support first.
    - Smaller steps get the reference device first. The policy's `min_coverage` must hold even if
      all of these steps fall back to it.
    - After a reference device in a host process comes the in-process one, `LAST_RESORT`.

    A step without `fallbacks` gets the reason in `no_fallback`.
    """
    if not policy.allow_fallback:
        return tuple(replace(step, no_fallback=NOT_ALLOWED) for step in steps)
    granted = _granted_to_reference(steps, table, operations, policy)
    return tuple(_permitted(step, table, policy, step.index in granted) for step in polled(steps))


def no_device_after(name: str) -> str:
    """Why a step on the last device of its list has no fallback."""
    return f"no device comes after {name}"


def _permitted(
    step: ExecutionStep, table: SupportTable, policy: Policy, granted: bool
) -> ExecutionStep:
    """*step* with its `fallbacks`. *granted*: the reference device may be one of them."""
    names = [
        candidate.name
        for candidate in table.candidates
        if candidate.name not in {step.device, FALLBACK_DEVICE}
        and all(candidate.answers[index].supported for index in step.operations)
    ]
    names += [FALLBACK_DEVICE] * granted
    may_die = any(c.is_reference and is_isolated(c.device) for c in table.candidates)
    if may_die and (granted or step.device == FALLBACK_DEVICE):
        names.append(LAST_RESORT)
    if names:
        return replace(step, fallbacks=tuple(names))
    if step.device == FALLBACK_DEVICE:
        return replace(step, no_fallback=no_device_after(FALLBACK_DEVICE))
    return replace(step, no_fallback=_refusals(step, table, policy))


def _refusals(step: ExecutionStep, table: SupportTable, policy: Policy) -> str:
    reasons = {
        candidate.name: reason
        for candidate in table.candidates
        if candidate.name != step.device
        and (reason := _first(candidate.answers[i].reason for i in step.operations))
    }
    if FALLBACK_DEVICE not in (candidate.name for candidate in table.candidates):
        reasons[FALLBACK_DEVICE] = _first(
            policy_refusal(table.model, i, FALLBACK_DEVICE, policy) for i in step.operations
        )
    # If it supports every operation and the policy permits them, only `min_coverage` excludes it.
    if not reasons.get(FALLBACK_DEVICE):
        reasons[FALLBACK_DEVICE] = f"the policy's min_coverage of {policy.min_coverage:g} needs it"
    listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    return f"nothing may repeat it ({listed})"


def _first(reasons: Iterable[str]) -> str:
    return next(filter(None, reasons), "")


def _granted_to_reference(
    steps: Sequence[ExecutionStep],
    table: SupportTable,
    operations: Sequence[Placement],
    policy: Policy,
) -> set[int]:
    """The steps, smallest first, that may fall back to the reference within `min_coverage`."""
    eligible = [
        step
        for step in steps
        if step.device != FALLBACK_DEVICE
        and all(_reference_may_run(table, index, policy) for index in step.operations)
    ]
    guests = sum(placement.device != FALLBACK_DEVICE for placement in operations)
    granted = set()
    for step in sorted(eligible, key=lambda step: len(step.operations)):
        guests -= len(step.operations)
        if guests / len(operations) < policy.min_coverage:
            break
        granted.add(step.index)
    return granted


def _reference_may_run(table: SupportTable, operation: int, policy: Policy) -> bool:
    """Whether the reference supports *operation*; by the policy alone if it is no candidate."""
    for candidate in table.candidates:
        if candidate.is_reference:
            return candidate.answers[operation].supported
    return not policy_refusal(table.model, operation, FALLBACK_DEVICE, policy)


def may_run_whole(plan: ExecutionPlan) -> bool:
    """Whether the reference device may run all of *plan* when a step has no fallback left.

    It must be a permitted fallback of every step on another device. A plan with a single step
    returns False: running the whole model would only repeat that step.
    """
    guests = [step for step in plan.steps if step.device != FALLBACK_DEVICE]
    apart = any(step.control is not None for step in plan.steps)
    return (
        len(plan.steps) > 1
        and (apart or bool(guests))
        and all(FALLBACK_DEVICE in step.fallbacks for step in guests)
    )


def whole_step(model: Model) -> ExecutionStep:
    """All of *model* as one step for the reference device, with the index `WHOLE`."""
    live = live_operations(model)
    cut = Cutter(model, live).cut(live)
    last = (FALLBACK_DEVICE,)
    return ExecutionStep(WHOLE, "", cut.operations, cut.model, cut.inputs, cut.outputs, last)
