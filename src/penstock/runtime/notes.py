"""Remarks of a compile's receipt on devices: what is missing, refused, doubtful, or moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import knobs
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import RefusalCode, counted
from penstock.logs import Log
from penstock.partitioning.plan import ExecutionPlan

if TYPE_CHECKING:
    from penstock.runtime.compile_arguments import CompileArguments
    from penstock.runtime.discovery import Manager

log = Log(__name__)


def notes_on_devices(
    plan: ExecutionPlan, arguments: CompileArguments, manager: Manager
) -> list[str]:
    """Notes on unavailable drivers, and on the devices of *plan*."""
    absent = {} if arguments.devices is not None else manager.absent(arguments.isolate)
    notes = [f"driver {name} is unavailable: {reason}" for name, reason in absent.items()]
    refusals = (r for p in plan.operations[:1] for r in p.refusals.values())
    if any(r.code is RefusalCode.NO_ANSWER for r in refusals):
        from penstock.execution.availability import unanswered

        for name, reason in unanswered(plan).items():
            notes.append(f"device {name} runs nothing: {reason}")
            log.warning("%s", notes[-1])
    is_named = arguments.devices is not None or knobs.devices()
    if is_named and any(why.admits for p in plan.operations for why in p.refusals.values()):
        from penstock.partitioning.remedies import refused_for_accuracy

        told = () if plan.slow is None else plan.slow.remedies
        known = {name for r in told if r.kind == "accuracy" for name in r.devices}
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
        if refusal.code is RefusalCode.WRONG_RESULTS:
            amount = counted(len(moved), "operation")
            note = f"{amount} on {FALLBACK_DEVICE}, which was not named: {refusal}"
            log.warning("%s", note)
            return [note]
    return []
