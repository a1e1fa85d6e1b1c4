"""Which runs share a device: where they are of several priorities, they take turns
(`penstock.execution.scheduler`).
"""

from __future__ import annotations

import os
import threading
from weakref import WeakSet, WeakValueDictionary

from penstock.compilation.calls import concurrency_of
from penstock.hal import Device, Priority


class Lane:
    """What this process runs on *device*.

    Where the device says how many executions it takes, or the knob `concurrent_executions` does,
    they take turns from the first one on; else from when a second priority is asked for. Safe from
    any thread.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.takes_turns = concurrency_of(device) > 0
        self._lock = threading.Lock()
        self._priorities: frozenset[Priority] = frozenset()
        self._users: WeakSet[LaneUser] = WeakSet()

    def join(self, user: LaneUser, priority: Priority) -> None:
        """*user* executes there from now on, and its runs have *priority* unless they ask for
        another.
        """
        with self._lock:
            self._users.add(user)
        self.expect(priority)
        if self.takes_turns:
            user.take_turns()

    def expect(self, priority: Priority) -> None:
        """A run of *priority* is to come."""
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


class LaneUser:
    """Whatever executes on a device; it takes turns with others from when it is told."""

    __slots__ = ("__weakref__",)

    def take_turns(self) -> None:
        """From now on; twice is harmless."""
        raise NotImplementedError


class _Registry:
    """The lane of each device, for as long as somebody executes there."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # A lane keeps its device alive, so that no other one gets its number.
        self.by_device: WeakValueDictionary[int, Lane] = WeakValueDictionary()


_registry = _Registry()


def _forget() -> None:
    """In a child process, where nobody lets go of the lock that another thread held."""
    global _registry  # noqa: PLW0603  # the one fact that a child must learn
    _registry = _Registry()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def lane_of(device: Device) -> Lane:
    """The one lane of *device*."""
    with _registry.lock:
        lane = _registry.by_device.get(id(device))
        if lane is None:
            lane = _registry.by_device[id(device)] = Lane(device)
        return lane
