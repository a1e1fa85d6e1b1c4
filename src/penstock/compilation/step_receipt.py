"""Parts of a receipt: steps, kernels, failures, spans, and cache outcomes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from penstock.compilation.cache_faults import CacheCode
    from penstock.errors import ErrorStatus


class CacheOutcome(msgspec.Struct, frozen=True):
    """What the compilation cache did for one step, and why.

    The *reason* of a miss begins with the name of a `CacheError` if the cache rejected something.
    The reason of a hit names the artefact if the driver has several. After a miss, *saved* says
    whether the compiled step is now in the cache, and *not_saved* why not. *code* is the code of
    the miss; *not_saved_code* is the code of *not_saved*, if it has one. *shared* says what the
    shared store did, if there is one and the local cache had no entry.
    """

    outcome: Literal["hit", "miss", "off"]
    reason: str = ""
    saved: bool = False
    not_saved: str = ""
    code: CacheCode | None = None
    not_saved_code: CacheCode | None = None
    shared: str = ""

    @property
    def is_to_be_written(self) -> bool:
        """Whether the driver keeps the files open, to write them when its compile has ended."""
        if self.not_saved_code is None:
            return False
        from penstock.compilation.cache_faults import CacheCode

        return self.not_saved_code is CacheCode.NOT_YET_WRITTEN

    def __str__(self) -> str:
        text = f"{self.outcome}: {self.reason}" if self.reason else self.outcome
        text = f"{text}; not saved: {self.not_saved}" if self.not_saved else text
        return f"{text}; shared store: {self.shared}" if self.shared else text


CACHE_OFF: Final = CacheOutcome("off", "nothing was compiled")


class Failure(msgspec.Struct, frozen=True):
    """A *device* that could not compile or run a step, and its *error* in one line.

    *status* is the HAL status of that error (`penstock.errors.ErrorStatus`, a number in JSON); None
    if the error is not a driver's.
    """

    device: str
    error: str
    status: ErrorStatus | None = None

    @property
    def is_unavailable(self) -> bool:
        """Whether the driver's host process was dead, or did not answer in time."""
        return self.status is not None and self.status.is_unavailable


class KernelReceipt(msgspec.Struct, frozen=True):
    """Time of one kernel of a driver, if the driver reports it.

    *operations* are indexes of the plan's operations, *names* their names, `TYPE name`; a fused
    kernel has several. *kernel* is the engine's own name for it.
    """

    kernel: str
    operations: tuple[int, ...]
    names: tuple[str, ...]
    start_ns: int
    duration_ns: int


class StepReceipt(msgspec.Struct, frozen=True):
    """Receipt of one step: its device and its times.

    *operations* are indexes of the plan's operations. *wall_ns* is the time that the runtime
    waited. *driver_ns* is the time that the driver reported (None: it reported none).
    *fallback_from* names the device that should have run the step, and *error* is that device's
    error. *failures* lists every device that failed, in order, with its error.

    *step* is the index in the plan; None if the whole model ran at once because a step had no
    fallback. *start_ns* is on the clock of `time.perf_counter_ns`. *kernels* are present if the run
    was asked to `measure`.
    """

    device: str
    operations: tuple[int, ...]
    wall_ns: int
    driver_ns: int | None = None
    cache: CacheOutcome = CACHE_OFF
    fallback_from: str | None = None
    error: str | None = None
    failures: tuple[Failure, ...] = ()
    step: int | None = None
    start_ns: int = 0
    kernels: tuple[KernelReceipt, ...] = ()
    inner: tuple[StepReceipt, ...] = ()
    """Steps in the branches of control flow that the runtime carried out.

    Their *step* and *operations* are indexes in the branch's own plan; *part* names the branch.
    Repeated runs of a step are one entry: *runs* counts them, and their times are added up.
    """
    part: str = ""
    runs: int = 1
    simulated: bool = False
    """Whether *device* is a simulator or a test double (`Capabilities.simulated`)."""
    device_ns: int | None = None
    """The part of *driver_ns* on the hardware; None if the driver did not report it."""


class Span(msgspec.Struct, frozen=True):
    """A timed activity: *start_ns* is on the clock of `time.perf_counter_ns`.

    *device* is None if the runtime itself did the work.
    """

    stage: Literal["load", "partition", "compile", "cache"]
    name: str
    device: str | None
    start_ns: int
    duration_ns: int


class Recorder:
    """Collects the spans of one compile."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    @contextmanager
    def time(
        self,
        stage: Literal["load", "partition", "compile", "cache"],
        name: str,
        device: str | None = None,
    ) -> Iterator[None]:
        """Records the duration of the block, also if the block raises."""
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            self.spans.append(Span(stage, name, device, began, time.perf_counter_ns() - began))
