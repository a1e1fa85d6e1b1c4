"""A run as a Chrome trace (the JSON that chrome://tracing and Perfetto read)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.compilation import Receipt, StepReceipt
from penstock.partitioning.plan import ExecutionPlan

PROCESS: Final = 1
RUNTIME_THREAD: Final = 0


def chrome_trace(
    times: Mapping[str, int], compiled: Receipt, run: Receipt, plan: ExecutionPlan
) -> dict[str, Any]:
    """Load, compile and run one after another, and below compile and run their steps, a row a device.

    *times* are nanoseconds by stage, in order. Receipts say how long each step took, not when it
    began: steps stand one right after the other from their stage's beginning, which is how they ran.
    """
    devices = dict.fromkeys(step.device for step in (*compiled.steps, *run.steps))
    threads = {name: place for place, name in enumerate(devices, RUNTIME_THREAD + 1)}
    events = [
        _named("process_name", RUNTIME_THREAD, "penstock"),
        _named("thread_name", RUNTIME_THREAD, "runtime"),
    ]
    events += [_named("thread_name", thread, name) for name, thread in threads.items()]
    start = 0
    for stage, duration in times.items():
        events.append(_event(stage, RUNTIME_THREAD, start, duration, {}))
        receipt = {"compile": compiled, "run": run}.get(stage)
        inside = start
        for index, step in enumerate(receipt.steps if receipt is not None else ()):
            arguments = _arguments(step, plan) | {"step": index}
            events.append(
                _event(
                    f"{stage} step {index}", threads[step.device], inside, step.wall_ns, arguments
                )
            )
            inside += step.wall_ns
        start += duration
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _arguments(step: StepReceipt, plan: ExecutionPlan) -> dict[str, Any]:
    return {
        "device": step.device,
        "operations": [f"{i} {plan.operations[i].type}" for i in step.operations],
        "driver_ns": step.driver_ns,
        "cache": step.cache.outcome,
        "fallback_from": step.fallback_from,
        "error": step.error,
    }


def _event(
    name: str, thread: int, start_ns: int, duration_ns: int, arguments: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": name,
        "ph": "X",
        "ts": start_ns / 1000,
        "dur": duration_ns / 1000,
        "pid": PROCESS,
        "tid": thread,
        "args": arguments,
    }


def _named(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": PROCESS, "tid": thread, "args": {"name": name}}
