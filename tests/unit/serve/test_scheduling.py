"""`RequestQueue`: order, bounds, deadlines, batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.hal import CancelToken
from penstock.serve import scheduling
from penstock.serve.errors import DeadlinePassed, NotReady, QueueFull, RequestCancelled
from penstock.serve.scheduling import Job, RequestQueue
from tests.support_serving import PATIENCE_S, Asker


class Runs:
    """Stands for a model: records batches, and holds each until `let` is called."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.begun = threading.Semaphore(0)
        self._go_on = threading.Semaphore(0)

    def __call__(self, jobs: Sequence[Job]) -> None:
        self.batches.append([job.inputs for job in jobs])
        self.begun.release()
        assert self._go_on.acquire(timeout=PATIENCE_S)
        for job in jobs:
            job.result = job.inputs

    def let(self, count: int = 1) -> None:
        for _ in range(count):
            self._go_on.release()

    def await_run(self) -> None:
        assert self.begun.acquire(timeout=PATIENCE_S)


def await_depth(queue: RequestQueue, depth: int) -> None:
    """Returns once *depth* jobs wait in *queue*."""
    end = time.monotonic() + PATIENCE_S
    while queue.depth != depth:
        assert time.monotonic() < end
        time.sleep(0.001)


def await_idle(queue: RequestQueue) -> None:
    """Returns once a runner of *queue* waits for work, or has ended."""
    end = time.monotonic() + PATIENCE_S
    while not queue._idle and any(t.name == "penstock-runner" for t in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.001)


def busy(queue: RequestQueue, runs: Runs) -> Asker:
    """A job whose run has begun and waits."""
    asker = Asker(queue.run, Job("first"))
    runs.await_run()
    return asker


def test_job_runs_in_the_thread_of_its_caller_if_a_run_is_free() -> None:
    threads = []
    queue = RequestQueue(lambda _: threads.append(threading.current_thread()), waiting=1)
    queue.run(Job(1))
    assert threads == [threading.current_thread()]


def test_jobs_that_waited_run_one_after_another_in_one_runner() -> None:
    threads: list[str] = []
    runs = Runs()

    def run(jobs: Sequence[Job]) -> None:
        threads.append(threading.current_thread().name)
        runs(jobs)

    queue = RequestQueue(run, waiting=8)
    askers = [busy(queue, runs)]
    for place in range(3):
        askers.append(Asker(queue.run, Job(place)))
        await_depth(queue, place + 1)
    runs.let(4)
    for asker in askers:
        asker.answer()
    assert threads[1:] == ["penstock-runner"] * 3
    assert threads[0] != "penstock-runner"


@pytest.mark.parametrize("is_closed", [False, True])
def test_idle_runner_runs_again_and_ends_by_itself_or_with_the_queue(
    is_closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "IDLE_SECONDS", 3600.0)
    runs = Runs()
    used: set[threading.Thread] = set()

    def run(jobs: Sequence[Job]) -> None:
        if threading.current_thread().name == "penstock-runner":
            used.add(threading.current_thread())
        runs(jobs)

    queue = RequestQueue(run, waiting=8)
    for _ in range(2):
        if used and not is_closed:
            monkeypatch.setattr(scheduling, "IDLE_SECONDS", 0.001)
        askers = [busy(queue, runs), Asker(queue.run, Job("second"))]
        await_depth(queue, 1)
        runs.let(2)
        for asker in askers:
            asker.answer()
        runs.await_run()
        await_idle(queue)
    if is_closed:
        queue.close()
    (runner,) = used
    runner.join(PATIENCE_S)
    assert not runner.is_alive()


def test_jobs_run_in_the_thread_that_ended_a_run_if_no_other_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    runs = Runs()
    queue = RequestQueue(runs, waiting=8)
    askers = [busy(queue, runs), *(Asker(queue.run, Job(name)) for name in "ab")]
    await_depth(queue, 2)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        runs.let(3)
        for asker in askers:
            asker.answer()
    assert sorted(batch[0] for batch in runs.batches) == ["a", "b", "first"]


def test_jobs_of_higher_priority_run_first_and_others_in_order_of_arrival() -> None:
    runs = Runs()
    queue = RequestQueue(runs, waiting=8)
    askers = [busy(queue, runs)]
    for place, (name, priority) in enumerate(
        [("low", "low"), ("medium", "medium"), ("medium 2", "medium"), ("high", "high")]
    ):
        askers.append(Asker(queue.run, Job(name, priority=priority)))  # type: ignore[arg-type]
        await_depth(queue, place + 1)
    runs.let(5)
    for asker in askers:
        asker.answer()
    assert runs.batches == [["first"], ["high"], ["medium"], ["medium 2"], ["low"]]


def test_full_queue_refuses_at_once_and_takes_jobs_again_later() -> None:
    runs = Runs()
    queue = RequestQueue(runs, waiting=1)
    askers = [busy(queue, runs), Asker(queue.run, Job("second"))]
    await_depth(queue, 1)
    with pytest.raises(QueueFull, match="1 requests wait"):
        queue.run(Job("third"))
    runs.let(3)
    for asker in askers:
        asker.answer()
    queue.run(Job("fourth"))
    assert [batch[0] for batch in runs.batches] == ["first", "second", "fourth"]


