"""Fallback for one step, at compile time and during a run (NNAPI section 4.6).

`fallback_devices` lists the devices that support the step; `recover` tries them in order. A missed
deadline or a cancellation is never retried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from penstock import hal
from penstock.compilation.calls import call_driver, receipt_of
from penstock.compilation.failing import failure_of, final_error
from penstock.compilation.prepared import PreparedStep
from penstock.compilation.step_receipt import CacheOutcome, Failure, Recorder
from penstock.distribution import FALLBACK_DEVICE, LAST_RESORT
from penstock.errors import FOREIGN, DriverError, MissedDeadline
from penstock.hal.capabilities import class_fault
from penstock.hal.device import is_isolated, mappable_kinds
from penstock.logs import Log
from penstock.partitioning.fallback import no_device_after
from penstock.partitioning.plan import ExecutionStep

log = Log(__name__)

Made = TypeVar("Made")

NOT_CACHED: Final = CacheOutcome("off", "a fallback is not cached")


def fallback_devices(
    step: ExecutionStep, devices: Mapping[str, hal.Device], accuracy: hal.AccuracyClass
) -> Iterator[tuple[hal.Device, ExecutionStep]]:
    """Yields the devices that can run *step* instead of its own device, in order of preference.

    A device qualifies if it is in the step's `fallbacks` and among *devices*. It must also support
    every operation of the step in the class *accuracy*. Each device comes with a copy of the step
    for that device. The copy's `fallbacks` are the devices that follow; if there are none, its
    `no_fallback` has the reason. A reference device in a host process is followed by the in-process
    one, `LAST_RESORT`, because the host process may die.
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
            reason = "" if rest else no_device_after(name)
            moved = replace(step, device=name, fallbacks=rest, no_fallback=reason, control=None)
            yield device, moved
        else:
            log.debug("step %d: %s does not support it and cannot repeat it", step.index, name)


def recover(
    step: ExecutionStep,
    error: DriverError,
    device: str,
    others: Iterable[tuple[hal.Device, ExecutionStep]],
    attempt: Callable[[hal.Device, ExecutionStep], Made],
    failures: list[Failure],
    warn: Callable[[Failure, hal.Device], None],
    *,
    allowed: bool = True,
    lost: bool = False,
) -> Made:
    """Runs *attempt* on each fallback device in order, and returns the first result.

    Both compilation and runs call it, after *device* failed at *step* with *error*. *others* are
    the pairs of `fallback_devices`. *failures* receives one entry for each failed device, *device*
    first. Before each attempt, *warn* is called with the last failure and the next device.

    Raises *error* with the message of `final_error` if every attempt fails, if no fallback is
    *allowed*, or if memory that the step needs was *lost* with its device.
    `MissedDeadline*` and `Cancelled` propagate unchanged, and no further device is tried.
    """
    failures.append(failure_of(device, error, step))
    if allowed and not lost:
        made = first_success(others, attempt, failures, warn)
        if made is not None:
            return made
    raise final_error(error, step, device, failures[1:], allowed=allowed, lost=lost) from error


def first_success(
    others: Iterable[tuple[hal.Device, ExecutionStep]],
    attempt: Callable[[hal.Device, ExecutionStep], Made],
    failures: list[Failure],
    warn: Callable[[Failure, hal.Device], None],
) -> Made | None:
    """As `recover`, but returns None if every device fails."""
    for device, step in others:
        warn(failures[-1], device)
        try:
            return attempt(device, step)
        except MissedDeadline:
            raise
        except DriverError as error:
            failures.append(failure_of(device.name, error, step))
    return None


def compile_fallback(
    step: ExecutionStep,
    devices: Mapping[str, hal.Device],
    config: hal.PrepareConfig,
    error: DriverError,
    recorder: Recorder,
    *,
    allowed: bool,
) -> tuple[PreparedStep, int]:
    """Compiles *step* on the first fallback device that can, after *error*; the number of tries."""
    failures: list[Failure] = []

    def attempt(device: hal.Device, moved: ExecutionStep) -> tuple[PreparedStep, int]:
        began = time.perf_counter_ns()
        with recorder.time("compile", f"step {step.index}", device.name):
            prepared = call_driver(device, moved, config)
        failed: dict[str, Any] = {"error": failures[0].error, "failures": tuple(failures)}
        failed["fallback_from"] = step.device
        receipt = receipt_of(step, device, began, NOT_CACHED, **failed)
        return PreparedStep(moved, device, prepared, receipt), len(failures) + 1

    def warn(failure: Failure, device: hal.Device) -> None:
        text = "step %d: %s failed to compile it, falling back to %s: %s"
        log.warning(text, step.index, failure.device, device.name, failure.error)

    others = fallback_devices(step, devices, config.accuracy)
    return recover(step, error, step.device, others, attempt, failures, warn, allowed=allowed)


def supports_all(
    device: hal.Device, step: ExecutionStep, accuracy: hal.AccuracyClass = "relaxed"
) -> bool:
    """Whether *device* supports every operation of the step, in *accuracy* or a stricter class."""
    answers = answers_for(device, step)
    least = hal.ACCURACY_RANK[accuracy]
    return bool(answers) and all(
        answer.supported and not class_fault(answer) and hal.ACCURACY_RANK[answer.accuracy] >= least
        for answer in answers
    )


def answers_for(device: hal.Device, step: ExecutionStep) -> Sequence[hal.Support]:
    """A `Support` for each operation of the step; empty, and logged, if there is a fault."""
    try:
        answers = list(device.supported_operations(step.model))
        kinds = mappable_kinds(device)
    except FOREIGN as error:  # a driver may raise anything
        log.warning("device %s could not be asked what it supports: %r", device.name, error)
        return ()
    if len(answers) != len(step.operations) or not all(isinstance(a, hal.Support) for a in answers):
        log.warning("device %s gave something other than one answer an operation", device.name)
        return ()
    return hal.refuse_unmapped(step.model, answers, kinds)
