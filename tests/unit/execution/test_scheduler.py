"""Priorities: who goes next on a device that takes so many executions at a time."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import penstock
from penstock import errors, knobs
from penstock.drivers.reference import ReferenceDevice
from penstock.execution import adapters
from penstock.execution.adapters import SCHEDULERS
from penstock.execution.interface import Outputs
from penstock.execution.priority import QUEUES
from penstock.hal import CancelToken, Capabilities, ExecutionConfig, Priority, Request
from penstock.ipc.device_sharing import RANKS, Scheduler
from penstock.testing.doubles import FaultyDevice, InterceptingDevice
from tests.unit.execution.fakes import NumpyDevice, add_relu, f32

T = TypeVar("T")

X = f32([[1, -2, 3], [4, 5, -6]])
PATIENCE_S = 30
ONE = Capabilities(concurrent_executions=1)


class Slow:
    """Holds each execution until it is let go, and keeps the order in which they began."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.inside = 0
        self.most = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._allowed = 0

    def __call__(self, request: Request, config: ExecutionConfig) -> None:
        with self._changed:
            self.began.append(config.priority)
            self.inside += 1
            self.most = max(self.most, self.inside)
            self._changed.notify_all()
            turn = len(self.began)
            assert self._changed.wait_for(lambda: self._allowed >= turn, PATIENCE_S)
            self.inside -= 1

    def let_go(self, count: int = 1) -> None:
        with self._changed:
            self._allowed += count
            self._changed.notify_all()

    def reset(self) -> None:
        with self._changed:
            self.began.clear()
            self._allowed = 0

    def await_begun(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.began) >= count, PATIENCE_S)


def threads_of_a_pool() -> int:
    """How many `ThreadPoolExecutor` has where nothing is said."""
    with ThreadPoolExecutor() as pool:
        return pool._max_workers


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def slow() -> Iterator[Slow]:
    slow = Slow()
    yield slow
    slow.let_go(10**6)


def compiled_for(device: NumpyDevice, priority: Priority = "medium") -> penstock.CompiledModel:
    return penstock.compile(add_relu(), devices=[device], cache=False, priority=priority)


@pytest.mark.parametrize("models", ["one model", "two models"])
def test_a_high_run_behind_ten_low_ones_is_next(slow: Slow, models: str) -> None:
    device = NumpyDevice(before=slow, capabilities=ONE)
    with compiled_for(device, "low") as low, compiled_for(device, "high") as high:
        waiting = [low.submit(X, X) for _ in range(10)]
        slow.await_begun(1)
        # As many of them as have a thread wait for the device.
        eventually(lambda: SCHEDULERS.of(device).waiting > 0)
        chosen = low if models == "one model" else high
        urgent = chosen.submit(X, X, priority="high")
        eventually(lambda: "high" in _waiting(SCHEDULERS.of(device)))
        slow.let_go()
        slow.await_begun(2)
        assert slow.began == ["low", "high"]
        slow.let_go(100)
        np.testing.assert_array_equal(urgent.result(PATIENCE_S)[1], X + X)
        for future in waiting:
            np.testing.assert_array_equal(future.result(PATIENCE_S)[1], X + X)
    assert slow.began == ["low", "high"] + ["low"] * 9
    assert slow.most == 1


class Held(InterceptingDevice):
    """The reference device, whose executions *slow* holds."""

    def __init__(self, slow: Slow) -> None:
        super().__init__(ReferenceDevice(), "held")
        self.slow = slow

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        if method.endswith("execute"):
            request, config = arguments[-2:]
            self.slow(request, config)
        return proceed()


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "allowed_processors", lambda: 2)


@pytest.mark.usefixtures("two_processors")
@pytest.mark.parametrize("asked", ["of the model", "of the run"])
def test_by_default_a_high_run_behind_ten_low_ones_is_next(slow: Slow, asked: str) -> None:
    device = Held(slow)

    def make(priority: Priority) -> penstock.CompiledModel:
        return penstock.compile(add_relu(), devices=[device], cache=False, priority=priority)

    with make("low") as a, make("low") as b, make("low") as c:
        high = make("high" if asked == "of the model" else "low")
        if asked == "of the run":
            # The first that asks for it is what lets them take turns from then on.
            slow.let_go(1)
            high.run([X, X], priority="high")
            slow.reset()
        low = [model.submit(X, X) for model in (a, b, c, a, b, c, a, b, c, a)]
        slow.await_begun(2)
        eventually(lambda: SCHEDULERS.of(device).waiting == 8)
        urgent = high.submit(X, X, priority="high")
        eventually(lambda: "high" in _waiting(SCHEDULERS.of(device)))
        slow.let_go()
        slow.await_begun(3)
        assert slow.began == ["low", "low", "high"]
        slow.let_go(100)
        for future in (urgent, *low):
            np.testing.assert_array_equal(future.result(PATIENCE_S)[1], X + X)
        high.close()
    assert slow.began[3:] == ["low"] * 8
    assert slow.most == 2


