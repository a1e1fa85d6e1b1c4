"""The reload of a model that was unloaded to make room, and the requests that wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from penstock.errors import FOREIGN
from penstock.hal import CancelToken
from penstock.serve.errors import (
    DeadlinePassed,
    QueueFull,
    RequestCancelled,
    ServingError,
    serving_error,
)
from penstock.serve.served import ServedVersion

POLL_SECONDS: Final = 0.05
"""Time between two looks whether the client of a waiting request has gone."""


class _Waiter:
    def __init__(self, version: str) -> None:
        self.version = version
        self.found: ServedVersion | None = None


class Reload:
    """Loads a model once, in a thread of its own, for all requests that wait. Thread-safe.

    *load* loads it. *choose* returns the version that a request gets, which is then taken for it,
    so that a request that waited is answered although the model may be unloaded at once again.
    *ended* is called before the requests go on. At most *waiting* requests wait.
    """

    def __init__(
        self,
        load: Callable[[], None],
        choose: Callable[[str], ServedVersion | None],
        ended: Callable[[], None],
        waiting: int,
    ) -> None:
        self._load, self._choose, self._on_end = load, choose, ended
        self._most = waiting
        self._lock = threading.Lock()
        self._waiters: list[_Waiter] = []
        self._ended = threading.Event()
        self._error: ServingError | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-reload", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Returns once the load has ended."""
        self._thread.join()

    def wait(
        self, version: str, deadline_ns: int | None, cancel: CancelToken | None
    ) -> ServedVersion | None:
        """The version *version*, taken; None if there is none.

        Raises the load's error, `DeadlinePassed`, `RequestCancelled` and `QueueFull`.
        """
        waiter = _Waiter(version)
        with self._lock:
            if self._ended.is_set():
                return None
            if len(self._waiters) >= self._most:
                raise QueueFull(f"{self._most} requests wait for this model already")
            self._waiters.append(waiter)
        while not self._ended.wait(_slice(deadline_ns)):
            refusal = _refusal(deadline_ns, cancel)
            if refusal is not None:
                with self._lock:
                    if not self._ended.is_set():
                        self._waiters.remove(waiter)
                        raise refusal
        if self._error is not None:
            raise type(self._error)(str(self._error))
        return waiter.found

    def _run(self) -> None:
        try:
            self._load()
        except FOREIGN as error:
            self._error = serving_error(error)
        with self._lock:
            for waiter in self._waiters:
                found = None if self._error is not None else self._choose(waiter.version)
                waiter.found = found if found is not None and found.take() else None
            self._on_end()
            self._ended.set()


def _slice(deadline_ns: int | None) -> float:
    if deadline_ns is None:
        return POLL_SECONDS
    return max(0.0, min(POLL_SECONDS, (deadline_ns - time.monotonic_ns()) / 1e9))


def _refusal(deadline_ns: int | None, cancel: CancelToken | None) -> ServingError | None:
    if cancel is not None and cancel.is_set():
        return RequestCancelled("the client cancelled the request")
    if deadline_ns is not None and time.monotonic_ns() >= deadline_ns:
        return DeadlinePassed("the request's timeout passed while its model was loaded")
    return None
