"""Prepared models executed in a driver's burst, by a reusable execution, or queued."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock import hal
from penstock.compilation.calls import concurrency_of
from penstock.errors import FOREIGN, DriverError
from penstock.execution.priority import PerDevice
from penstock.ipc.device_sharing import Scheduler
from penstock.logs import Log
from penstock.threads import allowed_processors

if TYPE_CHECKING:
    from penstock.compilation.prepared import PreparedStep


log = Log(__name__)


class BurstAdapter(hal.PreparedModelBase):
    """Base of adapters that execute *prepared* in another way; closing one leaves it open."""

    def __init__(self, prepared: hal.PreparedModel) -> None:
        self.prepared = prepared

    @property
    # Always the prepared model's own.
    def cache_report(self) -> hal.CacheReport:  # type: ignore[override]
        return getattr(self.prepared, "cache_report", hal.NO_CACHE_REPORT)

    @property
    def executor(self) -> Callable[[hal.Request, hal.ExecutionConfig], hal.ExecutionResult]:
        """The fast path of `execute`. Valid until `close`."""
        return self.execute

    def close(self) -> None:
        """Closes the driver's object of this adapter. A second call does nothing."""


class DriverBurst(BurstAdapter):
    """Executes in a burst of the driver, or, if it makes none, as usual (NNAPI section 7.1)."""

    def __init__(self, prepared: hal.PreparedModel) -> None:
        super().__init__(prepared)
        self._burst: hal.Burst | None = None
        self._execute: Callable[[hal.Request, hal.ExecutionConfig], hal.ExecutionResult] = (
            prepared.execute
        )
        try:
            self._burst = prepared.configure_burst()
            self._execute = self._burst.execute
        except FOREIGN as error:  # a driver may raise anything
            log.info("no burst: %r", error)

    @property
    def executor(self) -> Callable[[hal.Request, hal.ExecutionConfig], hal.ExecutionResult]:
        """The `execute` of the driver's burst. Valid until `close`."""
        return self._execute

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        return self._execute(request, config)

    def close(self) -> None:
        burst, self._burst = self._burst, None
        self._execute = self.prepared.execute
        if burst is not None:
            _close(burst.close)


class ReusedRequests(BurstAdapter):
    """Executes a repeated request by the driver's reusable execution.

    A request that differs from the last one is executed as an ordinary one. So is every request if
    the driver refuses reusable executions.
    """

    def __init__(self, prepared: hal.PreparedModel) -> None:
        super().__init__(prepared)
        self._seen: hal.Request | None = None
        self._execution: hal.ReusableExecution | None = None
        self._refused = False

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        if request is not self._seen:
            self._release()
            self._seen = request
            return self.prepared.execute(request, config)
        if self._execution is None:
            if self._refused:
                return self.prepared.execute(request, config)
            try:
                self._execution = self.prepared.create_reusable_execution(request)
            except DriverError as error:
                log.info("no reusable execution: %r", error)
                self._refused = True
                return self.prepared.execute(request, config)
        return self._execution.execute(config)

    def close(self) -> None:
        self._seen = None
        self._release()

    def _release(self) -> None:
        execution, self._execution = self._execution, None
        if execution is not None:
            _close(execution.close)


def unwrapped(prepared: hal.PreparedModel) -> hal.PreparedModel:
    """The driver's prepared model, without its adapters."""
    while isinstance(prepared, BurstAdapter):
        prepared = prepared.prepared
    return prepared


def _close(close: Callable[[], None]) -> None:
    try:
        close()
    except FOREIGN as error:  # a driver may raise anything
        log.warning("a driver failed in close: %r", error)


LEAST: Final = 2
"""Minimum slots of a device that declares no limit, so that one hanging run does not block all."""


class Scheduled(BurstAdapter):
    """Queues executions of *prepared* on its device; a fenced one waits for its fences first."""

    def __init__(self, prepared: hal.PreparedModel, scheduler: Scheduler) -> None:
        super().__init__(prepared)
        self._scheduler = scheduler
        model = getattr(prepared, "model", None)
        if model is not None:
            self.model = model

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        return _queued(self._scheduler, config, self.prepared.execute, request, config)

    def configure_burst(self) -> hal.Burst:
        return _Turns(self.prepared.configure_burst(), self._scheduler)

    def create_reusable_execution(self, request: hal.Request) -> hal.ReusableExecution:
        return _Repeated(self.prepared.create_reusable_execution(request), self._scheduler)

    def close(self) -> None:
        self.prepared.close()


class _Turns:
    """A burst whose executions are queued."""

    def __init__(self, burst: hal.Burst, scheduler: Scheduler) -> None:
        self._burst, self._scheduler = burst, scheduler

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        return _queued(self._scheduler, config, self._burst.execute, request, config)

    def close(self) -> None:
        self._burst.close()


class _Repeated:
    """A reusable execution whose executions are queued."""

    def __init__(self, execution: hal.ReusableExecution, scheduler: Scheduler) -> None:
        self._execution, self._scheduler = execution, scheduler

    def execute(self, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        return _queued(self._scheduler, config, self._execution.execute, config)

    def close(self) -> None:
        self._execution.close()


def _queued(
    scheduler: Scheduler,
    config: hal.ExecutionConfig,
    execute: Callable[..., hal.ExecutionResult],
    *arguments: hal.Request | hal.ExecutionConfig,
) -> hal.ExecutionResult:
    entered = scheduler.enter(config)
    try:
        return execute(*arguments)
    finally:
        if entered:
            scheduler.leave()


def _scheduler(device: hal.Device) -> Scheduler:
    return Scheduler(device, concurrency_of(device) or max(LEAST, allowed_processors()))


SCHEDULERS: Final = PerDevice(_scheduler)
"""The scheduler of each device with queued executions."""


def scheduled(step: PreparedStep) -> PreparedStep:
    """*step* with its executions queued on its device; unchanged if they are queued already."""
    if isinstance(step.prepared, Scheduled):
        return step
    return replace(step, prepared=Scheduled(step.prepared, SCHEDULERS.of(step.device)))
