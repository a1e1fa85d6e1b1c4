"""Who may repeat a step that its device failed to compile, and the compile that does (NNAPI section 4.6).

A device is asked whether it supports the step before it is given it. Deadlines that were missed and
cancelled compiles are never repeated.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.compilation.calls import call_driver, describe, is_simulated
from penstock.compilation.receipt import CacheOutcome, Failure, Recorder, StepReceipt
from penstock.errors import FOREIGN, Cancelled, DriverError, MissedDeadline
from penstock.hal import (
    ACCURACY_RANK,
    AccuracyClass,
    Device,
    PrepareConfig,
    Support,
    mappable_kinds,
    refuse_unmapped,
)
from penstock.logs import Log
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep, Placement
from penstock.partitioning.support import LAST_RESORT, REFERENCE_DEVICE

if TYPE_CHECKING:
    from penstock.compilation.compilation import PreparedStep

log = Log(__name__)

NOT_CACHED: Final = CacheOutcome("off", "a fall-back is not cached")
NO_CANDIDATE: Final = "not a candidate; it repeats only what another device failed at"


def able_devices(
    step: ExecutionStep, devices: Mapping[str, Device], accuracy: AccuracyClass
) -> Iterator[tuple[Device, ExecutionStep]]:
    """The devices among *devices* that *step* may fall back on and that support all of it, in order; each
    with the step as it is there: it may go on to those after it. After a reference device in a process of its own comes the
    one of this process.
    """
    fallbacks = step.fallbacks
    if REFERENCE_DEVICE in fallbacks and LAST_RESORT not in fallbacks:
        fallbacks = (*fallbacks, LAST_RESORT)
    for place, name in enumerate(fallbacks):
        device = devices.get(name)
        if device is None or name == step.device:
            continue
        if supports_all(device, step, accuracy):
            rest = step.fallbacks[place + 1 :]
            if name == REFERENCE_DEVICE and getattr(device, "isolated", False):
                rest = tuple(dict.fromkeys((*rest, LAST_RESORT)))
            yield device, replace(step, device=name, fallbacks=rest, control=None)
        else:
            log.debug("step %d: %s does not support it and cannot repeat it", step.index, name)


def compile_elsewhere(
    step: ExecutionStep,
    devices: Mapping[str, Device],
    config: PrepareConfig,
    error: DriverError,
    recorder: Recorder,
    others: list[Failure],
) -> tuple[PreparedStep, int] | None:
    """*step*, which its own device failed at with *error*, prepared by the first device after it that can;
    and how many compiles were tried. None where there is none; *others* then gets the failures of those tried.

    Raises `MissedDeadline*` and `Cancelled`.
    """
    from penstock.compilation.compilation import PreparedStep
    from penstock.compilation.failing import in_model

    failures = [Failure(step.device, in_model(step, describe(error)))]
    for device, moved in able_devices(step, devices, config.accuracy):
        last = failures[-1]
        log.warning(
            "step %d: %s failed to compile it, falling back to %s: %s",
            step.index,
            last.device,
            device.name,
            last.error,
        )
        began = time.perf_counter_ns()
        try:
            with recorder.time("compile", f"step {step.index}", device.name):
                prepared = call_driver(device, moved, config)
        except (MissedDeadline, Cancelled):
            raise
        except DriverError as another:
            failures.append(Failure(device.name, in_model(moved, describe(another))))
            continue
        receipt = StepReceipt(
            device.name,
            step.operations,
            time.perf_counter_ns() - began,
            cache=NOT_CACHED,
            fallback_from=step.device,
            error=failures[0].error,
            failures=tuple(failures),
            step=step.index,
            start_ns=began,
            simulated=is_simulated(device),
        )
        return PreparedStep(moved, device, prepared, receipt), len(failures) + 1
    others += failures[1:]
    return None


def supports_all(device: Device, step: ExecutionStep, accuracy: AccuracyClass = "relaxed") -> bool:
    """Whether *device* says yes to every operation of the step, in *accuracy* or better."""
    answers = answers_for(device, step)
    least = ACCURACY_RANK[accuracy]
    return bool(answers) and all(
        answer.supported and ACCURACY_RANK.get(answer.accuracy, -1) >= least for answer in answers
    )


def answers_for(device: Device, step: ExecutionStep) -> Sequence[Support]:
    """One answer for each operation of the step; none where the device cannot answer."""
    try:
        answers = list(device.supported_operations(step.model))
        kinds = mappable_kinds(device)
    except FOREIGN as error:  # a driver may raise anything
        log.warning("device %s could not be asked what it supports: %r", device.name, error)
        return ()
    if len(answers) != len(step.operations) or not all(isinstance(a, Support) for a in answers):
        log.warning("device %s gave something other than one answer an operation", device.name)
        return ()
    return refuse_unmapped(step.model, answers, kinds)


def as_compiled(plan: ExecutionPlan, done: Sequence[PreparedStep]) -> ExecutionPlan:
    """*plan* with the steps that another device compiled where they are now, and why; in branches, too."""
    moved = [step for step in done if step.receipt.failures and not step.pending]
    operations = list(plan.operations)
    devices = plan.devices
    for name in dict.fromkeys(step.device.name for step in moved):
        if name not in devices:
            devices = (*devices, name)
            operations = [
                replace(placement, reasons={**placement.reasons, name: NO_CANDIDATE})
                for placement in operations
            ]
    for step in moved:
        answers = answers_for(step.device, step.step)
        for position, index in enumerate(step.step.operations):
            accuracy = answers[position].accuracy if answers else operations[index].accuracy
            operations[index] = _moved(operations[index], step, accuracy)
    steps = tuple(
        before if step.pending else step.step for before, step in zip(plan.steps, done, strict=True)
    )
    return replace(plan, devices=devices, steps=steps, operations=tuple(operations))


def _moved(placement: Placement, step: PreparedStep, accuracy: AccuracyClass) -> Placement:
    reasons = {name: why for name, why in placement.reasons.items() if name != step.device.name}
    for failure in step.receipt.failures:
        reasons[failure.device] = f"failed to compile: {failure.error}"
    return replace(placement, device=step.device.name, reasons=reasons, accuracy=accuracy)
