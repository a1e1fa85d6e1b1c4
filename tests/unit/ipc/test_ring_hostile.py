"""A ring whose other end does what it likes: an error, never a wrong read, a crash or a wait
without end.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from penstock.errors import DeadObject, GeneralFailure, InvalidArgument, MissedDeadlineTransient
from penstock.hal import ExecutionConfig, Memory, PrepareConfig
from penstock.ipc import forms, ring, ring_client, ring_server, wire
from penstock.ipc.codec import encode
from penstock.ipc.ring import ANSWER, REQUEST, Doorbell, Layout, Listener, Region
from penstock.ipc.ring_client import RingClient
from penstock.ipc.ring_server import LentPool, RingServer
from penstock.ir import DataLocation
from penstock.memory import MemoryPool
from penstock.testing.contract.trial import PLAIN
from tests.checked import does_not_raise
from tests.unit.ipc.slow import SlowDevice, slow_model

LAYOUT = Layout(4, 1024)
SECONDS = 30.0


class Rig:
    """A region with both doorbells, and what either end may be put to it."""

    def __init__(self) -> None:
        self.fd = ring.create_region(LAYOUT)
        self.region = Region(self.fd, LAYOUT)
        self.to_device, self.to_client = Doorbell.create(), Doorbell.create()
        self.pool = MemoryPool.anonymous(4096)
        self.server: RingServer | None = None

    def serve(self) -> RingServer:
        burst = SlowDevice().prepare_model(slow_model(), PrepareConfig()).configure_burst()
        self.server = RingServer(
            lambda _: (burst.execute, False),
            self.find,
            self.fd,
            self.to_device.listen_fd,
            self.to_client.ring_fd,
            LAYOUT,
            spin_ns=0,
        )
        return self.server

    def find(self, number: int) -> LentPool:
        if number != 1:
            raise InvalidArgument(f"no pool {number}")
        return LentPool(self.pool.memory)

    def client(self) -> RingClient:
        return RingClient(self.region, self.to_device, self.to_client, None, spin_ns=0)

    def put(self, number: int, *fields: int, payload: bytes = b"") -> None:
        at = LAYOUT.request_at(number)
        REQUEST.pack_into(self.region.data, at, *fields)
        self.region.data[at + REQUEST.size : at + REQUEST.size + len(payload)] = payload

    def publish(self, number: int) -> None:
        self.region.words[ring.REQUESTED] = number
        self.to_device.ring()

    def answered(self, number: int) -> int:
        """The word of answers once it is at least *number*."""
        listener = Listener(self.to_client)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            self.region.words[ring.CLIENT_WAITS] = 1
            value: int = self.region.words[ring.ANSWERED]
            if value >= number:
                return value
            listener.wait(50_000_000)
        raise AssertionError("the server neither answered nor closed the ring")

    def is_over(self) -> bool:
        server = self.server
        assert server is not None
        return server._ended.wait(SECONDS)

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
            assert self.is_over()
        self.to_device.close()
        self.to_client.close()
        self.region.close()
        os.close(self.fd)
        self.pool.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def bindable() -> bytes:
    given = forms.LentForm(DataLocation(0, 0, 16), "float32", (4,))
    wanted = forms.LentForm(DataLocation(0, 64, 16), "float32", (4,))
    return encode(wire.RingRequest(1, (given,), (wanted,), (1,)))


def test_a_region_of_another_size_or_that_could_shrink_is_not_mapped() -> None:
    for nbytes, seals, said in (
        (LAYOUT.nbytes + 1, fcntl.F_SEAL_SHRINK, "bytes, not"),
        (LAYOUT.nbytes, 0, "shrinking"),
    ):
        fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        with pytest.raises(InvalidArgument, match=said):
            Region(fd, LAYOUT)
        os.close(fd)
    with pytest.raises(InvalidArgument, match="cannot be mapped"):
        Region(10_000, LAYOUT)


@pytest.mark.parametrize("layout", [(0, 1024), (65, 1024), (4, 255), (4, 1 << 21), (4, 1000)])
def test_a_layout_has_bounds(layout: tuple[int, int]) -> None:
    with pytest.raises(InvalidArgument):
        Layout(*layout).check()


@pytest.mark.parametrize(
    ("newest", "fields"),
    [
        (9, (9, 0, 0, 0, 0, 0, 0)),
        (2**63, (2**63, 0, 0, 0, 0, 0, 0)),
        (1, (2, ring.EMPTY, 0, 0, 0, 0, 0)),
        (1, (1, 99, 0, 0, 0, 0, 0)),
        (1, (1, ring.BIND, 0, 0, 0, 0, LAYOUT.slot_bytes)),
        (1, (1, ring.BIND, 0, 0, 0, 0, 2**64 - 1)),
        (1, (1, ring.EMPTY, 0, 0, 0, ring.MAX_FLAGS, 0)),
    ],
)
def test_a_request_against_the_rules_ends_the_ring(
    rig: Rig, newest: int, fields: tuple[int, ...]
) -> None:
    rig.serve()
    rig.put(fields[0], *fields)
    rig.put(1, *fields)
    rig.publish(newest)
    assert rig.answered(1) == ring.CLOSED
    assert rig.is_over()


def test_numbers_that_go_back_end_the_ring(rig: Rig) -> None:
    rig.serve()
    rig.put(1, 1, ring.EMPTY, 0, 0, 0, 0, 0)
    rig.publish(1)
    assert rig.answered(1) == 1
    rig.publish(0)
    assert rig.answered(2) == ring.CLOSED


def test_a_priority_that_there_is_none_of_ends_the_ring(rig: Rig) -> None:
    rig.serve()
    payload = bindable()
    rig.put(1, 1, ring.BIND, 0, 0, 0, 3 << ring.PRIORITY_SHIFT, len(payload), payload=payload)
    rig.publish(1)
    assert rig.answered(1) == ring.CLOSED


@pytest.mark.parametrize(
    ("bound", "payload"),
    [
        (64, bindable()),
        (2**64 - 1, bindable()),
        (0, b""),
        (0, b"\xc1" * 100),
        (0, encode(wire.RingRequest(1, (), (), (7,)))),
        (0, encode(wire.RingRequest(1, (forms.LentForm(DataLocation(0, 0, 16), "object", (2,)),),
            (), (1,)))),
        (0, encode(wire.RingRequest(1, (forms.LentForm(DataLocation(3, 0, 16), "int8", (16,)),), (),
            (1,)))),
        (0, encode(wire.RingRequest(1, (forms.LentForm(DataLocation(0, 4090, 16), "int8", (16,)),),
            (), (1,)))),
        (0, encode(wire.RingRequest(1, (forms.LentForm(DataLocation(0, -16, 16), "int8", (16,)),),
            (), (1,)))),
        (0, encode(wire.RingRequest(1, (forms.LentForm(DataLocation(0, 0, 16), "int8", (-4, -4)),),
            (), (1,)))),
        (0, encode(wire.RingRequest(1, (forms.LentForm(DataLocation(0, 0, 0), "int8", (0,) * 33),),
            (), (1,)))),
        (0, encode(wire.RingRequest(1, (forms.LentForm(DataLocation(0, 0, 16), "int8",
            (2**40, 2**40)),), (), (1,)))),
    ],
    ids=lambda value: str(value)[-24:],
)  # fmt: skip
def test_a_binding_that_makes_no_sense_is_refused_and_the_ring_goes_on(
    rig: Rig, bound: int, payload: bytes
) -> None:
    rig.serve()
    client = rig.client()
    with pytest.raises(InvalidArgument):
        client.call(ring.BIND, bound, PLAIN, payload)
    with pytest.raises(InvalidArgument, match="bound"):
        client.call(ring.RUN, 5, PLAIN)
    client.call(ring.BIND, 0, PLAIN, bindable())
    client.call(ring.RUN, 0, PLAIN)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, LAYOUT.nbytes - 64), st.binary(min_size=1, max_size=64)),
        max_size=20,
    ),
    st.integers(0, 6),
)
def test_ring_server_answers_or_ends_for_any_bytes(
    writes: list[tuple[int, bytes]], newest: int
) -> None:
    rig = Rig()
    try:
        rig.serve()
        for number in range(1, newest + 1):
            payload = bindable()
            rig.put(number, number, ring.BIND, 0, 1, 0, 0, len(payload), payload=payload)
        for at, data in writes:
            rig.region.data[at : at + len(data)] = data
        rig.publish(newest)
        if newest:
            rig.answered(1)
    finally:
        rig.close()


def test_a_slot_that_changes_while_it_is_read(rig: Rig) -> None:
    rig.serve()
    stop = threading.Event()
    payload = bindable()

    def race() -> None:
        draw = random.Random(1)
        while not stop.is_set():
            slot = draw.randrange(LAYOUT.slots)
            at = ring.HEAD_BYTES + 2 * LAYOUT.slot_bytes * slot + draw.randrange(REQUEST.size + 64)
            rig.region.data[at] = draw.randrange(256)
            time.sleep(0)

    thread = threading.Thread(target=race)
    thread.start()
    try:
        with does_not_raise():
            for number in range(1, 200):
                rig.put(number, number, ring.BIND, 0, 1, 0, 0, len(payload), payload=payload)
                rig.publish(number)
                if rig.answered(number) == ring.CLOSED:
                    break
    finally:
        stop.set()
        thread.join()


Fault = Callable[[Rig, int], None]


def _numbered(number: int, *fields: int, payload: bytes = b"") -> Fault:
    def answer(rig: Rig, at: int) -> None:
        ANSWER.pack_into(rig.region.data, at, *fields)
        rig.region.data[at + ANSWER.size : at + ANSWER.size + len(payload)] = payload
        rig.region.words[ring.ANSWERED] = number

    return answer


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (_numbered(2, 1, ring.DONE, 0, 0, 0, 0), DeadObject, "number 2"),
        (_numbered(2**63, 1, ring.DONE, 0, 0, 0, 0), DeadObject, "number"),
        (_numbered(ring.CLOSED, 1, ring.DONE, 0, 0, 0, 0), DeadObject, "closed it"),
        (_numbered(1, 7, ring.DONE, 0, 0, 0, 0), DeadObject, "answer 7"),
        (_numbered(1, 1, 55, 0, 0, 0, 0), DeadObject, "kind 55"),
        (_numbered(1, 1, ring.REPLY, 0, 0, 0, LAYOUT.slot_bytes), DeadObject, "in the place"),
        (_numbered(1, 1, ring.REPLY, 0, 0, 0, 2**64 - 1), DeadObject, "in the place"),
        (_numbered(1, 1, ring.REPLY, 0, 0, 0, 4, payload=b"\xc1\xc1\xc1\xc1"), GeneralFailure,
            "malformed"),
        (_numbered(1, 1, ring.REPLY, 0, 0, 0, 8, payload=encode(wire.Done())), GeneralFailure,
            "malformed"),
    ],
)  # fmt: skip
def test_an_answer_against_the_rules_is_named(
    rig: Rig, answer: Fault, error: type[Exception], said: str
) -> None:
    client = rig.client()

    def reply() -> None:
        Listener(rig.to_device).wait(int(SECONDS * 1e9))
        answer(rig, LAYOUT.request_at(1) + LAYOUT.slot_bytes)
        rig.to_client.ring()

    rig.region.words[ring.SERVER_WAITS] = 1
    thread = threading.Thread(target=reply)
    thread.start()
    began = time.monotonic()
    with pytest.raises(error, match=said):
        client.call(ring.EMPTY, 0, ExecutionConfig(deadline_ns=time.monotonic_ns() + 30 * 10**9))
    assert time.monotonic() - began < 30
    thread.join()


@pytest.fixture(params=["pipes", "sockets"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What doorbells are."""
    if request.param == "sockets":
        monkeypatch.setattr(ring, "pipes_take_no_wait", lambda: False)
    elif not ring.pipes_take_no_wait():
        pytest.skip("pipes wait on this system")
    return str(request.param)


