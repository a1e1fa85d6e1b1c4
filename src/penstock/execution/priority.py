"""Runs that share a device, and when they start to wait in a priority queue.

The queue itself is in `execution.adapters`.
"""

from __future__ import annotations

import os
import threading
from weakref import WeakSet, WeakValueDictionary

from penstock.compilation.calls import concurrency_of
from penstock.hal import Device, Priority


class DeviceQueue:
    """The runs of this process on *device*.

    They are queued from the first one on if the device or the knob `concurrent_executions` limits
    the number of concurrent executions. Otherwise they are queued once a second priority is used.
    Thread-safe.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.takes_turns = concurrency_of(device) > 0
        self._lock = threading.Lock()
        self._priorities: frozenset[Priority] = frozenset()
        self._users: WeakSet[QueueUser] = WeakSet()

    def join(self, user: QueueUser, priority: Priority) -> None:
        """Registers *user*, whose runs have *priority* unless a run names another."""
        with self._lock:
            self._users.add(user)
        self.expect(priority)
        if self.takes_turns:
            user.take_turns()

    def expect(self, priority: Priority) -> None:
        """Announces a run of *priority*."""
        if priority in self._priorities:
            return
        with self._lock:
            self._priorities |= {priority}
            if self.takes_turns or len(self._priorities) < 2:
                return
            self.takes_turns = True
            users = list(self._users)
        for user in users:
            user.take_turns()


class QueueUser:
    """Something that executes on a device and can start to queue its runs."""

    __slots__ = ("__weakref__",)

    def take_turns(self) -> None:
        """Queues every run from now on. A second call does nothing."""
        raise NotImplementedError


class _Registry:
    """The queue of each device, kept while something executes on the device."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # A queue keeps its device alive, so that no other device gets the same id.
        self.by_device: WeakValueDictionary[int, DeviceQueue] = WeakValueDictionary()


_registry = _Registry()


def _forget() -> None:
    """Replaces the registry in a forked child, whose lock another thread of the parent may hold."""
    global _registry  # noqa: PLW0603  # the only code that replaces the registry
    _registry = _Registry()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def queue_of(device: Device) -> DeviceQueue:
    """The queue of *device*: one for each device of the process."""
    with _registry.lock:
        lane = _registry.by_device.get(id(device))
        if lane is None:
            lane = _registry.by_device[id(device)] = DeviceQueue(device)
        return lane
