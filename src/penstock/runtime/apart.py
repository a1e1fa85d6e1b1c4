"""Runs a device in a host process for one plan, if the plan may take too long to stop otherwise.

An engine checks its deadline between two operations at best. A host process can be killed at any
time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from penstock import knobs
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import Cancelled, MissedDeadline, NotAvailable, PlacementError
from penstock.hal import Device, PrepareConfig
from penstock.hal.device import is_isolated
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep
from penstock.partitioning.prediction import LONGEST

if TYPE_CHECKING:
    from penstock.compilation.prepared import Compilation
    from penstock.runtime.discovery import Manager

STEP_SHARE: Final = 10
"""Limit of a whole step, as a multiple of the limit of one operation.

A network may have many operations of similar size.
"""


def demanding(
    plan: ExecutionPlan, devices: Sequence[Device], config: PrepareConfig
) -> dict[str, str]:
    """The devices that should not run their part of *plan* in this process, each with the reason.

    For a step with too many operations, it is the engine's compile that cannot be stopped. That
    counts if *config* has a deadline or a token. The reference device checks both between two
    operations.
    """
    here = {d.name for d in devices if not is_isolated(d)}
    longest = knobs.max_in_process_ms() * 1e6
    most = None
    if config.deadline_ns is not None or config.cancel is not None:
        most = knobs.max_in_process_operations()
    found: dict[str, str] = {}
    for step in _steps(plan):
        name = step.device
        if name not in here or name in found:
            continue
        reason = _too_long(step, longest)
        count = sum(len(subgraph.operations) for subgraph in step.model.subgraphs)
        if not reason and most is not None and name != FALLBACK_DEVICE and count > most:
            limit = f"max_in_process_operations={most}"
            reason = f"a step of it has {count} operations, more than {limit}"
        if reason:
            found[name] = reason
    return found


def _steps(plan: ExecutionPlan) -> Iterator[ExecutionStep]:
    for step in plan.steps:
        if step.control is None:
            yield step
        else:
            for branch in step.control.branches:
                yield from _steps(branch)


def _too_long(step: ExecutionStep, longest: float) -> str:
    worst = step.worst
    if worst is None:
        return ""
    if worst.most > longest and worst.most >= LONGEST:
        return f"{_named(step, worst.operation)} is as large as the values of the run say"
    limit = f"max_in_process_ms={longest / 1e6:.0f}"
    if worst.most > longest:
        name = _named(step, worst.operation)
        return f"{name} may take {worst.most / 1e9:.3g} s, more than {limit} allows"
    if worst.total > STEP_SHARE * longest:
        took = f"{worst.total / 1e9:.3g} s"
        return f"a step of it may take {took}, more than {STEP_SHARE} times {limit}"
    return ""


def _named(step: ExecutionStep, operation: int) -> str:
    at = step.operations.index(operation) if operation in step.operations else 0
    kind = step.model.operations[at].type
    return f"operation {operation} ({kind} {step.model.entry.operation_name(at)!r})"


def set_apart(
    chosen: Sequence[Device],
    reasons: dict[str, str],
    isolate: bool | None,
    manager: Manager,
    deadline_ns: int | None,
) -> tuple[list[Device], dict[str, str], list[str]]:
    """*chosen* with the devices of *reasons* isolated; these with reasons; notes on the others."""
    devices, apart, notes = list(chosen), dict[str, str](), list[str]()
    for at, device in enumerate(chosen):
        reason = reasons.get(device.name)
        if reason is None:
            continue
        try:
            devices[at] = isolated(device, isolate, manager, deadline_ns)
        except (NotAvailable, PlacementError) as error:
            cause = error.args[0] if error.args else str(error)
            notes.append(
                f"device {device.name} runs in this process, where a timeout may not end it in "
                f"time: {reason}; {cause}"
            )
        else:
            apart[device.name] = reason
    return devices, apart, notes


def isolated(
    device: Device, isolate: bool | None, manager: Manager, deadline_ns: int | None
) -> Device:
    """*device* in a host process, or a placeholder. Raises `NotAvailable`, `PlacementError`."""
    if isolate is False:
        raise NotAvailable("isolate=False keeps it here")
    if manager.by_name(device.name, isolate=False) is not device:
        raise NotAvailable("an object of the caller cannot run in another process")
    _forgive_driver(manager.driver_of(device.name, isolate=False))
    (found,) = manager.choose([device.name], True, deadline_ns, absent=True)
    return found


def end_with_their_calls(compilation: Compilation, apart: Collection[str]) -> None:
    """Makes a run of *compilation* that misses its deadline kill the host processes of *apart*."""
    from penstock.ipc.resilient_model import IsolatedPreparedModel

    for step in compilation.steps:
        if step.device.name in apart and isinstance(step.prepared, IsolatedPreparedModel):
            step.prepared.ends_with_its_call = True
        for branch in step.branches:
            end_with_their_calls(branch, apart)


@contextmanager
def abandoned_late(devices: Mapping[str, Device], apart: Collection[str]) -> Iterator[None]:
    """A block that compiles on *devices*; if it ends late, the processes of *apart* are killed."""
    try:
        yield
    except (MissedDeadline, Cancelled) as error:
        from penstock.ipc.resilient import IsolatedDevice

        for name in apart:
            if isinstance(device := devices[name], IsolatedDevice):
                device.abandon(f"a compile had not ended: {error}")
        raise


def _forgive_driver(name: str | None) -> None:
    """Resets the driver's restart limit: deaths at deadlines are not the driver's fault."""
    from penstock.runtime.isolation import supervisors

    for supervisor in supervisors():
        if supervisor.place.name == name:
            supervisor.succeeded()
