"""What a client makes of hosts that break the rules: no call is held beyond its deadline, and
nothing is believed.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock import errors, hal
from penstock.drivers.null import NullDevice
from penstock.hal.fence import fence_pair
from penstock.ipc import codec, crash_records, forms, wire
from penstock.ipc.channel import Session
from penstock.ipc.client import RemoteDevice
from penstock.ipc.crash_records import tail
from penstock.ipc.dispatch import Dispatcher
from penstock.ipc.host.heartbeat import PAGE, HeartbeatView
from penstock.ipc.host_connection import HostConnection
from penstock.ipc.host_sockets import Place
from penstock.ipc.remote import Channel
from penstock.ipc.starting import _enter
from penstock.ipc.transport import HEADER, Connection, close_all
from penstock.ir.types import MAX_RANK
from tests.unit.ipc.test_hostile_sizes import Local

CHECK = codec.encode(wire.Check())


@pytest.fixture
def pair() -> Iterator[tuple[Session, socket.socket]]:
    """A session, and its host's end."""
    ours, theirs = socket.socketpair()
    session = Session(Connection(ours))
    yield session, theirs
    session.close()
    theirs.close()


def soon(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


@pytest.mark.parametrize("body", [CHECK, b"x" * 30_000], ids=["arrays", "long messages"])
def test_a_host_that_reads_nothing_holds_no_call(
    pair: tuple[Session, socket.socket], body: bytes
) -> None:
    session, _ = pair
    handles = (np.ones(4, np.float32),) if body is CHECK else ()
    for _ in range(120):
        calls = threading.Thread(target=_missed, args=(session, body, handles), daemon=True)
        calls.start()
        calls.join(5)
        assert not calls.is_alive()


def _missed(session: Session, body: bytes, handles: tuple[object, ...]) -> None:
    with pytest.raises(errors.MissedDeadlineTransient):
        session.call(0, codec.Frame(body, handles, soon(0.005)))


def test_endless_messages_for_other_calls_block_no_call(
    pair: tuple[Session, socket.socket],
) -> None:
    session, theirs = pair

    def other() -> None:
        with pytest.raises(errors.DeadObject):
            session.call(0, codec.Frame(CHECK, (lambda _: None,)))

    waiting = threading.Thread(target=other, daemon=True)
    waiting.start()
    number = codec.decode_to_host(Connection(theirs).receive(soon(60)).data).call  # type: ignore[union-attr]
    event = codec.encode(wire.Progress(hal.ProgressEvent("compile", "x", 1, 2), number))
    flood = (HEADER.pack(0, len(event)) + event) * 50_000

    def drown() -> None:
        theirs.settimeout(0.5)
        try:
            while not session.end_reason:
                theirs.sendall(flood)
        except OSError:
            return

    drowning = threading.Thread(target=drown, daemon=True)
    drowning.start()
    began = time.monotonic()
    with pytest.raises(errors.MissedDeadlineTransient):
        session.call(0, codec.Frame(CHECK, (), soon(0.2)))
    assert time.monotonic() - began < 20
    session.end("enough")
    waiting.join(60)
    drowning.join(60)
    assert not waiting.is_alive()
    assert not drowning.is_alive()


def test_a_page_that_could_shrink_is_not_read() -> None:
    fd = os.memfd_create("page")
    try:
        with pytest.raises(errors.WireError, match="sealed"):
            HeartbeatView(fd)
        os.ftruncate(fd, PAGE)
        with pytest.raises(errors.WireError, match="sealed"):
            HeartbeatView(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("devices", [-1, 257, 2**62])
def test_more_devices_than_a_driver_may_have_are_not_asked_for(devices: int) -> None:
    ours, theirs = socket.socketpair()
    readable, writable = os.pipe()
    welcome = wire.Welcome(wire.WIRE_VERSION, 0, 0, devices)
    Connection(theirs).send(codec.encode(welcome), (readable, readable))
    with pytest.raises(errors.DeviceUnavailable, match="devices; the limit is 256"):
        _enter(ours, Place("many", "m:f"), None)
    theirs.close()
    close_all([readable, writable])


def test_output_of_a_host_is_read_only_from_memory() -> None:
    ours, theirs = socket.socketpair()
    readable, writable = os.pipe()

    def host() -> None:
        connection = Connection(theirs)
        assert isinstance(codec.decode_to_host(connection.receive(soon(5)).data), wire.Hello)
        welcome = wire.Welcome(wire.WIRE_VERSION, 0, 0, 1)
        connection.send(codec.encode(welcome), (readable, readable))

    answering = threading.Thread(target=host)
    answering.start()
    started = _enter(ours, Place("piped", "m:f"), None)
    answering.join()
    try:
        assert os.fstat(started.output).st_rdev == Path(os.devnull).stat().st_rdev
        assert tail(started.output) == ""
    finally:
        started.connection.close()
        theirs.close()
        close_all([readable, writable, started.page, started.output])


def test_output_of_a_host_commands_no_terminal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nasty, shown = "a\x1b[2Jb\x07\x9bc\ttab", "a\\x1b[2Jb\\x07\\x9bc\ttab"
    fd = os.memfd_create("output")
    os.write(fd, nasty.encode() + b"\nnext\n")
    assert tail(fd) == f"{shown}\nnext\n"
    os.close(fd)
    link = HostConnection.__new__(HostConnection)
    link.place = Place("nasty", "m:f")
    monkeypatch.setattr(HostConnection, "pid", 1)
    with caplog.at_level("INFO", "penstock.ipc"):
        link._log([nasty.encode()])
    assert caplog.messages == [f"nasty (1): {shown}"]
    failure = codec.error_of(wire.Failure(errors.ErrorStatus.GENERAL_FAILURE, nasty))
    assert str(failure) == shown
    assert str(codec.error_of(wire.Stopped("closed", nasty))) == shown


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\nb", "x" * 2000])
def test_devices_of_names_that_cannot_be_shown_are_refused(name: str) -> None:
    device = NullDevice()
    device.version = name

    class Local(Channel):
        def call(self, frame: codec.Frame) -> codec.Frame:
            return Dispatcher(device).answer(frame)

        def drop(self, number: int) -> None:
            """Nothing is kept."""

    with pytest.raises(errors.GeneralFailure, match="a device's version is up to 1024"):
        RemoteDevice(Local())


def test_an_output_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    link = HostConnection.__new__(HostConnection)
    link.place = Place("endless", "m:f")
    link._written, link._rest = 0, b""
    zero = os.open("/dev/zero", os.O_RDONLY)
    monkeypatch.setattr(HostConnection, "pid", 1)
    link._started = type("Started", (), {"output": zero})()
    try:
        drain = threading.Thread(target=link._drain, daemon=True)
        drain.start()
        drain.join(10)
        assert not drain.is_alive()
    finally:
        os.close(zero)


def test_the_newest_crash_is_the_last_one_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path))
    now = time.time()

    def keep(how: str, when: float) -> None:
        monkeypatch.setattr(time, "time", lambda: when)
        crash_records.Crash.of(Place("d", "m:f"), (), pid=1, how=how, deaths=1, output="").keep()

    for turn in range(crash_records.MOST_KEPT):
        keep(f"old {turn}", now + turn)
    keep("new", now - 86_400)
    last = crash_records.last_crash()
    assert last is not None
    assert last.how == "new"


