"""Closing a model while runs do not end: `close` returns, and the last of them releases what they
used.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import penstock
from penstock.errors import ClosedError
from penstock.execution import executable
from penstock.execution.executable import Gate
from penstock.ir import NDArray
from tests.unit.execution.fakes import NumpyDevice, add_relu, f32

X = f32([[1, -2, 3], [4, 5, -6]])
PATIENCE_S = 30


class Stuck:
    """Holds every execution until it is let go, whatever its deadline and token say."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()

    def __call__(self, *_: object) -> None:
        self.begun.release()
        assert self.go_on.wait(PATIENCE_S)

    def await_begun(self) -> None:
        assert self.begun.acquire(timeout=PATIENCE_S)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    monkeypatch.setattr(executable, "CLOSE_SECONDS", 0.05)
    stuck = Stuck()
    yield stuck
    stuck.go_on.set()


def compile_on(stuck: Stuck) -> tuple[penstock.CompiledModel, list[str]]:
    """A model whose runs do not end, and what has been closed of it."""
    compiled = penstock.compile(add_relu(), devices=[NumpyDevice(before=stuck)], cache=False)
    closed: list[str] = []
    base = compiled.executable.base
    close = base.close

    def noting() -> None:
        closed.append(threading.current_thread().name)
        close()

    base.close = noting  # type: ignore[method-assign]  # watched
    return compiled, closed


def start(run: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=run, name="runner")
    thread.start()
    return thread


@pytest.mark.parametrize("how", ["run", "burst"])
def test_close_returns_and_the_run_releases_the_rest(
    stuck: Stuck, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    compiled, closed = compile_on(stuck)
    out = [np.zeros_like(X), np.zeros_like(X)]
    found: list[NDArray] = []
    burst = compiled.burst() if how == "burst" else None

    def run() -> None:
        outputs = burst.run(X, X, out=out) if burst else compiled.run([X, X], out=out)
        found.extend(outputs)

    thread = start(run)
    stuck.await_begun()
    began = time.monotonic()
    compiled.close()
    compiled.close()
    assert time.monotonic() - began < PATIENCE_S / 3
    assert closed == []
    assert ("1 run that has not ended" in caplog.text) is (how == "run")
    with pytest.raises(ClosedError):
        (burst.run(X, X) if burst else compiled([X, X]))
    stuck.go_on.set()
    thread.join(PATIENCE_S)
    assert closed == ["runner"]
    assert [id(a) for a in found] == [id(a) for a in out]
    np.testing.assert_array_equal(out[1], X + X)


def test_closed_model_refuses_waiting_runs(stuck: Stuck) -> None:
    compiled, closed = compile_on(stuck)
    futures = [compiled.submit(X, X) for _ in range(40)]
    stuck.await_begun()
    compiled.close()
    assert not closed
    stuck.go_on.set()
    refused = 0
    for future in futures:
        try:
            np.testing.assert_array_equal(future.result(PATIENCE_S)[1], X + X)
        except ClosedError:
            refused += 1
    assert 0 < refused < 40
    patience = time.monotonic() + PATIENCE_S
    while not closed:
        assert time.monotonic() < patience
        time.sleep(0.001)
    assert len(closed) == 1


def test_bursts_and_runs_together_release_once(stuck: Stuck) -> None:
    compiled, closed = compile_on(stuck)
    bursts = [compiled.burst() for _ in range(3)]
    threads = [start(lambda b=b: b.run(X, X)) for b in bursts[:2]]  # type: ignore[misc]
    threads.append(start(lambda: compiled(X, X)))
    for _ in threads:
        stuck.await_begun()
    compiled.close()
    assert not closed
    stuck.go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert closed == ["runner"]


def test_a_burst_by_itself_is_left_to_its_run(
    stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.execution.burst.CLOSE_SECONDS", 0.05)
    compiled, _ = compile_on(stuck)
    burst = compiled.burst()
    thread = start(lambda: burst.run(X, X))
    stuck.await_begun()
    burst.close()
    assert burst._series is not None
    stuck.go_on.set()
    thread.join(PATIENCE_S)
    assert burst._series is None
    with pytest.raises(ClosedError):
        burst.run(X, X)
    compiled.close()


@pytest.mark.parametrize("first", ["model", "burst"])
def test_a_burst_may_be_closed_before_its_model_or_after(
    stuck: Stuck, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setattr("penstock.execution.burst.CLOSE_SECONDS", 0.05)
    compiled, closed = compile_on(stuck)
    burst = compiled.burst()
    thread = start(lambda: burst.run(X, X))
    stuck.await_begun()
    for each in (compiled, burst) if first == "model" else (burst, compiled):
        each.close()
    assert not closed
    stuck.go_on.set()
    thread.join(PATIENCE_S)
    assert closed == ["runner"]


def close_while_others_enter() -> None:
    gate = Gate()
    inside: list[int] = []
    released: list[int] = []

    def enter() -> None:
        while True:
            try:
                with gate:
                    inside.append(1)
                    inside.pop()
            except ClosedError:
                return

    threads = [threading.Thread(target=enter) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.002)
    left = gate.close(lambda: released.append(1), time.monotonic() + PATIENCE_S)
    assert (left, inside, released) == (0, [], [1])
    for thread in threads:
        thread.join()
    assert (inside, released) == ([], [1])


def test_closed_gate_has_no_one_inside() -> None:
    """Threads go in and out as fast as they can, and change hands at every step."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(8):
            close_while_others_enter()
    finally:
        sys.setswitchinterval(interval)
