"""Makes the plan of one compile, measured or predicted; its devices, and rules and notes about
them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.structs import replace

from penstock import errors, knobs
from penstock.cache.naming import DRIVER_VERDICTS, LEARNED, VERDICTS
from penstock.distribution import FALLBACK_DEVICE, LAST_RESORT
from penstock.hal import Device, PrepareConfig
from penstock.hal.device import is_isolated
from penstock.interrupts import current_deadline
from penstock.ir import Model
from penstock.logs import Log
from penstock.partitioning.plan import ExecutionPlan
from penstock.partitioning.policy import Policy
from penstock.runtime.compile_arguments import Occasion
from penstock.runtime.discovery import DeviceInfo, Manager

if TYPE_CHECKING:
    from penstock.partitioning.costs import Costs
    from penstock.runtime.compile_arguments import CompileArguments

log = Log(__name__)


def plan_model(occasion: Occasion, *, measure: bool = False, keep: bool = False) -> ExecutionPlan:
    """The plan of one compile.

    With placement "cost", a stored verdict on exactly this case is used first. Otherwise, if
    *measure* asks for it, candidates are measured on this machine. Otherwise `place` decides. No
    device gets an operation that shadow verification found it to compute wrongly. With *keep*,
    answers about support are read from the cache directory and kept there. Raises the errors
    of these functions, and `Cancelled` or `MissedDeadline*` during a measurement.
    """
    model, policy, directory = occasion.model, occasion.policy, occasion.directory
    if policy.placement == "cost" and model.operations:
        occasion = replace(occasion, costs=_costs_of(occasion))
    devices = trusted(_remembering(occasion.devices, directory if keep else None), policy)
    choice = policy.placement == "cost" and len(devices) > 1 and bool(model.operations)
    stored = occasion.verdicts or (directory is not None and _has(directory, VERDICTS))
    if choice and (measure or stored):
        from penstock.runtime.tuning import stored_plan, tuned_plan

        occasion = replace(occasion, devices=devices)
        if plan := stored_plan(occasion):
            return plan
        if measure:
            return tuned_plan(occasion)
    from penstock.partitioning.placement import place

    given = model, devices, policy, occasion.config.preference
    plan = place(*given, costs=occasion.costs)
    if choice and occasion.costs and directory is not None and _has(directory, LEARNED):
        return _corrected(occasion, plan, partial(place, *given))
    return plan


def _corrected(
    occasion: Occasion, plan: ExecutionPlan, place: Callable[..., ExecutionPlan]
) -> ExecutionPlan:
    """*plan*, or the one that *place* makes with what runs of the network have shown."""
    from penstock.runtime.learning import corrected, learned_plans, words

    plans = learned_plans(occasion.directory, occasion.verdict_key)
    if not plans:
        return plan
    predicted = []
    for observed in plans:
        again = plan
        if observed.devices != plan.assignment:
            again = place(observed.devices, occasion.costs)
        is_same = observed.devices == again.assignment
        predicted.append(again.predicted_ns if is_same else None)
    costs = corrected(occasion.costs, plans, predicted)
    if costs is occasion.costs:
        return plan
    found = place(costs=costs)
    basis = ", ".join(filter(None, (found.basis, words(plans, found, plan))))
    return replace(found, basis=basis)


def _costs_of(occasion: Occasion) -> Costs:
    """What operations cost on the devices of *occasion*: as measured here, or as shipped."""
    from penstock.runtime.calibration.tables import costs_for

    threads = occasion.config.num_threads or 1
    return costs_for(occasion.devices, occasion.policy.accuracy, threads, occasion.directory)


def _remembering(devices: Sequence[Device], directory: str | None) -> Sequence[Device]:
    """*devices*; with a cache *directory*, those that allow it answer from what it has kept."""
    if directory is None or not any(map(_has_basis, devices)):
        return devices
    from penstock.runtime.remembering import with_kept_answers

    return with_kept_answers(devices, directory, _has_basis)


def _has_basis(device: Device) -> bool:
    try:
        return bool(device.capabilities.support_basis)
    except errors.FOREIGN:  # placement finds what is wrong with the device
        return False


def with_fallbacks(plan: ExecutionPlan, devices: Sequence[Device], policy: Policy) -> ExecutionPlan:
    """*plan* with the fallbacks that its steps have if only *devices* are listed."""
    from penstock.partitioning.fallback import permit_fallback
    from penstock.partitioning.support import collect_support

    table = collect_support(plan.model, trusted(devices, policy), policy, check_keys=False)
    steps = permit_fallback(plan.steps, table, plan.operations, policy)
    return replace(plan, steps=steps)


def trusted(devices: Sequence[Device], policy: Policy) -> Sequence[Device]:
    """*devices*, each rejecting the operations that shadow verification found wrong."""
    if not has_driver_verdicts():
        return devices
    from penstock.runtime.blocklist import with_blocklist

    return with_blocklist(devices, policy.accuracy)


def _has(directory: str, name: str) -> bool:
    # A string, because importing pathlib takes longer than this check in a warm start.
    return os.path.isdir(f"{directory}{os.sep}{name}")  # noqa: PTH112


def has_driver_verdicts() -> bool:
    """Whether any verdict against a driver is stored on this machine."""
    from penstock.sealed.places import state_directory

    try:
        return _has(state_directory(), DRIVER_VERDICTS)
    except (errors.InputError, errors.Unreadable, OSError):
        return False


class CompileDevices(Mapping[str, Device]):
    """The *chosen* devices by name, and the fallback device, chosen or not.

    If the fallback device is isolated, the reference device of this process follows it. Devices are
    discovered on demand, because nothing else may need the driver. With *apart*, every device that
    can be isolated is isolated, including fallback devices.
    """

    def __init__(self, chosen: Sequence[Device], manager: Manager, *, apart: bool = False) -> None:
        self._chosen = {device.name: device for device in chosen}
        self._manager = manager
        self._apart = apart
        self._found: dict[str, Device] = {}

    def __getitem__(self, name: str) -> Device:
        device: Device | None = None
        if name == FALLBACK_DEVICE and name not in self._chosen:
            device = self._manager.by_name(name)
        elif name == LAST_RESORT and self._apart:
            # An operation too long for this process is also too long for this process's reference
            # device.
            raise KeyError(name)
        elif name == LAST_RESORT and is_isolated(self.get(FALLBACK_DEVICE)):
            device = last_resort(self._manager)
        device = self._chosen[name] if device is None else device
        if self._apart and name != LAST_RESORT and not is_isolated(device):
            device = self._set_apart(device)
        return device

    def _set_apart(self, device: Device) -> Device:
        """*device* in a host process; *device* itself if that is not possible."""
        if device.name not in self._found:
            from penstock.runtime.apart import isolated

            try:
                found = isolated(device, None, self._manager, current_deadline())
            except (errors.NotAvailable, errors.PlacementError):
                found = device
            self._found[device.name] = found
        return self._found[device.name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._chosen)

    def __len__(self) -> int:
        return len(self._chosen)


class PlannedDevices(CompileDevices):
    """The devices of a restored plan: the *used* ones, and others of *names* found on demand.

    *find* finds a device by name. If it fails, the device counts as unknown.
    """

    def __init__(
        self,
        used: Mapping[str, Device],
        names: Sequence[str],
        find: Callable[[str], Device],
        manager: Manager,
    ) -> None:
        super().__init__([*used.values()], manager)
        self._names, self._find = names, find

    def __getitem__(self, name: str) -> Device:
        if name in self._names and name not in self._chosen and name != FALLBACK_DEVICE:
            try:
                self._chosen[name] = self._find(name)
            except (errors.NotAvailable, errors.PlacementError) as error:
                raise KeyError(name) from error
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def last_resort(manager: Manager) -> Device | None:
    """The reference device in this process as `LAST_RESORT`; None if it is unusable."""
    device = manager.by_name(FALLBACK_DEVICE, isolate=False)
    return None if device is None else cast("Device", _InThisProcess(device))


class _InThisProcess:
    """A device under another name, so that receipts distinguish it from the device that failed."""

    name: Final = LAST_RESORT

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


def check_rules(policy: Policy, chosen: Sequence[Device], manager: Manager) -> None:
    """Rejects rules about unknown devices, because a misspelt name in `forbid` would forbid
    nothing.

    Known are the devices of the call and every device that *manager* finds, usable or not. If a
    whole driver is unusable, every name that begins with the driver's name is known too. Raises
    `InputError`, which lists the known names.
    """
    own = {device.name for device in chosen}
    for label, rules in (("require", policy.require), ("forbid", policy.forbid)):
        for key, value in rules.items():
            for name in value:
                if name in own:
                    continue
                infos = manager.infos()
                if not any(_may_be(name, info) for info in infos):
                    known = ", ".join(sorted(own.union(info.name for info in infos)))
                    text = f"no device is named {name!r}; there are {known}"
                    raise errors.InputError(f"policy {label}[{key!r}]: {text}")


def with_unusable(
    error: errors.PlacementError, policy: Policy, manager: Manager, isolate: bool | None
) -> errors.PlacementError:
    """*error* with the reasons of required devices (*policy*) that are unusable."""
    required = {name for names in policy.require.values() for name in names}
    refusals = dict(error.refusals)
    infos = [info for info in manager.infos(isolate) if not info.usable]
    for name in sorted(required - refusals.keys()):
        for info in infos:
            if _may_be(name, info):
                refusals.setdefault(name, errors.Refusal(errors.RefusalCode.UNUSABLE, info.reason))
    if len(refusals) == len(error.refusals):
        return error
    return errors.PlacementError(error.message, refusals, error.where)


def _may_be(name: str, info: DeviceInfo) -> bool:
    whole_driver = not info.usable and info.name == info.driver
    return name == info.name or (whole_driver and name.startswith(f"{info.name}-"))


def check_run_memory(model: Model, *, is_small: bool = False) -> None:
    """Calls `check_memory`, unless the values certainly fit the memory limits.

    *is_small* says that `has_small_runs` was true of the model before.
    """
    if knobs.max_run_mib() or not (is_small or has_small_runs(model)):
        from penstock.partitioning.work import check_memory

        check_memory(model)


def has_small_runs(model: Model) -> bool:
    """Whether the values of a run fit the limit that holds without the knob `max_run_mib`."""
    from penstock.partitioning.work import LEAST_LIMIT, most_bytes

    return most_bytes(model) <= LEAST_LIMIT


def may_be_long(plan: ExecutionPlan, config: PrepareConfig) -> bool:
    """Whether `apart.demanding` must examine *plan*. The number of steps rules out most plans."""
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


def notes_on_devices(
    plan: ExecutionPlan, arguments: CompileArguments, manager: Manager
) -> list[str]:
    """Notes on unavailable drivers, and on the devices of *plan*."""
    absent = {} if arguments.devices is not None else manager.absent(arguments.isolate)
    notes = [f"driver {name} is unavailable: {reason}" for name, reason in absent.items()]
    refusals = (r for p in plan.operations[:1] for r in p.refusals.values())
    if any(r.code is errors.RefusalCode.NO_ANSWER for r in refusals):
        from penstock.execution.availability import unanswered

        for name, reason in unanswered(plan).items():
            notes.append(f"device {name} runs nothing: {reason}")
            log.warning("%s", notes[-1])
    is_named = arguments.devices is not None or knobs.devices()
    if is_named and any(why.admits for p in plan.operations for why in p.refusals.values()):
        from penstock.partitioning.remedies import refused_for_accuracy

        remedies = () if plan.slow is None else plan.slow.remedies
        known = {name for r in remedies if r.kind == "accuracy" for name in r.devices}
        notes += refused_for_accuracy(plan, [d for d in plan.devices if d not in known])
    notes += [f"{device}: {doubt}" for device, doubt in plan.doubts]
    notes += [f"device {d} runs in a process of its own: {why}" for d, why in plan.apart]
    return notes


def notes_on_moved(plan: ExecutionPlan) -> list[str]:
    """A note on steps on the fallback device, which the caller did not name, with the first
    reason.
    """
    moved = [p for p in plan.operations if p.device == FALLBACK_DEVICE]
    for refusal in moved[0].refusals.values() if moved else ():
        if refusal.code is errors.RefusalCode.WRONG_RESULTS:
            amount = errors.counted(len(moved), "operation")
            note = f"{amount} on {FALLBACK_DEVICE}, which was not named: {refusal}"
            log.warning("%s", note)
            return [note]
    return []
