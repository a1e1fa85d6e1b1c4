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
from penstock.ipc.evidence import Underway, last_crash
from penstock.ipc.starting import Place
from penstock.ipc.supervision import Supervisor

PLACE = Place("slow", "slow:create")


class _Session:
    gone = ""


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

    monkeypatch.setattr(supervision, "Link", Link)
    yield Link
    Link.ready.set()


def soon(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


def test_who_waits_for_a_start_waits_until_the_deadline_and_finds_it_later(
    links: type[_Link],
) -> None:
    supervisor = Supervisor(PLACE)
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(DeadObject, match="still being started"):
            supervisor.link(soon(0.05))
        assert time.monotonic() - began < 2
    links.ready.set()
    link = supervisor.link(soon(5))
    assert supervisor.running is link
    assert links.made == supervisor.starts == 1
    supervisor.close()


def test_everybody_who_waits_gets_the_one_that_is_started(links: type[_Link]) -> None:
    supervisor = Supervisor(PLACE)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(supervisor.link) for _ in range(4)]
        links.ready.set()
        assert len({id(w.result(5)) for w in waiting}) == 1
    assert links.made == 1
    supervisor.close()


def test_a_start_that_fails_is_told_and_counted(links: type[_Link]) -> None:
    links.failure = DeviceUnavailable("no such driver")
    links.ready.set()
    supervisor = Supervisor(PLACE)
    with pytest.raises(DeadObject, match="no such driver"):
        supervisor.link(soon(5))
    assert supervisor.last_end == "could not be started: no such driver"
    supervisor.close()


def test_one_that_is_there_after_close_is_left(
    links: type[_Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "END_SECONDS", 0.05, raising=False)
    made: list[_Link] = []

    def make(*given: object) -> _Link:
        made.append(links(*given))
        return made[-1]

    monkeypatch.setattr(supervision, "Link", make)
    supervisor = Supervisor(PLACE)
    with pytest.raises(DeadObject, match="still being started"):
        supervisor.link(soon(0.01))
    supervisor.close()
    links.ready.set()
    with pytest.raises(DeadObject, match="is closed"):
        supervisor.link(soon(5))
    assert made[0].closed.wait(5)
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
    monkeypatch.setattr(supervision, "Link", _Ending)
    supervisor = Supervisor(PLACE)
    link = supervisor.link()
    began = time.monotonic()

    def die() -> None:
        with supervisor.noted(Underway("execute", "slow", "1"), soon(0.05)):
            monkeypatch.setattr(link.session, "gone", "gone")
            raise DeadObject("gone")

    with pytest.raises(DeadObject):
        die()
    assert time.monotonic() - began < 2
    assert supervisor.underway == {}
    supervisor._ended(link, "was killed")
    crash = last_crash()
    assert crash is not None
    assert [e.call for e in crash.underway] == ["execute"]
