"""Executions that are no burst's go through rings, too: without messages, side by side, and keeping
nobody's memory.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import hal, knobs
from penstock.errors import ClosedError, DeadObject, InvalidArgument, MissedDeadlineTransient
from penstock.ipc import dispatch, ring, ring_pool, wire
from penstock.ipc.client import RemoteDevice, RemotePreparedModel
from penstock.ipc.codec import Frame, Unpacker, decode_call, decode_to_host, encode
from penstock.ipc.ring_pool import Rings, opened
from penstock.ipc.ring_requests import MOST_BOUND
from penstock.ir import DataLocation, DType, Model, ModelBuilder, NDArray
from penstock.memory import MemoryPool
from penstock.testing.contract.trial import PLAIN
from tests.support_ring import ChildChannel, InProcess, child
from tests.support_waiting import PATIENCE, eventually
from tests.unit.ipc.slow import SlowDevice, slow_model


class Counting(InProcess):
    """Counts the messages."""

    def __init__(self) -> None:
        super().__init__(SlowDevice())
        self.messages: list[str] = []

    def answer(self, frame: Frame) -> Frame:
        self.messages.append(type(decode_call(frame.data, Unpacker(frame.handles))).__name__)
        return super().answer(frame)


@pytest.fixture
def here() -> Iterator[Counting]:
    """Both ends in this process."""
    with knobs.override(ring_spin_us=0):
        channel = Counting()
        yield channel
        channel.close()


@pytest.fixture(scope="module")
def slow() -> Iterator[ChildChannel]:
    with child("tests.unit.ipc.slow:create") as channel:
        yield channel


def prepared_on(channel: Any, model: Model | None = None) -> RemotePreparedModel:
    return RemoteDevice(channel).prepare_model(model or slow_model(), hal.PrepareConfig())


def rings_of(prepared: RemotePreparedModel) -> Rings:
    found = prepared._rings
    assert found is not None
    return found


def four(value: float = 0.0) -> NDArray:
    return np.full(4, value, np.float32)


def host(x: NDArray, y: NDArray) -> hal.Request:
    return hal.Request((hal.HostMemory(x),), (hal.HostMemory(y),))


def within(seconds: float) -> hal.ExecutionConfig:
    return hal.ExecutionConfig(deadline_ns=time.monotonic_ns() + int(seconds * 1e9))


def check(prepared: RemotePreparedModel, value: float = 0.0) -> None:
    y = four(9.0)
    result = prepared.execute(host(four(value), y), PLAIN)
    np.testing.assert_array_equal(y, four(value))
    assert isinstance(result, hal.RemoteResult)
    assert [(c.argument, c.out, c.nbytes) for c in result.copies] == [(0, False, 16), (0, True, 16)]


def test_executions_on_other_arrays_each_time_send_no_message(here: Counting) -> None:
    prepared = prepared_on(here)
    check(prepared)
    here.messages.clear()
    for turn in range(20):
        check(prepared, turn * 1e-6)
    assert here.messages == []


def test_a_compiled_model_in_another_process_runs_without_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from penstock.ipc.transport import Connection

    sent: list[bytes] = []
    send = Connection.send

    def counted(one: Connection, data: bytes, *rest: Any) -> None:
        # What finalizers leave to be said, of other tests too, is told at any time.
        if isinstance(decode_to_host(data), wire.Ask):
            sent.append(data)
        send(one, data, *rest)

    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (1, 4), "x")
    model = b.build(b.operation("TANH", [x], [(DType.FLOAT32, (1, 4))]))
    with penstock.compile(model, devices=["reference"], isolate=True, cache=False) as compiled:
        compiled.run([np.zeros((1, 4), np.float32)])
        monkeypatch.setattr(Connection, "send", counted)
        for turn in range(8):
            given = np.full((1, 4), turn / 8, np.float32)
            outputs = compiled.run([given], timeout=60.0 if turn % 2 else None)
            np.testing.assert_allclose(outputs[0], np.tanh(given), rtol=1e-6)
            assert len(outputs.receipt.copies) == 2
        assert sent == []


def test_prepared_models_of_one_device_share_a_ring(here: Counting) -> None:
    device = RemoteDevice(here)
    models = [
        device.prepare_model(slow_model(), hal.PrepareConfig()) for _ in range(MOST_BOUND + 3)
    ]
    for _ in range(2):
        for turn, prepared in enumerate(models):
            check(prepared, turn * 1e-6)
    assert here.messages.count("OpenRing") == 1
    assert here.messages.count("Execute") == 0


def test_threads_side_by_side_have_rings_of_their_own(slow: ChildChannel) -> None:
    prepared = prepared_on(slow)
    together = threading.Barrier(4)
    wrong: list[object] = []

    def run(value: float) -> None:
        try:
            together.wait(PATIENCE)
            for _ in range(5):
                check(prepared, value)
        except Exception as error:  # noqa: BLE001  # the finding
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(0.03 + n / 1000,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert 2 <= rings_of(prepared)._count <= 4
    assert len(rings_of(prepared)._idle) == rings_of(prepared)._count


def test_beyond_the_most_rings_executions_go_by_messages(
    here: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_pool, "MOST_RINGS", 1)
    prepared = prepared_on(here)
    check(prepared)
    busy = threading.Thread(target=check, args=(prepared, 0.2))
    busy.start()
    assert eventually(lambda: not rings_of(prepared)._idle)
    y = four(9.0)
    prepared.execute(host(four(), y), PLAIN)
    np.testing.assert_array_equal(y, four())
    busy.join()
    assert here.messages.count("Execute") == 1
    assert here.messages.count("OpenRing") == 1


def test_a_side_without_room_for_a_ring_is_not_asked_every_time(
    here: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "MAX_RINGS", 0)
    channel = Counting()
    prepared = prepared_on(channel)
    for _ in range(5):
        y = four(9.0)
        prepared.execute(host(four(), y), PLAIN)
        np.testing.assert_array_equal(y, four())
    assert channel.messages.count("OpenRing") == 1
    assert channel.messages.count("Execute") == 5
    channel.close()


def test_a_run_that_nobody_waits_for_keeps_no_other(here: Counting) -> None:
    prepared = prepared_on(here)
    check(prepared)
    late = four(9.0)
    with pytest.raises(MissedDeadlineTransient):
        prepared.execute(host(four(-4.0), late), within(1.0))
    check(prepared, 0.001)
    assert rings_of(prepared)._count == 2
    assert any(r.client.is_behind for r in rings_of(prepared)._behind)
    # Its ring is used again once the run has ended.
    assert eventually(lambda: not any(r.client.is_behind for r in rings_of(prepared)._behind))
    busy = threading.Thread(target=check, args=(prepared, 0.2))
    busy.start()
    check(prepared, 0.1)
    busy.join()
    assert rings_of(prepared)._count == 2
    np.testing.assert_array_equal(late, four(9.0))


def test_next_run_ignores_writes_of_a_late_run() -> None:
    """One ring: a run that missed its deadline writes where it was told to, after the next run's
    input was copied in.
    """
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (4,), "x")
    model = b.build(b.operation("RELU", [x], [(DType.FLOAT32, (4,))]))
    with knobs.override(ring_spin_us=0):
        channel = InProcess(SlowDevice())
        prepared = prepared_on(channel, model)
        burst = prepared.configure_burst()
        for turn in range(3):
            with pytest.raises(MissedDeadlineTransient):
                burst.execute(host(four(-0.15), four()), within(0.02))
            # Other shapes of the same bytes bind apart, in the same staging memory.
            y = four(9.0)
            burst.execute(
                hal.Request(
                    (hal.HostMemory(four(0.002 + turn / 1000), (4,)),), (hal.HostMemory(y),)
                ),
                PLAIN,
            )
            np.testing.assert_array_equal(y, four(0.002 + turn / 1000))
        burst.close()
        channel.close()


def test_memory_in_a_pool_is_lent_when_it_comes_again_and_no_longer_than_it_is_there(
    here: Counting,
) -> None:
    prepared = prepared_on(here)
    check(prepared)
    assert len(here.dispatcher._lent) == 1
    with MemoryPool.anonymous(4096) as pool:
        x, y = pool.view(np.float32, 4), pool.view(np.float32, 4, 1024)
        for turn, lent in enumerate((1, 2, 2)):
            x[...] = turn / 1000
            assert not isinstance(prepared.execute(host(x, y), PLAIN), hal.RemoteResult)
            np.testing.assert_array_equal(y, x)
            assert len(here.dispatcher._lent) == lent
        del x, y
    del pool
    gc.collect()
    here.tell()
    # The staging memory is left.
    assert len(here.dispatcher._lent) == 1
    check(prepared)


def test_new_pool_with_an_old_descriptor_is_told_apart(here: Counting) -> None:
    prepared = prepared_on(here)
    for turn in range(30):
        with MemoryPool.anonymous(4096) as pool:
            x, y = pool.view(np.float32, 4), pool.view(np.float32, 4, 1024)
            for again in range(3):
                x[...] = turn / 10_000 + again / 1000
                prepared.execute(host(x, y), PLAIN)
                np.testing.assert_array_equal(y, x)
            del x, y


@pytest.mark.parametrize("way", ["run", "burst"])
def test_more_pools_than_a_ring_keeps_bound(here: Counting, way: str) -> None:
    prepared = prepared_on(here)
    runner: Any = prepared.configure_burst() if way == "burst" else prepared
    pools = [MemoryPool.anonymous(4096) for _ in range(MOST_BOUND + 3)]
    arrays = [(pool.view(np.float32, 4), pool.view(np.float32, 4, 64)) for pool in pools]
    for turn in range(3):
        for number, (x, y) in enumerate(arrays):
            for again in range(3):
                x[...] = turn / 1000 + number / 100_000 + again / 1_000_000
                runner.execute(host(x, y), PLAIN)
                np.testing.assert_array_equal(y, x)
                here.tell()
    assert len(here.dispatcher._lent) <= MOST_BOUND + 1


def test_closed_model_frees_its_bindings(here: Counting) -> None:
    device = RemoteDevice(here)
    kept, closed = (device.prepare_model(slow_model(), hal.PrepareConfig()) for _ in range(2))
    with MemoryPool.anonymous(4096) as pool:
        x, y = pool.view(np.float32, 4), pool.view(np.float32, 4, 1024)
        for _ in range(2):
            closed.execute(host(x, y), PLAIN)
        check(kept)
        before = len(here.dispatcher._lent)
        closed.close()
        here.tell()
        assert len(here.dispatcher._lent) == before - 1
        with pytest.raises(ClosedError):
            closed.execute(host(x, y), PLAIN)
        check(kept)


def test_a_larger_request_takes_larger_memory_for_all(here: Counting) -> None:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (4,), "x")
    small = b.build(b.operation("RELU", [x], [(DType.FLOAT32, (4,))]))
    prepared = prepared_on(here, small)
    with child("penstock.drivers.null:create") as channel:
        device = RemoteDevice(channel)
        sized = []
        for nbytes in (64, 1 << 18, 1 << 10):
            b = ModelBuilder()
            x = b.input(DType.FLOAT32, (nbytes // 4,), "x")
            model = b.build(b.operation("RELU", [x], [(DType.FLOAT32, (nbytes // 4,))]))
            sized.append((nbytes, device.prepare_model(model, hal.PrepareConfig())))
        for _ in range(3):
            for nbytes, one in sized:
                y = np.full(nbytes // 4, 9, np.float32)
                one.execute(host(np.ones_like(y), y), PLAIN)
                assert (y == 0).all()
    check(prepared)


def test_unused_rings_are_closed(here: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_pool, "IDLE_SECONDS", 0.05)
    prepared = prepared_on(here)
    busy = threading.Thread(target=check, args=(prepared, 0.3))
    busy.start()
    assert eventually(lambda: rings_of(prepared)._count == 1)
    check(prepared, 0.001)
    busy.join()
    assert here.messages.count("OpenRing") == 2
    assert rings_of(prepared)._count == 1
    here.tell()
    assert eventually(lambda: here.dispatcher._rings._value == dispatch.MAX_RINGS - 1)
    check(prepared)


def test_a_device_that_is_closed_or_forgotten_leaves_no_ring(here: Counting) -> None:
    places = here.dispatcher._rings
    for forget in (False, True):
        device = RemoteDevice(here)
        prepared = device.prepare_model(slow_model(), hal.PrepareConfig())
        check(prepared)
        if not forget:
            rings_of(prepared).close()
        del device, prepared
        gc.collect()
        here.tell()
        assert eventually(lambda: places._value == dispatch.MAX_RINGS)


def test_the_death_of_the_other_side_ends_a_run_and_all_rings(here: Counting) -> None:
    prepared = prepared_on(here)
    check(prepared)
    timer = threading.Timer(0.05, here.die)
    timer.start()
    with pytest.raises(DeadObject, match="ended"):
        prepared.execute(host(four(-3.0), four()), PLAIN)
    timer.join()
    assert rings_of(prepared)._count == 0


def test_ring_ends_with_its_connection(here: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host of a service may hang, and nobody here can end it."""
    channel: Any = here
    reasons = [""]
    monkeypatch.setattr(type(channel), "end_reason", property(lambda _: reasons[-1]))
    prepared = prepared_on(here)
    check(prepared)

    def give_up() -> None:
        reasons.append("hung: no sign of life")

    timer = threading.Timer(0.05, give_up)
    timer.start()
    began = time.monotonic()
    with pytest.raises(DeadObject, match="no sign of life"):
        prepared.execute(host(four(-8.0), four()), PLAIN)
    assert time.monotonic() - began < 7
    timer.join()


