"""One device for several users: a priority queue of its executions, and shared models.

The queue follows NNAPI section 7.3. The clients of a host process share prepared models.
"""

from __future__ import annotations

import heapq
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

from msgspec.structs import replace

from penstock import hal
from penstock.errors import FOREIGN, ClosedError, MissedDeadlinePersistent
from penstock.hal.prepared import execute_fenced
from penstock.ir import Model

RANKS: Final[dict[hal.Priority, int]] = {"high": 0, "medium": 1, "low": 2}

POLL_SECONDS: Final = 0.01
"""Seconds between two checks of the cancel token while a run is queued."""


class _Waiter:
    """One queued run."""

    __slots__ = ("granted", "order", "signal")

    def __init__(self, order: tuple[int, int]) -> None:
        self.order = order
        self.granted = False
        self.signal = threading.Event()

    def __lt__(self, other: _Waiter) -> bool:
        return self.order < other.order


class Scheduler:
    """Limits *device* to *limit* executions at a time. Safe from any thread.

    A thread that already has a slot gets no second one: its execution is nested.
    """

    def __init__(self, device: hal.Device, limit: int) -> None:
        self.device = device
        self._slots: list[None] = [None] * limit
        self._holders: set[int] = set()
        self._lock = threading.Lock()
        self._waiting: list[_Waiter] = []
        self._count = 0

    @property
    def waiting(self) -> int:
        """Number of queued runs."""
        return len(self._waiting)

    def enter(self, config: hal.ExecutionConfig) -> bool:
        """Waits for a slot. Returns True if `leave` has to return it.

        Raises `Cancelled` or `MissedDeadlinePersistent`: the driver was not called.
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
        """Passes the slot of this thread to the first queued run."""
        self._holders.discard(threading.get_ident())
        self._slots.append(None)
        if self._waiting:
            with self._lock:
                self._grant()

    @contextmanager
    def turn(self, config: hal.ExecutionConfig) -> Iterator[None]:
        """A slot for the length of a block; raises as `enter`."""
        entered = self.enter(config)
        try:
            yield
        finally:
            if entered:
                self.leave()

    def _wait(self, config: hal.ExecutionConfig) -> None:
        with self._lock:
            self._count += 1
            waiter = _Waiter((RANKS[config.priority], self._count))
            heapq.heappush(self._waiting, waiter)
            # A slot may have been returned since this thread checked.
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

    def _await(self, waiter: _Waiter, config: hal.ExecutionConfig) -> None:
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
                # Checked last: a slot may be granted to a run that is cancelled or past its
                # deadline.
                return
            waiter.signal.wait(left if cancel is None else min(POLL_SECONDS, left or POLL_SECONDS))

    def _grant(self) -> None:
        """Grants the free slots to queued runs. The caller holds the lock."""
        while self._waiting:
            try:
                self._slots.pop()
            except IndexError:
                return
            waiter = heapq.heappop(self._waiting)
            waiter.granted = True
            waiter.signal.set()


class SharingDevice:
    """*device* with equal preparations without cache files shared among clients.

    Prepared models are stateless, and each client closes its own. If the device limits its
    executions, those of all clients share one queue in order of arrival, whatever their priorities.
    """

    def __init__(self, device: hal.Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._entries: dict[object, _Entry] = {}
        self._scheduler = _scheduler_of(device)

    def __getattr__(self, name: str) -> Any:
        """All other attributes are the device's."""
        return getattr(self._device, name)

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> SharedPreparedModel:
        """As the device's. Returns an equal prepared model again if a client still has it open."""
        if config.model_cache or config.data_cache:
            return self.prepare_alone(model, config)
        c = config
        choices = c.preference, c.priority, c.accuracy, c.num_threads, c.options, c.attributes
        key = (model.digest, *choices)
        with self._lock:
            known = self._entries.get(key)
            if known is not None:
                known.users += 1
        if known is None:
            made = _Entry(self._device.prepare_model(model, config), key)
            with self._lock:
                known = self._entries.setdefault(key, made)
                if known is not made:
                    known.users += 1
            if known is not made:
                made.prepared.close()
        return self._shared(known)

    def prepare_alone(self, model: Model, config: hal.PrepareConfig) -> SharedPreparedModel:
        """As the device's, for one client."""
        return self._shared(_Entry(self._device.prepare_model(model, config)))

    def prepare_model_from_cache(self, config: hal.PrepareConfig) -> SharedPreparedModel:
        """As the device's, for one client."""
        return self._shared(_Entry(self._device.prepare_model_from_cache(config)))

    def allocate(
        self, desc: hal.BufferDesc, roles: Sequence[hal.BufferRole]
    ) -> tuple[int, hal.Buffer]:
        """As the device's, for its own prepared models."""
        return self._device.allocate(desc, [replace(r, prepared=_inner(r.prepared)) for r in roles])

    def _shared(self, entry: _Entry) -> SharedPreparedModel:
        if self._scheduler is None:
            return SharedPreparedModel(self, entry)
        return QueuedPreparedModel(self, entry, self._scheduler)

    def release(self, entry: _Entry) -> None:
        """Records that one client has closed it. It is closed when all clients have."""
        with self._lock:
            entry.users -= 1
            last = entry.users == 0
            if last and entry.key is not None:
                del self._entries[entry.key]
        if last:
            entry.prepared.close()


