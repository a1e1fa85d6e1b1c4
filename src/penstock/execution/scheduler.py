"""One scheduler a device: as many executions at a time as it takes, those of higher priority first.

A device has one from when runs of several priorities are asked for there, and from the first run on
where it says how many executions it takes (`Capabilities.concurrent_executions`), or the knob
`concurrent_executions` does (`penstock.execution.priority`). A slot is held for one execution of one
step and never while something else is waited for, so that no run keeps a slot from another by a
lock that it holds. Priorities compare whatever runs this process has on the device; equal ones go
in the order they came.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from msgspec.structs import replace

from penstock.compilation.calls import concurrency_of
from penstock.execution.burst_adapters import BurstAdapter
from penstock.hal import Burst, Device, ExecutionConfig, ExecutionResult, Request
from penstock.ipc.device_sharing import Scheduler
from penstock.threads import allowed_processors

if TYPE_CHECKING:
    from penstock.compilation.prepared import PreparedStep
    from penstock.hal import PreparedModel, ReusableExecution

LEAST: Final = 2
"""Slots of a device that does not say how many it takes, on however few processors: one run that
hangs does not stop the others.
"""


class Scheduled(BurstAdapter):
    """*prepared*, whose executions, those of its bursts and reusable executions too, take turns
    with others on its device.

    Fenced executions wait for their fences without a slot, then run as others do.
    """

    def __init__(self, prepared: PreparedModel, scheduler: Scheduler) -> None:
        super().__init__(prepared)
        self._scheduler = scheduler
        model = getattr(prepared, "model", None)
        if model is not None:
            self.model = model

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        scheduler = self._scheduler
        entered = scheduler.enter(config)
        try:
            return self.prepared.execute(request, config)
        finally:
            if entered:
                scheduler.leave()

    def configure_burst(self) -> Burst:
        return _Turns(self.prepared.configure_burst(), self._scheduler)

    def create_reusable_execution(self, request: Request) -> ReusableExecution:
        return _Repeated(self.prepared.create_reusable_execution(request), self._scheduler)

    def close(self) -> None:
        self.prepared.close()


class _Turns:
    """A burst that takes turns."""

    def __init__(self, burst: Burst, scheduler: Scheduler) -> None:
        self._burst, self._scheduler = burst, scheduler

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        scheduler = self._scheduler
        entered = scheduler.enter(config)
        try:
            return self._burst.execute(request, config)
        finally:
            if entered:
                scheduler.leave()

    def close(self) -> None:
        self._burst.close()


class _Repeated:
    """A reusable execution that takes turns."""

    def __init__(self, execution: ReusableExecution, scheduler: Scheduler) -> None:
        self._execution, self._scheduler = execution, scheduler

    def execute(self, config: ExecutionConfig) -> ExecutionResult:
        entered = self._scheduler.enter(config)
        try:
            return self._execution.execute(config)
        finally:
            if entered:
                self._scheduler.leave()

    def close(self) -> None:
        self._execution.close()


class _Registry:
    """The scheduler of each device that has one, for as long as somebody uses it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # A scheduler keeps its device alive, so that no other one gets its number.
        self.by_device: WeakValueDictionary[int, Scheduler] = WeakValueDictionary()


_registry = _Registry()


def _forget() -> None:
    """In a child process: its parent's threads, which held slots and locks, are not there."""
    global _registry  # noqa: PLW0603  # the locks of another process cannot be let go of
    _registry = _Registry()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def scheduler_of(device: Device) -> Scheduler:
    """The one scheduler of *device*."""
    with _registry.lock:
        scheduler = _registry.by_device.get(id(device))
        if scheduler is None:
            limit = concurrency_of(device) or max(LEAST, allowed_processors())
            scheduler = _registry.by_device[id(device)] = Scheduler(device, limit)
        return scheduler


def scheduled(step: PreparedStep) -> PreparedStep:
    """*step*, whose executions take turns with others on its device; as it is where they do
    already.
    """
    if isinstance(step.prepared, Scheduled):
        return step
    return replace(step, prepared=Scheduled(step.prepared, scheduler_of(step.device)))
