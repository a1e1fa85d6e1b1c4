"""Finding a host where one is that does not answer: nobody waits for it for ever, and who it is is
known for sure.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from penstock.errors import DeviceUnavailable
from penstock.ipc import host_sockets, starting, system, wire
from penstock.ipc.codec import encode
from penstock.ipc.host_sockets import Place, socket_directory
from penstock.ipc.starting import Started, address_of, connect, environment
from penstock.ipc.system import command_of, connect_within, is_stopped, memory_file, wait_for_end
from penstock.ipc.transport import Connection, close_all

PLACE: Final = Place("found", "penstock.drivers.null:create")
SECONDS: Final = 20.0


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_DRIVER_TIMEOUT_MS", "300")


@contextmanager
def found() -> Iterator[Started]:
    """What `connect` finds, in good time."""
    began = time.monotonic()
    started = connect(PLACE)
    try:
        assert time.monotonic() - began < SECONDS
        yield started
    finally:
        leave(started)


def leave(started: Started) -> None:
    started.connection.close()
    if started.child:
        with suppress(ChildProcessError):
            os.waitpid(started.broker, 0)
    close_all([started.page, started.output, started.pidfd])


@contextmanager
def listening(backlog: int) -> Iterator[socket.socket]:
    """This process in the place of a host."""
    with socket_directory() as place, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        assert place is not None
        listener.bind(place._path(address_of(PLACE, environment())))
        listener.listen(backlog)
        yield listener


def fill(address: str | bytes) -> list[socket.socket]:
    """Connections that take all the room there is."""
    taken: list[socket.socket] = []
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.connect(address)
        except BlockingIOError:
            sock.close()
            return taken
        taken.append(sock)


def test_a_stopped_host_without_clients_is_replaced() -> None:
    first = connect(PLACE)
    os.kill(first.pid, signal.SIGSTOP)
    first.connection.close()
    with found() as second:
        assert second.pid != first.pid
        assert second.child
        assert os.WTERMSIG(os.waitpid(first.broker, 0)[1]) == signal.SIGKILL
        # Others find the new one.
        with found() as third:
            assert third.pid == second.pid
    close_all([first.page, first.output, first.pidfd])


def test_process_that_accepts_no_connection_is_left_alone() -> None:
    with listening(0) as listener:
        taken = fill(listener.getsockname())
        with found() as started:
            assert started.child
        for sock in taken:
            sock.close()


def test_stopped_process_that_is_no_host_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_stopped", lambda process: process == os.getpid())
    with listening(8), found() as started:
        assert started.child


def test_a_host_that_is_slow_to_start_is_waited_for() -> None:
    with listening(8) as listener:
        waiting: list[Started] = []
        finding = threading.Thread(target=lambda: waiting.append(connect(PLACE)))
        finding.start()
        time.sleep(0.5)
        assert finding.is_alive()
        output = memory_file("output")
        ours, theirs = socket.socketpair()
        passed = [theirs.fileno(), listener.fileno()]
        pid = starting._spawn(PLACE, environment(), passed, output)
        theirs.close()
    finding.join(SECONDS)
    ours.close()
    os.close(output)
    (started,) = waiting
    # It listened after this client had come.
    assert started.broker == pid
    assert started.pid != pid
    assert started.pidfd >= 0
    os.kill(pid, signal.SIGKILL)
    assert wait_for_end(started.pidfd, SECONDS)
    leave(started)
    os.waitpid(pid, 0)


def test_a_number_that_may_be_another_processs_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()

    def host() -> None:
        connection = Connection(theirs)
        close_all(connection.receive().descriptors)
        # Both ends are this process: its number is what the kernel says.
        connection.send(
            encode(wire.Welcome(wire.WIRE_VERSION, os.getpid(), os.getpid(), 1)), (0, 0)
        )

    def opened(process: int) -> int:
        theirs.close()
        return os.pidfd_open(process)

    monkeypatch.setattr(system, "open_process", opened)
    answering = threading.Thread(target=host)
    answering.start()
    with pytest.raises(EOFError, match="ended while it accepted a client"):
        starting._enter(ours, PLACE, None)
    answering.join(SECONDS)


def test_a_service_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_sockets, "CONNECT_SECONDS", 0.05)
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(0)
        taken = fill(path)
        with pytest.raises(DeviceUnavailable, match="accepts no client"):
            host_sockets.connect_service("x", path)
        for sock in taken:
            sock.close()


def test_command_and_state_of_a_process_are_read() -> None:
    assert command_of(os.getpid())
    assert not is_stopped(os.getpid())
    child = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    try:
        os.kill(child, signal.SIGSTOP)
        end = time.monotonic() + SECONDS
        while not is_stopped(child) and time.monotonic() < end:
            time.sleep(0.002)
        assert is_stopped(child)
        assert command_of(child) == ["sleep", "60"]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert command_of(child) == []
    assert not is_stopped(child)


def test_connecting_without_a_listener_is_refused() -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock,
        pytest.raises(ConnectionRefusedError),
    ):
        connect_within(sock, b"\0penstock/nobody", 1)


def test_an_interpreter_that_cannot_be_run_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str, *_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "posix_spawn", refused)
    with pytest.raises(DeviceUnavailable, match=f"no process for it: .*{sys.executable}"):
        connect(PLACE)
