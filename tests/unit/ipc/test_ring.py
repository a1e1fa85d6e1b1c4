"""Bursts through shared memory: the same results as in process, whatever lies where, and named
errors for the rest.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Literal

import numpy as np
import pytest

from penstock import errors, hal, knobs
from penstock.ipc import ring, ring_client
from penstock.ipc.client import RemoteDevice
from penstock.ipc.remote import Channel
from penstock.ipc.ring_pool import RingBurst
from penstock.ipc.ring_requests import MOST_BOUND
from penstock.ir import DataLocation, Model, NDArray
from penstock.memory import MemoryPool
from penstock.testing.contract.cases import every_case
from penstock.testing.contract.trial import PLAIN, Trial
from tests.support_ring import ChildChannel, InProcess, child
from tests.support_waiting import descriptors, eventually
from tests.unit.ipc.slow import SlowDevice, SlowPreparedModel, slow_model

SLOW = "tests.unit.ipc.slow:create"


@pytest.fixture(scope="module")
def slow() -> Iterator[ChildChannel]:
    with child(SLOW) as channel:
        yield channel


@pytest.fixture
def alone() -> Iterator[ChildChannel]:
    """A child that no other test has."""
    with child(SLOW) as channel:
        yield channel


@pytest.fixture
def here() -> Iterator[InProcess]:
    """Both ends in this process, so that faults can be put into either."""
    with knobs.override(ring_spin_us=0):
        channel = InProcess(SlowDevice())
        yield channel
        channel.close()


def opened(channel: Channel, model: Model | None = None) -> RingBurst:
    prepared = RemoteDevice(channel).prepare_model(model or slow_model(), hal.PrepareConfig())
    burst = prepared.configure_burst()
    assert isinstance(burst, RingBurst)
    return burst


def host(x: NDArray, y: NDArray) -> hal.Request:
    return hal.Request((hal.HostMemory(x),), (hal.HostMemory(y),))


def within(seconds: float) -> hal.ExecutionConfig:
    return hal.ExecutionConfig(deadline_ns=time.monotonic_ns() + int(seconds * 1e9))


def four(value: float = 0.0) -> NDArray:
    return np.full(4, value, np.float32)


@pytest.mark.parametrize("kind", ["host", "pool", "mixed"])
def test_every_case_gives_what_the_device_gives_in_process(
    kind: Literal["host", "pool", "mixed"],
) -> None:
    with child("penstock.drivers.reference:create") as channel:
        for case in every_case():
            if case.is_dynamic or case.model.pools:
                continue
            burst = opened(channel, case.model)
            with Trial(case, kind) as trial:
                for _ in range(3):
                    trial.fill()
                    result = burst.execute(trial.request, PLAIN)
                    trial.check_memory()
                    for found, wanted in zip(trial.outputs(result), case.outputs, strict=True):
                        np.testing.assert_array_equal(found, wanted, case.name)
            burst.close()


def test_an_output_of_unknown_shape_has_the_shape_that_is_reported() -> None:
    with child("penstock.drivers.reference:create") as channel:
        for case in every_case():
            if not case.is_dynamic or case.model.pools:
                continue
            burst = opened(channel, case.model)
            for _ in range(2):
                with Trial(case, "host") as trial:
                    result = burst.execute(trial.request, PLAIN)
                    for found, wanted in zip(trial.outputs(result), case.outputs, strict=True):
                        np.testing.assert_array_equal(found, wanted, case.name)
            burst.close()


class Copying(SlowDevice):
    """Says that it copied its input and its output *times* times."""

    times = 1

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> CopyingModel:
        return CopyingModel(model, self)


class CopyingModel(SlowPreparedModel):
    def __init__(self, model: Model, device: Copying) -> None:
        super().__init__(model)
        self.device = device

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        super().execute(request, config)
        both = [hal.ArgumentCopy(0, out, 16, 5, 3, by_driver=True) for out in (False, True)]
        return hal.ExecutionResult(copies=tuple(both * self.device.times))


def test_copies_of_the_driver_come_with_the_answer_and_are_summed_where_it_has_no_room() -> None:
    device = Copying()
    with knobs.override(ring_spin_us=0), closing(InProcess(device)) as channel:
        burst = opened(channel)
        for times, wanted in ((1, 1), (3, 3), (5000, 1)):
            device.times = times
            result = burst.execute(host(four(), four(9.0)), PLAIN)
            told = [c for c in result.copies if c.by_driver]
            assert len(told) == 2 * wanted
            assert sum(c.nbytes for c in told) == 2 * 16 * times
            assert sum(c.wall_ns for c in told) == 2 * 3 * times
            assert {c.out for c in told} == {False, True}
        burst.close()


def test_arrays_in_a_pool_are_not_copied_and_others_are(slow: ChildChannel) -> None:
    burst = opened(slow)
    with MemoryPool.anonymous(1 << 16) as pool:
        x, y = pool.view(np.float32, 4), pool.view(np.float32, 4, 4096)
        for value in (0.0, 0.001, 0.002):
            x[...] = value
            assert not isinstance(burst.execute(host(x, y), PLAIN), hal.RemoteResult)
            np.testing.assert_array_equal(y, x)
    for value in (0.0, 0.001):
        x, y = four(value), four(9.0)
        result = burst.execute(host(x, y), PLAIN)
        assert isinstance(result, hal.RemoteResult)
        copies = [(c.argument, c.out, c.nbytes) for c in result.copies]
        assert copies == [(0, False, x.nbytes), (0, True, y.nbytes)]
        np.testing.assert_array_equal(y, x)
    burst.close()


def test_a_pool_keeps_its_name_while_its_number_is_somebody_elses(slow: ChildChannel) -> None:
    """A closed pool's descriptor number goes to the next pool; the requests must not be taken for
    one another.
    """
    burst = opened(slow)
    for value in (0.0, 0.001, 0.002):
        with MemoryPool.anonymous(4096) as pool:
            x = pool.view(np.float32, 4)
            x[...] = value
            location = DataLocation(0, 64, 16)
            given = hal.PoolArgument(DataLocation(0, 0, 16)), hal.PoolArgument(location)
            burst.execute(hal.Request(given[:1], given[1:], (pool.memory,)), PLAIN)
            np.testing.assert_array_equal(pool.view(np.float32, 4, 64), four(value))
    burst.close()


def test_more_requests_than_a_burst_keeps_bound(slow: ChildChannel) -> None:
    burst = opened(slow)
    with MemoryPool.anonymous(1 << 16) as pool:
        for turn in range(3 * MOST_BOUND):
            x = pool.view(np.float32, 4, 64 * (turn % (MOST_BOUND + 3)))
            y = pool.view(np.float32, 4, 1 << 15)
            x[...] = turn * 1e-6
            burst.execute(host(x, y), PLAIN)
            np.testing.assert_array_equal(y, x)
    burst.close()


def test_the_times_of_a_measured_run_arrive(slow: ChildChannel) -> None:
    burst = opened(slow)
    timing = burst.execute(host(four(), four()), hal.ExecutionConfig(measure=True)).timing
    assert (timing.on_device_ns, timing.in_driver_ns) == (7, 1000)
    burst.close()


def test_arrays_that_no_process_can_be_lent_are_named(slow: ChildChannel) -> None:
    burst = opened(slow)
    fixed = four()
    fixed.flags.writeable = False
    for x, y, said in (
        (np.zeros(8, np.float32)[::2], four(), "C-contiguous"),
        (four(), fixed, "writeable"),
        (np.array([None] * 4), four(), "cannot be shared"),
    ):
        with pytest.raises(errors.InvalidArgument, match=said):
            burst.execute(host(x, y), PLAIN)
    with pytest.raises(errors.InvalidArgument):
        burst.execute(host(np.zeros(5, np.float32), four()), PLAIN)
    burst.execute(host(four(), four()), PLAIN)
    burst.close()


def test_a_message_too_long_for_a_slot_is_cut(slow: ChildChannel) -> None:
    burst = opened(slow)
    with pytest.raises(errors.GeneralFailure, match=r"x{400}.*\[\.\.\.\]"):
        burst.execute(host(four(101.0), four()), PLAIN)
    burst.close()


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_deadline_is_kept_and_the_next_calls_are_right(
    slow: ChildChannel, stubborn: bool
) -> None:
    burst = opened(slow)
    began = time.monotonic()
    with pytest.raises(errors.MissedDeadlineTransient):
        burst.execute(host(four(-3.0 if stubborn else 20.0), four()), within(0.1))
    assert time.monotonic() - began < 2.5
    for value in (0.0, 0.001):
        y = four(9.0)
        burst.execute(host(four(value), y), PLAIN)
        np.testing.assert_array_equal(y, four(value))
    burst.close()


def test_a_deadline_in_the_past_is_missed_on_the_devices_side(slow: ChildChannel) -> None:
    burst = opened(slow)
    with pytest.raises(errors.MissedDeadline):
        burst.execute(host(four(), four()), within(-1.0))
    burst.close()


def test_a_device_that_answers_nothing_is_not_asked_without_end(slow: ChildChannel) -> None:
    burst = opened(slow)
    x = four(0.0)
    request = host(x, four())
    burst.execute(request, PLAIN)
    x[...] = -5.0
    # The first has to reach the device before its deadline: a late one would be answered at once.
    for seconds in (1.0, *(0.02,) * (ring.DEFAULT_LAYOUT.slots - 1)):
        with pytest.raises(errors.MissedDeadlineTransient):
            burst.execute(request, within(seconds))
    with pytest.raises(errors.GeneralFailure, match="not answered the last"):
        burst.execute(request, within(0.02))
    burst.close()


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_token_stops_a_run(slow: ChildChannel, stubborn: bool) -> None:
    burst, token = opened(slow), hal.CancelToken()
    timer = threading.Timer(0.05, token.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(errors.Cancelled):
        burst.execute(
            host(four(-3.0 if stubborn else 20.0), four()), hal.ExecutionConfig(cancel=token)
        )
    assert time.monotonic() - began < 2.5
    timer.join()
    y = four(9.0)
    burst.execute(host(four(), y), hal.ExecutionConfig(cancel=hal.CancelToken()))
    np.testing.assert_array_equal(y, four())
    burst.close()


def test_a_process_that_dies_in_a_run_is_noticed(alone: ChildChannel) -> None:
    burst = opened(alone)
    burst.execute(host(four(), four()), PLAIN)
    timer = threading.Timer(0.05, os.kill, (alone.pid, signal.SIGKILL))
    timer.start()
    began = time.monotonic()
    with pytest.raises(errors.DeadObject, match="ended"):
        burst.execute(host(four(20.0), four()), PLAIN)
    assert time.monotonic() - began < 15
    timer.join()
    with pytest.raises(errors.DeadObject):
        burst.execute(host(four(), four()), PLAIN)
    burst.close()


def test_a_burst_is_one_run_at_a_time_and_none_after_close(slow: ChildChannel) -> None:
    burst = opened(slow)
    thread = threading.Thread(target=burst.execute, args=(host(four(3.0), four()), PLAIN))
    thread.start()
    assert eventually(burst._running.locked)
    with pytest.raises(errors.GeneralFailure, match="already"):
        burst.execute(host(four(), four()), PLAIN)
    thread.join()
    burst.close()
    burst.close()
    with pytest.raises(errors.ClosedError):
        burst.execute(host(four(), four()), PLAIN)


def test_ring_leaves_nothing_open(alone: ChildChannel) -> None:
    def counts() -> tuple[int, int]:
        # What was dropped is told with the next message.
        RemoteDevice(alone).check()
        return descriptors(), descriptors(alone.pid)

    opened(alone).close()
    # A ring's thread closes what it has after the answer.
    assert eventually(lambda: counts() == counts())
    before = counts()
    for _ in range(5):
        burst = opened(alone)
        with MemoryPool.anonymous(4096) as pool:
            burst.execute(host(pool.view(np.float32, 4), four()), PLAIN)
        burst.close()
    assert eventually(lambda: counts() == before)
    for _ in range(5):
        opened(alone)
    assert eventually(lambda: counts() == before)


def test_without_total_store_order_and_pipes_that_never_wait(
    here: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring, "TOTAL_STORE_ORDER", False)
    monkeypatch.setattr(ring, "pipes_take_no_wait", lambda: False)
    burst = opened(here)
    for value in (0.0, 0.001, 0.002, 0.003, 0.004, 0.005):
        y = four(9.0)
        burst.execute(host(four(value), y), PLAIN)
        np.testing.assert_array_equal(y, four(value))
    with pytest.raises(errors.MissedDeadlineTransient):
        burst.execute(host(four(-0.2), four()), within(0.02))
    burst.execute(host(four(), four()), PLAIN)
    burst.close()


def test_after_a_long_run_the_next_request_is_looked_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []

    def spin(watch: ring.Watch, seen: int, budget_ns: int) -> int:
        if watch._waits == ring.SERVER_WAITS:
            looked.append(budget_ns)
        return seen

    monkeypatch.setattr(ring.Watch, "spin", spin)
    monkeypatch.setattr(ring_client.RingClient, "_looks", lambda *_: True)
    with knobs.override(ring_spin_us=50):
        channel = InProcess(SlowDevice())
        burst = opened(channel)
        for seconds in (0.0, 0.0, 0.008, 0.04, 0.04):
            looked.clear()
            burst.execute(host(four(seconds), four()), PLAIN)
            # The device's thread looks once it has answered.
            deadline = time.monotonic() + 5
            while not looked and time.monotonic() < deadline:
                time.sleep(0.001)
            part = max(50_000, min(int(seconds * 1e9 / 16), 1_000_000))
            assert all(part <= budget <= 1_000_000 for budget in looked)
            assert looked
        burst.close()
        channel.close()


def test_ring_notices_the_death_of_the_other_side(here: InProcess) -> None:
    burst = opened(here)
    timer = threading.Timer(0.05, here.die)
    timer.start()
    with pytest.raises(errors.DeadObject, match="ended"):
        burst.execute(host(four(-3.0), four()), PLAIN)
    timer.join()
    burst.close()


def test_a_memory_without_a_descriptor_goes_the_ordinary_way(here: InProcess) -> None:
    burst = opened(here)
    given = hal.PoolArgument(DataLocation(0, 0, 16)), hal.PoolArgument(DataLocation(0, 64, 16))
    with pytest.raises(errors.GeneralFailure, match="no kind that can be mapped"):
        burst.execute(
            hal.Request(given[:1], given[1:], (hal.Memory("queer", object(), 128),)), PLAIN
        )
    burst.close()


def test_alarms_without_an_answer_end_the_ring(
    here: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_client, "MOST_FALSE_ALARMS", 5)
    burst = opened(here)
    stop = threading.Event()

    def shake() -> None:
        while not stop.wait(0.001):
            burst._ring.client._to_client.ring()

    thread = threading.Thread(target=shake)
    thread.start()
    with pytest.raises(errors.DeadObject, match="rings without"):
        burst.execute(host(four(-0.3), four()), PLAIN)
    stop.set()
    thread.join()
    burst.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_made_by_fork_leaves_its_parents_ring_alone(slow: ChildChannel) -> None:
    burst = opened(slow)
    burst.execute(host(four(), four()), PLAIN)
    child_pid = os.fork()
    if not child_pid:
        status = 1
        try:
            burst.execute(host(four(), four()), PLAIN)
        except errors.StateError:
            burst.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child_pid, 0)[1] == 0
    y = four(9.0)
    burst.execute(host(four(), y), PLAIN)
    np.testing.assert_array_equal(y, four())
    burst.close()
