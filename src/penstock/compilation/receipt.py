"""`Receipt` of a compile or a run, as text, JSON, HTML and a Chrome trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import NoneType
from typing import Any, Final, Literal

import msgspec

from penstock.arguments import check_kind
from penstock.compilation.step_receipt import CacheOutcome, KernelReceipt, Span, StepReceipt
from penstock.errors import counted
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


class Receipt(msgspec.Struct, frozen=True):
    """The receipt of one compile (`compiled.receipt`) or one run (`outputs.receipt`).

    *compiles* counts the driver compiles of this call. *wall_ns* is the call's whole duration, from
    *start_ns*. All times are on the clock of `time.perf_counter_ns`. *spans* are the parts of
    compiling and their times; a run has some if it had to compile.
    """

    steps: tuple[StepReceipt, ...] = ()
    compiles: int = 0
    copies: tuple[CopyReceipt, ...] = ()
    wall_ns: int = 0
    start_ns: int = 0
    spans: tuple[Span, ...] = ()
    stage: Literal["compile", "run"] = "run"
    notes: tuple[str, ...] = ()
    """Remarks: what was skipped, what could be better, what shadow verification found."""
    plan: CacheOutcome | None = None
    """What the cache did for the plan of a compile; None if no cache was asked, and for a run."""

    def show(self) -> str:
        """The receipt as a few readable lines."""
        lines = [
            summary_of(self),
            *(
                line
                for place, step in enumerate(self.steps)
                for line in (_step(place, step), *_inner(step.inner, "    "))
            ),
            *([] if self.plan is None else [f"  plan: cache {self.plan}"]),
            *map(_copy, self.copies),
            *(f"  note: {note}" for note in self.notes),
        ]
        return "\n".join(lines) + "\n"

    def __repr__(self) -> str:
        from penstock.partitioning.show import line_of

        return line_of("Receipt", f"{self.stage}, {summary_of(self)}")

    def _repr_html_(self) -> str:
        """The table of steps, notes and copies for a notebook."""
        from penstock.ir.model import html_table

        header = ("step", "device", "operations", "ms", "cache", "fell back from")
        rows: list[Sequence[str]] = [header]
        for place, step in enumerate(self.steps):
            tried = "; ".join(f"{f.device}: {f.error}" for f in step.failures)
            index, count = place if step.step is None else step.step, len(step.operations)
            cells = str(index), step.device, str(count), f"{step.wall_ns / 1e6:.3f}"
            rows.append((*cells, str(step.cache), tried or step.fallback_from or ""))
        rows += [("note", note) for note in self.notes]
        rows += [("copy", _copy(copy).strip()) for copy in self.copies]
        return html_table(f"{self.stage}: {summary_of(self)}", rows)

    def to_json(self) -> str:
        """The receipt as one JSON object."""
        return msgspec.json.encode(self).decode()

    def trace(self, plan: ExecutionPlan | None = None) -> dict[str, Any]:
        """The receipt as a Chrome trace. Perfetto and chrome://tracing read it once it is written
        as JSON.

        With *plan* the operations of each step are named.
        """
        return chrome_trace([self], plan)


def summary_of(receipt: Receipt) -> str:
    """Time, compiles and bytes copied, in one line."""
    copied = counted(sum(copy.nbytes for copy in receipt.copies), "byte")
    return (
        f"{receipt.wall_ns / 1e6:.3f} ms, {counted(receipt.compiles, 'compile')}, {copied} copied"
    )


def _step(place: int, step: StepReceipt) -> str:
    name = f"step {place if step.step is None else step.step}"
    if step.step is None and step.failures:
        name = "the whole model"
    where = f"{step.device} (simulated: no such hardware ran)" if step.simulated else step.device
    line = f"  {name} on {where}: {counted(len(step.operations), 'operation')}"
    runs = f" in {step.runs} runs" if step.runs > 1 else ""
    line += f", {step.wall_ns / 1e6:.3f} ms{runs}, cache {step.cache}"
    if step.fallback_from is not None and not step.failures:
        line += f", fell back from {step.fallback_from}: {step.error}"
    return line + "".join(f", fell back from {f.device}: {f.error}" for f in step.failures)


def _inner(steps: Sequence[StepReceipt], indent: str) -> list[str]:
    lines = []
    for place, step in enumerate(steps):
        lines.append(f"{indent}{step.part} {_step(place, step).strip()}")
        lines += _inner(step.inner, indent + "  ")
    return lines


def _copy(copy: CopyReceipt) -> str:
    place = "" if copy.step is None else f" at step {copy.step}"
    if copy.operand is not None:
        place += f", operand {copy.operand}"
    return (
        f"  copy {counted(copy.nbytes, 'byte')}, {copy.source} -> {copy.destination}{place}: "
        f"{copy.reason}"
    )


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
