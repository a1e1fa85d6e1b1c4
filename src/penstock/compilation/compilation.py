"""From an `ExecutionPlan` to prepared steps: every step through its driver, with fall-back.

A step whose driver fails to compile it is compiled on the reference device instead where the policy
allows; the plan that comes out says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.compilation.receipt import Receipt, StepReceipt
from penstock.errors import (
    Cancelled,
    DriverError,
    GeneralFailure,
    MissedDeadline,
    MissedDeadlinePersistent,
)
from penstock.hal import Device, PrepareConfig, PreparedModel, ProgressEvent
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep

log = logging.getLogger(__name__)

FALLBACK_DEVICE: Final = "reference"
"""The device that repeats what another failed at, by name; it is found like any other."""


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
        """Closes every prepared model; twice is harmless."""
        for step in self.steps:
            step.prepared.close()


def compile_plan(
    plan: ExecutionPlan,
    devices: Mapping[str, Device],
    config: PrepareConfig,
    *,
    allow_fallback: bool,
) -> Compilation:
    """Prepares every step of *plan* on its device.

    *devices* maps names to the devices the plan may use; fall-back needs `FALLBACK_DEVICE` among them.
    Raises the driver's `DriverError` where there is no fall-back, `MissedDeadline*` once the deadline of
    *config* has passed, `Cancelled` once its token is set. Whatever was prepared before an error is
    closed again.
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
        if config.progress is not None:
            config.progress(ProgressEvent("compile", "", len(plan.steps), len(plan.steps)))
    except BaseException:
        for prepared in done:
            prepared.prepared.close()
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
    """One step prepared, on its device or else on the fall-back; and how many compiles it took."""
    device = devices[step.device]
    began = time.perf_counter_ns()
    try:
        prepared = call_driver(device, step, config)
    except (MissedDeadline, Cancelled):
        raise
    except DriverError as error:
        fallback = devices.get(FALLBACK_DEVICE)
        if (
            not allow_fallback
            or fallback is None
            or fallback is device
            or not supports_all(fallback, step)
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
    moved = replace(step, device=fallback.name)
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
    """`prepare_model` with its contract enforced: whatever else a driver raises is a `GeneralFailure`."""
    check_interrupts(config)
    try:
        return device.prepare_model(step.model, config)
    except (DriverError, Cancelled):
        raise
    except Exception as error:
        raise GeneralFailure(f"device {device.name} failed in prepare_model: {error!r}") from error


def check_interrupts(config: PrepareConfig) -> None:
    """Raises once the token is set or the deadline has passed."""
    if config.cancel is not None:
        config.cancel.check()
    if config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns:
        raise MissedDeadlinePersistent(
            "the compile's timeout had passed before every step was compiled"
        )


def supports_all(device: Device, step: ExecutionStep) -> bool:
    """Whether *device* says yes to every operation of the step."""
    try:
        return all(answer.supported for answer in device.supported_operations(step.model))
    except Exception as error:  # noqa: BLE001  # a driver may raise anything
        log.warning("device %s failed in supported_operations: %r", device.name, error)
        return False


def describe(error: BaseException) -> str:
    """An error in one line, with its class."""
    return f"{type(error).__name__}: {error}"


def _as_compiled(plan: ExecutionPlan, done: list[PreparedStep]) -> ExecutionPlan:
    moved = {i: s for s in done if s.receipt.fallback_from is not None for i in s.step.operations}
    if not moved:
        return plan
    operations = tuple(
        placement
        if (step := moved.get(placement.index)) is None
        else replace(
            placement,
            device=step.device.name,
            reasons={
                **placement.reasons,
                str(step.receipt.fallback_from): f"failed to compile: {step.receipt.error}",
            },
        )
        for placement in plan.operations
    )
    return replace(plan, steps=tuple(s.step for s in done), operations=operations)
