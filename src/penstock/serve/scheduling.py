"""A bounded queue of requests for one compiled model, by priority, with dynamic batching.

The queue has no threads of its own. A request's thread runs the model itself if a run is free, and
otherwise waits. The thread that ends a run hands it to the first waiting request, whose thread
takes the requests that fit into the same batch with it.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from penstock.hal import PRIORITIES, CancelToken, Priority
from penstock.serve.errors import DeadlinePassed, NotReady, QueueFull, RequestCancelled

RANKS: Final[dict[Priority, int]] = {name: -place for place, name in enumerate(PRIORITIES)}
"""Requests of a smaller rank run first."""

_numbers = itertools.count()


class _State(enum.Enum):
    WAITING = enum.auto()
    LEADING = enum.auto()
    RUNNING = enum.auto()
    DONE = enum.auto()
    ABANDONED = enum.auto()


class Job:
    """One request in a queue.

    *inputs* are what the run takes. *rows* is its part of a batch, and *key* is equal for requests
    that may run together. The run sets *result*, or *error*, *began_ns* and *batch*.
    """

    def __init__(
        self,
        inputs: Any,
        rows: int = 1,
        key: Hashable = None,
        priority: Priority = "medium",
        deadline_ns: int | None = None,
        cancel: CancelToken | None = None,
    ) -> None:
        self.inputs, self.rows, self.key = inputs, rows, key
        self.priority, self.deadline_ns = priority, deadline_ns
        self.cancel = CancelToken() if cancel is None else cancel
        self.arrived_ns = self.began_ns = time.monotonic_ns()
        self.batch = 1
        self.result: Any = None
        self.error: BaseException | None = None
        self._order = RANKS[priority], next(_numbers)
        self.state = _State.WAITING
        self.event: threading.Event | None = None
        """Set when the job is done, or its thread must run it. A job that never waits has none."""

    def __lt__(self, other: Job) -> bool:
        return self._order < other._order

    def wake(self) -> None:
        """Lets the job's thread go on, if it waits."""
        if self.event is not None:
            self.event.set()

    def refusal(self, now_ns: int) -> Exception | None:
        """Why the job need not run at *now_ns*; None if it must."""
        if self.cancel.is_set():
            return RequestCancelled("the client cancelled the request")
        if self.deadline_ns is not None and now_ns >= self.deadline_ns:
            return DeadlinePassed("the request's timeout passed before its run began")
        return None


class RequestQueue:
    """Runs jobs by calling *execute* with a batch of them, which sets their results.

    At most *waiting* jobs wait, and *running* batches run at the same time. A batch has at most
    *rows* rows, in one of *sizes* if several jobs share it; its first job waits *delay* seconds for
    others. Thread-safe.
    """

    def __init__(
        self,
        execute: Callable[[Sequence[Job]], None],
        waiting: int,
        running: int = 1,
        rows: int = 1,
        sizes: Sequence[int] = (1,),
        delay: float = 0.0,
    ) -> None:
        self._execute = execute
        self._most_waiting, self._most_running = waiting, running
        self._rows, self._sizes, self._delay = rows, frozenset(sizes), delay
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._waiting: list[Job] = []
        self._running = 0
        self._closed = False

    @property
    def depth(self) -> int:
        """The number of jobs that wait."""
        return len(self._waiting)

    def run(self, job: Job) -> None:
        """Returns once *job* has run; raises its error.

        Raises `QueueFull` at once if too many jobs wait, `DeadlinePassed` at the job's deadline,
        `RequestCancelled` and `NotReady`.
        """
        with self._lock:
            if self._closed:
                raise NotReady("the model is being unloaded")
            if self._running < self._most_running and not self._waiting:
                self._running += 1
                job.state = _State.LEADING
            elif len(self._waiting) < self._most_waiting:
                job.event = threading.Event()
                heapq.heappush(self._waiting, job)
                self._arrived.notify_all()
            else:
                raise QueueFull(f"{self._most_waiting} requests wait for this model already")
        if job.state is _State.LEADING or self._leads_after_waiting(job):
            self._lead(job)
        if job.error is not None:
            raise job.error

    def close(self) -> None:
        """Refuses new jobs. Waiting ones still run."""
        with self._lock:
            self._closed = True

    def _leads_after_waiting(self, job: Job) -> bool:
        """Waits until *job* is done (False), or its thread must run it (True)."""
        left = None
        if job.deadline_ns is not None:
            left = max(0.0, (job.deadline_ns - time.monotonic_ns()) / 1e9)
        assert job.event is not None
        if not job.event.wait(left):
            with self._lock:
                if job.state is _State.WAITING:
                    self._waiting.remove(job)
                    heapq.heapify(self._waiting)
                    job.state = _State.ABANDONED
                elif job.state is _State.RUNNING:
                    # Another request's thread runs it in a batch, and drops its result.
                    job.state = _State.ABANDONED
                if job.state is _State.ABANDONED:
                    raise DeadlinePassed("the request's timeout passed")
        return job.state is _State.LEADING

    def _lead(self, job: Job) -> None:
        batch = [job]
        try:
            job.error = job.refusal(time.monotonic_ns())
            if job.error is None:
                batch = self._batch_of(job)
                began = time.monotonic_ns()
                for each in batch:
                    each.began_ns, each.batch = began, len(batch)
                self._execute(batch)
        except BaseException as error:  # noqa: BLE001  # raised by `run` of each job
            for each in batch:
                each.error = error
        finally:
            self._end(batch)

    def _batch_of(self, first: Job) -> list[Job]:
        """*first* and the jobs that run with it, taken out of the queue."""
        if self._rows <= 1 or first.key is None or first.rows >= self._rows:
            return [first]
        with self._lock:
            end = time.monotonic() + self._delay
            while self._rows_for(first) < self._rows:
                left = end - time.monotonic()
                if left <= 0 or not self._arrived.wait(left):
                    break
            return self._taken(first)

    def _rows_for(self, first: Job) -> int:
        return first.rows + sum(job.rows for job in self._waiting if job.key == first.key)

    def _taken(self, first: Job) -> list[Job]:
        chosen, best, rows = [first], 1, first.rows
        now = time.monotonic_ns()
        for job in sorted(self._waiting):
            if job.key != first.key or job.refusal(now) is not None:
                continue
            if rows + job.rows > self._rows:
                break
            chosen.append(job)
            rows += job.rows
            if rows in self._sizes:
                best = len(chosen)
        taken = chosen[:best]
        for job in taken[1:]:
            self._waiting.remove(job)
            job.state = _State.RUNNING
        heapq.heapify(self._waiting)
        return taken

    def _end(self, batch: Sequence[Job]) -> None:
        """Wakes the threads of *batch*, and hands the run to the next job that waits."""
        with self._lock:
            for job in batch:
                if job.state is not _State.ABANDONED:
                    job.state = _State.DONE
            if self._waiting:
                following = heapq.heappop(self._waiting)
                following.state = _State.LEADING
                following.wake()
            else:
                self._running -= 1
        for job in batch:
            job.wake()
