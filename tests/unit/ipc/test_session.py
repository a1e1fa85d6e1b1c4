"""The client's end of a connection while others close it."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from penstock.errors import DeadObject, DriverError
from penstock.ipc import wire
from penstock.ipc.channel import Session
from penstock.ipc.codec import Frame, encode
from penstock.ipc.transport import Connection

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

    session._asked = held  # type: ignore[method-assign,assignment]

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
        life = session.life()
        assert life is not None
        assert os.fstat(life).st_ino == os.fstat(theirs.fileno()).st_ino
        os.close(life)
        assert theirs.fileno() >= 0
        session.close()
        with pytest.raises(DeadObject, match="closed"):
            session.life()
        with pytest.raises(DeadObject, match="closed"):
            session.call(0, CALL)


def test_whoever_finds_the_end_tells_of_it_before_the_descriptors_close() -> None:
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
