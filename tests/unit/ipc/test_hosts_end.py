"""A host ends with its last client, also where it is short of memory or descriptors, or its threads
are lost.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.ipc import system, wire
from penstock.ipc.codec import encode
from penstock.ipc.host import heartbeat
from penstock.ipc.host.process import Guest
from penstock.ipc.host_sockets import Place
from penstock.ipc.starting import Started, connect
from penstock.ipc.transport import close_all

resource = pytest.importorskip("resource", reason="limits of resources are Unix's")

PLACE = Place("domains", "tests.support_isolated:domains")
SECONDS = 60.0


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_DRIVER_TIMEOUT_MS", "1000")
    started = connect(PLACE)
    yield started
    started.connection.close()
    if not ended(started, 0):
        os.kill(started.pid, 9)
    os.waitpid(started.broker, 0)
    close_all([started.pidfd, started.page, started.output])


def ended(started: Started, seconds: float) -> bool:
    poll = select.poll()
    poll.register(started.pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


@pytest.mark.parametrize(("kind", "limit"), [("RLIMIT_AS", 1 << 20), ("RLIMIT_NOFILE", 4)])
def test_a_host_without_room_ends_with_its_last_client(
    host: Started, kind: str, limit: int
) -> None:
    resource.prlimit(host.pid, getattr(resource, kind), (limit, limit))
    for number in range(1, 9):
        host.connection.send(encode(wire.Ask(number, 0, encode(wire.Check()))))
        host.connection.send(encode(wire.Drop(0, number)))
    host.connection.shut()
    assert ended(host, SECONDS)


def test_a_thread_that_never_runs_ends_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def end(why: str) -> None:
        told.append(why)
        raise MemoryError

    monkeypatch.setenv("PENSTOCK_DRIVER_TIMEOUT_MS", "100")
    monkeypatch.setattr(heartbeat, "end_process", end)
    lost = threading.Event()
    beating = heartbeat.Heartbeat(trims=False)
    monkeypatch.setattr("penstock.ipc.system.unstarted_threads", lambda: {lost})
    with pytest.raises(MemoryError):
        beating._beat()
    os.close(beating.fd)
    assert told == [
        "a thread that was started does not run: no memory is left",
        "no memory is left",
    ]
    assert beating._beats[0] == heartbeat.BEATS_TO_START + 1


def test_a_thread_is_unborn_until_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
    before = system.unstarted_threads()
    monkeypatch.setattr(
        "_thread.start_new_thread", lambda work, arguments: begun.append((work, arguments))
    )
    done: list[int] = []
    system.start_thread(done.append, 1)
    assert len(system.unstarted_threads() - before) == 1
    work, arguments = begun[0]
    work(*arguments)
    assert done == [1]
    assert not system.unstarted_threads() - before


@pytest.mark.parametrize("error", [AssertionError, RuntimeError])
def test_a_thread_of_others_that_is_over_is_not_unborn(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    class Over(threading.Thread):
        def is_alive(self) -> bool:
            raise error("over")

    over = Over()
    monkeypatch.setattr(threading, "enumerate", lambda: [over])
    assert over not in system.unstarted_threads()


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_without_room_for_a_thread_nothing_is_unborn(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refuse(*_: object) -> None:
        raise error("no thread")

    before = system.unstarted_threads()
    monkeypatch.setattr("_thread.start_new_thread", refuse)
    with pytest.raises(error):
        system.start_thread(time.sleep, 0)
    done: list[int] = []
    system.start_thread_or_run(done.append, 1)
    assert done == [1]
    assert not system.unstarted_threads() - before


def test_a_guest_that_nobody_serves_is_gone_once_when_it_hangs_up() -> None:
    ours, theirs = socket.socketpair()
    gone: list[int] = []
    guest = Guest(theirs, 0, lambda _: gone.append(1))
    guest.hang_up()
    guest.hang_up()
    guest.leave()
    assert gone == [1]
    assert guest.has_ended
    assert ours.recv(1) == b""
    ours.close()
    guest.connection.close()
