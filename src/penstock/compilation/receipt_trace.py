"""Receipts as a Chrome trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import NoneType
from typing import Any, Final

from penstock.arguments import check_kind
from penstock.compilation.receipt import Receipt
from penstock.compilation.step_receipt import KernelReceipt, Span, StepReceipt
from penstock.memory.copies import CopyReceipt
from penstock.partitioning.plan import ExecutionPlan

PROCESS: Final = 1
RUNTIME_THREAD: Final = 0
KERNELS: Final = " kernels"
"""Suffix of a device's row for kernels: the driver's clock may differ slightly from the host's."""

MOST_NAMES: Final = 8
"""Up to this many operations, the name of a kernel's bar lists all of them."""

BRANCHES: Final = " in branches"
"""Suffix of a device's row for steps of branches. They lie inside the step of their IF or WHILE."""


def chrome_trace(
    receipts: Sequence[Receipt], plan: ExecutionPlan | None = None, spans: Iterable[Span] = ()
) -> dict[str, Any]:
    """One Chrome trace of *receipts* and *spans*; its clock starts at the earliest of them.

    One row shows the runtime's work, one row each device's steps and compiles, and one row the
    kernels inside them, named by their operations. With *plan* the operations of each step are
    named. Raises `InputError` for an argument that is no receipt or no plan.
    """
    check_kind(receipts, (list, tuple), "a trace is made of a list of Receipts")
    for receipt in receipts:
        check_kind(receipt, Receipt, "a trace is made of Receipts")
    check_kind(
        plan, (ExecutionPlan, NoneType), "the operations of a trace are named by an ExecutionPlan"
    )
    writer = _Writer(plan)
    for span in spans:
        writer.span(span)
    for receipt in receipts:
        writer.receipt(receipt)
    return {"traceEvents": writer.events(), "displayTimeUnit": "ms"}


class _Writer:
    def __init__(self, plan: ExecutionPlan | None) -> None:
        self._plan = plan
        self._made: list[dict[str, Any]] = []
        self._threads: dict[str, int] = {"runtime": RUNTIME_THREAD}

    def events(self) -> list[dict[str, Any]]:
        """All events so far, sorted by start, with times relative to the first."""
        first = min((event["ts"] for event in self._made), default=0)
        timed = [event | {"ts": (event["ts"] - first) / 1000} for event in self._made]
        named = [_named("process_name", RUNTIME_THREAD, "penstock")]
        named += [_named("thread_name", place, name) for name, place in self._threads.items()]
        return named + sorted(timed, key=lambda event: event["ts"])

    def receipt(self, receipt: Receipt) -> None:
        stage = receipt.stage
        self._event(stage, stage, None, receipt.start_ns, receipt.wall_ns, {})
        for span in receipt.spans:
            self.span(span)
        for step in receipt.steps:
            self._step(step, "prepare" if stage == "compile" else "execute")
        for copy in receipt.copies:
            self._copy(copy)

    def span(self, span: Span) -> None:
        name, times = f"{span.stage} {span.name}".rstrip(), (span.start_ns, span.duration_ns)
        self._event(name, span.stage, span.device, *times, {})

    def _step(self, step: StepReceipt, stage: str) -> None:
        place = "the whole model" if step.step is None else f"step {step.step}"
        same = ("device", "simulated", "driver_ns", "fallback_from")
        arguments = {
            **{name: getattr(step, name) for name in same},
            "operations": [self._operation(i) for i in step.operations],
            "cache": str(step.cache),
            "errors": [f"{failure.device}: {failure.error}" for failure in step.failures],
        }
        self._event(f"{stage} {place}", stage, step.device, step.start_ns, step.wall_ns, arguments)
        for kernel in step.kernels:
            self._kernel(kernel, step.device)
        for inner in step.inner:
            self._inner(inner)

    def _inner(self, step: StepReceipt) -> None:
        times = f" x{step.runs}" if step.runs > 1 else ""
        name = f"{step.part} step {step.step}{times}"
        arguments = {"device": step.device, "runs": step.runs}
        row = step.device + BRANCHES
        self._event(name, "execute", row, step.start_ns, step.wall_ns, arguments)
        for inner in step.inner:
            self._inner(inner)

    def _kernel(self, kernel: KernelReceipt, device: str) -> None:
        operations, names = list(kernel.operations), list(kernel.names)
        arguments = {"kernel": kernel.kernel, "operations": operations, "names": names}
        name = " + ".join(kernel.names) or kernel.kernel
        if len(kernel.names) > MOST_NAMES:
            name = f"{kernel.names[0]} + ... + {kernel.names[-1]} ({len(kernel.names)} operations)"
        times = kernel.start_ns, kernel.duration_ns
        self._event(name, "execute", device + KERNELS, *times, arguments)

    def _copy(self, copy: CopyReceipt) -> None:
        arguments = {name: getattr(copy, name) for name in ("step", "operand", "reason")}
        arguments["bytes"] = copy.nbytes
        name = f"copy {copy.source} -> {copy.destination}"
        self._event(name, "copy", None, copy.start_ns, copy.wall_ns, arguments)

    def _operation(self, index: int) -> str:
        if self._plan is None:
            return str(index)
        placement = self._plan.operations[index]
        return f"{index} {placement.type} {placement.name}".rstrip()

    def _event(
        self,
        name: str,
        category: str,
        device: str | None,
        start_ns: int,
        duration_ns: int,
        arguments: dict[str, Any],
    ) -> None:
        row = "runtime" if device is None else device
        thread = self._threads.setdefault(row, len(self._threads))
        event = {"name": name, "cat": category, "ph": "X", "ts": start_ns, "args": arguments}
        self._made.append({**event, "dur": duration_ns / 1000, "pid": PROCESS, "tid": thread})


def _named(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": PROCESS, "tid": thread, "args": {"name": name}}