def test_waiting_job_ends_at_its_deadline_and_never_runs() -> None:
    runs = Runs()
    queue = RequestQueue(runs, waiting=2)
    first = busy(queue, runs)
    with pytest.raises(DeadlinePassed):
        queue.run(Job("late", deadline_ns=time.monotonic_ns() + 1_000_000))
    assert queue.depth == 0
    runs.let()
    first.answer()
    assert runs.batches == [["first"]]


def test_cancelled_job_does_not_run() -> None:
    runs = Runs()
    queue = RequestQueue(runs, waiting=2)
    first, token = busy(queue, runs), CancelToken()
    second = Asker(queue.run, Job("gone", cancel=token))
    await_depth(queue, 1)
    token.set()
    runs.let()
    with pytest.raises(RequestCancelled):
        second.answer()
    first.answer()
    assert runs.batches == [["first"]]


def test_error_of_a_run_is_raised_for_its_job_and_the_next_job_runs() -> None:
    def run(jobs: Sequence[Job]) -> None:
        if jobs[0].inputs == "bad":
            raise ValueError("bad")
        jobs[0].result = "done"

    queue = RequestQueue(run, waiting=1)
    with pytest.raises(ValueError, match="bad"):
        queue.run(Job("bad"))
    good = Job("good")
    queue.run(good)
    assert good.result == "done"


def test_closed_queue_refuses_jobs_and_still_runs_those_that_wait() -> None:
    runs = Runs()
    queue = RequestQueue(runs, waiting=2)
    askers = [busy(queue, runs), Asker(queue.run, Job("second"))]
    await_depth(queue, 1)
    queue.close()
    with pytest.raises(NotReady):
        queue.run(Job("third"))
    runs.let(2)
    for asker in askers:
        asker.answer()
    assert runs.batches == [["first"], ["second"]]


def test_several_runs_at_the_same_time_if_allowed() -> None:
    runs = Runs()
    queue = RequestQueue(runs, waiting=2, running=2)
    askers = [Asker(queue.run, Job(name)) for name in "ab"]
    runs.await_run()
    runs.await_run()
    runs.let(2)
    for asker in askers:
        asker.answer()
    assert sorted(runs.batches) == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([1, 1, 1, 1], [["1.0", "1.1", "1.2", "1.3"]]),
        ([1, 1, 1], [["1.0", "1.1"], ["1.2"]]),
        ([2, 1, 1], [["2.0", "1.1", "1.2"]]),
        ([3, 1], [["3.0", "1.1"]]),
        ([3, 2], [["3.0"], ["2.1"]]),
        ([4, 1], [["4.0"], ["1.1"]]),
    ],
)
def test_waiting_jobs_share_a_run_in_batches_of_the_allowed_sizes(
    rows: list[int], expected: list[list[str]]
) -> None:
    runs = Runs()
    queue = RequestQueue(runs, waiting=8, rows=4, sizes=(1, 2, 4))
    askers = [busy(queue, runs)]
    for place, count in enumerate(rows):
        askers.append(Asker(queue.run, Job(f"{count}.{place}", rows=count, key="k")))
        await_depth(queue, place + 1)
    runs.let(1 + len(expected))
    for asker in askers:
        asker.answer()
    assert runs.batches[1:] == expected


def test_jobs_with_other_keys_or_without_one_never_share_a_run() -> None:
    runs = Runs()
    queue = RequestQueue(runs, waiting=8, rows=4, sizes=(1, 2, 4))
    askers = [busy(queue, runs)]
    for place, key in enumerate(["a", "b", None, None, "a"]):
        askers.append(Asker(queue.run, Job(place, key=key)))
        await_depth(queue, place + 1)
    runs.let(5)
    for asker in askers:
        asker.answer()
    assert runs.batches[1:] == [[0, 4], [1], [2], [3]]


def test_first_job_of_a_batch_waits_for_others() -> None:
    runs = Runs()
    queue = RequestQueue(runs, waiting=8, rows=2, sizes=(1, 2), delay=PATIENCE_S)
    askers = [Asker(queue.run, Job("a", key="k")), Asker(queue.run, Job("b", key="k"))]
    runs.await_run()
    runs.let()
    for asker in askers:
        asker.answer()
    assert [sorted(batch) for batch in runs.batches] == [["a", "b"]]


def test_job_of_a_batch_ends_at_its_own_deadline() -> None:
    runs = Runs()
    queue = RequestQueue(runs, waiting=8, rows=2, sizes=(1, 2))
    askers = [busy(queue, runs)]
    askers.append(Asker(queue.run, Job("patient", key="k")))
    await_depth(queue, 1)
    hasty = Asker(queue.run, Job("hasty", key="k", deadline_ns=time.monotonic_ns() + 10**8))
    await_depth(queue, 2)
    runs.let()
    runs.await_run()
    assert runs.batches[1] == ["patient", "hasty"]
    with pytest.raises(DeadlinePassed):
        hasty.answer()
    runs.let()
    for asker in askers:
        asker.answer()
