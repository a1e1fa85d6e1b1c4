"""From an `ExecutionPlan` to prepared steps: every step through its driver, with fall-back.

A step whose driver fails to compile it is compiled on the reference device instead where the policy
allows; the plan that comes out says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.compilation.receipt import Receipt, StepReceipt
from penstock.errors import (
    Cancelled,
    DriverError,
    GeneralFailure,
    MissedDeadline,
    MissedDeadlinePersistent,
)
from penstock.hal import (
    ACCURACY_RANK,
    AccuracyClass,
    Device,
    PrepareConfig,
    PreparedModel,
    ProgressEvent,
    Support,
)
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep, Placement

log = logging.getLogger(__name__)

FALLBACK_DEVICE: Final = "reference"
"""The device that repeats what another failed at, by name; it is found like any other."""


NO_CANDIDATE: Final = "not a candidate; it repeats only what another device failed at"


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """One step of a plan with what its driver made of it."""

    step: ExecutionStep
    device: Device
    prepared: PreparedModel
    receipt: StepReceipt


@dataclass(frozen=True, slots=True)
class Compilation:
    """The compile stage's value: the plan as it was really compiled, and its prepared steps."""

    plan: ExecutionPlan
    steps: tuple[PreparedStep, ...]
    receipt: Receipt

    def close(self) -> None:
        """Closes every prepared model; twice is harmless. A driver that fails at it is logged."""
        _close(self.steps)


def compile_plan(
    plan: ExecutionPlan,
    devices: Mapping[str, Device],
    config: PrepareConfig,
    *,
    allow_fallback: bool,
) -> Compilation:
    """Prepares every step of *plan* on its device.

    *devices* maps names to the devices the plan may use; fall-back needs `FALLBACK_DEVICE` among them,
    *allow_fallback*, and `may_fall_back` of the step.

    Raises the driver's `DriverError` where there is no fall-back, `MissedDeadline*` once the deadline of
    *config* has passed, `Cancelled` once its token is set. Both are looked at before each compile and
    after the last, so a compile that ends late has missed its deadline. Whatever was prepared before an
    error is closed again.
    """
    began = time.perf_counter_ns()
    done: list[PreparedStep] = []
    compiles = 0
    try:
        for position, step in enumerate(plan.steps):
            if config.progress is not None:
                config.progress(ProgressEvent("compile", step.device, position, len(plan.steps)))
            prepared, tries = prepare_step(step, devices, config, allow_fallback=allow_fallback)
            compiles += tries
            done.append(prepared)
        check_interrupts(config)
        if config.progress is not None:
            config.progress(ProgressEvent("compile", "", len(plan.steps), len(plan.steps)))
    except BaseException:
        _close(done)
        raise
    receipt = Receipt(tuple(s.receipt for s in done), compiles, (), time.perf_counter_ns() - began)
    return Compilation(_as_compiled(plan, done), tuple(done), receipt)


def prepare_step(
    step: ExecutionStep,
    devices: Mapping[str, Device],
    config: PrepareConfig,
    *,
    allow_fallback: bool,
) -> tuple[PreparedStep, int]:
    """One step prepared, on its device or else on the fall-back; and how many compiles it took.

    It falls back where *allow_fallback* and the step's `may_fall_back` let it, and the fall-back
    supports all of it in the accuracy class of *config*.
    """
    device = devices[step.device]
    began = time.perf_counter_ns()
    try:
        prepared = call_driver(device, step, config)
    except (MissedDeadline, Cancelled):
        raise
    except DriverError as error:
        fallback = devices.get(FALLBACK_DEVICE)
        if (
            not (allow_fallback and step.may_fall_back)
            or fallback is None
            or fallback is device
            or not supports_all(fallback, step, config.accuracy)
        ):
            raise
        log.warning(
            "step %d: %s failed to compile it, falling back: %s", step.index, device.name, error
        )
        return _fall_back(step, device, fallback, config, error), 2
    receipt = StepReceipt(device.name, step.operations, time.perf_counter_ns() - began)
    return PreparedStep(step, device, prepared, receipt), 1


