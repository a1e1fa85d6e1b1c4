"""Runs that share a device, and when they start to wait in a priority queue.

The queue itself is in `execution.adapters`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar
from weakref import WeakSet, WeakValueDictionary

from penstock.compilation.calls import concurrency_of
from penstock.hal import Device, Priority

Kept = TypeVar("Kept")


class PerDevice(Generic[Kept]):
    """One object for each device of the process, made by *make* and kept while it is in use.

    The object must keep its device alive, so that no other device gets the same id. A forked child
    begins without objects: it lacks the parent's threads, which may hold their locks.
    """

    def __init__(self, make: Callable[[Device], Kept]) -> None:
        self._make = make
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._found: WeakValueDictionary[int, Kept] = WeakValueDictionary()

    def of(self, device: Device) -> Kept:
        """The object of *device*."""
        with self._lock:
            found = self._found.get(id(device))
            if found is None:
                found = self._found[id(device)] = self._make(device)
            return found


class DeviceQueue:
    """The runs on *device*: queued if their number is limited, or at a second priority."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.queues_runs = concurrency_of(device) > 0
        self._lock = threading.Lock()
        self._priorities: frozenset[Priority] = frozenset()
        self._users: WeakSet[QueueUser] = WeakSet()

    def join(self, user: QueueUser, priority: Priority) -> None:
        """Registers *user*, whose runs have *priority* unless a run names another."""
        with self._lock:
            self._users.add(user)
        self.expect(priority)
        if self.queues_runs:
            user.queue_runs()

    def expect(self, priority: Priority) -> None:
        """Announces a run of *priority*."""
        if priority in self._priorities:
            return
        with self._lock:
            self._priorities |= {priority}
            if self.queues_runs or len(self._priorities) < 2:
                return
            self.queues_runs = True
            users = list(self._users)
        for user in users:
            user.queue_runs()


class QueueUser:
    """Something that executes on a device and can start to queue its runs."""

    __slots__ = ("__weakref__",)

    def queue_runs(self) -> None:
        """Queues every run from now on. A second call does nothing."""
        raise NotImplementedError


QUEUES: Final = PerDevice(DeviceQueue)
"""The queue of each device on which something executes."""
