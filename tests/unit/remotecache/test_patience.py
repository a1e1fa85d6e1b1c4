"""Reads of an overloaded store: when they are tried again, and when the store is left alone."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from penstock.errors import StoreUnavailable, WrongLength
from penstock.remotecache import patience
from penstock.remotecache.patience import MOST_TRIES, Refusal, patiently
from penstock.remotecache.stores import Stored, open_store


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, which take no time, but count."""
    made: list[float] = []
    clock = [0.0]

    class Clock:
        @staticmethod
        def sleep(seconds: float) -> None:
            made.append(seconds)
            clock[0] += seconds

        @staticmethod
        def monotonic() -> float:
            return clock[0]

    monkeypatch.setattr(patience, "time", Clock)
    return made


def failing(*errors: Exception | None) -> Callable[[int], str]:
    """A read that raises these errors in turn, and then returns the number of the try."""

    def read(number: int) -> str:
        if number < len(errors) and (error := errors[number]) is not None:
            raise error
        return f"try {number}"

    return read


def test_a_read_that_works_makes_no_pause(pauses: list[float]) -> None:
    assert patiently(failing(), 5) == "try 0"
    assert pauses == []


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_refusal_that_may_pass_is_tried_again_after_a_random_pause(
    status: int, pauses: list[float]
) -> None:
    read = failing(Refusal("busy", status), Refusal("busy", status))
    assert [patiently(read, 5) for _ in range(20)] == ["try 2"] * 20
    first, second = pauses[::2], pauses[1::2]
    assert 0.02 <= min(first) < max(first) <= 0.1
    assert 0.08 <= min(second) < max(second) <= 0.4
    assert len(set(first)) > 10


@pytest.mark.parametrize("status", [400, 401, 403, 410])
def test_a_refusal_that_does_not_pass_is_final(status: int, pauses: list[float]) -> None:
    with pytest.raises(StoreUnavailable, match="no"):
        patiently(failing(Refusal("no", status)), 5)
    assert pauses == []


def test_a_read_is_tried_three_times(pauses: list[float]) -> None:
    with pytest.raises(StoreUnavailable, match="busy"):
        patiently(failing(*[Refusal("busy", 500)] * 9), 60)
    assert len(pauses) + 1 == MOST_TRIES == 3


@pytest.mark.parametrize("status", [429, 503])
def test_a_pause_that_the_server_asks_for_is_kept(status: int, pauses: list[float]) -> None:
    """And made a little longer, so that not all machines come back at once."""
    read = failing(Refusal("busy", status, 2.0))
    assert [patiently(read, 5) for _ in range(20)] == ["try 1"] * 20
    assert 2.0 <= min(pauses) < max(pauses) <= 2.5


def test_a_longer_pause_than_there_is_time_for_is_handed_on(pauses: list[float]) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        patiently(failing(Refusal("busy", 503, 60.0)), 5)
    assert (pauses, caught.value.retry_after) == ([], 60.0)


def test_an_error_of_the_server_says_nothing_of_a_pause(pauses: list[float]) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        patiently(failing(*[Refusal("broken", 500, 60.0)] * 3), 5)
    assert caught.value.retry_after == 0
    assert max(pauses) < 1


def test_pauses_end_with_the_time_there_is(pauses: list[float]) -> None:
    with pytest.raises(StoreUnavailable):
        patiently(failing(*[StoreUnavailable("no connection")] * 9), 0.001)
    assert sum(pauses) < 0.001


class Answering(http.server.BaseHTTPRequestHandler):
    """Answers with each of `answers` in turn, and with the last one from then on."""

    answers: list[tuple[int, dict[str, str], bytes]]
    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        status, headers, content = self.answers[min(len(self.asked), len(self.answers)) - 1]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        return


Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server with these answers; returns its address. `Answering.asked` counts."""
    servers: list[Any] = []

    def start(*answers: tuple[int, dict[str, str], bytes]) -> str:
        Answering.answers, Answering.asked = list(answers), []
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


OK = (200, {"ETag": '"1"'}, b"content")


def test_a_web_server_that_is_overloaded_is_asked_again_when_it_says(serve: Serve) -> None:
    store = open_store(f"http://{serve((503, {'Retry-After': '1'}, b''), OK)}/below", 5)
    began = time.monotonic()
    assert store.get("entries/a", 7) == Stored(b"content", '"1"')
    assert time.monotonic() - began >= 1
    assert Answering.asked == [("/below/entries/a", None)] * 2


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_web_server_that_asks_for_a_long_pause_is_asked_once(form: str, serve: Serve) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    text = "100" if form == "seconds" else date
    store = open_store(f"http://{serve((429, {'Retry-After': text}, b''))}", 1)
    with pytest.raises(StoreUnavailable, match="answered 429") as caught:
        store.get("a", 7)
    assert 90 < caught.value.retry_after <= 100
    assert len(Answering.asked) == 1


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", "9" * 400, "Mon, 99 Foo 9999"])
def test_nonsense_in_place_of_a_pause_is_bounded(text: str, serve: Serve) -> None:
    store = open_store(f"http://{serve((503, {'Retry-After': text}, b''))}", 0.2)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        store.get("a", 7)
    assert time.monotonic() - began < 2
    assert 0 <= caught.value.retry_after < 1e9


def test_a_web_object_is_read_within_its_bound(serve: Serve) -> None:
    address = serve((200, {}, bytes(8)))
    with pytest.raises(WrongLength, match="8 bytes in the store, more than 7"):
        open_store(f"http://{address}", 1).get("a", 7)


def test_a_web_answer_that_ends_early_is_an_error(serve: Serve) -> None:
    address = serve((200, {"Content-Length": "9"}, bytes(8)))
    with pytest.raises(StoreUnavailable):
        open_store(f"http://{address}", 0.3).get("a", 9)


def test_a_missing_web_object_is_missing(serve: Serve) -> None:
    assert open_store(f"http://{serve((404, {}, b''))}", 1).get("a", 7) is None


def test_a_user_and_a_password_are_sent(serve: Serve) -> None:
    assert open_store(f"http://me:a%40b@{serve(OK)}", 1).get("a", 7) is not None
    assert Answering.asked == [("/a", "Basic bWU6YUBi")]