@pytest.mark.usefixtures("two_processors")
def test_a_high_run_overtakes_those_of_before_that_wait_for_a_thread(slow: Slow) -> None:
    device = Held(slow)
    with penstock.compile(add_relu(), devices=[device], cache=False, priority="low") as low:
        running = [low.submit(X, X) for _ in range(40)]
        slow.await_begun(1)
        urgent = low.submit(X, X, priority="high")
        eventually(lambda: "high" in slow.began)
        slow.let_go(100)
        for future in (urgent, *running):
            future.result(PATIENCE_S)


def test_runs_of_one_priority_do_not_wait(slow: Slow) -> None:
    device = Held(slow)
    made = [
        penstock.compile(add_relu(), devices=[device], cache=False, priority="low")
        for _ in range(9)
    ]
    futures = [model.submit(X, X) for model in made]
    slow.await_begun(9)
    assert not QUEUES.of(device).queues_runs
    slow.let_go(100)
    for model, future in zip(made, futures, strict=True):
        future.result(PATIENCE_S)
        model.close()


@pytest.mark.usefixtures("two_processors")
@pytest.mark.parametrize("falls_back", [False, True])
def test_earlier_models_join_the_queue_with_the_second_priority(
    slow: Slow, falls_back: bool
) -> None:
    device = Held(slow)
    first: Any = (
        FaultyDevice(ReferenceDevice(), {"execute": "always"}, name="first")
        if falls_back
        else device
    )
    devices = [first, device] if falls_back else [first]
    slow.let_go(3)
    with penstock.compile(add_relu(), devices=devices, cache=False, priority="low") as low:
        burst: Any = low.burst()
        run = low.run if falls_back else burst.run
        for _ in range(3):
            run([X, X])
        lane = QUEUES.of(device)
        assert not lane.queues_runs
        thread = threading.Thread(target=lambda: run([X, X], priority="high"))
        thread.start()
        slow.await_begun(4)
        assert lane.queues_runs
        assert SCHEDULERS.of(device)._holders
        slow.let_go(1)
        thread.join(PATIENCE_S)
        assert not SCHEDULERS.of(device)._holders


def _waiting(scheduler: Scheduler) -> list[str]:
    names = {rank: name for name, rank in RANKS.items()}
    return [names[w.order[0]] for w in list(scheduler._waiting)]


@settings(max_examples=25, deadline=None)
@given(
    priorities=st.lists(st.sampled_from(["low", "medium", "high"]), min_size=1, max_size=8),
    limit=st.integers(1, 3),
)
def test_waiters_go_by_priority_then_by_arrival(priorities: list[Priority], limit: int) -> None:
    scheduler = Scheduler(NumpyDevice(), limit)
    order: list[int] = []
    first = [threading.Event() for _ in range(limit)]
    go_on = threading.Event()

    def hold(k: int) -> None:
        assert scheduler.enter(ExecutionConfig())
        first[k].set()
        assert go_on.wait(PATIENCE_S)
        # One slot alone goes round, so that the order can be seen.
        if k == 0:
            scheduler.leave()
        else:
            eventually(lambda: len(order) == len(priorities))
            scheduler.leave()

    def wait(k: int, priority: Priority) -> None:
        assert scheduler.enter(ExecutionConfig(priority=priority))
        order.append(k)
        scheduler.leave()

    threads = [threading.Thread(target=hold, args=(k,)) for k in range(limit)]
    for thread in threads:
        thread.start()
    for event in first:
        assert event.wait(PATIENCE_S)
    for k, priority in enumerate(priorities):
        threads.append(threading.Thread(target=wait, args=(k, priority)))
        threads[-1].start()
        eventually(lambda k=k: scheduler.waiting == k + 1)  # type: ignore[misc]
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert order == sorted(range(len(priorities)), key=lambda k: (RANKS[priorities[k]], k))
    assert scheduler.waiting == 0


