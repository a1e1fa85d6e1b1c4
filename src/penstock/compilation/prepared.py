"""Results of a compile: prepared steps, and a whole plan's compilation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from penstock.compilation.receipt import Receipt
from penstock.compilation.step_receipt import Recorder, StepReceipt
from penstock.errors import FOREIGN
from penstock.hal import Device, PreparedModel
from penstock.logs import Log
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep

if TYPE_CHECKING:
    from penstock.compilation.entry import Caching
    from penstock.compilation.pending import PendingStep

log = Log(__name__)

NO_CACHE_ASKED: Final = "no cache was asked for"

CLOSE_SECONDS: Final = 10.0
"""Seconds that closing waits for all background compiles together."""


class PreparedStep(Struct, frozen=True):
    """One step of a plan with the model that its driver prepared.

    *pending* is a background compile on the device that the plan chose, while another device runs
    the step. *branches* are those of a control-flow step that the runtime carries out.
    """

    step: ExecutionStep
    device: Device
    prepared: PreparedModel
    receipt: StepReceipt
    pending: PendingStep | None = None
    branches: tuple[Compilation, ...] = ()

    def stop_compiling(self, end: float) -> None:
        """Cancels the background compile; `close` waits for its end until *end*."""
        if self.pending is not None:
            self.pending.stop(end)
        for branch in self.branches:
            branch.stop_compiling(end)

    def close(self) -> None:
        """Closes the model, after its background compile. A second call does nothing."""
        if self.pending is not None:
            self.pending.close()
        close_all(self.branches)
        try:
            self.prepared.close()
        except FOREIGN as error:  # a driver may raise anything
            log.warning("device %s failed in close: %r", self.device.name, error)


class CompileOptions(Struct, frozen=True):
    """Options of one compilation: fallback, cache use, and what runs while it is pending.

    *allow_fallback* permits fallback devices. *caching* is the use of the cache; None disables it,
    for the reason *uncached*. *meanwhile* is the device that runs a step during its background
    compile; with None the caller waits. *as_raised* leaves a driver's error unchanged if no
    fallback can run the step. *recorder* records the time of each part.
    """

    allow_fallback: bool = True
    caching: Caching | None = None
    meanwhile: Device | None = None
    recorder: Recorder = field(default_factory=Recorder)
    as_raised: bool = False
    uncached: str = NO_CACHE_ASKED


class Compilation(Struct, frozen=True):
    """Result of the compile stage: the plan after fallbacks, and its prepared steps."""

    plan: ExecutionPlan
    steps: tuple[PreparedStep, ...]
    receipt: Receipt

    def stop_compiling(self, end: float) -> None:
        """Cancels background compiles; `close` waits for their end until *end*."""
        for step in self.steps:
            step.stop_compiling(end)

    def close(self) -> None:
        """Closes every prepared model, and logs a driver's errors. A second call does nothing."""
        close_all(self.steps)


def close_all(made: Sequence[PreparedStep | Compilation]) -> None:
    """Stops the background compiles of all of *made*, then closes each of them."""
    end = time.monotonic() + CLOSE_SECONDS
    for one in made:
        one.stop_compiling(end)
    for one in made:
        one.close()
