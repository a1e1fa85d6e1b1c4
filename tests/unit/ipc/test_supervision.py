"""The owner of a driver's process, with links that take their time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.errors import DeadObject, DeviceUnavailable
from penstock.ipc import supervision
from penstock.ipc.crash_records import Underway, last_crash
from penstock.ipc.host_sockets import Place
from penstock.ipc.starting import NotStarted
from penstock.ipc.supervision import Supervisor

PLACE = Place("slow", "slow:create")


class _Session:
    end_reason = ""


class _Link:
    """A link that is there once the test says so."""

    ready = threading.Event()
    failure: Exception | None = None
    made = 0
    pid = 1

    def __init__(self, *_: object) -> None:
        type(self).made += 1
        self.session = _Session()
        self.closed = threading.Event()
        assert self.ready.wait(10)
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        self.closed.set()

    def output_tail(self) -> str:
        return ""


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Link]]:
    class Link(_Link):
        ready = threading.Event()

    monkeypatch.setattr(supervision, "HostConnection", Link)
    yield Link
    Link.ready.set()


def soon(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


def test_wait_for_a_start_ends_at_the_deadline_and_a_later_call_finds_the_process(
    links: type[_Link],
) -> None:
    supervisor = Supervisor(PLACE)
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(DeadObject, match="still being started"):
            supervisor.connection(soon(0.05))
        assert time.monotonic() - began < 20
    links.ready.set()
    link = supervisor.connection(soon(60))
    assert supervisor.running is link
    assert links.made == supervisor.starts == 1
    supervisor.close()


def test_waiting_calls_share_one_start(links: type[_Link]) -> None:
    supervisor = Supervisor(PLACE)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(supervisor.connection) for _ in range(4)]
        links.ready.set()
        assert len({id(w.result(60)) for w in waiting}) == 1
    assert links.made == 1
    supervisor.close()


def test_failed_start_is_reported_and_counted(links: type[_Link]) -> None:
    links.failure = DeviceUnavailable("no such driver")
    links.ready.set()
    supervisor = Supervisor(PLACE)
    with pytest.raises(DeadObject, match="no such driver"):
        supervisor.connection(soon(60))
    assert supervisor.last_end == "could not be started: no such driver"
    supervisor.close()


def test_process_started_after_close_is_ended(
    links: type[_Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "END_SECONDS", 0.05, raising=False)
    made: list[_Link] = []

    def make(*given: object) -> _Link:
        made.append(links(*given))
        return made[-1]

    monkeypatch.setattr(supervision, "HostConnection", make)
    supervisor = Supervisor(PLACE)
    with pytest.raises(DeadObject, match="still being started"):
        supervisor.connection(soon(0.01))
    supervisor.close()
    links.ready.set()
    with pytest.raises(DeadObject, match="is closed"):
        supervisor.connection(soon(60))
    assert made[0].closed.wait(60)
    assert supervisor.running is None


class _Ending(_Link):
    """A link whose host is gone, and whose end is not known yet."""

    known = threading.Event()

    def settle(self, deadline_ns: int | None = None) -> bool:
        assert deadline_ns is not None
        return self.known.wait(max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9))


def test_a_call_waits_for_the_record_of_a_death_until_its_deadline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path))
    _Ending.ready.set()
    monkeypatch.setattr(supervision, "HostConnection", _Ending)
    supervisor = Supervisor(PLACE)
    link = supervisor.connection()
    began = time.monotonic()

    def die() -> None:
        with supervisor.recording(Underway("execute", "slow", "1"), soon(0.05)):
            monkeypatch.setattr(link.session, "end_reason", "gone")
            raise DeadObject("gone")

    with pytest.raises(DeadObject):
        die()
    assert time.monotonic() - began < 20
    assert supervisor.underway == {}
    supervisor._ended(link, "was killed")
    crash = last_crash()
    assert crash is not None
    assert [e.call for e in crash.underway] == ["execute"]


def test_a_short_pause_after_a_second_death_is_waited_for(
    links: type[_Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE", 0.1)
    links.ready.set()
    for deadline_ns in (None, soon(60)):
        supervisor = Supervisor(PLACE)
        for _ in range(2):
            supervisor._count("was ended by SIGKILL")
        began = time.monotonic()
        link = supervisor.connection(deadline_ns)
        assert time.monotonic() - began >= 0.09
        assert supervisor.running is link
        supervisor.close()


@pytest.mark.parametrize(
    ("pause", "most", "deadline"), [(60.0, 2.0, None), (60.0, 2.0, 30.0), (50.0, 60.0, 40.0)]
)
def test_a_pause_that_is_long_or_ends_too_late_is_not(
    links: type[_Link],
    monkeypatch: pytest.MonkeyPatch,
    pause: float,
    most: float,
    deadline: float | None,
) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE", pause)
    monkeypatch.setattr(supervision, "MOST_PAUSE", pause)
    monkeypatch.setattr(supervision, "MOST_WAITED", most)
    supervisor = Supervisor(PLACE)
    for _ in range(2):
        supervisor._count("was ended by SIGKILL")
    began = time.monotonic()
    with pytest.raises(DeadObject, match=r"was ended by SIGKILL; it is started again in \d"):
        supervisor.connection(None if deadline is None else soon(deadline))
    assert time.monotonic() - began < 20
    assert links.made == 0
    supervisor.close()


@pytest.mark.parametrize("how", ["succeeded", "close"])
def test_a_pause_ends_when_its_supervisor_succeeds_or_closes(
    links: type[_Link], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE", 50.0)
    monkeypatch.setattr(supervision, "MOST_PAUSE", 50.0)
    monkeypatch.setattr(supervision, "MOST_WAITED", 60.0)
    links.ready.set()
    supervisor = Supervisor(PLACE)
    for _ in range(2):
        supervisor._count("was ended by SIGKILL")
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(supervisor.connection)
        # Either before it waits or while it does.
        getattr(supervisor, how)()
        if how == "close":
            with pytest.raises(DeadObject, match="is closed"):
                waiting.result(30)
        else:
            assert waiting.result(30) is supervisor.running
    assert time.monotonic() - began < 30
    supervisor.close()


def test_a_driver_that_cannot_be_loaded_has_not_died(
    links: type[_Link], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(supervision, "FIRST_PAUSE", 0.0)
    links.ready.set()
    links.failure = NotStarted("its process refuses: no licence", "Traceback", died=False)
    supervisor = Supervisor(PLACE)
    for _ in range(2 * supervision.MOST_DEATHS):
        with pytest.raises(DeadObject, match="no licence"):
            supervisor.connection()
    assert links.made == 2 * supervision.MOST_DEATHS
    assert supervisor.quarantined == ""
    assert supervisor.ends == 0
    # Of the same refusal one record is enough: they are kept for what dies.
    assert len(list((tmp_path / "crashes").iterdir())) == 1
    crash = last_crash()
    assert crash is not None
    assert (crash.deaths, crash.output) == (0, "Traceback")
    links.failure = NotStarted("it was ended by SIGSEGV before it took a client on")
    for _ in range(supervision.MOST_DEATHS):
        with pytest.raises(DeadObject, match="SIGSEGV"):
            supervisor.connection()
    assert "died 6 times in a row" in supervisor.quarantined
    assert supervisor.ends == supervision.MOST_DEATHS
    supervisor.close()


def test_a_driver_that_cannot_be_loaded_is_tried_less_and_less_often(
    links: type[_Link], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(supervision, "FIRST_PAUSE", 40.0)
    monkeypatch.setattr(supervision, "MOST_PAUSE", 50.0)
    links.ready.set()
    links.failure = NotStarted("its process refuses: no licence", died=False)
    supervisor = Supervisor(PLACE)
    for _ in range(2):
        with pytest.raises(DeadObject, match="refuses: no licence"):
            supervisor.connection()
    began = time.monotonic()
    with pytest.raises(DeadObject, match=r"no licence; it is started again in \d+\.\d s"):
        supervisor.connection()
    assert time.monotonic() - began < 20
    assert links.made == 2
    for _ in range(2000):
        supervisor._count("no licence", died=False)
    assert supervisor._not_before - time.monotonic() <= supervision.MOST_PAUSE
    links.failure = None
    supervisor._not_before = 0.0
    supervisor.connection()
    assert supervisor._refusals == 0
    supervisor.close()
