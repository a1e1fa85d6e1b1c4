"""The plan of one compile, measured or predicted; the devices that it may use, and their rules."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.structs import replace

from penstock import knobs
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import (
    InputError,
    NotAvailable,
    PlacementError,
    Refusal,
    RefusalCode,
    Unreadable,
)
from penstock.hal import Device, PrepareConfig
from penstock.hal.device import is_isolated
from penstock.interrupts import current_deadline
from penstock.ir import Model
from penstock.partitioning.fallback import permit_fallback
from penstock.partitioning.placement import place
from penstock.partitioning.plan import ExecutionPlan
from penstock.partitioning.policy import Policy
from penstock.partitioning.support import LAST_RESORT, collect_support
from penstock.partitioning.work import LEAST_LIMIT, check_memory, most_bytes
from penstock.runtime.discovery import DeviceInfo, Manager, manager

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
        from penstock.runtime.tuning import Occasion, stored_plan, tuned_plan

        occasion = Occasion(source, model, shapes, devices, named, policy, config, directory)
        if plan := stored_plan(occasion):
            return plan
        if measure:
            return tuned_plan(occasion)
    return place(model, devices, policy, config.preference)


def with_fallbacks(plan: ExecutionPlan, devices: Sequence[Device], policy: Policy) -> ExecutionPlan:
    """*plan* with the fallbacks that its steps have if only *devices* are named."""
    table = collect_support(plan.model, trusted(devices, policy), policy, check_keys=False)
    steps = permit_fallback(plan.steps, table, plan.operations, policy)
    return replace(plan, steps=steps)


def trusted(devices: Sequence[Device], policy: Policy) -> Sequence[Device]:
    """*devices* with the operations rejected that shadow verification found wrong there."""
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


class CompileDevices(Mapping[str, Device]):
    """The devices that were *chosen*, by name, and the one to fall back on last, chosen or not, and
    after it, where it runs in a process of its own, the one of this process. They are looked for
    when they are needed: their driver may be one that nothing else loads. With *apart* whatever can
    run in a process of its own does, also what something falls back on.
    """

    def __init__(self, chosen: Sequence[Device], *, apart: bool = False) -> None:
        self._chosen = {device.name: device for device in chosen}
        self._apart = apart
        self._found: dict[str, Device] = {}

    def __getitem__(self, name: str) -> Device:
        device: Device | None = None
        if name == FALLBACK_DEVICE and name not in self._chosen:
            device = manager.by_name(name)
        elif name == LAST_RESORT and self._apart:
            # What is too long for this process is so for its reference too.
            raise KeyError(name)
        elif name == LAST_RESORT and getattr(self.get(FALLBACK_DEVICE), "isolated", False):
            device = last_resort(manager)
        device = self._chosen[name] if device is None else device
        if self._apart and name != LAST_RESORT and not is_isolated(device):
            device = self._set_apart(device)
        return device

    def _set_apart(self, device: Device) -> Device:
        """*device* in a process of its own, itself where that cannot be."""
        if device.name not in self._found:
            from penstock.runtime.apart import isolated

            try:
                found = isolated(device, None, manager, current_deadline())
            except (NotAvailable, PlacementError):
                found = device
            self._found[device.name] = found
        return self._found[device.name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._chosen)

    def __len__(self) -> int:
        return len(self._chosen)


def last_resort(manager: Manager) -> Device | None:
    """The reference device in this process as `LAST_RESORT`; None if it is unusable."""
    device = manager.by_name(FALLBACK_DEVICE, isolate=False)
    return None if device is None else cast("Device", _InThisProcess(device))


class _InThisProcess:
    """A device under a name of its own, so that receipts tell it from the one that has failed."""

    name: Final = LAST_RESORT

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


def check_rules(policy: Policy, chosen: Sequence[Device], manager: Manager) -> None:
    """Refuses rules about devices that do not exist: a misspelt name in `forbid` would forbid
    nothing.

    Known are the devices of the call, every device that *manager* finds, usable or not, and, where
    a driver as a whole cannot be used here, every name that begins with that driver's. Raises
    `InputError`, which names the known ones.
    """
    own = {device.name for device in chosen}
    for label, rules in (("require", policy.require), ("forbid", policy.forbid)):
        for key, value in rules.items():
            for name in (value,) if isinstance(value, str) else value:
                if name in own:
                    continue
                infos = manager.infos()
                if not any(_may_be(name, info) for info in infos):
                    known = ", ".join(sorted(own.union(info.name for info in infos)))
                    raise InputError(
                        f"policy {label}[{key!r}]: no device is named {name!r}; there are {known}"
                    )


def with_unusable(
    error: PlacementError, policy: Policy, manager: Manager, isolate: bool | None
) -> PlacementError:
    """*error* with the reasons of devices that *policy* requires and that are unusable."""
    required = {
        name
        for value in policy.require.values()
        for name in ((value,) if isinstance(value, str) else value)
    }
    refusals = dict(error.refusals)
    infos = [info for info in manager.infos(isolate) if not info.usable]
    for name in sorted(required - refusals.keys()):
        for info in infos:
            if _may_be(name, info):
                refusals.setdefault(name, Refusal(RefusalCode.UNUSABLE, info.reason))
    if len(refusals) == len(error.refusals):
        return error
    return PlacementError(error.message, refusals, error.where)


def _may_be(name: str, info: DeviceInfo) -> bool:
    whole_driver = not info.usable and info.name == info.driver
    return name == info.name or (whole_driver and name.startswith(f"{info.name}-"))


def check_run_memory(model: Model) -> None:
    """`check_memory`, unless the sizes of all values and the settings leave room without it."""
    if knobs.max_run_mib() or most_bytes(model) > LEAST_LIMIT:
        check_memory(model)


def may_be_long(plan: ExecutionPlan, config: PrepareConfig) -> bool:
    """Whether `apart.demanding` has to look at *plan*. The steps alone rule most plans out."""
    longest = knobs.max_in_process_ms() * 1e6
    limited = config.deadline_ns is not None or config.cancel is not None
    most = knobs.max_in_process_operations() if limited else sys.maxsize
    return any(
        step.control is not None
        or step.worst is None
        or max(step.worst.most, step.worst.total / 10) > longest
        or operations_of(step.model) > most
        for step in plan.steps
    )


def operations_of(model: Model) -> int:
    """The number of subgraphs of *model* and of all their operations."""
    return sum(1 + len(subgraph.operations) for subgraph in model.subgraphs)
