"""Frames over a socket: whole, in order, bounded, and without a descriptor left behind."""

from __future__ import annotations

import array
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import GeneralFailure, WireError
from penstock.ipc import forms, transport, wire
from penstock.ipc.transport import BATCH, HEADER, Connection, close_all
from penstock.testing.resources import Resources
from tests.checked import does_not_raise


@pytest.fixture
def pair() -> Iterator[tuple[Connection, Connection]]:
    with Resources.unchanged("a pair of connections"):
        left, right = map(Connection, socket.socketpair())
        yield left, right
        left.close()
        right.close()


def soon() -> int:
    return time.monotonic_ns() + 60_000_000_000


def descriptors(count: int) -> list[int]:
    return [os.memfd_create(f"d{n}", os.MFD_CLOEXEC) for n in range(count)]


def shorten(connection: Connection) -> None:
    """Has it take few messages that nobody reads."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)


@pytest.mark.parametrize("count", [0, 1, BATCH, BATCH + 1, 3 * BATCH])
@pytest.mark.parametrize("size", [0, 1, 1 << 12])
def test_a_frame_comes_whole(pair: tuple[Connection, Connection], count: int, size: int) -> None:
    left, right = pair
    sent = descriptors(count)
    for number, fd in enumerate(sent):
        os.write(fd, b"%d" % number)
    left.send(os.urandom(size), sent, soon())
    left.send(b"next", (), soon())
    received = right.receive(soon())
    assert len(received.data) == size
    assert received.complete
    assert [os.pread(fd, 8, 0) for fd in received.descriptors] == [b"%d" % n for n in range(count)]
    assert not any(os.get_inheritable(fd) for fd in received.descriptors)
    close_all(received.descriptors)
    close_all(sent)
    assert right.receive(soon()).data == b"next"


def test_a_large_frame_waits_for_its_reader(pair: tuple[Connection, Connection]) -> None:
    left, right = pair
    data = os.urandom(8 << 20)
    thread = threading.Thread(target=left.send, args=(data, (), soon()))
    thread.start()
    assert right.receive(soon()).data == data
    thread.join()


def test_a_deadline_leaves_the_stream_in_order(pair: tuple[Connection, Connection]) -> None:
    left, right = pair
    first = os.urandom(4 << 20)
    left.send(first, (), time.monotonic_ns() + 20_000_000)
    with pytest.raises(TimeoutError):
        left.send(b"second", (), time.monotonic_ns() + 20_000_000)
    thread = threading.Thread(target=left.send, args=(b"third", (), soon()))
    thread.start()
    assert right.receive(soon()).data == first
    assert right.receive(soon()).data == b"third"
    thread.join()


def test_a_frame_by_halves_is_kept(pair: tuple[Connection, Connection]) -> None:
    left, right = pair
    raw = left._socket
    frame = HEADER.pack(0, 5) + b"hello"
    for at in range(len(frame) - 1):
        raw.send(frame[at : at + 1])
        with pytest.raises(TimeoutError):
            right.receive(time.monotonic_ns() + 1_000_000)
    raw.send(frame[-1:])
    assert right.receive(soon()).data == b"hello"


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        (HEADER.pack(0, wire.MAX_FRAME + 1), "the limit is"),
        (HEADER.pack(0, 2**64 - 1), "the limit is"),
        (HEADER.pack(forms.MAX_HANDLES + 1, 0), "descriptors announced"),
        (HEADER.pack(1, 0), "0 descriptors came beside a message that has 1"),
    ],
)
def test_nonsense_is_no_frame(
    pair: tuple[Connection, Connection], header: bytes, complaint: str
) -> None:
    left, right = pair
    left._socket.send(header)
    with pytest.raises(WireError, match=complaint):
        right.receive(soon())


def test_more_descriptors_than_announced_are_closed(pair: tuple[Connection, Connection]) -> None:
    left, right = pair
    sent = descriptors(3)
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", sent))]
    left._socket.sendmsg([HEADER.pack(1, 0)], beside)
    close_all(sent)
    with pytest.raises(WireError, match="3 descriptors came"):
        right.receive(soon())


def test_descriptors_before_a_message_are_few() -> None:
    with Resources.unchanged("a pair of connections"):
        left, theirs = socket.socketpair()
        right = Connection(theirs, 4)
        sent = descriptors(3)
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", sent))]
        for byte in HEADER.pack(4, 0)[:4]:
            left.sendmsg([bytes([byte])], beside)
        close_all(sent)
        with pytest.raises(WireError, match="more than 4 descriptors came before a message"):
            right.receive(soon())
        right.close()
        left.close()


def test_more_descriptors_than_are_taken_are_no_frame(pair: tuple[Connection, Connection]) -> None:
    left, right = pair
    right.most = 4
    left._socket.send(HEADER.pack(5, 0))
    with pytest.raises(WireError, match="5 descriptors announced"):
        right.receive(soon())


def test_connection_without_descriptors_receives_none() -> None:
    with Resources.unchanged("a pair of connections"):
        left, theirs = socket.socketpair()
        right = Connection(theirs, 0)
        sent = descriptors(9)
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", sent))]
        left.sendmsg([HEADER.pack(0, 1) + b"x"], beside)
        close_all(sent)
        assert right.receive(soon()).descriptors == []
        right.close()
        left.close()


def test_descriptors_beside_the_bytes_are_closed(pair: tuple[Connection, Connection]) -> None:
    left, right = pair
    sent = descriptors(2)
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", sent))]
    left._socket.send(HEADER.pack(0, 4))
    left._socket.sendmsg([b"data"], beside)
    close_all(sent)
    received = right.receive(soon())
    assert (received.data, received.descriptors) == (b"data", [])


def test_without_room_for_descriptors_a_frame_is_incomplete(
    pair: tuple[Connection, Connection],
) -> None:
    left, right = pair
    sent = descriptors(4)
    left.send(b"full", sent, soon())
    close_all(sent)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(link.name) for link in Path("/proc/self/fd").iterdir())
    taken = descriptors(0)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, hard))
        while True:
            try:
                taken.append(os.dup(0))
            except OSError:
                break
        received = right.receive(soon())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        close_all(taken)
    assert (received.data, received.descriptors, received.complete) == (b"full", [], False)
    left.send(b"next", (), soon())
    assert right.receive(soon()).data == b"next"


def test_a_descriptor_that_is_not_open_is_named(pair: tuple[Connection, Connection]) -> None:
    left, right = pair
    (fd,) = descriptors(1)
    os.close(fd)
    for bad in (fd, -1, 1 << 40):
        with pytest.raises(GeneralFailure, match="cannot be sent"):
            left.send(b"x", [bad], soon())
    left.send(b"fine", (), soon())
    assert right.receive(soon()).data == b"fine"


def test_the_end_of_the_other_side_is_an_end_of_file(pair: tuple[Connection, Connection]) -> None:
    left, right = pair
    left.send(b"last", (), soon())
    left.close()
    assert right.receive(soon()).data == b"last"
    with pytest.raises(EOFError):
        right.receive(soon())
    with pytest.raises(EOFError):
        right.send(b"x", (), soon())


def test_whether_a_connection_is_over_is_seen_at_once(pair: tuple[Connection, Connection]) -> None:
    left, right = pair
    left.send(b"unread", (), soon())
    assert not right.is_over()
    left.close()
    assert right.is_over()


def test_an_end_in_the_middle_of_a_frame(pair: tuple[Connection, Connection]) -> None:
    left, right = pair
    (fd,) = descriptors(1)
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    left._socket.sendmsg([HEADER.pack(1, 100) + b"half"], beside)
    os.close(fd)
    left.close()
    with pytest.raises(EOFError):
        right.receive(soon())


def test_message_with_too_many_descriptors_cannot_be_sent(
    pair: tuple[Connection, Connection],
) -> None:
    left, _ = pair
    with pytest.raises(WireError, match="descriptors beside one message"):
        left.send(b"", [0] * (forms.MAX_HANDLES + 1), soon())
    with pytest.raises(WireError, match="the limit is"):
        left.send(bytes(wire.MAX_FRAME + 1), (), soon())


def test_descriptors_that_are_not_taken_by_the_deadline_go_before_the_next_frame(
    pair: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "BATCH", 2)
    left, right = pair
    shorten(left)
    sent = descriptors(60)
    for number, fd in enumerate(sent):
        os.write(fd, b"%d" % number)
    began = time.monotonic()
    sender = threading.Thread(
        target=left.send, args=(b"many", sent, time.monotonic_ns() + 50_000_000), daemon=True
    )
    sender.start()
    sender.join(30)
    assert not sender.is_alive()
    assert time.monotonic() - began < 30
    close_all(sent)
    following = threading.Thread(target=left.send, args=(b"next", (), soon()))
    following.start()
    received = right.receive(soon())
    assert received.data == b"many"
    told = [os.pread(fd, 8, 0) for fd in received.descriptors]
    close_all(received.descriptors)
    assert told == [b"%d" % n for n in range(60)]
    assert right.receive(soon()).data == b"next"
    following.join()


def test_descriptors_kept_for_later_close_with_the_connection(
    pair: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "BATCH", 2)
    left, _ = pair
    shorten(left)
    sent = descriptors(60)
    # What stays open is found when both ends are closed.
    with does_not_raise():
        left.send(b"many", sent, time.monotonic_ns() + 50_000_000)
    close_all(sent)


def test_a_closed_descriptor_of_a_later_batch_leaves_the_stream_in_order(
    pair: tuple[Connection, Connection],
) -> None:
    left, right = pair
    sent = descriptors(BATCH + 1)
    os.close(sent[-1])
    with pytest.raises(GeneralFailure, match="not open"):
        left.send(b"many", sent, soon())
    close_all(sent[:-1])
    left.send(b"next", (), soon())
    assert right.receive(soon()).data == b"next"
