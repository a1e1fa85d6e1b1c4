"""A lost adapter, a shader without an end, a killed host: the run is answered all the same.

The long version is tests/soak/soak_webgpu_faults.py.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from penstock import hal
from penstock.drivers.webgpu import watchdog
from penstock.drivers.webgpu.watchdog import Watchdog, Work
from penstock.errors import Cancelled, DeadObject, MissedDeadline
from penstock.ir import NDArray
from tests.support_programs import run_python
from tests.support_webgpu import needs_webgpu, software
from tests.support_webgpu_faults import SHAPE, network, order


@needs_webgpu
@pytest.mark.skipif(sys.platform != "linux", reason="drivers are isolated on Linux")
@pytest.mark.slow
def test_every_run_is_answered_and_nothing_is_left() -> None:
    code = (
        "from tests.support_webgpu_faults import rounds\n"
        "found = rounds(2, seed=3)\n"
        "print(*found.lines(), sep='\\n')\n"
    )
    printed = run_python("-c", code, check=True, timeout=1200).stdout
    assert printed.rstrip().endswith("\n0 failures"), printed
    for reason in ("device webgpu-software is lost: ", "has not ended within", "SIGKILL"):
        assert reason in printed, printed


@needs_webgpu
def test_lost_device_raises_in_the_callers_process_and_another_one_is_opened() -> None:
    device, model = software(), network()
    lost, other = (device.prepare_model(model, hal.PrepareConfig()) for _ in range(2))
    wanted = run(other)
    gpu_of(lost).device.destroy()
    for prepared in (lost, other):
        with pytest.raises(DeadObject, match="device webgpu-software is lost: "):
            run(prepared)
    again = device.prepare_model(model, hal.PrepareConfig())
    assert np.array_equal(run(again), wanted)


@needs_webgpu
def test_wait_for_the_device_ends_at_limits_and_when_it_is_lost() -> None:
    prepared = software().prepare_model(network(), hal.PrepareConfig())
    gpu, endless, work = gpu_of(prepared), Mock(), Work(0.0, 0.0)
    endless.map_async.return_value._thread_event = threading.Event()
    with pytest.raises(MissedDeadline):
        gpu.await_map(endless, hal.ExecutionConfig(deadline_ns=time.monotonic_ns() + 10**7), work)
    token = hal.CancelToken()
    threading.Timer(0.05, token.set).start()
    with pytest.raises(Cancelled):
        gpu.await_map(endless, hal.ExecutionConfig(cancel=token), work)
    threading.Timer(0.05, gpu._hangs, (3.0,)).start()
    with pytest.raises(DeadObject, match=r"is lost: a shader has not ended within 3 s"):
        gpu.await_map(endless, hal.ExecutionConfig(), work)


def test_watchdog_finds_work_that_does_not_end() -> None:
    late, found = threading.Event(), list[float]()

    def expired(seconds: float) -> None:
        found.append(seconds)
        late.set()

    dog = Watchdog(expired)
    for _ in range(3):
        with dog.watching(60):
            assert not late.is_set()
    with dog.watching(60), dog.watching(0.01):
        assert late.wait(60)
    assert found == [0.01]


def test_watchdog_watches_work_that_a_caller_left() -> None:
    late = threading.Event()
    dog = Watchdog(lambda _: late.set())
    ended = threading.Event()
    with dog.watching(0.3) as work:
        work.ended = ended
    ended.set()
    assert not late.wait(1)
    with dog.watching(0.01) as work:
        work.ended = threading.Event()
    assert late.wait(60)


def test_watchdog_does_not_count_time_in_which_the_process_was_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look takes an hour, and then looks take no longer than they should."""
    clock, looks, late = [0.0], list[float](), threading.Event()

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        clock[0] += 3600.0 if len(looks) == 1 else seconds
        time.sleep(0.001)

    fake = Mock(monotonic=lambda: clock[0], sleep=sleep)
    monkeypatch.setattr(watchdog, "time", fake)
    with Watchdog(lambda _: late.set()).watching(2.0):
        assert late.wait(60)
    assert 2.0 <= len(looks) * watchdog.LOOK_SECONDS <= 2.5


def gpu_of(prepared: hal.PreparedModel) -> Any:
    return prepared.executable.code.gpu  # type: ignore[attr-defined]


def run(prepared: hal.PreparedModel) -> NDArray:
    """The result of a run."""
    output = np.zeros((SHAPE[0], 8), np.float32)
    request = hal.Request((hal.HostMemory(order(0)),), (hal.HostMemory(output),))
    prepared.execute(request, hal.ExecutionConfig())
    return output
