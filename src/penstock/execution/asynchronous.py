"""Runs in worker threads of the model; their futures can be cancelled, or expire in the queue."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from typing import Final

from penstock.errors import Cancelled, ClosedError, MissedDeadlinePersistent
from penstock.execution.interface import Outputs
from penstock.hal import CancelToken, ExecutionConfig, Priority

TOO_LATE: Final = "the timeout passed before a thread took the run"

BY_FUTURE: Final = "cancel() of the run's future ended it"

ROOM: Final = 64
"""Watched futures up to which finished ones are not yet removed from the list."""


class LinkedToken(CancelToken):
    """A token that is set directly, or through *other*."""

    __slots__ = ("_other",)

    def __init__(self, other: CancelToken | None = None) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        """Whether this token or *other* is set."""
        return super().is_set() or (self._other is not None and self._other.is_set())

    def check(self) -> None:
        """Raises `Cancelled` once this token or *other* is set."""
        if self.is_set():
            raise self.cancelled()

    def cancelled(self) -> Cancelled:
        """The error, which names the caller's action: a remote driver knows only the token."""
        own = super().is_set()
        return Cancelled(BY_FUTURE if own else "the cancel token was set")


class RunFuture(Future[Outputs]):
    """The future of a submitted run.

    `cancel` on a run that has not begun prevents it, as for any future. `cancel` on a run in
    progress requests its end, and also returns True. That run then ends with
    `penstock.errors.Cancelled` soon, or with its outputs if it finished first.
    """

    def __init__(self, token: CancelToken) -> None:
        super().__init__()
        self._token = token
        self._claim = threading.Lock()

    def cancel(self) -> bool:
        """True if the run will not begin, or its end was requested; False if it has ended."""
        if super().cancel():
            return True
        if self.done():
            return False
        self._token.set()
        return True

    @property
    def is_claimed(self) -> bool:
        """Whether `claimed` was called."""
        return self._claim.locked()

    def claimed(self) -> bool:
        """Claims the run; True for the first caller only: the worker thread or the expiry clock."""
        return self._claim.acquire(blocking=False)


class Submitter:
    """The worker threads of a compiled model: a pool a priority, so none blocks a higher one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._pools: dict[Priority, ThreadPoolExecutor] = {}
        self._clock = _Clock(name)
        self._closed = False
        self._open = 0
        self._ended = threading.Condition(self._lock)

    def submit(
        self,
        run: Callable[[], Outputs],
        token: CancelToken,
        priority: Priority,
        deadline_ns: int | None,
    ) -> RunFuture:
        """Queues *run*, with *token* and *deadline_ns*. Raises `ClosedError`."""
        future = RunFuture(token)
        with self._lock:
            pool = self._pools.get(priority)
            if pool is None:
                pool = ThreadPoolExecutor(thread_name_prefix=f"{self._name}-{priority}")
                self._pools[priority] = pool
            try:
                if self._closed:
                    raise RuntimeError("closed")
                pool.submit(self._carry_out, future, run)
                self._open += 1
            except RuntimeError as error:
                raise ClosedError("compiled model used after close()") from error
        if deadline_ns is not None:
            self._clock.watch(future, deadline_ns)
        return future

    def close(self, end: float) -> None:
        """Refuses new runs and waits for the threads until *end*; never for the calling thread."""
        with self._ended:
            self._closed = True
            pools = list(self._pools.values())
            inside = threading.current_thread().name.startswith(self._name)
            for pool in pools:
                pool.shutdown(wait=False)
            while self._open and not inside and (left := end - time.monotonic()) > 0:
                self._ended.wait(left)
            late = self._open
        if late and not inside:
            # The clock's thread ends when it watches no more futures.
            return
        for pool in pools:
            pool.shutdown(wait=not inside)
        self._clock.close()

    def _carry_out(self, future: RunFuture, run: Callable[[], Outputs]) -> None:
        try:
            if future.claimed() and future.set_running_or_notify_cancel():
                future.set_result(run())
        except BaseException as error:  # noqa: BLE001  # raised by the future
            future.set_exception(error)
        finally:
            with self._ended:
                self._open -= 1
                self._ended.notify_all()


def check_in_time(config: ExecutionConfig) -> None:
    """Raises `MissedDeadlinePersistent` if the deadline passed before a thread took the run."""
    if config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns:
        raise MissedDeadlinePersistent(TOO_LATE)


class _Clock:
    """Fails futures whose deadline passes while they are queued. Holds only weak references."""

    def __init__(self, name: str) -> None:
        self._name = f"{name}-clock"
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._watched: list[tuple[int, int, weakref.ref[RunFuture]]] = []
        self._most = ROOM
        self._thread: threading.Thread | None = None

    def watch(self, future: RunFuture, deadline_ns: int) -> None:
        with self._changed:
            if len(self._watched) >= self._most:
                self._watched = [w for w in self._watched if _waits(w[2]())]
                heapq.heapify(self._watched)
                self._most = 2 * len(self._watched) + ROOM
            heapq.heappush(self._watched, (deadline_ns, next(self._numbers), weakref.ref(future)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            else:
                self._changed.notify()

    def close(self) -> None:
        """Ends the thread; by then all watched futures have ended."""
        with self._changed:
            self._watched.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while (late := self._next()) is not None:
            if late.claimed():
                error = MissedDeadlinePersistent(TOO_LATE)
                with contextlib.suppress(InvalidStateError):
                    late.set_exception(error)

    def _next(self) -> RunFuture | None:
        """The next expired future. If no future is left, returns None and the thread ends."""
        with self._changed:
            while self._watched:
                deadline, _, reference = self._watched[0]
                left = deadline - time.monotonic_ns()
                if left > 0 and _waits(reference()):
                    self._changed.wait(left / 1e9)
                    continue
                heapq.heappop(self._watched)
                if (future := reference()) is not None:
                    return future
            self._thread = None
            return None


def _waits(future: RunFuture | None) -> bool:
    return future is not None and not future.is_claimed
