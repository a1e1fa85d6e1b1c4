"""Results of a compile: prepared steps, also in the background, and a whole plan's compilation."""

from __future__ import annotations

import contextvars
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field, structs

from penstock.compilation.calls import BackgroundToken, describe
from penstock.compilation.receipt import Receipt
from penstock.compilation.step_receipt import Recorder, StepReceipt
from penstock.errors import FOREIGN, Cancelled
from penstock.hal import Device, PrepareConfig, PreparedModel
from penstock.logs import Log
from penstock.partitioning.plan import ExecutionPlan, ExecutionStep

if TYPE_CHECKING:
    from penstock.compilation.entry import Caching

log = Log(__name__)

NO_CACHE_ASKED: Final = "no cache was asked for"

CLOSE_SECONDS: Final = 10.0
"""Seconds that closing waits for all background compiles together."""


class PendingStep:
    """A background compile. Any thread may ask for its result.

    `close` cancels the compile and waits for a limited time, because a driver may ignore the token.

    A program that ends waits for a compile that has begun: an engine must not be stopped within
    one, and the next start loads the entry. It does not wait for a compile of another process.
    """

    def __init__(
        self, make: Callable[[PrepareConfig], PreparedStep], config: PrepareConfig, name: str
    ) -> None:
        self._cancel = BackgroundToken()
        self._config = structs.replace(config, deadline_ns=None, progress=None, cancel=self._cancel)
        self._make = make
        self._name = name
        self._made: PreparedStep | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._end = math.inf
        self._is_left = False
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name=f"penstock-compile-{name}"
        )
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the compile has ended, with success or not."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits at most *timeout* seconds for the end; returns whether the compile has ended."""
        return self._done.wait(timeout)

    @property
    def result(self) -> PreparedStep | None:
        """The compiled step; None before the end, and after a failure."""
        return self._made

    def stop(self, end: float) -> None:
        """Cancels the compile; `close` waits for its end until *end* at most."""
        self._end = min(self._end, end)
        self._cancel.set()

    def close(self) -> None:
        """Cancels the compile and waits for it. A model that it still produces later is closed."""
        self.stop(time.monotonic() + CLOSE_SECONDS)
        self._thread.join(max(0.0, self._end - time.monotonic()))
        with self._lock:
            self._is_left, made = True, self._made
        if made is not None:
            made.close()
        elif not self.done:
            why = "since its driver does not stop; what it makes is closed then"
            log.warning("the compile of step %s in the background goes on, %s", self._name, why)

    def _run(self) -> None:
        made = None
        try:
            made = self._make(self._config)
        except Cancelled:
            log.debug("a compile in the background was cancelled")
        except Exception as error:  # noqa: BLE001  # the step stays on its present device
            log.warning("a compile in the background failed: %s", describe(error))
        finally:
            with self._lock:
                self._made, is_left = made, self._is_left
            if made is not None and is_left:
                made.close()
            self._done.set()


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
