"""`RingBurst`: a burst on a device in another process, whose calls go through a ring of its own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.errors import ClosedError, GeneralFailure
from penstock.hal import ExecutionConfig, ExecutionResult, Request

if TYPE_CHECKING:
    from penstock.ipc.bound import BoundRequest
    from penstock.ipc.remote import RemoteBurst
    from penstock.ipc.ring_requests import Ring


class RingBurst:
    """A `Burst`: the device's own burst *remote*, called through *ring*, which belongs to it."""

    def __init__(self, remote: RemoteBurst, ring: Ring) -> None:
        self._remote, self._ring = remote, ring
        self._target = remote.number
        self._running = threading.Lock()
        self._latest: BoundRequest | None = None
        self._closed = False

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        """As `Burst.execute`, and `ClosedError` after `close`.

        After `MissedDeadline*` or `Cancelled` the device may still be writing the outputs that lie
        in pools, until the next call of this burst has returned.
        """
        if not self._running.acquire(blocking=False):
            raise GeneralFailure("this burst is executing already")
        try:
            if self._closed:
                raise ClosedError("burst used after close()")
            if config.attributes:
                # They may be longer than a slot of the ring.
                return self._remote.execute(request, config)
            bound = self._latest
            if bound is None or not bound.is_for(request):
                bound = self._ring.bind(self._target, request, config.deadline_ns)
                if bound is None:
                    return self._remote.execute(request, config)
                bound.remember(request)
                self._latest = bound
            return self._ring.run(bound, request, config, self._remote.pace)
        finally:
            self._running.release()

    def ping(self) -> None:
        """One empty request and its answer: the way there and back alone."""
        with self._running:
            self._ring.ping()

    def close(self) -> None:
        """Twice is harmless. A run under way elsewhere ends first."""
        with self._running:
            if self._closed:
                return
            self._closed = True
            self._latest = None
            self._ring.close()
            if not self._ring.is_inherited:
                self._remote.close()
