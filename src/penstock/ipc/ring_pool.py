"""The rings of one device, opened on demand and reused, and bursts with their own rings."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from typing import Final

from penstock.errors import ClosedError, GeneralFailure, ResourceExhaustedTransient
from penstock.hal import ExecutionConfig, ExecutionResult, Memory, Request
from penstock.ipc import ring, wire
from penstock.ipc.codec import Descriptor, Packer
from penstock.ipc.remote import Channel, RemoteBurst, RemoteObject, ask
from penstock.ipc.ring import DEFAULT_LAYOUT, Doorbell, Region
from penstock.ipc.ring_client import Pace, RingClient
from penstock.ipc.ring_requests import BoundRequest, Ring
from penstock.ipc.transport import close_all

MOST_RINGS: Final = 16
"""Most rings for executions outside bursts: as many run at a time without a message each."""

IDLE_SECONDS: Final = 10.0
"""Seconds after which an unused ring is closed, while others are used."""

REFUSED_SECONDS: Final = 1.0
"""Seconds without further attempts after one side had no room for a ring."""


class Rings:
    """The rings to the device behind *channel*; thread-safe. The last used one is reused first, one
    with an abandoned run not before that has ended.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._idle: list[Ring] = []
        self._behind: list[Ring] = []
        self._count = 0
        self._not_before = 0.0
        self._closed = False
        self._process = os.getpid()
        self._seen: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()
        forgotten = weakref.finalize(self, _close_all, self._process, self._idle, self._behind)
        forgotten.atexit = False

    def execute(
        self, target: int, request: Request, config: ExecutionConfig, pace: Pace
    ) -> ExecutionResult | None:
        """Executes *request* to *target*; None, without a run, if no ring can carry it."""
        found = self._take(config.deadline_ns)
        if found is None:
            return None
        try:
            bound = found.bind(target, request, config.deadline_ns, self._is_lasting)
            return None if bound is None else found.run(bound, request, config, pace)
        finally:
            self._put_back(found)

    def open(self, deadline_ns: int | None = None) -> Ring | None:
        """A ring for one user; None if the channel has no `exit_fd`. May raise as `opened`."""
        life_fd = self._channel.exit_fd()
        return None if life_fd is None else opened(self._channel, life_fd, deadline_ns)

    def forget(self, target: int) -> None:
        """Drops the bindings to *target*, which is closed, from the idle rings."""
        for each in self._taken_all():
            each.forget(target)
            self._put_back(each)

    def close(self) -> None:
        """Closes the idle rings; rings in use are closed on return. A second call does nothing."""
        self._closed = True
        self.trim()

    def trim(self) -> None:
        """Closes the idle rings."""
        dropped = self._taken_all()
        with self._lock:
            self._count -= len(dropped)
        for each in dropped:
            each.close()

    def _taken_all(self) -> list[Ring]:
        if self._process != os.getpid():
            return []
        with self._lock:
            every = [*self._idle, *self._behind]
            self._idle.clear()
            self._behind.clear()
        return every

    def _take(self, deadline_ns: int | None) -> Ring | None:
        if self._process != os.getpid():
            return None
        with self._lock:
            if self._behind:
                for ring in [r for r in self._behind if not r.client.is_behind]:
                    self._behind.remove(ring)
                    self._idle.append(ring)
            if self._idle:
                return self._idle.pop()
            if self._closed or self._count >= MOST_RINGS or time.monotonic() < self._not_before:
                return None
            self._count += 1
        made = None
        try:
            made = self.open(deadline_ns)
        except ResourceExhaustedTransient:
            self._not_before = time.monotonic() + REFUSED_SECONDS
        finally:
            if made is None:
                with self._lock:
                    self._count -= 1
        return made

    def _put_back(self, used: Ring) -> None:
        now = time.monotonic()
        with self._lock:
            dropped = []
            if self._closed or used.client.broken is not None:
                dropped.append(used)
            elif used.client.is_behind:
                self._behind.append(used)
            else:
                used.idle_since = now
                self._idle.append(used)
                if self._idle[0].idle_since < now - IDLE_SECONDS:
                    dropped.append(self._idle.pop(0))
            self._count -= len(dropped)
        for each in dropped:
            each.close()

    def _is_lasting(self, memory: Memory) -> bool:
        """Whether *memory* was used before. Sharing memory that is used once is not worth it."""
        if self._seen.get(id(memory)) is memory:
            return True
        self._seen[id(memory)] = memory
        return False


def _close_all(process: int, *rings: list[Ring]) -> None:
    """Closes the resources of a device that was garbage-collected."""
    if process == os.getpid():
        for each in itertools.chain(*rings):
            each.close()


def opened(channel: Channel, life_fd: int, deadline_ns: int | None = None) -> Ring:
    """A ring to the device behind *channel*, by the deadline. The ring owns *life_fd*."""
    layout = DEFAULT_LAYOUT
    descriptors = [life_fd]

    def call(pack: Packer) -> wire.Call:
        passed = (fd, to_device.listen_fd, to_client.ring_fd)
        memory, heard, rung = (pack.handle(Descriptor(each)) for each in passed)
        return wire.OpenRing(memory, heard, rung, *layout)

    try:
        fd = ring.create_region(layout)
        descriptors.append(fd)
        region = Region(fd, layout)
        to_device, to_client = Doorbell.create(), Doorbell.create()
        remote = RemoteObject(channel, ask(channel, call, wire.Made, deadline_ns))
        descriptors.remove(life_fd)
    finally:
        close_all(descriptors)
    client = RingClient(region, to_device, to_client, life_fd, lambda: channel.end_reason)
    return Ring(channel, client, remote)


class RingBurst:
    """A `Burst`: the device's own burst *remote*, called through *ring*, which belongs to it."""

    def __init__(self, remote: RemoteBurst, ring: Ring) -> None:
        self._remote, self._ring = remote, ring
        self._target = remote.number
        self._running = threading.Lock()
        self._latest: BoundRequest | None = None
        self._closed = False

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        """As `Burst.execute`; `ClosedError` after `close`. After a missed deadline or `Cancelled`,
        outputs in pools may be written until the next call of this burst returns.
        """
        if not self._running.acquire(blocking=False):
            raise GeneralFailure("this burst is executing already")
        try:
            if self._closed:
                raise ClosedError("burst used after close()")
            if config.attributes:
                # Attributes may be longer than a slot of the ring.
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
        """Sends one empty request and waits for its answer: the round trip alone."""
        with self._running:
            self._ring.client.call(ring.EMPTY)

    def close(self) -> None:
        """Closes the burst. Waits for a run in another thread. A second call does nothing."""
        with self._running:
            if self._closed:
                return
            self._closed = True
            self._latest = None
            self._ring.close()
            if not self._ring.client.is_inherited:
                self._remote.close()
