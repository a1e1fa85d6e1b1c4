"""A host and one client of it, without a process: what it does when it is short of something, or
kept waiting.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import pytest

from penstock import hal
from penstock.drivers.reference import ReferenceDevice
from penstock.ipc import forms, wire
from penstock.ipc.channel import Session
from penstock.ipc.client import RemoteDevice
from penstock.ipc.codec import Frame, decode_to_host, encode
from penstock.ipc.dispatch import Dispatcher
from penstock.ipc.host.broker import Broker
from penstock.ipc.host.serving import Client
from penstock.ipc.transport import Connection
from penstock.testing.doubles import InterceptingDevice
from tests.support_isolated import SHAPE, add_one, order
from tests.support_ring import ring_burst

T = TypeVar("T")


class _Slow:
    """A dispatcher whose objects take their time to close."""

    def __init__(self) -> None:
        self.objects = self
        self.threads: set[int] = set()
        self.count = 0
        self.go, self.all_closed = threading.Event(), threading.Event()

    def detach(self, _number: forms.ObjectId) -> Callable[[], None]:
        def close() -> None:
            self.threads.add(threading.get_ident())
            assert self.go.wait(10)
            self.count += 1
            if self.count == 20:
                self.all_closed.set()

        return close

    def close(self) -> None:
        """Nothing is kept."""


def test_dropped_objects_are_closed_in_one_thread() -> None:
    ours, theirs = map(Connection, socket.socketpair())
    dispatcher, ended = _Slow(), threading.Event()
    Client(theirs, [cast("Dispatcher", dispatcher)], ended.set).start()
    for number in range(1, 21):
        ours.send(encode(wire.Drop(0, forms.ObjectId(number))))
    dispatcher.go.set()
    assert dispatcher.all_closed.wait(10)
    assert len(dispatcher.threads) == 1
    ours.close()
    assert ended.wait(10)


def test_a_host_without_descriptors_pauses_before_it_takes_a_client_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Listener:
        def accept(self) -> Any:
            raise OSError(errno.EMFILE, "no descriptor")

    pauses: list[float] = []
    monkeypatch.setattr("penstock.ipc.host.broker.time.sleep", pauses.append)
    broker = Broker.__new__(Broker)
    monkeypatch.setattr(broker, "_listener", Listener(), raising=False)
    broker._accept()
    assert len(pauses) == 1


class _Choosy(InterceptingDevice):
    """Prefers its arguments at places of its own, and keeps the addresses of what it is given."""

    def __init__(self, alignment: int, padding: int) -> None:
        super().__init__(ReferenceDevice(), "choosy")
        self._claims = hal.Capabilities(alignment=alignment, padding=padding)
        self.addresses: list[int] = []

    @property
    def capabilities(self) -> hal.Capabilities:
        return self._claims

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        for request in (a for a in arguments if isinstance(a, hal.Request)):
            every = [
                a for a in (*request.inputs, *request.outputs) if isinstance(a, hal.HostMemory)
            ]
            self.addresses += [a.array.ctypes.data for a in every]
        return proceed()


@pytest.mark.parametrize("way", ["run", "ring", "fenced"])
@pytest.mark.parametrize(
    ("alignment", "padding", "unit"),
    [(16, 1, 64), (256, 64, 256), (64, 1024, 1024), (1 << 40, 1, 4096), (-5, 96, 4096)],
)
def test_copies_for_a_device_have_its_preferred_layout(
    way: str, alignment: int, padding: int, unit: int
) -> None:
    device, over = _Choosy(alignment, padding), threading.Event()
    ours, theirs = map(Connection, socket.socketpair())
    Client(theirs, [Dispatcher(device, owns_device=False)], over.set).start()
    session = Session(ours)
    prepared = RemoteDevice(session.channel(0)).prepare_model(add_one(), hal.PrepareConfig())
    out = np.empty(SHAPE, np.float32)
    request = hal.Request((hal.HostMemory(order(1)),), (hal.HostMemory(out),))
    if way == "run":
        prepared.execute(request, hal.ExecutionConfig())
    elif way == "fenced":
        assert prepared.execute_fenced(request, [], hal.ExecutionConfig()).wait(10**10)
    else:
        life, end = os.pipe()
        burst = ring_burst(prepared, life)
        burst.execute(request, hal.ExecutionConfig())
        burst.close()
        os.close(end)
    assert (out == 2).all()
    first, second = device.addresses
    assert first % unit == second % unit == 0
    assert abs(second - first) >= unit
    session.close()
    assert over.wait(10)


def test_progress_after_the_answer_is_dropped() -> None:
    ours, theirs = map(Connection, socket.socketpair())
    session = Session(ours)

    def serve() -> None:
        for _ in range(2):
            ask = decode_to_host(theirs.receive().data)
            assert isinstance(ask, wire.Ask)
            event = hal.ProgressEvent("compile", "x", 1, 2)
            theirs.send(encode(wire.Answer(ask.call, b"reply")))
            theirs.send(encode(wire.Progress(event, ask.call)))

    host = threading.Thread(target=serve)
    host.start()
    deadline = time.monotonic_ns() + 5_000_000_000
    for _ in range(2):
        assert session.call(0, Frame(encode(wire.Check()), (), deadline)).data == b"reply"
    host.join()
    assert not session.end_reason
    session.close()
    theirs.close()
