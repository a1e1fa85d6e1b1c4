"""The client's end of a connection while others close it."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time

import numpy as np
import pytest

from penstock.errors import DeadObject, DriverError, InvalidArgument, MissedDeadlineTransient
from penstock.hal import NO_CACHE_REPORT
from penstock.ipc import forms, wire
from penstock.ipc.channel import Session
from penstock.ipc.codec import Frame, Packer, decode_to_host, encode
from penstock.ipc.dispatch import refusal
from penstock.ipc.transport import Connection, close_all
from penstock.memory import MemoryPool, live_mappings

CALL = Frame(encode(wire.Describe(wire.WIRE_VERSION)))


def test_descriptors_are_open_until_the_calls_under_way_have_returned() -> None:
    ours, theirs = socket.socketpair()
    session = Session(Connection(ours), life_fd=ours.fileno())
    entered, leave, closed = threading.Event(), threading.Event(), threading.Event()
    found: list[BaseException | bool] = []

    class Slow(Exception):
        """Keeps a call where it holds the connection."""

    def held(*_: object) -> object:
        entered.set()
        leave.wait(10)
        found.append(ours.fileno() >= 0)
        raise Slow

    session._call = held  # type: ignore[method-assign,assignment]

    def calling() -> None:
        with pytest.raises(Slow):
            session.call(0, CALL)

    caller = threading.Thread(target=calling)
    caller.start()
    assert entered.wait(10)
    session.close(closed.set)
    assert not closed.is_set()
    leave.set()
    caller.join(10)
    assert found == [True]
    assert closed.is_set()
    assert ours.fileno() < 0
    theirs.close()


def test_a_life_is_the_callers_own_and_ends_with_the_session() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        session = Session(Connection(ours), life_fd=theirs.fileno())
        life = session.exit_fd()
        assert life is not None
        assert os.fstat(life).st_ino == os.fstat(theirs.fileno()).st_ino
        os.close(life)
        assert theirs.fileno() >= 0
        session.close()
        with pytest.raises(DeadObject, match="closed"):
            session.exit_fd()
        with pytest.raises(DeadObject, match="closed"):
            session.call(0, CALL)


def test_end_of_a_session_is_reported_before_descriptors_close() -> None:
    ours, theirs = socket.socketpair()
    telling, told, closed = threading.Event(), threading.Event(), []

    def ended() -> None:
        telling.set()
        told.wait(10)

    session = Session(Connection(ours), ended)
    finder = threading.Thread(target=session.end, args=("it is gone",))
    finder.start()
    assert telling.wait(10)
    session.close(lambda: closed.append(told.is_set()))
    assert closed == []
    told.set()
    finder.join(10)
    assert closed == [True]
    theirs.close()
    with pytest.raises(DriverError, match="it is gone"):
        session.call(0, CALL)


def test_session_frees_the_arguments_of_abandoned_calls() -> None:
    ours, theirs = socket.socketpair()
    gc.collect()
    before = live_mappings()
    session = Session(Connection(ours))
    with MemoryPool.anonymous(64) as pool:
        frame = CALL._replace(handles=(pool.view(np.float32, 4),), deadline_ns=soon(0.02))
        with pytest.raises(MissedDeadlineTransient):
            session.call(0, frame)
        del frame
    session.close()
    gc.collect()
    assert live_mappings() == before
    theirs.close()


def test_memory_of_a_call_that_failed_is_lent_anew() -> None:
    ours, theirs = socket.socketpair()
    session, host = Session(Connection(ours)), Connection(theirs)
    lent: list[int] = []

    def serve() -> None:
        while len(lent) < 2:
            received = host.receive(soon(10))
            close_all(received.descriptors)
            match decode_to_host(received.data):
                case wire.Lend(memory=number):
                    lent.append(number)
                case wire.Ask(call=call):
                    reply = refusal(InvalidArgument("that memory is not as large as was said"))
                    host.send(encode(wire.Answer(call, reply.data, failed=True)))

    serving = threading.Thread(target=serve)
    serving.start()
    frame = CALL._replace(handles=(np.zeros(4, np.float32),))
    session.call(0, frame)
    with pytest.raises(MissedDeadlineTransient):
        session.call(0, frame._replace(deadline_ns=soon(0.2)))
    serving.join(10)
    assert len(set(lent)) == 2
    session.close()
    host.close()


@pytest.mark.parametrize(
    ("made", "dropped"), [(wire.Made(7), 7), (wire.Reported(NO_CACHE_REPORT), None)]
)
def test_session_drops_only_the_results_of_abandoned_calls(
    made: wire.Made | wire.Reported, dropped: int | None
) -> None:
    ours, theirs = socket.socketpair()
    session, host = Session(Connection(ours)), Connection(theirs)
    told: list[wire.ToHost] = []

    def serve() -> None:
        late: list[forms.CallId] = []
        while len(late) < 3:
            message = decode_to_host(host.receive(soon(10)).data)
            if not isinstance(message, wire.Ask):
                told.append(message)
                continue
            late.append(message.call)
            if len(late) == 2:
                # The first has been given up by now.
                host.send(encode(wire.Answer(late[0], Packer().frame(made).data)))
            if len(late) > 1:
                host.send(encode(wire.Answer(message.call, Packer().frame(wire.Done()).data)))

    serving = threading.Thread(target=serve)
    serving.start()
    with pytest.raises(MissedDeadlineTransient):
        session.call(0, CALL._replace(deadline_ns=soon(0.05)))
    session.call(0, CALL)
    session.call(0, CALL)
    serving.join(10)
    drops = [message.target for message in told if isinstance(message, wire.Drop)]
    assert drops == ([] if dropped is None else [dropped])
    session.close()
    host.close()


def soon(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)
