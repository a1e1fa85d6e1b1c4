"""`Scheduler`: runs a limited number of executions on one device, those of higher priority first
(NNAPI section 7.3).
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.errors import MissedDeadlinePersistent
from penstock.hal import Device, ExecutionConfig, Priority

RANKS: Final[dict[Priority, int]] = {"high": 0, "medium": 1, "low": 2}

POLL_SECONDS: Final = 0.01
"""How often a run that waits for its turn looks at its cancel token."""


class _Waiter:
    """One run that waits for a slot."""

    __slots__ = ("granted", "order", "signal")

    def __init__(self, order: tuple[int, int]) -> None:
        self.order = order
        self.granted = False
        self.signal = threading.Event()

    def __lt__(self, other: _Waiter) -> bool:
        return self.order < other.order


class Scheduler:
    """Lets *limit* executions at a time onto *device*. Safe from any thread.

    A thread that is on the device already is let through: its execution is part of one that has a
    slot.
    """

    def __init__(self, device: Device, limit: int) -> None:
        self.device = device
        self._slots: list[None] = [None] * limit
        self._holders: set[int] = set()
        self._lock = threading.Lock()
        self._waiting: list[_Waiter] = []
        self._count = 0

    @property
    def waiting(self) -> int:
        """How many runs wait for their turn."""
        return len(self._waiting)

    def enter(self, config: ExecutionConfig) -> bool:
        """Waits for a slot; True where one is to be given back by `leave`.

        Raises `Cancelled` once the token of *config* is set, `MissedDeadlinePersistent` once its
        deadline has passed: the driver was not called.
        """
        thread = threading.get_ident()
        if thread in self._holders:
            return False
        if not self._waiting:
            try:
                self._slots.pop()
            except IndexError:
                pass
            else:
                self._holders.add(thread)
                return True
        self._wait(config)
        self._holders.add(thread)
        return True

    def leave(self) -> None:
        """Gives the slot of this thread back, to the first of those who wait."""
        self._holders.discard(threading.get_ident())
        self._slots.append(None)
        if self._waiting:
            with self._lock:
                self._grant()

    @contextmanager
    def turn(self, config: ExecutionConfig) -> Iterator[None]:
        """A slot for the length of a block; raises as `enter`."""
        entered = self.enter(config)
        try:
            yield
        finally:
            if entered:
                self.leave()

    def _wait(self, config: ExecutionConfig) -> None:
        with self._lock:
            self._count += 1
            waiter = _Waiter((RANKS[config.priority], self._count))
            heapq.heappush(self._waiting, waiter)
            # A slot may have been given back since this thread looked.
            self._grant()
        try:
            self._await(waiter, config)
        except BaseException:
            with self._lock:
                if waiter.granted:
                    self._slots.append(None)
                else:
                    self._waiting.remove(waiter)
                    heapq.heapify(self._waiting)
                self._grant()
            raise

    def _await(self, waiter: _Waiter, config: ExecutionConfig) -> None:
        deadline, cancel = config.deadline_ns, config.cancel
        if deadline is None and cancel is None:
            waiter.signal.wait()
            return
        while True:
            if cancel is not None:
                cancel.check()
            left = None if deadline is None else (deadline - time.monotonic_ns()) / 1e9
            if left is not None and left <= 0:
                raise MissedDeadlinePersistent(
                    f"the deadline passed before device {self.device.name} had a slot for the run"
                )
            if waiter.granted:
                # Not before: its turn may have come when nobody wanted it any more.
                return
            waiter.signal.wait(left if cancel is None else min(POLL_SECONDS, left or POLL_SECONDS))

    def _grant(self) -> None:
        """Hands out what slots there are. The lock is held."""
        while self._waiting:
            try:
                self._slots.pop()
            except IndexError:
                return
            waiter = heapq.heappop(self._waiting)
            waiter.granted = True
            waiter.signal.set()