def test_a_pool_that_the_request_has_not_is_refused_beside_arrays_that_are_copied(
    here: Counting,
) -> None:
    prepared = prepared_on(here)
    place = hal.PoolArgument(DataLocation(0, 0, 16))
    for request in (
        hal.Request((hal.HostMemory(four()),), (place,)),
        hal.Request((place,), (hal.HostMemory(four()),)),
    ):
        for run in (prepared.execute, prepared.configure_burst().execute):
            with pytest.raises(InvalidArgument, match=r"put 0: pool 0 of 0"):
                run(request, PLAIN)


def test_an_array_in_a_pool_at_an_odd_byte_is_copied(here: Counting) -> None:
    prepared = prepared_on(here)
    with MemoryPool.anonymous(4096) as pool:
        x, y = pool.view(np.float32, 4, 1), pool.view(np.float32, 4, 1026)
        for turn in range(3):
            x[...] = turn / 1000
            result = prepared.execute(host(x, y), PLAIN)
            np.testing.assert_array_equal(y, x)
            assert isinstance(result, hal.RemoteResult)
            assert len(result.copies) == 2
        del x, y


class TestTheDevicesSide:
    """What a ring calls is the client's own, and open, at every run."""

    @staticmethod
    def bind(here: Counting, target: int, pools: tuple[int, ...] = ()) -> Callable[[int], object]:
        made = opened(here, here.exit_fd())
        form = wire.RingRequest(target, (), (), pools)
        return lambda kind: made.client.call(
            kind, 0, PLAIN, encode(form) if kind == ring.BIND else b""
        )

    def test_only_prepared_models_and_bursts_are_called(self, here: Counting) -> None:
        prepared = prepared_on(here)
        buffer_like = prepared.create_reusable_execution(host(four(), four()))
        number: int = buffer_like.number  # type: ignore[attr-defined]
        for target in (number, 999, 2**62):
            with pytest.raises(InvalidArgument, match="no prepared model or burst"):
                self.bind(here, target)(ring.BIND)

    def test_a_model_that_is_closed_is_not_called_any_more(self, here: Counting) -> None:
        prepared = prepared_on(here)
        call = self.bind(here, prepared.number)
        with pytest.raises(InvalidArgument, match="inputs"):
            call(ring.BIND)
        with pytest.raises(InvalidArgument, match="inputs"):
            call(ring.RUN)
        prepared.close()
        with pytest.raises(InvalidArgument, match="no prepared model or burst"):
            call(ring.RUN)

    def test_closed_pool_is_unbound(self, here: Counting) -> None:
        from penstock.ipc.remote import lend_pool

        prepared = prepared_on(here)
        with MemoryPool.anonymous(64) as memory:
            lent = lend_pool(here, memory.memory)
            call = self.bind(here, prepared.number, (lent.number,))
            for kind in (ring.BIND, ring.RUN):
                with pytest.raises(InvalidArgument, match="inputs"):
                    call(kind)
            lent.close()
            with pytest.raises(InvalidArgument, match="no request 0 is bound"):
                call(ring.RUN)
        assert len(here.dispatcher._lent) == 0