def test_no_more_than_the_device_takes(slow: Slow) -> None:
    device = NumpyDevice(before=slow, capabilities=Capabilities(concurrent_executions=2))
    slow.let_go(10**6)
    with compiled_for(device) as one, compiled_for(device) as two:
        futures = [m.submit(X, X) for _ in range(20) for m in (one, two)]
        for future in futures:
            future.result(PATIENCE_S)
    assert slow.most <= 2


def test_a_device_that_says_nothing_takes_as_many_as_the_knob_says(slow: Slow) -> None:
    device = NumpyDevice(before=slow)
    slow.let_go(10**6)
    with knobs.override(concurrent_executions=1), compiled_for(device) as compiled:
        for future in [compiled.submit(X, X) for _ in range(20)]:
            future.result(PATIENCE_S)
    assert slow.most == 1
    said = NumpyDevice(capabilities=Capabilities(concurrent_executions=3))
    with knobs.override(concurrent_executions=1), compiled_for(said):
        assert len(SCHEDULERS.of(said)._slots) == 3


def test_bursts_and_fallbacks_wait_by_priority(slow: Slow) -> None:
    device = NumpyDevice(before=slow, capabilities=ONE)
    with compiled_for(device, "low") as low, compiled_for(device, "high") as high:
        running = low.submit(X, X)
        slow.await_begun(1)
        burst = high.burst()
        found: list[Outputs] = []
        thread = threading.Thread(target=lambda: found.append(burst.run(X, X)))
        thread.start()
        eventually(lambda: SCHEDULERS.of(device).waiting == 1)
        slow.let_go(2)
        thread.join(PATIENCE_S)
        running.result(PATIENCE_S)
        np.testing.assert_array_equal(found[0][1], X + X)
    assert slow.most == 1


def test_cancelled_run_leaves_the_queue(slow: Slow) -> None:
    device = NumpyDevice(before=slow, capabilities=ONE)
    with compiled_for(device) as compiled:
        running = compiled.submit(X, X)
        slow.await_begun(1)
        scheduler = SCHEDULERS.of(device)
        token = CancelToken()
        cancelled = compiled.submit(X, X, cancel=token)
        eventually(lambda: scheduler.waiting == 1)
        token.set()
        with pytest.raises(errors.Cancelled):
            cancelled.result(PATIENCE_S)
        assert scheduler.waiting == 0
        with pytest.raises(errors.MissedDeadlinePersistent):
            compiled.run([X, X], timeout=0.01)
        assert scheduler.waiting == 0
        waiting = compiled.submit(X, X)
        eventually(lambda: scheduler.waiting == 1)
        assert waiting.cancel()
        with pytest.raises(errors.Cancelled):
            waiting.result(PATIENCE_S)
        slow.let_go(2)
        running.result(PATIENCE_S)
        compiled(X, X)
    assert len(slow.began) == 2


def test_a_newcomer_does_not_overtake_a_waiter() -> None:
    scheduler = Scheduler(NumpyDevice(), 1)
    order: list[str] = []

    def run(name: str) -> None:
        assert scheduler.enter(ExecutionConfig())
        order.append(name)
        scheduler.leave()

    assert scheduler.enter(ExecutionConfig())
    waiter = threading.Thread(target=run, args=("waiter",))
    waiter.start()
    eventually(lambda: scheduler.waiting == 1)
    newcomer = threading.Thread(target=run, args=("newcomer",))
    with scheduler._lock:
        # A slot is free, and the waiter has not been given it yet.
        scheduler._slots.append(None)
        newcomer.start()
        newcomer.join(0.1)
        assert order == []
    scheduler._holders.discard(threading.get_ident())
    with scheduler._lock:
        scheduler._grant()
    for thread in (waiter, newcomer):
        thread.join(PATIENCE_S)
    assert order == ["waiter", "newcomer"]


def test_a_failed_execution_gives_its_slot_back() -> None:
    failing = [True]

    def fail(request: Request, config: ExecutionConfig) -> None:
        if failing[0]:
            raise penstock.errors.GeneralFailure("no")

    device = NumpyDevice(before=fail, capabilities=ONE)
    policy = penstock.Policy(allow_fallback=False)
    with penstock.compile(add_relu(), devices=[device], cache=False, policy=policy) as compiled:
        for _ in range(3):
            with pytest.raises(penstock.errors.GeneralFailure):
                compiled(X, X)
        failing[0] = False
        compiled(X, X)


