"""What a compile makes: prepared steps, and a plan with all of its steps prepared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct, field

from penstock.compilation.receipt import Receipt
from penstock.compilation.step_receipt import Recorder, StepReceipt
from penstock.errors import FOREIGN
from penstock.hal import Device, PreparedModel
from penstock.logs import Log
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep

if TYPE_CHECKING:
    from penstock.compilation.entry import Caching

log = Log(__name__)

NO_CACHE_ASKED: Final = "no cache was asked for"

CLOSE_SECONDS: Final = 10.0
"""How long closing waits for compiles in the background, all together."""


class Pending(Protocol):
    """A step that is compiled in the background (`compilation.background.PendingStep`)."""

    @property
    def done(self) -> bool:
        """Whether its compile has ended, well or not."""

    @property
    def result(self) -> PreparedStep | None:
        """The step; None before the end, and after a failure."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits at most *timeout* seconds for the end; whether it has come."""

    def stop(self, end: float) -> None:
        """Cancels the compile; `close` waits for it until *end*, of `time.monotonic`."""

    def close(self) -> None:
        """Cancels it, waits, and closes what was made."""


class PreparedStep(Struct, frozen=True):
    """One step of a plan with what its driver made of it.

    *pending* is the compile on the device that the plan chose, while another one runs the step. A
    step of control flow that the runtime carries out has *branches*.
    """

    step: ExecutionStep
    device: Device
    prepared: PreparedModel
    receipt: StepReceipt
    pending: Pending | None = None
    branches: tuple[Compilation, ...] = ()

    def stop_compiling(self, end: float) -> None:
        """Cancels the background compile; `close` waits for it until *end*."""
        if self.pending is not None:
            self.pending.stop(end)
        for branch in self.branches:
            branch.stop_compiling(end)

    def close(self) -> None:
        """Closes the model after its background compile. Twice is harmless; logs errors."""
        if self.pending is not None:
            self.pending.close()
        close_all(self.branches)
        try:
            self.prepared.close()
        except FOREIGN as error:  # a driver may raise anything
            log.warning("device %s failed in close: %r", self.device.name, error)


class CompileOptions(Struct, frozen=True):
    """What a compile may do beside calling the plan's own drivers.

    *allow_fallback* lets other devices repeat what one failed at. *caching* is how the cache is
    used, None not at all, for the reason *uncached*. *meanwhile* runs a step that has to be
    compiled until that is done; None waits. *as_raised* leaves a driver's error as it is where
    nothing repeats the step. *recorder* is told what takes time.
    """

    allow_fallback: bool = True
    caching: Caching | None = None
    meanwhile: Device | None = None
    recorder: Recorder = field(default_factory=Recorder)
    as_raised: bool = False
    uncached: str = NO_CACHE_ASKED


class Compilation(Struct, frozen=True):
    """The compile stage's value: the plan as it was really compiled, and its prepared steps."""

    plan: ExecutionPlan
    steps: tuple[PreparedStep, ...]
    receipt: Receipt

    def stop_compiling(self, end: float) -> None:
        """Cancels background compiles; `close` waits for them until *end*."""
        for step in self.steps:
            step.stop_compiling(end)

    def close(self) -> None:
        """Closes every prepared model; twice is harmless. A driver that fails at it is logged."""
        close_all(self.steps)


def close_all(made: Sequence[PreparedStep | Compilation]) -> None:
    """Closes each of them, once all of them have been told to stop what they compile."""
    end = time.monotonic() + CLOSE_SECONDS
    for one in made:
        one.stop_compiling(end)
    for one in made:
        one.close()
