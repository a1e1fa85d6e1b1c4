"""A run ends soon after its token is set or its deadline has passed, and the next one is whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from penstock.drivers.llvm import LlvmDevice
from penstock.drivers.llvm.prepared import LlvmPreparedModel
from penstock.drivers.llvm.run import stop
from penstock.drivers.llvm.run.code import Code
from penstock.drivers.llvm.run.running import Run
from penstock.errors import Cancelled, MissedDeadlineTransient
from penstock.hal import CancelToken, ExecutionConfig, PrepareConfig
from penstock.ir import NDArray
from tests.support_llvm import needs_llvm
from tests.support_threads_llvm import CLASSES, image, network

pytestmark = needs_llvm

LAYERS = 120
"""Enough for a run of more than ten milliseconds."""

PLAIN = ExecutionConfig()


class LateToken(CancelToken):
    """A token that is set once the run has begun: whoever asks after *calls* calls sees it."""

    __slots__ = ("_left",)

    def __init__(self, calls: int) -> None:
        super().__init__()
        self._left = calls

    def is_set(self) -> bool:
        self._left -= 1
        return self._left < 0

    def check(self) -> None:
        if self._left < 0:
            raise Cancelled("the token was set late")


@pytest.fixture(scope="module", params=[1, 2, 3])
def code(request: pytest.FixtureRequest) -> Iterator[Code]:
    config = PrepareConfig(num_threads=request.param)
    made = LlvmDevice().prepare_model(network(LAYERS), config)
    assert isinstance(made, LlvmPreparedModel)
    assert made.executable is not None
    yield made.executable.code
    made.close()


def output() -> NDArray:
    return np.zeros((1, CLASSES), np.float32)


def test_a_token_that_is_set_meanwhile_stops_the_run(code: Code) -> None:
    run, whole, after = Run(code), output(), output()
    run.run([image()], [whole], PLAIN)
    with pytest.raises(Cancelled, match="set late"):
        run.run([image()], [output()], ExecutionConfig(cancel=LateToken(1)))
    run.run([image()], [after], PLAIN)
    assert after.tobytes() == whole.tobytes()


def test_a_deadline_that_passes_meanwhile_stops_the_run(code: Code) -> None:
    run, whole, after = Run(code), output(), output()
    run.run([image()], [whole], PLAIN)
    for _ in range(3):
        config = ExecutionConfig(deadline_ns=time.monotonic_ns() + 1_000_000)
        with pytest.raises(MissedDeadlineTransient, match="generated code ran"):
            run.run([image()], [output()], config)
        run.run([image()], [after], PLAIN)
        assert after.tobytes() == whole.tobytes()


def test_a_stopped_run_ends_at_once(code: Code) -> None:
    run = Run(code, timed=True)
    run.run([image()], [output()], PLAIN)
    took = int(run.times[-1] - run.times[0])
    token = CancelToken()
    token.set()
    run.flag[0] = 1
    with pytest.raises(Cancelled):
        run.run([image()], [output()], ExecutionConfig(cancel=token))
    stopped = int(run.times[-1] - run.times[0])
    assert stopped < took / 4
    assert run.flag[0] == 0


def test_limits_that_are_not_reached_change_nothing(code: Code) -> None:
    run, whole, limited = Run(code), output(), output()
    run.run([image()], [whole], PLAIN)
    config = ExecutionConfig(deadline_ns=time.monotonic_ns() + 10**12, cancel=CancelToken())
    run.run([image()], [limited], config)
    assert limited.tobytes() == whole.tobytes()


def test_the_watching_thread_ends_without_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "IDLE_SECONDS", 0.0)
    flag = np.zeros(1, np.int32)
    stop.enter(flag, ExecutionConfig(cancel=LateToken(0)))
    (thread,) = [t for t in threading.enumerate() if t.name == "penstock-llvm-watch"]
    begin = time.monotonic()
    while not flag[0]:
        assert time.monotonic() < begin + 10
    stop.leave(flag)
    thread.join(10)
    assert not thread.is_alive()
