"""`Receipt` of a compile or a run; its texts and traces are made by other modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.compilation.step_receipt import CacheOutcome, Span, StepReceipt
from penstock.memory.copies import CopyReceipt

if TYPE_CHECKING:
    from penstock.partitioning.plan import ExecutionPlan


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
        from penstock.compilation.receipt_text import shown

        return shown(self)

    def __repr__(self) -> str:
        from penstock.compilation.receipt_text import summary_of
        from penstock.partitioning.show import line_of

        return line_of("Receipt", f"{self.stage}, {summary_of(self)}")

    def _repr_html_(self) -> str:
        """The table of steps, notes and copies for a notebook."""
        from penstock.compilation.receipt_text import table_of

        return table_of(self)

    def to_json(self) -> str:
        """The receipt as one JSON object."""
        return msgspec.json.encode(self).decode()

    def trace(self, plan: ExecutionPlan | None = None) -> dict[str, Any]:
        """The receipt as a Chrome trace. Perfetto and chrome://tracing read it once it is written
        as JSON.

        With *plan* the operations of each step are named.
        """
        from penstock.compilation.receipt_trace import chrome_trace

        return chrome_trace([self], plan)