def test_an_execution_within_an_execution_has_its_slot() -> None:
    """A device that runs a model on itself would else wait for itself."""
    inner: list[penstock.CompiledModel] = []

    def nest(request: Request, config: ExecutionConfig) -> None:
        if config.priority == "high":
            inner[0](X, X)

    device = NumpyDevice(before=nest, capabilities=ONE)
    with compiled_for(device) as own, compiled_for(device) as outer:
        inner.append(own)
        outer.run([X, X], priority="high")
        outer.run([X, X], priority="high")
        assert SCHEDULERS.of(device)._slots == [None]


def test_a_device_has_one_scheduler_for_as_long_as_it_is_used() -> None:
    device = NumpyDevice(capabilities=ONE)
    other = NumpyDevice(capabilities=ONE)
    with compiled_for(device), compiled_for(device):
        assert SCHEDULERS.of(device) is SCHEDULERS.of(device)
        assert SCHEDULERS.of(device) is not SCHEDULERS.of(other)


def test_close_waits_for_those_in_the_queue(slow: Slow) -> None:
    device = NumpyDevice(before=slow, capabilities=ONE)
    compiled = compiled_for(device)
    futures = [compiled.submit(X, X) for _ in range(3)]
    slow.await_begun(1)
    closer = threading.Thread(target=compiled.close)
    closer.start()
    slow.let_go(3)
    closer.join(PATIENCE_S)
    for future in futures:
        np.testing.assert_array_equal(future.result(0)[1], X + X)
    with pytest.raises(errors.ClosedError):
        compiled.submit(X, X)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_process_is_not_kept_by_its_parents_runs(slow: Slow) -> None:
    device = NumpyDevice(before=slow, capabilities=ONE)
    with compiled_for(device) as compiled:
        running = compiled.submit(X, X)
        slow.await_begun(1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                device.prepared.clear()
                fresh = NumpyDevice(capabilities=ONE)
                with compiled_for(fresh) as own:
                    good = bool((own(X, X)[1] == X + X).all())
                # The parent's device, whose slot the parent holds, is free here.
                good = good and SCHEDULERS.of(device).enter(ExecutionConfig())
                try:
                    compiled(X, X)
                except errors.StateError:
                    code = 0 if good else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        slow.let_go()
        running.result(PATIENCE_S)


class TestSubmit:
    def test_runs_have_the_priority_they_ask_for_or_the_models(self) -> None:
        seen: list[str] = []
        device = NumpyDevice(before=lambda _, config: seen.append(config.priority))
        with compiled_for(device, "low") as compiled:
            compiled(X, X)
            compiled.run([X, X], priority="high")
            compiled.submit(X, X).result()
            compiled.submit(X, X, priority="medium").result()
            compiled.submit({"x": X, "y": X}, priority="high").result()
            with pytest.raises(errors.InputError, match="priority"):
                compiled.run([X, X], priority="urgent")  # type: ignore[arg-type]
            with pytest.raises(errors.InputError, match="priority"):
                compiled.submit(X, X, priority="urgent")  # type: ignore[arg-type]
        assert seen == ["low", "high", "low", "medium", "high"]

    def test_a_queued_run_that_is_cancelled_never_begins(self, slow: Slow) -> None:
        device = NumpyDevice(before=slow)
        with compiled_for(device) as compiled:
            pool_size = threads_of_a_pool()
            running = [compiled.submit(X, X) for _ in range(pool_size)]
            slow.await_begun(pool_size)
            queued = compiled.submit(X, X)
            assert queued.cancel()
            assert queued.cancelled()
            slow.let_go(pool_size)
            for future in running:
                future.result(PATIENCE_S)
        assert len(slow.began) == pool_size

    def test_a_queued_run_expires_where_it_waits(self, slow: Slow) -> None:
        device = NumpyDevice(before=slow)
        with compiled_for(device) as compiled:
            pool_size = threads_of_a_pool()
            running = [compiled.submit(X, X, timeout=600) for _ in range(pool_size)]
            slow.await_begun(pool_size)
            late = [compiled.submit(X, X, timeout=t) for t in (0.02, 0.01)]
            for future in late:
                with pytest.raises(errors.MissedDeadlinePersistent, match="before a thread"):
                    future.result(PATIENCE_S)
            slow.let_go(pool_size)
            for future in running:
                future.result(PATIENCE_S)
        assert len(slow.began) == pool_size

    def test_running_run_can_be_cancelled(self) -> None:
        inside = threading.Event()

        def watch(request: Request, config: ExecutionConfig) -> None:
            inside.set()
            assert config.cancel is not None
            while True:
                config.cancel.check()
                time.sleep(0.001)

        with compiled_for(NumpyDevice(before=watch)) as compiled:
            future = compiled.submit(X, X)
            assert inside.wait(PATIENCE_S)
            assert future.cancel()
            with pytest.raises(
                errors.Cancelled, match=r"^cancel\(\) of the run's future ended it$"
            ):
                future.result(PATIENCE_S)
            assert not future.cancel()

    def test_the_callers_token_is_his_own(self) -> None:
        """Cancelling the future does not cancel what else has the token."""
        token = CancelToken()
        with compiled_for(NumpyDevice()) as compiled:
            future: Future[Outputs] = compiled.submit(X, X, cancel=token)
            future.result(PATIENCE_S)
            future.cancel()
            assert not token.is_set()
            token.set()
            with pytest.raises(errors.Cancelled, match=r"^the cancel token was set$"):
                compiled.submit(X, X, cancel=token).result(PATIENCE_S)

    def test_a_driver_that_knows_of_a_token_alone_does_not_say_what_ended_the_run(self) -> None:
        inside, go_on = threading.Event(), threading.Event()

        def stop(*_: object) -> None:
            inside.set()
            assert go_on.wait(PATIENCE_S)
            raise errors.Cancelled("the cancel token was set")

        with compiled_for(NumpyDevice(before=stop)) as compiled:
            future = compiled.submit(X, X)
            assert inside.wait(PATIENCE_S)
            assert future.cancel()
            go_on.set()
            with pytest.raises(
                errors.Cancelled, match=r"^cancel\(\) of the run's future ended it$"
            ):
                future.result(PATIENCE_S)

    def test_a_timeout_counts_from_the_submission(self) -> None:
        seen: list[int | None] = []
        device = NumpyDevice(before=lambda _, config: seen.append(config.deadline_ns))
        with compiled_for(device) as compiled:
            before = time.monotonic_ns()
            compiled.submit(X, X, timeout=60).result(PATIENCE_S)
            after = time.monotonic_ns()
            compiled.submit(X, X).result(PATIENCE_S)
        assert seen[0] is not None
        assert before + 59 * 10**9 < seen[0] <= after + 60 * 10**9
        assert seen[1] is None

    def test_finished_runs_are_not_kept(self) -> None:
        with compiled_for(NumpyDevice()) as compiled:
            for _ in range(300):
                compiled.submit(X, X, timeout=600).result(PATIENCE_S)
            submitter = compiled.executable.submitter
            assert submitter is not None
            assert len(submitter._clock._watched) <= 70


def test_the_count_crosses_to_another_process() -> None:
    from penstock.testing.loopback import LoopbackDevice

    device = LoopbackDevice(NumpyDevice(capabilities=Capabilities(concurrent_executions=3)))
    assert device.capabilities.concurrent_executions == 3


def test_runs_that_give_up_at_random_leave_the_queue_whole() -> None:
    """Of many threads with deadlines and tokens of all kinds, no more are inside than may be, and
    none is forgotten.
    """
    scheduler = Scheduler(NumpyDevice(), 2)
    lock = threading.Lock()
    inside = [0, 0]
    outcomes: list[str] = []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(30):
            token = CancelToken()
            deadline = time.monotonic_ns() + draw.choice([0, 200_000, 10**10])
            config = ExecutionConfig(
                priority=draw.choice(["low", "medium", "high"]),
                deadline_ns=draw.choice([None, deadline]),
                cancel=draw.choice([None, token]),
            )
            if draw.random() < 0.2:
                token.set()
            try:
                assert scheduler.enter(config)
            except (errors.Cancelled, errors.MissedDeadlinePersistent) as error:
                outcomes.append(type(error).__name__)
                continue
            with lock:
                inside[0] += 1
                inside[1] = max(inside)
            time.sleep(draw.random() / 5000)
            with lock:
                inside[0] -= 1
            scheduler.leave()
            outcomes.append("ran")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(outcomes) == 12 * 30
    assert inside == [0, 2]
    assert scheduler.waiting == 0
    assert scheduler._slots == [None, None]
    assert scheduler._holders == set()
