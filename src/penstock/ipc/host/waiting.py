"""Fences of a client in its host: a run stops waiting when the client disconnects."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
import weakref
from typing import Final

from penstock.errors import DeadObject, DriverError, ResourceExhaustedTransient
from penstock.hal import DescriptorFence
from penstock.hal.fence import MOST_MS, remaining_ns
from penstock.ipc.system import LINUX_ONLY
from penstock.ipc.transport import close_all

NS_PER_MS: Final = 1_000_000


class Disconnection:
    """Whether a client has disconnected: a pollable descriptor, created when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: list[int] = []
        self.has_left = False

    def fileno(self) -> int:
        """A descriptor that hangs up if the client leaves. `ResourceExhaustedTransient`."""
        with self._lock:
            if not self._ends:
                try:
                    self._ends += os.pipe()
                except OSError as error:
                    why = f"no descriptor for a client's fences: {error}"
                    raise ResourceExhaustedTransient(why) from None
                weakref.finalize(self, close_all, self._ends)
                if self.has_left:
                    os.close(self._ends.pop())
            return self._ends[0]

    def record(self) -> None:
        """Records that the client has disconnected. A second call does nothing."""
        with self._lock:
            if not self.has_left and self._ends:
                os.close(self._ends.pop())
            self.has_left = True


class ClientFence:
    """A fence by a client's descriptor *fd*; it fails with `DeadObject` when the client leaves."""

    def __init__(self, fd: int, disconnection: Disconnection) -> None:
        self._fence, self._disconnection = DescriptorFence(fd), disconnection
        self._life = disconnection.fileno()

    def fileno(self) -> int:
        """The descriptor, still owned by this fence."""
        return self._fence.fileno()

    def wait(self, timeout_ns: int | None = None) -> bool:
        if sys.platform == "win32":
            raise OSError(LINUX_ONLY)
        end = None if timeout_ns is None else time.monotonic_ns() + timeout_ns
        poll = select.poll()
        poll.register(self._fence.fileno(), select.POLLIN)
        poll.register(self._life, 0)
        while True:
            left = remaining_ns(end)
            if poll.poll(None if left is None else min(MOST_MS, -(-left // NS_PER_MS))):
                return True
            if left == 0:
                return False

    def error(self) -> DriverError | None:
        if self._fence.wait(0):
            return self._fence.error()
        left = self._disconnection.has_left
        return DeadObject("the client whose fence it is has left") if left else None
