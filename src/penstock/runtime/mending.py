"""Finds what would take a plan's work from the reference device: extras, options, devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from penstock import knobs
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import ModelError
from penstock.hal import DeviceType
from penstock.ir import Model, infer_shapes
from penstock.ir.types import static_shape
from penstock.partitioning.placements import Kind, Remedy, Slow
from penstock.partitioning.plan import ExecutionPlan
from penstock.partitioning.policy import Policy
from penstock.partitioning.remedies import laxest
from penstock.partitioning.slow import (
    ALARMING,
    Claim,
    claims_of,
    products_on_reference,
    remedies_of,
    types_of,
)
from penstock.partitioning.support import collect_support
from penstock.partitioning.work import GUESSED_BATCH
from penstock.runtime.discovery import DeviceInfo, Manager
from penstock.runtime.planning import trusted

KNOB: Final = "the knob devices (PENSTOCK_DEVICES)"


def judged(
    plan: ExecutionPlan,
    policy: Policy,
    manager: Manager,
    deadline_ns: int | None = None,
    *,
    is_listed: bool,
) -> ExecutionPlan:
    """*plan* with `ExecutionPlan.slow`. *is_listed* says that the call named the devices.

    A call that names only the reference device asked for what it got. If the knob `devices` names
    only this device, no other is loaded.
    """
    slow, total = products_on_reference(plan)
    is_alone = {*plan.devices} == {FALLBACK_DEVICE}
    if (is_alone and is_listed) or sum(slow.values()) <= ALARMING * total:
        return replace(plan, slow=None)
    share, types = sum(slow.values()) / total, types_of(plan.model, slow)
    if is_alone and knobs.devices():
        alone = Remedy("devices", (), share, f"{KNOB} names no other device")
        return replace(plan, slow=Slow(share, types, (alone,)))
    claims = [*claims_of(plan, slow)]
    left_out = f"not named in {'devices= (--device)' if is_listed else KNOB}"
    claims += _claims_of_others(plan, slow, policy, manager, deadline_ns, left_out)
    return replace(plan, slow=Slow(share, types, remedies_of(claims, total)))


def _claims_of_others(
    plan: ExecutionPlan,
    slow: Mapping[int, float],
    policy: Policy,
    manager: Manager,
    deadline_ns: int | None,
    left_out: str,
) -> Iterator[Claim]:
    """What Penstock's own devices that the plan did not consider would take.

    An engine that is not installed answers too: what it supports is known without it. A batch that
    is unknown counts as `GUESSED_BATCH`, because runs have known shapes.
    """
    model = _with_batch(plan.model)
    for found in manager.built_in(deadline_ns):
        info = found.info
        if info.name in plan.devices or info.only_when_named or not _may_be_mended(info):
            continue
        devices = trusted([found.device], policy)
        (candidate,) = collect_support(model, devices, policy, check_keys=False).candidates
        taken = sum(macs for index, macs in slow.items() if candidate.answers[index].supported)
        refusals = {i: why for i in slow if (why := candidate.answers[i].refusal) is not None}
        classes = {index: why.admits for index, why in refusals.items() if why.admits}
        taken += sum(slow[index] for index in classes)
        if taken:
            accuracy = laxest(classes.values()) if classes else ""
            kind: Kind = "devices" if info.usable else "install"
            yield Claim(kind, info.name, taken, left_out if info.usable else info.reason, accuracy)


def _with_batch(model: Model) -> Model:
    """*model* with a known batch, if that is all that is unknown; otherwise *model* itself."""
    shapes = {
        at: (GUESSED_BATCH, *operand.shape[1:])
        for at, operand in enumerate(model.inputs)
        if operand.shape and operand.shape[0] is None
    }
    known = {at: found for at, shape in shapes.items() if (found := static_shape(shape))}
    try:
        return infer_shapes(model, known)
    except ModelError:
        return model


def _may_be_mended(info: DeviceInfo) -> bool:
    """Whether the device is usable or could be: no installation adds hardware."""
    return info.usable or info.type == DeviceType.CPU.value