COLOURS = "\x1b[31m"


def replied(pair: tuple[Session, socket.socket], reply: wire.Reply) -> wire.Reply:
    """*reply*, as the client has it."""
    session, theirs = pair
    Connection(theirs).send(codec.encode(wire.Answer(1, codec.encode(reply))))
    return codec.decode_reply(session.call(0, codec.Frame(CHECK, (), soon(5))).data)


@pytest.mark.parametrize(
    "reply",
    [
        wire.Reason(COLOURS),
        wire.Supports((hal.Support(False, COLOURS), hal.Support(True, "", "relaxed", COLOURS))),
        wire.Made(1, hal.CacheReport("failed", COLOURS, False, COLOURS)),
        wire.Executed(
            hal.ExecutionResult(
                (), hal.Timing(operations=(hal.OperationTiming((), COLOURS, 0, 1),))
            )
        ),
    ],
    ids=lambda reply: type(reply).__name__,
)
def test_no_text_of_a_host_commands_a_terminal(
    pair: tuple[Session, socket.socket], reply: wire.Reply
) -> None:
    told = replied(pair, reply)
    assert type(told) is type(reply)
    assert b"\x1b" not in codec.encode(told)
    assert rb"\x1b[31m" in codec.encode(told)


def test_no_progress_of_a_host_commands_a_terminal() -> None:
    event = codec.encode(wire.Progress(hal.ProgressEvent(COLOURS, COLOURS * 10_000, 1, 2), 1))
    told = codec.decode_to_client(event)
    assert isinstance(told, wire.Progress)
    assert told.event.stage == r"\x1b[31m"
    assert "\x1b" not in told.event.subject
    assert len(told.event.subject) < 100_000


def test_no_fence_of_a_host_commands_a_terminal(pair: tuple[Session, socket.socket]) -> None:
    session, theirs = pair
    signal, fence = fence_pair()
    signal.signal(errors.MissedDeadlineTransient(COLOURS))
    answer = wire.Answer(1, codec.encode(wire.Fenced(0)), (forms.FenceForm(0),))
    Connection(theirs).send(codec.encode(answer), [fence.fileno()])
    (told,) = session.call(0, codec.Frame(CHECK, (), soon(5))).handles
    assert isinstance(told, hal.DescriptorFence)
    error = told.error()
    assert type(error) is errors.MissedDeadlineTransient
    assert str(error) == r"\x1b[31m"


@pytest.mark.parametrize("name", [COLOURS, "x" * 2000])
def test_a_capability_of_a_name_that_cannot_be_shown_is_refused(name: str) -> None:
    class Boasting(NullDevice):
        capabilities = hal.Capabilities(families=(name,))

    with pytest.raises(errors.GeneralFailure, match="can be printed"):
        RemoteDevice(Local(Boasting()))


MANY = (hal.OutputShape((2**62,) * (MAX_RANK + 1)),)


@pytest.mark.parametrize(
    "reply",
    [
        wire.Executed(hal.ExecutionResult(MANY)),
        wire.Failure(errors.ErrorStatus.OUTPUT_INSUFFICIENT_SIZE, "", MANY),
    ],
    ids=lambda reply: type(reply).__name__,
)
def test_shapes_of_more_dimensions_than_a_value_has_are_not_believed(reply: wire.Reply) -> None:
    """Their product is one step of the interpreter that takes hours."""
    with pytest.raises(errors.WireError, match="length <= 32"):
        codec.decode_reply(codec.encode(reply))


def test_deadlines_that_no_system_call_takes_are_waited_for(
    pair: tuple[Session, socket.socket],
) -> None:
    session, theirs = pair
    answering = threading.Timer(
        0.05,
        lambda: Connection(theirs).send(codec.encode(wire.Answer(1, codec.encode(wire.Done())))),
    )
    answering.start()
    answer = session.call(0, codec.Frame(CHECK, (), time.monotonic_ns() + 10**17))
    assert isinstance(codec.decode_reply(answer.data), wire.Done)