def within_seconds(work: Callable[[], object]) -> None:
    """Fails where *work* does not end."""
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(SECONDS)
    assert not worker.is_alive()


def fill(fd: int) -> None:
    """As a hostile side does: no byte more goes in, and whoever writes or reads would wait."""
    os.set_blocking(fd, False)
    with suppress(BlockingIOError):
        while True:
            os.write(fd, b"x")
    os.set_blocking(fd, True)


@pytest.mark.usefixtures("kind")
def test_a_doorbell_neither_blocks_who_rings_nor_who_listens() -> None:
    bell = Doorbell.create()
    for fd in (bell.ring_fd, bell.listen_fd):
        os.set_blocking(fd, True)
    fill(bell.ring_fd)
    within_seconds(bell.ring)

    def hear() -> None:
        while Listener(bell).wait(0) == "rung":
            pass
        os.set_blocking(bell.listen_fd, True)
        assert bell.silence()
        assert Listener(bell).wait(0) == "nothing"
        bell.ring()
        assert Listener(bell).wait(None) == "rung"

    within_seconds(hear)
    bell.close()
    bell.close()


@pytest.mark.usefixtures("kind")
def test_the_flags_of_a_doorbell_may_change_at_any_moment() -> None:
    bell = Doorbell.create()
    stop = threading.Event()
    flags = fcntl.fcntl(bell.ring_fd, fcntl.F_GETFL) | os.O_NONBLOCK

    def change() -> None:
        while not stop.is_set():
            with suppress(BlockingIOError):
                fcntl.fcntl(bell.ring_fd, fcntl.F_SETFL, flags)
                os.write(bell.ring_fd, b"x" * 65_536)
            fcntl.fcntl(bell.ring_fd, fcntl.F_SETFL, flags & ~os.O_NONBLOCK)
            time.sleep(0)

    changing = threading.Thread(target=change, daemon=True)
    changing.start()

    def use() -> None:
        for turn in range(2000):
            bell.ring()
            if turn % 3 == 0:
                bell.silence()

    within_seconds(use)
    stop.set()
    while changing.is_alive():
        bell.silence()
        changing.join(0.01)
    bell.close()


