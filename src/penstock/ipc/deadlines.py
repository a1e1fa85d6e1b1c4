"""Deadlines of calls to host processes: a nested call has that of its outer call, such as a
compile, and a call ends early if its host process was stopped by `SIGSTOP`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from penstock.errors import DeadObject

CHECK_NS: Final = 100_000_000
SHORTEST_CHECK_NS: Final = 5_000_000
"""Limits of the interval between checks of a call: an eighth of the time left."""

RESTART_NS: Final = 1_000_000_000
"""Minimum nanoseconds to start a new host process and get an answer."""

_restarts: Final[ContextVar[dict[str, str] | None]] = ContextVar(
    "penstock.ipc.restarts", default=None
)
_deadline: Final[ContextVar[int | None]] = ContextVar("penstock.ipc.deadlines", default=None)


@contextmanager
def deadline_context(deadline_ns: int | None) -> Iterator[None]:
    """A block whose calls to host processes get this `time.monotonic_ns` deadline, unless None."""
    if deadline_ns is None:
        yield
        return
    token = _deadline.set(deadline_ns)
    try:
        yield
    finally:
        _deadline.reset(token)


@contextmanager
def collecting_restarts(restarts: dict[str, str]) -> Iterator[None]:
    """A block that records in *restarts*, by device, how a process ended that was restarted."""
    token = _restarts.set(restarts)
    try:
        yield
    finally:
        _restarts.reset(token)


def record_restart(device: str, ended: str) -> None:
    """Records a restart for the innermost `collecting_restarts` block of this thread, if any."""
    if (restarts := _restarts.get()) is not None:
        restarts[device] = ended


def current_deadline() -> int | None:
    """The deadline of the innermost `deadline_context` of this thread; None outside of one."""
    return _deadline.get()


def halfway_to(deadline_ns: int | None) -> int | None:
    """The middle between now and *deadline_ns*; the other half is left for a fallback."""
    if deadline_ns is None:
        return None
    now = time.monotonic_ns()
    return now + max(0, deadline_ns - now) // 2


class StoppedProcess:
    """Watches the host process *who* during a call with a deadline.

    The call must not write to the caller's memory. After half of the time the call ends, if the
    process is stopped and the watchdog, which needs *limit_ns*, would be too late for a fallback.
    """

    def __init__(
        self,
        is_stopped: Callable[[], bool],
        who: str,
        limit_ns: int,
        deadline_ns: int,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._is_stopped, self._who, self._limit_ns = is_stopped, who, limit_ns
        now = clock()
        self._deadline_ns, self._clock = deadline_ns, clock
        self._half_ns = now + max(0, deadline_ns - now) // 2
        self._since_ns: int | None = None
        self.next_ns = self._after(now)
        """Time of the next check."""

    def check(self) -> None:
        """Raises `DeadObject` if the call should stop waiting."""
        now = self._clock()
        if now < self.next_ns:
            return
        self.next_ns = self._after(now)
        if not self._is_stopped():
            self._since_ns = None
            return
        if self._since_ns is None:
            # A single check may have met a short pause.
            self._since_ns = now
            return
        hangs_ns = self._since_ns + self._limit_ns
        if now >= self._half_ns and hangs_ns + RESTART_NS > self._deadline_ns:
            raise DeadObject(
                f"{self._who} is stopped, and does not answer before the deadline; SIGCONT lets it "
                f"go on, or it is killed after {self._limit_ns / 1e9:g} s without a sign of life, "
                "and penstock doctor --last-crash has a record from then on"
            )

    def _after(self, now: int) -> int:
        pause = max(SHORTEST_CHECK_NS, min(CHECK_NS, (self._deadline_ns - now) // 8))
        return min(now + pause, self._deadline_ns)


class Silence:
    """Counts the seconds without a heartbeat of a host process, which a watchdog looks for.

    A look counts at most *most_s* seconds, however long after the one before it: while the whole
    machine stood still, or this process, no host could give a sign of life.
    """

    def __init__(self, beats: int, now_s: float, most_s: float) -> None:
        self._beats, self._before_s, self._most_s = beats, now_s, most_s
        self._silent_s = 0.0

    def at_look(self, beats: int, now_s: float) -> float:
        """The seconds of silence up to now, by the heartbeats counted so far."""
        self._silent_s += min(now_s - self._before_s, self._most_s)
        self._before_s = now_s
        if beats != self._beats:
            self._beats, self._silent_s = beats, 0.0
        return self._silent_s
