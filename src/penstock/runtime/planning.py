"""The plan of one compile: measured where that is asked for or was done before, else predicted."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.errors import InputError, Unreadable
from penstock.hal import Device, PrepareConfig
from penstock.ir import Model
from penstock.partitioning.fallback import permit_fallback
from penstock.partitioning.placement import place
from penstock.partitioning.plan import ExecutionPlan
from penstock.partitioning.policy import Policy
from penstock.partitioning.support import collect_support

if TYPE_CHECKING:
    from penstock.cache.info import CacheInfo


def plan_model(
    source: Model,
    model: Model,
    shapes: Mapping[int, Sequence[int]],
    devices: Sequence[Device],
    named: Mapping[str, Device],
    policy: Policy,
    config: PrepareConfig,
    info: CacheInfo | None = None,
    *,
    measure: bool = False,
) -> ExecutionPlan:
    """How *model* is to run on *devices*: *source* with *shapes* put into it, by input position.

    With placement "cost" the verdict that is stored for exactly this in the directory of *info*
    comes first; then, where *measure* asks for it, a measurement on this machine, for which *named*
    maps names to devices that plans may fall back on too; else `place`. No device is given what
    shadow verification found it to compute wrongly. Raises what that raises, and `Cancelled` or
    `MissedDeadline*` while it measures.
    """
    devices = trusted(devices, policy)
    directory = None if info is None or info.trust_token else info.place
    choice = policy.placement == "cost" and len(devices) > 1 and bool(model.operations)
    if choice and (measure or _has_verdicts(directory)):
        from penstock.runtime.trial import Occasion
        from penstock.runtime.tuning import stored_plan, tuned_plan

        occasion = Occasion(source, model, shapes, devices, named, policy, config, directory)
        if plan := stored_plan(occasion):
            return plan
        if measure:
            return tuned_plan(occasion)
    return place(model, devices, policy, config.preference)


def with_fallbacks(plan: ExecutionPlan, devices: Sequence[Device], policy: Policy) -> ExecutionPlan:
    """*plan* with what its steps fall back on where *devices* alone were named, whatever else it
    was placed on.
    """
    table = collect_support(plan.model, trusted(devices, policy), policy, check_keys=False)
    steps = permit_fallback(plan.steps, table, plan.operations, policy)
    return replace(plan, steps=steps)


def trusted(devices: Sequence[Device], policy: Policy) -> Sequence[Device]:
    """*devices* as plans see them: each refuses what shadow verification found it to compute
    wrongly, with the reason.
    """
    if not has_driver_verdicts():
        return devices
    from penstock.runtime.blocklist import with_blocklist

    return with_blocklist(devices, policy.accuracy)


def _has_verdicts(directory: str | None) -> bool:
    if directory is None:
        return False
    from penstock.cache.naming import VERDICTS

    # Text, as in all of a warm start: pathlib takes longer to import than this to answer.
    return os.path.isdir(f"{directory}{os.sep}{VERDICTS}")  # noqa: PTH112


def has_driver_verdicts() -> bool:
    """Whether anything was ever kept against a driver here."""
    from penstock.cache.naming import DRIVER_VERDICTS
    from penstock.sealed.places import state_directory

    try:
        return os.path.isdir(f"{state_directory()}{os.sep}{DRIVER_VERDICTS}")  # noqa: PTH112  # as above
    except (InputError, Unreadable, OSError):
        return False
