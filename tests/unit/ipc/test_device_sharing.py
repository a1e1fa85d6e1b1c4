"""A device that says how many executions it takes: those of all programs take turns in its
process.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final, TypeVar, cast

import numpy as np
import pytest

from penstock import hal
from penstock.drivers.reference import ReferenceDevice
from penstock.errors import DeadObject, MissedDeadlinePersistent, MissedDeadlineTransient
from penstock.ipc.channel import Session
from penstock.ipc.client import RemoteDevice, RemotePreparedModel
from penstock.ipc.device_sharing import ClientDevice, SharingDevice
from penstock.ipc.dispatch import Dispatcher
from penstock.ipc.host.serving import Client
from penstock.ipc.transport import Connection
from penstock.testing.doubles import InterceptingDevice
from tests.support_isolated import SHAPE, add_one, order

T = TypeVar("T")
PATIENCE: Final = 20.0


class Narrow(InterceptingDevice):
    """Takes one execution at a time; each waits until it is let go on, and leaves what it was
    given.
    """

    def __init__(self) -> None:
        super().__init__(ReferenceDevice(), "narrow")
        self.go = threading.Semaphore(0)
        self.seen: list[int] = []
        self.inside = self.most = 0
        self._lock = threading.Lock()

    @property
    def capabilities(self) -> hal.Capabilities:
        return hal.Capabilities(concurrent_executions=1)

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        if not method.endswith("execute"):
            return proceed()
        requests = [a for a in arguments if isinstance(a, hal.Request)]
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            given = cast("hal.HostMemory", requests[0].inputs[0]).array if requests else np.zeros(1)
            self.seen.append(int(given.flat[0]))
        assert self.go.acquire(timeout=PATIENCE)
        try:
            return proceed()
        finally:
            with self._lock:
                self.inside -= 1


@contextmanager
def client(shared: SharingDevice) -> Iterator[RemotePreparedModel]:
    """A program, and its prepared model."""
    ours, theirs = map(Connection, socket.socketpair())
    over = threading.Event()
    dispatcher = Dispatcher(cast("hal.Device", ClientDevice(shared)), owns_device=False)
    Client(theirs, [dispatcher], over.set).start()
    session = Session(ours)
    try:
        yield RemoteDevice(session.channel(0)).prepare_model(add_one(), hal.PrepareConfig())
    finally:
        session.close()
        assert over.wait(PATIENCE)


def until(found: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < end
        time.sleep(0.001)


def run(prepared: RemotePreparedModel, value: int, way: str, priority: hal.Priority) -> None:
    out = np.empty(SHAPE, np.float32)
    request = hal.Request((hal.HostMemory(order(value)),), (hal.HostMemory(out),))
    config = hal.ExecutionConfig(priority=priority)
    if way == "execute":
        prepared.execute(request, config)
    elif way == "burst":
        with closing(prepared.configure_burst()) as burst:
            burst.execute(request, config)
    else:
        fence = prepared.execute_fenced(request, [], config)
        assert fence.wait(int(PATIENCE * 1e9))
        assert fence.error() is None
    assert (out == value + 1).all()


@pytest.mark.parametrize("way", ["execute", "burst", "fenced"])
def test_runs_of_several_programs_go_one_after_another_as_they_came(way: str) -> None:
    device = Narrow()
    shared = SharingDevice(device)
    scheduler = shared._scheduler
    assert scheduler is not None
    with client(shared) as one, client(shared) as other:
        threads = []

        def begin(prepared: RemotePreparedModel, value: int, priority: hal.Priority) -> None:
            thread = threading.Thread(target=run, args=(prepared, value, way, priority))
            thread.start()
            threads.append(thread)

        begin(one, 1, "low")
        until(lambda: device.seen == [1])
        for value in (2, 3, 4):
            begin(one, value, "low")
            # No lambda has types.
            until(lambda value=value: scheduler.waiting == value - 1)  # type: ignore[misc]
        # Nobody is overtaken by what another calls high.
        begin(other, 9, "high")
        until(lambda: scheduler.waiting == 4)
        for _ in threads:
            device.go.release()
        for thread in threads:
            thread.join(PATIENCE)
    assert device.seen == [1, 2, 3, 4, 9]
    assert device.most == 1


def test_run_waiting_for_another_program_keeps_its_deadline() -> None:
    device = Narrow()
    shared = SharingDevice(device)
    with client(shared) as one, client(shared) as other:
        thread = threading.Thread(target=run, args=(one, 1, "execute", "medium"))
        thread.start()
        until(lambda: device.seen == [1])
        out = np.empty(SHAPE, np.float32)
        request = hal.Request((hal.HostMemory(order(2)),), (hal.HostMemory(out),))
        config = hal.ExecutionConfig(deadline_ns=time.monotonic_ns() + 50_000_000)
        # Whoever looks first: the device's side, or this one.
        with pytest.raises((MissedDeadlinePersistent, MissedDeadlineTransient), match="deadline"):
            other.execute(request, config)
        device.go.release()
        thread.join(PATIENCE)
    assert device.seen == [1]


@pytest.mark.parametrize("way", ["execute", "burst"])
def test_runs_of_a_program_that_has_left_take_no_turns(way: str) -> None:
    device = Narrow()
    shared = SharingDevice(device)
    scheduler = shared._scheduler
    assert scheduler is not None

    def cut_off(prepared: RemotePreparedModel) -> None:
        with pytest.raises(DeadObject):
            run(prepared, 2, way, "medium")

    with client(shared) as one:
        first = threading.Thread(target=run, args=(one, 1, "execute", "medium"))
        first.start()
        until(lambda: device.seen == [1])
        with client(shared) as other:
            second = threading.Thread(target=cut_off, args=(other,))
            second.start()
            until(lambda: scheduler.waiting == 1)
        second.join(PATIENCE)
        # The first still has the device.
        until(lambda: scheduler.waiting == 0)
        device.go.release()
        first.join(PATIENCE)
    assert device.seen == [1]


def test_a_device_that_says_nothing_is_left_to_itself() -> None:
    shared = SharingDevice(ReferenceDevice())
    assert shared._scheduler is None
    with client(shared) as prepared:
        run(prepared, 3, "execute", "high")
