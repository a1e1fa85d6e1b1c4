"""Compiles an `ExecutionPlan`: each step by its device's driver, or by a fallback device.

The resulting plan names the fallback device of each step that moved. Each branch of an IF or WHILE
that the runtime carries out is compiled as a plan of its own.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock import hal
from penstock.compilation import calls
from penstock.compilation.prepared import (
    Compilation,
    CompileOptions,
    PendingStep,
    PreparedStep,
    close_all,
)
from penstock.compilation.receipt import Receipt
from penstock.compilation.step_receipt import CacheOutcome, Failure, Recorder
from penstock.errors import DriverError, MissedDeadline, NotYetWritten, Refusal, RefusalCode
from penstock.hal.prepared import retain_entry
from penstock.logs import Log
from penstock.partitioning.plan import Control, ExecutionPlan, ExecutionStep

if TYPE_CHECKING:
    from penstock.compilation.entry import Caching

log = Log(__name__)

NO_CANDIDATE: Final = Refusal(
    RefusalCode.NOT_CANDIDATE, "not a candidate; it repeats only what another device failed at"
)
STILL_COMPILING: Final = "still compiling"


def compile_plan(
    plan: ExecutionPlan,
    devices: Mapping[str, hal.Device],
    config: hal.PrepareConfig,
    options: CompileOptions,
) -> Compilation:
    """Prepares every step of *plan* on its device.

    *devices* maps names to devices. A fallback device must be among them and among the step's
    `fallbacks`, and *options* must allow it.

    Raises the driver's `DriverError` if no fallback can compile the step, `MissedDeadline*` once
    the deadline of *config* has passed, `Cancelled` once its token is set. Both are checked before
    each compile and after the last one. After an error, every prepared model is closed.
    """
    began = time.perf_counter_ns()
    done: list[PreparedStep] = []
    compiles = 0
    try:
        for position, step in enumerate(plan.steps):
            if config.progress is not None:
                event = hal.ProgressEvent("compile", step.device, position, len(plan.steps))
                config.progress(event)
            try:
                prepared, tries = prepare_step(step, devices, config, options)
            except MissedDeadline:
                raise
            except DriverError as error:
                _keep(plan, step, devices, error, None, config)
                raise
            compiles += tries
            done.append(prepared)
        calls.check_interrupts(config)
        if config.progress is not None:
            config.progress(hal.ProgressEvent("compile", "", len(plan.steps), len(plan.steps)))
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
        tuple(options.recorder.spans),
        "compile",
    )
    if planned is not plan:
        for step, made in zip(planned.steps, done, strict=True):
            if made.receipt.failures:
                _keep(planned, step, devices, made.receipt.failures[0].error, receipt, config)
    return Compilation(plan, tuple(done), receipt)


def as_compiled(plan: ExecutionPlan, done: Sequence[PreparedStep]) -> ExecutionPlan:
    """*plan* with the steps that a fallback moved to other devices, and the reason for each."""
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
            before, name = operations[index], step.device.name
            accuracy = answers[position].accuracy if answers else before.accuracy
            refusals = {n: why for n, why in before.refusals.items() if n != name}
            for failure in step.receipt.failures:
                words = f"failed to compile: {failure.error}"
                refusals[failure.device] = Refusal(RefusalCode.FAILED, words, failure.status)
            operations[index] = replace(before, device=name, refusals=refusals, accuracy=accuracy)
    steps = tuple(
        before if step.pending else step.step for before, step in zip(plan.steps, done, strict=True)
    )
    return replace(plan, devices=devices, steps=steps, operations=tuple(operations))


def _keep(
    plan: ExecutionPlan,
    step: ExecutionStep,
    devices: Mapping[str, hal.Device],
    error: DriverError | str,
    receipt: Receipt | None,
    config: hal.PrepareConfig,
) -> None:
    from penstock.capsules.evidence import keep, noted
    from penstock.compilation.failing import driver_message

    text = error if isinstance(error, str) else driver_message(error)
    for failure in noted("compile", step, devices[step.device], text):
        keep(failure, plan, None if receipt is None else receipt.to_json(), config.accuracy)


def prepare_step(
    step: ExecutionStep,
    devices: Mapping[str, hal.Device],
    config: hal.PrepareConfig,
    options: CompileOptions,
) -> tuple[PreparedStep, int]:
    """Prepares one step on its device or on a fallback device; also returns the number of compiles.

    A fallback must be allowed by *options* and by the step's `fallbacks`. It must support every
    operation of the step in the accuracy class of *config*.
    """
    if step.control is not None:
        return _prepare_control(step, step.control, devices, config, options)
    device = devices[step.device]
    meanwhile = options.meanwhile
    if meanwhile is not None and meanwhile.name in step.fallbacks:
        from penstock.compilation.recovery import supports_all

        if supports_all(meanwhile, step, config.accuracy):
            return _begin(step, device, meanwhile, config, options)
    began = time.perf_counter_ns()
    try:
        prepared, outcome, compiles = _obtain(device, step, config, options)
    except MissedDeadline:
        raise
    except DriverError as error:
        if options.as_raised:
            raise
        from penstock.compilation.recovery import compile_fallback

        recorder, allowed = options.recorder, options.allow_fallback
        return compile_fallback(step, devices, config, error, recorder, allowed=allowed)
    receipt = calls.receipt_of(step, device, began, outcome)
    return PreparedStep(step, device, prepared, receipt), compiles


def _obtain(
    device: hal.Device, step: ExecutionStep, config: hal.PrepareConfig, options: CompileOptions
) -> tuple[hal.PreparedModel, CacheOutcome, int]:
    """Prepares *step* on *device*, from the cache if possible; also returns its compiles."""
    caching, recorder = options.caching, options.recorder
    if caching is None:
        with recorder.time("compile", f"step {step.index}", device.name):
            return calls.call_driver(device, step, config), CacheOutcome("off", options.uncached), 1
    from penstock.compilation import entry

    needed, config = entry.files_needed(device), calls.config_of(step, config)
    if reason := entry.reason_not_cached(device, needed):
        obtained = entry.compiled(device, step, config, CacheOutcome("off", reason), recorder)
    elif caching.info.place is None:
        from penstock.compilation.filling import obtain_in_given_files

        obtained = obtain_in_given_files(device, step, config, caching, recorder)
    else:
        place = caching.info.place
        own = entry.entry_of(device, step, config, caching, place, needed, recorder)
        loaded = own.load()
        if isinstance(loaded, entry.Obtained):
            obtained = loaded
        else:
            from penstock.compilation.filling import fill

            obtained = fill(own, loaded)
            retain_entry(obtained.prepared, own.opening())
    return obtained.prepared, obtained.outcome, int(obtained.compiled)


def _begin(
    step: ExecutionStep,
    device: hal.Device,
    meanwhile: hal.Device,
    config: hal.PrepareConfig,
    options: CompileOptions,
) -> tuple[PreparedStep, int]:
    """Loads the step from the cache. On a miss, *meanwhile* runs it during a background compile."""
    began = time.perf_counter_ns()
    if options.caching is not None:
        from penstock.compilation.entry import look_up

        if (found := look_up(device, step, config, options.caching, options.recorder)) is not None:
            receipt = calls.receipt_of(step, device, began, found.outcome)
            return PreparedStep(step, device, found.prepared, receipt), 0
    moved = replace(step, device=meanwhile.name, fallbacks=())
    with options.recorder.time("compile", f"step {step.index}", meanwhile.name):
        prepared = calls.call_driver(meanwhile, moved, config)
    from penstock.compilation.cache_faults import fault_of

    fault = fault_of(NotYetWritten(f"{STILL_COMPILING} on {device.name}"))
    missed = CacheOutcome("miss", fault.words, code=fault.code)
    why = {"fallback_from": device.name, "error": STILL_COMPILING}
    receipt = calls.receipt_of(step, meanwhile, began, missed, **why)

    def make(own: hal.PrepareConfig) -> PreparedStep:
        alone = replace(
            options, allow_fallback=False, meanwhile=None, as_raised=True, recorder=Recorder()
        )
        return prepare_step(step, {device.name: device}, own, alone)[0]

    pending = PendingStep(make, config, f"{step.index}-{device.name}")
    return PreparedStep(moved, meanwhile, prepared, receipt, pending), 1


class CarriedOut(hal.PreparedModelBase):
    """Placeholder for a control-flow step that the runtime carries out. It is never executed."""


def _prepare_control(
    step: ExecutionStep,
    control: Control,
    devices: Mapping[str, hal.Device],
    config: hal.PrepareConfig,
    options: CompileOptions,
) -> tuple[PreparedStep, int]:
    """Compiles every branch of *control*, or else, if allowed, the step as a whole."""
    began = time.perf_counter_ns()
    done: list[Compilation] = []
    quiet = replace(config, progress=None)
    try:
        for place, branch in enumerate(control.branches):
            caching = _branch_caching(options.caching, step, place, branch)
            done.append(compile_plan(branch, devices, quiet, replace(options, caching=caching)))
    except BaseException as error:
        close_all(done)
        if not isinstance(error, DriverError) or isinstance(error, MissedDeadline):
            raise
        if not options.allow_fallback:
            raise
        words = calls.describe(error)
        text = "step %d: a branch did not compile, %s runs the step as a whole: %s"
        log.warning(text, step.index, step.device, words)
        failure = Failure("a branch of it", words, error.status)
        whole, compiles = prepare_step(replace(step, control=None), devices, config, options)
        failures = (failure, *whole.receipt.failures)
        why = {"fallback_from": failure.device, "error": words, "failures": failures}
        return replace(whole, receipt=replace(whole.receipt, **why)), compiles
    compiled = replace(step, control=Control(control.kind, tuple(one.plan for one in done)))
    inner = tuple(
        replace(inner, part=part)
        for part, one in zip(control.parts, done, strict=True)
        for inner in one.receipt.steps
    )
    device = devices[step.device]
    outcome = CacheOutcome("off", "the runtime carries it out")
    receipt = calls.receipt_of(step, device, began, outcome, inner=inner)
    receipt = replace(receipt, simulated=False)
    made = PreparedStep(compiled, device, CarriedOut(), receipt, branches=tuple(done))
    return made, sum(one.receipt.compiles for one in done)


def _branch_caching(
    caching: Caching | None, step: ExecutionStep, place: int, branch: ExecutionPlan
) -> Caching | None:
    """The cache options of a branch, a model of its own, whose token extends the caller's."""
    if caching is None or caching.in_given_files:
        return None
    info = caching.info
    if info.token is not None and info.place is not None:
        from penstock.cache.info import CacheInfo

        path = f"branch {place} of step {step.index}".encode()
        token = hashlib.sha256(info.token + path).digest()
        trusted, store = info.trust_token, info.store
        info = CacheInfo(info.place, token, trust_token=trusted, store=store)
    return replace(caching, info=info, model=branch.model, shapes={}, plan=branch)
