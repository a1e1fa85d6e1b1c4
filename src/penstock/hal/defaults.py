"""What `PreparedModelBase` does where a driver leaves an optional method out."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from penstock.errors import DriverError, GeneralFailure, MissedDeadlineTransient
from penstock.hal.config import ExecutionConfig
from penstock.hal.fence import EventFence, Fence, signals_in_time
from penstock.hal.request import ExecutionResult, Request
from penstock.hal.validate import validate_fenced


class Executable(Protocol):
    """A prepared model as these defaults call it."""

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        """Runs once."""
        ...


def execute_fenced(
    prepared: Executable,
    request: Request,
    wait_for: Sequence[Fence],
    config: ExecutionConfig,
    timeout_after_fence_ns: int | None = None,
) -> Fence:
    """Waits in the calling thread, executes, and returns a signalled fence."""
    if (model := getattr(prepared, "model", None)) is not None:
        validate_fenced(model)
    done = EventFence()
    for fence in wait_for:
        if not signals_in_time(fence, config):
            done.signal(MissedDeadlineTransient("a fence did not signal before the deadline"))
            return done
        if (failure := fence.error()) is not None:
            done.signal(GeneralFailure(f"a fence this execution waits for failed: {failure}"))
            return done
    if timeout_after_fence_ns is not None:
        latest = time.monotonic_ns() + timeout_after_fence_ns
        deadline = latest if config.deadline_ns is None else min(latest, config.deadline_ns)
        config = replace(config, deadline_ns=deadline)
    try:
        prepared.execute(request, config)
    except DriverError as error:
        done.signal(error)
    else:
        done.signal()
    return done


class DefaultBurst:
    """`Burst` over plain executions."""

    def __init__(self, prepared: Executable) -> None:
        self._prepared = prepared
        self._running = threading.Lock()

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        if not self._running.acquire(blocking=False):
            raise GeneralFailure("this burst is executing already")
        try:
            return self._prepared.execute(request, config)
        finally:
            self._running.release()

    def close(self) -> None:
        """Nothing to release."""


class DefaultExecution:
    """`ReusableExecution` over plain executions."""

    def __init__(self, prepared: Executable, request: Request) -> None:
        self._prepared, self._request = prepared, request

    def execute(self, config: ExecutionConfig) -> ExecutionResult:
        return self._prepared.execute(self._request, config)

    def close(self) -> None:
        """Nothing to release."""
