"""A bounded queue of requests for one compiled model, by priority, with dynamic batching.

A request's thread runs the model itself if a run is free, and otherwise waits. If requests wait at
the end of its run, a runner takes the run over: a thread of the queue, which runs one batch after
another until nothing waits. Between two runs there is then no change of threads, and the answers
are written meanwhile.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from penstock.hal import PRIORITIES, CancelToken, Priority
from penstock.serve.errors import DeadlinePassed, NotReady, QueueFull, RequestCancelled

RANKS: Final[dict[Priority, int]] = {name: -place for place, name in enumerate(PRIORITIES)}
"""Requests of a smaller rank run first."""

IDLE_SECONDS: Final = 5.0
"""After so long without work, a runner ends."""

_numbers = itertools.count()


class _State(enum.Enum):
    WAITING = enum.auto()
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
        self.done: threading.Lock | None = None
        """Released when the job is done. A job that never waits has none."""

    def __lt__(self, other: Job) -> bool:
        return self._order < other._order

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
        self._idle: list[queue.SimpleQueue[Job | None]] = []
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
                job.state = _State.RUNNING
            elif len(self._waiting) < self._most_waiting:
                job.done = threading.Lock()
                job.done.acquire()
                heapq.heappush(self._waiting, job)
                self._arrived.notify_all()
            else:
                raise QueueFull(f"{self._most_waiting} requests wait for this model already")
        if job.done is not None:
            self._wait(job, job.done)
        elif (following := self._lead(job)) is not None:
            self._hand_over(following)
        if job.error is not None:
            raise job.error

    def close(self) -> None:
        """Refuses new jobs. Waiting ones still run."""
        with self._lock:
            self._closed = True
            for runner in self._idle:
                runner.put(None)
            self._idle.clear()

    def _wait(self, job: Job, done: threading.Lock) -> None:
        """Waits until *job* is done. Raises `DeadlinePassed`."""
        left = -1.0
        if job.deadline_ns is not None:
            left = max(0.0, (job.deadline_ns - time.monotonic_ns()) / 1e9)
        if done.acquire(timeout=min(left, threading.TIMEOUT_MAX)):
            return
        with self._lock:
            if job.state is _State.DONE:
                return
            if job.state is _State.WAITING:
                self._waiting.remove(job)
                heapq.heapify(self._waiting)
            # If it runs, its result is dropped.
            job.state = _State.ABANDONED
        raise DeadlinePassed("the request's timeout passed")

    def _hand_over(self, job: Job) -> None:
        """Lets a runner run *job*, whose state is RUNNING, and those that wait then."""
        with self._lock:
            if self._idle:
                self._idle.pop().put(job)
                return
        runner = threading.Thread(
            target=self._run_on, args=(job,), name="penstock-runner", daemon=True
        )
        try:
            runner.start()
        except RuntimeError:
            # The system has no thread left: this one runs them.
            following: Job | None = job
            while following is not None:
                following = self._lead(following)

    def _run_on(self, job: Job | None) -> None:
        """Runs *job* and what waits after it, again and again, until nothing came for a while."""
        given: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        while job is not None:
            while job is not None:
                job = self._lead(job)
            with self._lock:
                if self._closed:
                    return
                self._idle.append(given)
            try:
                job = given.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if given in self._idle:
                        self._idle.remove(given)
                        return
                # It was given a job, or the end, meanwhile.
                job = given.get()

    def _lead(self, job: Job) -> Job | None:
        """Runs *job* with those that fit into its batch. Returns the job to run next."""
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
        return self._end(batch)

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

    def _end(self, batch: Sequence[Job]) -> Job | None:
        """Wakes the threads of *batch*. Returns the next job that waits; None ends the run."""
        following = None
        with self._lock:
            for job in batch:
                if job.state is not _State.ABANDONED:
                    job.state = _State.DONE
            if self._waiting:
                following = heapq.heappop(self._waiting)
                following.state = _State.RUNNING
            else:
                self._running -= 1
        for job in batch:
            if job.done is not None:
                job.done.release()
        return following