def _fall_back(
    step: ExecutionStep, failed: Device, fallback: Device, config: PrepareConfig, error: DriverError
) -> PreparedStep:
    began = time.perf_counter_ns()
    moved = replace(step, device=fallback.name, may_fall_back=False)
    prepared = call_driver(fallback, moved, config)
    receipt = StepReceipt(
        fallback.name,
        step.operations,
        time.perf_counter_ns() - began,
        fallback_from=failed.name,
        error=describe(error),
    )
    return PreparedStep(moved, fallback, prepared, receipt)


def call_driver(device: Device, step: ExecutionStep, config: PrepareConfig) -> PreparedModel:
    """`prepare_model` with its contract enforced: whatever else a driver raises or returns is a
    `GeneralFailure` that names the device.
    """
    check_interrupts(config)
    try:
        prepared: Any = device.prepare_model(step.model, config)
    except (DriverError, Cancelled):
        raise
    except Exception as error:
        raise GeneralFailure(f"device {device.name} failed in prepare_model: {error!r}") from error
    if not callable(getattr(prepared, "execute", None)):
        raise GeneralFailure(
            f"device {device.name} returned {type(prepared).__name__} from prepare_model, "
            "which is no prepared model"
        )
    return prepared  # type: ignore[no-any-return]  # as far as can be known of a driver's object


def check_interrupts(config: PrepareConfig) -> None:
    """Raises once the token is set or the deadline has passed."""
    if config.cancel is not None:
        config.cancel.check()
    if config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns:
        raise MissedDeadlinePersistent(
            "the compile's timeout had passed before every step was compiled"
        )


def supports_all(device: Device, step: ExecutionStep, accuracy: AccuracyClass = "relaxed") -> bool:
    """Whether *device* says yes to every operation of the step, in *accuracy* or better."""
    answers = _answers(device, step)
    least = ACCURACY_RANK[accuracy]
    return bool(answers) and all(
        answer.supported and ACCURACY_RANK.get(answer.accuracy, -1) >= least for answer in answers
    )


def _answers(device: Device, step: ExecutionStep) -> Sequence[Support]:
    """One answer for each operation of the step; none where the device cannot answer."""
    try:
        answers = list(device.supported_operations(step.model))
    except Exception as error:  # noqa: BLE001  # a driver may raise anything
        log.warning("device %s failed in supported_operations: %r", device.name, error)
        return ()
    if len(answers) != len(step.operations) or not all(isinstance(a, Support) for a in answers):
        log.warning("device %s gave something other than one answer an operation", device.name)
        return ()
    return answers


def describe(error: BaseException) -> str:
    """An error in one line, with its class."""
    return f"{type(error).__name__}: {error}"


def _close(steps: Iterable[PreparedStep]) -> None:
    for step in steps:
        try:
            step.prepared.close()
        except Exception as error:  # noqa: BLE001  # a driver may raise anything
            log.warning("device %s failed in close: %r", step.device.name, error)


def _as_compiled(plan: ExecutionPlan, done: Sequence[PreparedStep]) -> ExecutionPlan:
    moved = [step for step in done if step.receipt.fallback_from is not None]
    if not moved:
        return plan
    operations = list(plan.operations)
    devices = plan.devices
    if FALLBACK_DEVICE not in devices:
        devices = (*devices, FALLBACK_DEVICE)
        operations = [
            replace(placement, reasons={**placement.reasons, FALLBACK_DEVICE: NO_CANDIDATE})
            for placement in operations
        ]
    for step in moved:
        answers = _answers(step.device, step.step)
        for position, index in enumerate(step.step.operations):
            accuracy = answers[position].accuracy if answers else operations[index].accuracy
            operations[index] = _moved(operations[index], step, accuracy)
    steps = tuple(step.step for step in done)
    return replace(plan, devices=devices, steps=steps, operations=tuple(operations))


def _moved(placement: Placement, step: PreparedStep, accuracy: AccuracyClass) -> Placement:
    reasons = {name: why for name, why in placement.reasons.items() if name != step.device.name}
    reasons[str(step.receipt.fallback_from)] = f"failed to compile: {step.receipt.error}"
    return replace(placement, device=step.device.name, reasons=reasons, accuracy=accuracy)
