"""From what one run did to its receipt, made when somebody asks for it."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from penstock.compilation.calls import report_of
from penstock.compilation.compilation import PreparedStep
from penstock.compilation.receipt import (
    TO_BE_WRITTEN,
    CacheOutcome,
    KernelReceipt,
    Receipt,
    StepReceipt,
)
from penstock.execution.trace import StepTrace, Trace
from penstock.hal import OperationTiming, Timing
from penstock.partitioning.fallback import WHOLE


def run_receipt(trace: Trace, began_ns: int, ended_ns: int) -> Receipt:
    """The receipt of a run that lasted from *began_ns* to *ended_ns*."""
    return Receipt(
        tuple(map(_step_receipt, trace.steps)),
        trace.compiles,
        tuple(trace.copies),
        ended_ns - began_ns,
        began_ns,
        trace.spans,
        notes=tuple(map(str, trace.notes)),
    )


def _step_receipt(run: StepTrace) -> StepReceipt:
    step = run.prepared.step
    # A driver that was not there for the compile is not there for the run either.
    failures = run.failures or tuple(
        f
        for f in run.prepared.receipt.failures
        if f.error.startswith(("DeadObject", "MissedDeadline"))
    )
    first = failures[0] if failures else None
    timing: object = run.result.timing
    told = timing.in_driver_ns if isinstance(timing, Timing) else None
    on_device = timing.on_device_ns if isinstance(timing, Timing) else None
    return StepReceipt(
        run.prepared.device.name,
        step.operations,
        run.ended_ns - run.began_ns,
        told if isinstance(told, int) else None,
        _cache_outcome(run.prepared),
        None if first is None else first.device,
        None if first is None else first.error,
        failures,
        None if step.index == WHOLE else step.index,
        run.began_ns,
        _kernels(run, timing.operations) if isinstance(timing, Timing) else (),
        tuple(
            replace(
                _step_receipt(inner.first), part=inner.part, runs=inner.runs, wall_ns=inner.wall_ns
            )
            for inner in run.inner
        ),
        simulated=run.prepared.receipt.simulated,
        device_ns=on_device if isinstance(on_device, int) else None,
    )


def _kernels(run: StepTrace, told: object) -> tuple[KernelReceipt, ...]:
    """What the driver says of its kernels, as far as it makes sense; none of it otherwise."""
    if not isinstance(told, tuple) or not all(_makes_sense(k, run.prepared) for k in told):
        return ()
    step = run.prepared.step
    entry = step.model.entry
    return tuple(
        KernelReceipt(
            kernel.name,
            tuple(step.operations[i] for i in kernel.operations),
            tuple(
                f"{entry.operations[i].type} {entry.operation_name(i)}" for i in kernel.operations
            ),
            run.began_ns + kernel.start_ns,
            kernel.duration_ns,
        )
        for kernel in told
    )


def _makes_sense(kernel: object, prepared: PreparedStep) -> bool:
    try:
        checked = msgspec.convert(msgspec.to_builtins(kernel), OperationTiming)
    except (msgspec.ValidationError, TypeError):
        return False
    return all(0 <= i < len(prepared.step.operations) for i in checked.operations)


def _cache_outcome(prepared: PreparedStep) -> CacheOutcome:
    """What the cache did for the step's compile, with what has become of a late write by now: of the first one, or of one that
    is to put a better form in the place of what was saved or loaded.
    """
    told = prepared.receipt.cache
    if told.not_saved not in {"", TO_BE_WRITTEN}:
        return told
    report = report_of(prepared.prepared)
    if report.later:
        return replace(told, not_saved=report.reason) if report.reason else told
    if told.not_saved:
        return replace(told, saved=report.save != "failed", not_saved=report.reason)
    return replace(told, not_saved=report.reason) if report.save == "failed" else told
