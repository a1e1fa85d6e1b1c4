"""Prepared models as a series of runs executes them: in the driver's burst object, or by a reusable
execution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import FOREIGN, DriverError
from penstock.hal import (
    NO_CACHE_REPORT,
    CacheReport,
    ExecutionConfig,
    ExecutionResult,
    PreparedModel,
    PreparedModelBase,
    Request,
    ReusableExecution,
)
from penstock.logs import Log

if TYPE_CHECKING:
    from penstock.hal import Burst

log = Log(__name__)


class BurstAdapter(PreparedModelBase):
    """*prepared*, executed in another way. Closing the adapter leaves *prepared* open."""

    def __init__(self, prepared: PreparedModel) -> None:
        self.prepared = prepared

    @property
    def cache_report(self) -> CacheReport:  # type: ignore[override]  # always the prepared model's own
        return getattr(self.prepared, "cache_report", NO_CACHE_REPORT)

    @property
    def executor(self) -> Callable[[Request, ExecutionConfig], ExecutionResult]:
        """The fast path of `execute`. Valid until `close`."""
        return self.execute

    def close(self) -> None:
        """Closes what the driver made for this way of executing. A second call does nothing."""


class DriverBurst(BurstAdapter):
    """Executes in a burst object of the driver.

    If the driver cannot make one, executions are ordinary ones (NNAPI section 7.1).
    """

    def __init__(self, prepared: PreparedModel) -> None:
        super().__init__(prepared)
        self._burst: Burst | None = None
        self._execute: Callable[[Request, ExecutionConfig], ExecutionResult] = prepared.execute
        try:
            self._burst = prepared.configure_burst()
            self._execute = self._burst.execute
        except FOREIGN as error:  # a driver may raise anything
            log.info("no burst: %r", error)

    @property
    def executor(self) -> Callable[[Request, ExecutionConfig], ExecutionResult]:
        """The `execute` of the driver's burst. Valid until `close`."""
        return self._execute

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        return self._execute(request, config)

    def close(self) -> None:
        burst, self._burst = self._burst, None
        self._execute = self.prepared.execute
        if burst is not None:
            _close(burst.close)


class ReusedRequests(BurstAdapter):
    """Executes a repeated request by the driver's reusable execution.

    A request that differs from the last one, and every request if the driver refuses reusable
    executions, executes as an ordinary one.
    """

    def __init__(self, prepared: PreparedModel) -> None:
        super().__init__(prepared)
        self._seen: Request | None = None
        self._execution: ReusableExecution | None = None
        self._refused = False

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
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


def unwrapped(prepared: PreparedModel) -> PreparedModel:
    """The driver's prepared model inside of any adapters."""
    while isinstance(prepared, BurstAdapter):
        prepared = prepared.prepared
    return prepared


def _close(close: Callable[[], None]) -> None:
    try:
        close()
    except FOREIGN as error:  # a driver may raise anything
        log.warning("a driver failed in close: %r", error)
