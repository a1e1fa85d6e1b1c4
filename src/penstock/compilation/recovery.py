"""Who may repeat a step that its device failed at, in a compile and in a run (NNAPI section 4.6).

A device is asked whether it supports the step before it is given it. Deadlines that were missed and
cancelled compiles are never repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from penstock.compilation.calls import call_driver, is_simulated
from penstock.compilation.failing import failure_of, final_error
from penstock.compilation.step_receipt import CacheOutcome, Failure, Recorder, StepReceipt
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import FOREIGN, DriverError, MissedDeadline
from penstock.hal import (
    ACCURACY_RANK,
    AccuracyClass,
    Device,
    PrepareConfig,
    PreparedModel,
    Support,
    refuse_unmapped,
)
from penstock.hal.device import is_isolated, mappable_kinds
from penstock.logs import Log
from penstock.partitioning.plan import ExecutionStep
from penstock.partitioning.support import LAST_RESORT

log = Log(__name__)

Made = TypeVar("Made")

NOT_CACHED: Final = CacheOutcome("off", "a fall-back is not cached")


def able_devices(
    step: ExecutionStep, devices: Mapping[str, Device], accuracy: AccuracyClass
) -> Iterator[tuple[Device, ExecutionStep]]:
    """The devices among *devices* that *step* may fall back on and that support all of it, in
    order; each with the step as it is there: it may go on to those after it. After a reference
    device in a process of its own comes the one of this process.
    """
    fallbacks = step.fallbacks
    if FALLBACK_DEVICE in fallbacks and LAST_RESORT not in fallbacks:
        fallbacks = (*fallbacks, LAST_RESORT)
    for place, name in enumerate(fallbacks):
        device = devices.get(name)
        if device is None or name == step.device:
            continue
        if supports_all(device, step, accuracy):
            rest = step.fallbacks[place + 1 :]
            if name == FALLBACK_DEVICE and is_isolated(device):
                rest = tuple(dict.fromkeys((*rest, LAST_RESORT)))
            yield device, replace(step, device=name, fallbacks=rest, control=None)
        else:
            log.debug("step %d: %s does not support it and cannot repeat it", step.index, name)


def recover(
    step: ExecutionStep,
    error: DriverError,
    device: str,
    others: Iterable[tuple[Device, ExecutionStep]],
    attempt: Callable[[Device, ExecutionStep], Made],
    failures: list[Failure],
    tell: Callable[[Failure, Device], None],
    *,
    allowed: bool = True,
    lost: bool = False,
) -> Made:
    """What *attempt* makes of *step* on the first of *others* that can, after *device* failed at it
    with *error*: at compile and in a run alike. *failures* gets every device's, this one's first;
    *tell* is told of the last failure and of the device that is tried next.

    Raises *error* in the words of the caller's model (`final_error`) where none can, a fall-back is
    not
    *allowed*, or memory that the step needs was *lost* with its device; `MissedDeadline*` and
    `Cancelled`, which are never repeated, as they come.
    """
    failures.append(failure_of(device, error, step))
    if allowed and not lost:
        made = first_able(others, attempt, failures, tell)
        if made is not None:
            return made
    raise final_error(error, step, device, failures[1:], allowed=allowed, lost=lost) from error


def first_able(
    others: Iterable[tuple[Device, ExecutionStep]],
    attempt: Callable[[Device, ExecutionStep], Made],
    failures: list[Failure],
    tell: Callable[[Failure, Device], None],
) -> Made | None:
    """What *attempt* makes on the first of *others* that can, None if none; as `recover`."""
    for device, step in others:
        tell(failures[-1], device)
        try:
            return attempt(device, step)
        except MissedDeadline:
            raise
        except DriverError as error:
            failures.append(failure_of(device.name, error, step))
    return None


def compile_elsewhere(
    step: ExecutionStep,
    devices: Mapping[str, Device],
    config: PrepareConfig,
    error: DriverError,
    recorder: Recorder,
    *,
    allowed: bool,
) -> tuple[Device, ExecutionStep, PreparedModel, StepReceipt, int]:
    """*step*, which its own device failed at with *error*, prepared by the first device after it
    that can: that device, the step as it is there, what it made, the receipt, and how many compiles
    were tried. Raises as `recover`.
    """
    failures: list[Failure] = []

    def attempt(
        device: Device, moved: ExecutionStep
    ) -> tuple[Device, ExecutionStep, PreparedModel, StepReceipt, int]:
        began = time.perf_counter_ns()
        with recorder.time("compile", f"step {step.index}", device.name):
            prepared = call_driver(device, moved, config)
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
        return device, moved, prepared, receipt, len(failures) + 1

    def tell(failure: Failure, device: Device) -> None:
        log.warning(
            "step %d: %s failed to compile it, falling back to %s: %s",
            step.index,
            failure.device,
            device.name,
            failure.error,
        )

    others = able_devices(step, devices, config.accuracy)
    return recover(step, error, step.device, others, attempt, failures, tell, allowed=allowed)


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
