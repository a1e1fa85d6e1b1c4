"""From an `ExecutionPlan` to prepared steps: every step through its driver, with fall-back.

A step whose driver fails to compile it is compiled on the reference device instead where the policy
allows; the plan that comes out says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.compilation.calls import call_driver, check_interrupts, describe
from penstock.compilation.receipt import CacheOutcome, Receipt, StepReceipt
from penstock.errors import Cancelled, DriverError, MissedDeadline, NotYetWritten
from penstock.hal import (
    ACCURACY_RANK,
    AccuracyClass,
    Device,
    PrepareConfig,
    PreparedModel,
    ProgressEvent,
    Support,
)
from penstock.logs import Log
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep, Placement

if TYPE_CHECKING:
    from penstock.compilation.background import PendingStep
    from penstock.compilation.caching import Caching

log = Log(__name__)

FALLBACK_DEVICE: Final = "reference"
"""The device that repeats what another failed at, by name; it is found like any other."""


NO_CANDIDATE: Final = "not a candidate; it repeats only what another device failed at"


NO_CACHE_ASKED: Final = CacheOutcome("off", "no cache was asked for")
STILL_COMPILING: Final = "still compiling"


class PreparedStep(Struct, frozen=True):
    """One step of a plan with what its driver made of it.

    *pending* is the compile on the device that the plan chose, while another one runs the step.
    """

    step: ExecutionStep
    device: Device
    prepared: PreparedModel
    receipt: StepReceipt
    pending: PendingStep | None = None

    def close(self) -> None:
        """Closes the prepared model, after the compile under way; twice is harmless. Logs what a driver raises."""
        if self.pending is not None:
            self.pending.close()
        try:
            self.prepared.close()
        except Exception as error:  # noqa: BLE001  # a driver may raise anything
            log.warning("device %s failed in close: %r", self.device.name, error)


class Means(Struct, frozen=True):
    """What a compile may do beside calling the plan's own drivers.

    *allow_fallback* lets `FALLBACK_DEVICE` among the devices repeat what another failed at. *caching* is how
    the cache is used, None not at all. *meanwhile* runs a step that has to be compiled until that is done;
    None waits.
    """

    allow_fallback: bool = True
    caching: Caching | None = None
    meanwhile: Device | None = None


class Compilation(Struct, frozen=True):
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
    means: Means,
) -> Compilation:
    """Prepares every step of *plan* on its device.

    *devices* maps names to the devices the plan may use; fall-back needs `FALLBACK_DEVICE` among them,
    *means* that allow it, and the `fallbacks` of the step.

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
            prepared, tries = prepare_step(step, devices, config, means)
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
    means: Means,
) -> tuple[PreparedStep, int]:
    """One step prepared, on its device or else on the fall-back; and how many compiles it took.

    It falls back where *means* and the `fallbacks` of the step let it, and the fall-back supports all
    of it in the accuracy class of *config*.
    """
    device = devices[step.device]
    began = time.perf_counter_ns()
    if (meanwhile := means.meanwhile) is not None and _may_stand_in(
        meanwhile, device, step, config
    ):
        return _begin(step, device, meanwhile, config, means)
    try:
        prepared, outcome, compiles = _obtain(device, step, config, means.caching)
    except (MissedDeadline, Cancelled):
        raise
    except DriverError as error:
        fallback = devices.get(FALLBACK_DEVICE)
        if (
            not means.allow_fallback
            or fallback is None
            or not _may_stand_in(fallback, device, step, config)
        ):
            raise
        log.warning(
            "step %d: %s failed to compile it, falling back: %s", step.index, device.name, error
        )
        return _fall_back(step, device, fallback, config, error), 2
    receipt = StepReceipt(
        device.name, step.operations, time.perf_counter_ns() - began, cache=outcome
    )
    return PreparedStep(step, device, prepared, receipt), compiles


def _may_stand_in(
    other: Device, device: Device, step: ExecutionStep, config: PrepareConfig
) -> bool:
    """Whether *other* may and can do what the plan gives to *device*."""
    return other.name in step.fallbacks and other is not device and supports_all(other, step, config.accuracy)


def _obtain(
    device: Device, step: ExecutionStep, config: PrepareConfig, caching: Caching | None
) -> tuple[PreparedModel, CacheOutcome, int]:
    if caching is None:
        return call_driver(device, step, config), NO_CACHE_ASKED, 1
    from penstock.compilation.caching import obtain

    obtained = obtain(device, step, config, caching)
    return obtained.prepared, obtained.outcome, int(obtained.compiled)


def _begin(
    step: ExecutionStep, device: Device, meanwhile: Device, config: PrepareConfig, means: Means
) -> tuple[PreparedStep, int]:
    """The step out of the cache, else on *meanwhile* with its compile begun in the background."""
    began = time.perf_counter_ns()
    if means.caching is not None:
        from penstock.compilation.caching import look_up

        if (found := look_up(device, step, config, means.caching)) is not None:
            receipt = StepReceipt(
                device.name,
                step.operations,
                time.perf_counter_ns() - began,
                cache=found.outcome,
            )
            return PreparedStep(step, device, found.prepared, receipt), 0
    from penstock.compilation.background import PendingStep

    moved = replace(step, device=meanwhile.name, fallbacks=())
    prepared = call_driver(meanwhile, moved, config)
    receipt = StepReceipt(
        meanwhile.name,
        step.operations,
        time.perf_counter_ns() - began,
        cache=CacheOutcome("miss", str(NotYetWritten(f"{STILL_COMPILING} on {device.name}"))),
        fallback_from=device.name,
        error=STILL_COMPILING,
    )

    def make(own: PrepareConfig) -> PreparedStep:
        return prepare_step(
            step, {device.name: device}, own, replace(means, allow_fallback=False, meanwhile=None)
        )[0]

    pending = PendingStep(make, config, f"{step.index}-{device.name}")
    return PreparedStep(moved, meanwhile, prepared, receipt, pending), 1


def _fall_back(
    step: ExecutionStep, failed: Device, fallback: Device, config: PrepareConfig, error: DriverError
) -> PreparedStep:
    began = time.perf_counter_ns()
    moved = replace(step, device=fallback.name, fallbacks=())
    prepared = call_driver(fallback, moved, config)
    receipt = StepReceipt(
        fallback.name,
        step.operations,
        time.perf_counter_ns() - began,
        cache=CacheOutcome("off", "a fall-back is not cached"),
        fallback_from=failed.name,
        error=describe(error),
    )
    return PreparedStep(moved, fallback, prepared, receipt)


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


def _close(steps: Iterable[PreparedStep]) -> None:
    for step in steps:
        step.close()


def _as_compiled(plan: ExecutionPlan, done: Sequence[PreparedStep]) -> ExecutionPlan:
    moved = [step for step in done if step.receipt.fallback_from is not None and not step.pending]
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
    steps = tuple(
        before if step.pending else step.step for before, step in zip(plan.steps, done, strict=True)
    )
    return replace(plan, devices=devices, steps=steps, operations=tuple(operations))


def _moved(placement: Placement, step: PreparedStep, accuracy: AccuracyClass) -> Placement:
    reasons = {name: why for name, why in placement.reasons.items() if name != step.device.name}
    reasons[str(step.receipt.fallback_from)] = f"failed to compile: {step.receipt.error}"
    return replace(placement, device=step.device.name, reasons=reasons, accuracy=accuracy)