@pytest.mark.usefixtures("kind")
def test_a_doorbell_whose_other_end_is_closed_is_a_death() -> None:
    bell = Doorbell.create()
    ringer, listener = Doorbell(-1, os.dup(bell.ring_fd)), Doorbell(os.dup(bell.listen_fd), -1)
    bell.close()
    ringer.ring()
    heard = Listener(listener)
    assert heard.wait(0) == "rung"
    ringer.close()
    assert heard.wait(None) == "dead"
    assert not listener.silence()
    alone = Doorbell.create()
    silent = Doorbell(-1, os.dup(alone.ring_fd))
    alone.close()
    silent.ring()
    silent.close()
    listener.close()


@pytest.mark.parametrize("make", [os.memfd_create, lambda _: os.eventfd(0), lambda _: udp()])
def test_doorbell_that_is_no_pipe_is_refused_and_closed(make: Callable[[str], int]) -> None:
    fd = make("none")
    with pytest.raises(InvalidArgument, match="a doorbell is a pipe"):
        Doorbell(fd, -1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def udp() -> int:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach()


@pytest.mark.usefixtures("kind")
def test_a_client_that_rings_for_ever_loses_its_ring(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each alarm takes the interpreter from one thread to the other.
    monkeypatch.setattr(ring_server, "MOST_FALSE_ALARMS", 200)
    rig.serve()
    stop = threading.Event()

    def ring_on() -> None:
        while not stop.is_set():
            rig.to_device.ring()

    ringing = threading.Thread(target=ring_on)
    ringing.start()
    try:
        assert rig.answered(1) == ring.CLOSED
        assert rig.is_over()
    finally:
        stop.set()
        ringing.join()
    assert "rings without a request" in caplog.text


@pytest.mark.usefixtures("kind")
def test_a_client_that_closes_its_doorbells_ends_its_ring(rig: Rig) -> None:
    rig.serve()
    rig.put(1, 1, ring.EMPTY, 0, 0, 0, 0, 0)
    rig.publish(1)
    assert rig.answered(1) == 1
    rig.to_device.close()
    rig.to_client.close()
    assert rig.is_over()


@pytest.mark.usefixtures("kind")
def test_a_client_that_fills_what_it_listens_to_is_answered_all_the_same(rig: Rig) -> None:
    rig.serve()
    fill(rig.to_client.ring_fd)
    rig.region.words[ring.CLIENT_WAITS] = 1
    for number in (1, 2):
        rig.put(number, number, ring.EMPTY, 0, 0, 0, 0, 0)
        rig.publish(number)
        end = time.monotonic() + SECONDS
        while rig.region.words[ring.ANSWERED] != number and time.monotonic() < end:
            time.sleep(0.001)
        assert rig.region.words[ring.ANSWERED] == number


@pytest.mark.usefixtures("kind")
def test_a_host_that_fills_and_rings_and_closes_keeps_no_call(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_client, "MOST_FALSE_ALARMS", 200)
    client = rig.client()
    fill(rig.to_device.ring_fd)
    rig.region.words[ring.SERVER_WAITS] = 1
    soon = ExecutionConfig(deadline_ns=time.monotonic_ns() + 50_000_000)

    def miss() -> None:
        with pytest.raises(MissedDeadlineTransient):
            client.call(ring.EMPTY, 0, soon)

    within_seconds(miss)
    stop = threading.Event()

    def ring_on() -> None:
        while not stop.is_set():
            rig.to_client.ring()

    ringing = threading.Thread(target=ring_on)
    ringing.start()

    def call() -> None:
        with pytest.raises(DeadObject, match="rings without an answer"):
            client.call(ring.EMPTY, 0)

    try:
        within_seconds(call)
    finally:
        stop.set()
        ringing.join()


def test_a_pools_region_is_mapped_once_and_its_descriptor_is_its_own() -> None:
    with MemoryPool.anonymous(4096) as pool:
        lent = LentPool(pool.memory)
    first = lent.region()
    first[0] = 7
    assert np.shares_memory(first, lent.region())
    with pytest.raises(InvalidArgument, match="without a descriptor"):
        LentPool(Memory("ashmem", None, 16))


def test_ring_that_cannot_report_its_end_frees_its_place(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = rig.serve()
    closed = threading.Event()

    def cannot() -> None:
        raise OSError("no such descriptor")

    monkeypatch.setattr(server._rung, "ring", cannot)
    monkeypatch.setattr(server, "_at_end", closed.set)
    server.close()
    assert closed.wait(SECONDS)