class ClientDevice:
    """A `SharingDevice` for one client, which gets two models if it prepares one twice."""

    def __init__(self, shared: SharingDevice) -> None:
        self._shared = shared
        self._lock = threading.Lock()
        self._mine: weakref.WeakKeyDictionary[_Entry, weakref.ref[SharedPreparedModel]] = (
            weakref.WeakKeyDictionary()
        )

    def __getattr__(self, name: str) -> Any:
        """All other attributes are the device's."""
        return getattr(self._shared, name)

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> SharedPreparedModel:
        """As the shared device's, unless this client already has the same model."""
        made = self._shared.prepare_model(model, config)
        with self._lock:
            known = self._mine.get(made.entry)
            held = None if known is None else known()
            if held is None or held.closed:
                self._mine[made.entry] = weakref.ref(made)
                return made
        made.close()
        return self._shared.prepare_alone(model, config)


class _Entry:
    """A prepared model and its number of clients; *key* is None if it is not shared."""

    def __init__(self, prepared: hal.PreparedModel, key: object = None) -> None:
        self.prepared, self.key, self.users = prepared, key, 1


class SharedPreparedModel:
    """One client's reference to a prepared model."""

    def __init__(self, device: SharingDevice, entry: _Entry) -> None:
        """*entry* is shared with other clients."""
        self._device, self.entry = device, entry
        self._lock = threading.Lock()
        self.closed = False

    @property
    def cache_report(self) -> hal.CacheReport:
        return self.inner.cache_report

    @property
    def inner(self) -> hal.PreparedModel:
        """The device's own; raises `ClosedError` after `close`."""
        if self.closed:
            raise ClosedError("a prepared model was used after close()")
        return self.entry.prepared

    def __getattr__(self, name: str) -> Any:
        """All other attributes are the device's own."""
        return getattr(self.inner, name)

    def close(self) -> None:
        """Closes the client's model. A second call does nothing."""
        with self._lock:
            closed, self.closed = self.closed, True
        if not closed:
            self._device.release(self.entry)


class QueuedPreparedModel(SharedPreparedModel):
    """A model whose executions, also of bursts, queue with those of other clients.

    Fenced executions wait for their fences without a slot.
    """

    def __init__(self, device: SharingDevice, entry: _Entry, scheduler: Scheduler) -> None:
        super().__init__(device, entry)
        self._scheduler = scheduler

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        return _Queued(self.inner, self._scheduler).execute(request, config)

    def execute_fenced(
        self,
        request: hal.Request,
        wait_for: Sequence[hal.Fence],
        config: hal.ExecutionConfig,
        timeout_after_fence_ns: int | None = None,
    ) -> hal.Fence:
        prepared = cast("hal.PreparedModelBase", self)
        return execute_fenced(prepared, request, wait_for, config, timeout_after_fence_ns)

    def configure_burst(self) -> hal.Burst:
        return _Queued(self.inner.configure_burst(), self._scheduler)

    def create_reusable_execution(self, request: hal.Request) -> hal.ReusableExecution:
        return _Queued(self.inner.create_reusable_execution(request), self._scheduler)


class _Queued:
    """A model, a burst or a reusable execution whose runs are queued."""

    def __init__(self, inner: Any, scheduler: Scheduler) -> None:
        self._inner, self._scheduler = inner, scheduler

    def execute(self, *arguments: Any) -> hal.ExecutionResult:
        config: hal.ExecutionConfig = arguments[-1]
        # In order of arrival, whatever the priority.
        equal = hal.ExecutionConfig(deadline_ns=config.deadline_ns, cancel=config.cancel)
        with self._scheduler.turn(equal):
            result: hal.ExecutionResult = self._inner.execute(*arguments)
            return result

    def close(self) -> None:
        self._inner.close()


def _scheduler_of(device: hal.Device) -> Scheduler | None:
    """A scheduler, if the device declares how many executions it accepts."""
    try:
        most: object = device.capabilities.concurrent_executions
    except FOREIGN:  # the caller who asks for its capabilities gets the error
        return None
    return Scheduler(device, most) if type(most) is int and most > 0 else None


def _inner(prepared: hal.PreparedModel) -> hal.PreparedModel:
    return prepared.inner if isinstance(prepared, SharedPreparedModel) else prepared
