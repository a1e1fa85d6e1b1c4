"""From an `ExecutionPlan` to prepared steps: every step through its driver, with fall-back.

A step whose driver fails to compile it is compiled on the next device that its plan lets it fall
back on; the plan that comes out says so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from penstock.compilation.calls import call_driver, check_interrupts, is_simulated
from penstock.compilation.prepared import (
    Compilation,
    CompileOptions,
    PreparedStep,
    close_all,
)
from penstock.compilation.receipt import CacheOutcome, Receipt, Recorder, StepReceipt, fault_of
from penstock.errors import DriverError, MissedDeadline, NotYetWritten, Refusal, RefusalCode
from penstock.hal import AccuracyClass, Device, PrepareConfig, PreparedModel, ProgressEvent
from penstock.logs import Log
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep, Placement

log = Log(__name__)

NO_CANDIDATE: Final = Refusal(
    RefusalCode.NOT_CANDIDATE, "not a candidate; it repeats only what another device failed at"
)
STILL_COMPILING: Final = "still compiling"


def compile_plan(
    plan: ExecutionPlan,
    devices: Mapping[str, Device],
    config: PrepareConfig,
    means: CompileOptions,
) -> Compilation:
    """Prepares every step of *plan* on its device.

    *devices* maps names to the devices the plan may use; a fall-back must be among them and among
    the step's `fallbacks`, and *means* must allow it.

    Raises the driver's `DriverError` where there is no fall-back, `MissedDeadline*` once the
    deadline of *config* has passed, `Cancelled` once its token is set. Both are looked at before
    each compile and after the last, so a compile that ends late has missed its deadline. Whatever
    was prepared before an error is closed again.
    """
    began = time.perf_counter_ns()
    done: list[PreparedStep] = []
    compiles = 0
    try:
        for position, step in enumerate(plan.steps):
            if config.progress is not None:
                config.progress(ProgressEvent("compile", step.device, position, len(plan.steps)))
            try:
                prepared, tries = prepare_step(step, devices, config, means)
            except MissedDeadline:
                raise
            except DriverError as error:
                _keep(plan, step, devices, error, None, config)
                raise
            compiles += tries
            done.append(prepared)
        check_interrupts(config)
        if config.progress is not None:
            config.progress(ProgressEvent("compile", "", len(plan.steps), len(plan.steps)))
    except BaseException:
        close_all(done)
        raise
    planned = plan
    if any(step.receipt.failures or step.branches for step in done):
        plan = as_compiled(plan, done)
    receipt = Receipt(
        tuple(s.receipt for s in done),
        compiles,
        (),
        time.perf_counter_ns() - began,
        began,
        tuple(means.recorder.spans),
        "compile",
    )
    if planned is not plan:
        for step, made in zip(planned.steps, done, strict=True):
            if made.receipt.failures:
                _keep(planned, step, devices, made.receipt.failures[0].error, receipt, config)
    return Compilation(plan, tuple(done), receipt)


def as_compiled(plan: ExecutionPlan, done: Sequence[PreparedStep]) -> ExecutionPlan:
    """*plan* with the steps that another device compiled where they are now, and why; in branches,
    too.
    """
    from penstock.compilation.recovery import answers_for

    moved = [step for step in done if step.receipt.failures and not step.pending]
    operations = list(plan.operations)
    devices = plan.devices
    for name in dict.fromkeys(step.device.name for step in moved):
        if name not in devices:
            devices = (*devices, name)
            operations = [
                replace(placement, refusals={**placement.refusals, name: NO_CANDIDATE})
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
    refusals = {n: why for n, why in placement.refusals.items() if n != step.device.name}
    for failure in step.receipt.failures:
        words = f"failed to compile: {failure.error}"
        refusals[failure.device] = Refusal(RefusalCode.FAILED, words, failure.status)
    return replace(placement, device=step.device.name, refusals=refusals, accuracy=accuracy)


def _keep(
    plan: ExecutionPlan,
    step: ExecutionStep,
    devices: Mapping[str, Device],
    error: DriverError | str,
    receipt: Receipt | None,
    config: PrepareConfig,
) -> None:
    """Keeps a compile that failed, for a capsule."""
    from penstock.capsules.evidence import keep, noted
    from penstock.compilation.failing import told

    text = error if isinstance(error, str) else told(error)
    for failure in noted("compile", step, devices[step.device], text):
        keep(failure, plan, None if receipt is None else receipt.to_json(), config.accuracy)


def prepare_step(
    step: ExecutionStep,
    devices: Mapping[str, Device],
    config: PrepareConfig,
    means: CompileOptions,
) -> tuple[PreparedStep, int]:
    """One step prepared, on its device or else on a fall-back; and how many compiles it took.

    It falls back where *means* and the `fallbacks` of the step let it, on a device that supports
    all of it in the accuracy class of *config*.
    """
    if step.control is not None:
        from penstock.compilation.control import prepare_control

        quiet = replace(config, progress=None)
        return prepare_control(
            step,
            step.control,
            devices[step.device],
            means,
            lambda branch, own: compile_plan(branch, devices, quiet, own),
            lambda whole: prepare_step(whole, devices, config, means),
        )
    device = devices[step.device]
    meanwhile = means.meanwhile
    if meanwhile is not None and _may_stand_in(meanwhile, step, config):
        return _begin(step, device, meanwhile, config, means)
    began = time.perf_counter_ns()
    try:
        prepared, outcome, compiles = _obtain(device, step, config, means)
    except MissedDeadline:
        raise
    except DriverError as error:
        if means.as_raised:
            raise
        from penstock.compilation.recovery import compile_elsewhere

        device, moved, prepared, receipt, compiles = compile_elsewhere(
            step, devices, config, error, means.recorder, allowed=means.allow_fallback
        )
        return PreparedStep(moved, device, prepared, receipt), compiles
    return PreparedStep(step, device, prepared, _receipt(step, device, began, outcome)), compiles


def _may_stand_in(other: Device, step: ExecutionStep, config: PrepareConfig) -> bool:
    from penstock.compilation.recovery import supports_all

    return other.name in step.fallbacks and supports_all(other, step, config.accuracy)


def _obtain(
    device: Device, step: ExecutionStep, config: PrepareConfig, means: CompileOptions
) -> tuple[PreparedModel, CacheOutcome, int]:
    if means.caching is None:
        with means.recorder.time("compile", f"step {step.index}", device.name):
            return call_driver(device, step, config), CacheOutcome("off", means.uncached), 1
    from penstock.compilation.caching import obtain

    obtained = obtain(device, step, config, means.caching, means.recorder)
    return obtained.prepared, obtained.outcome, int(obtained.compiled)


def _begin(
    step: ExecutionStep,
    device: Device,
    meanwhile: Device,
    config: PrepareConfig,
    means: CompileOptions,
) -> tuple[PreparedStep, int]:
    """The step out of the cache, else on *meanwhile* with its compile begun in the background."""
    began = time.perf_counter_ns()
    if means.caching is not None:
        from penstock.compilation.caching import look_up

        if (found := look_up(device, step, config, means.caching, means.recorder)) is not None:
            receipt = _receipt(step, device, began, found.outcome)
            return PreparedStep(step, device, found.prepared, receipt), 0
    from penstock.compilation.background import PendingStep

    moved = replace(step, device=meanwhile.name, fallbacks=())
    with means.recorder.time("compile", f"step {step.index}", meanwhile.name):
        prepared = call_driver(meanwhile, moved, config)
    fault = fault_of(NotYetWritten(f"{STILL_COMPILING} on {device.name}"))
    told = CacheOutcome("miss", fault.words, code=fault.code)
    receipt = replace(
        _receipt(step, meanwhile, began, told), fallback_from=device.name, error=STILL_COMPILING
    )

    def make(own: PrepareConfig) -> PreparedStep:
        alone = replace(
            means, allow_fallback=False, meanwhile=None, as_raised=True, recorder=Recorder()
        )
        return prepare_step(step, {device.name: device}, own, alone)[0]

    pending = PendingStep(make, config, f"{step.index}-{device.name}")
    return PreparedStep(moved, meanwhile, prepared, receipt, pending), 1


def _receipt(step: ExecutionStep, device: Device, began: int, outcome: CacheOutcome) -> StepReceipt:
    return StepReceipt(
        device.name,
        step.operations,
        time.perf_counter_ns() - began,
        cache=outcome,
        step=step.index,
        start_ns=began,
        simulated=is_simulated(device),
    )
