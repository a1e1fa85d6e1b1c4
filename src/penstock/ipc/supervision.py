"""Owns a driver's host process in a client: starts it, and restarts it with backoff."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from penstock.errors import DeadObject, DriverError, StateError
from penstock.hal.fence import remaining_seconds
from penstock.ipc.crash_records import ENDED_BY_OTHERS, Crash, Underway, wrote_last
from penstock.ipc.host_connection import END_SECONDS, HostConnection
from penstock.ipc.host_sockets import Place
from penstock.ipc.starting import NotStarted
from penstock.ipc.system import PatientThread
from penstock.logs import Log

log = Log("penstock.ipc")

FIRST_PAUSE: Final = 0.2
MOST_PAUSE: Final = 10.0
"""Seconds before a restart, from the second death in a row on; doubled each time."""

MOST_WAITED: Final = 2.0
"""Seconds of backoff that a call waits for; it fails at once if that is longer."""

MOST_DEATHS: Final = 6
"""Consecutive deaths, without a successful call between them, before quarantine."""

QUARANTINE_SECONDS: Final = 600.0


class _Pause(NamedTuple):
    """The process died, and is started again in *seconds*."""

    seconds: float
    message: str


class _Start:
    """A host that is being started, and the outcome."""

    def __init__(self, begin: Callable[[_Start], None]) -> None:
        self.thread = PatientThread(begin, self, name="penstock-start")
        self.done = threading.Event()
        self.host: HostConnection | None = None
        self.pause: _Pause | None = None
        self.failure: BaseException | None = None


class Supervisor:
    """One driver's host for this process. Thread-safe; unusable in a child made by `fork`."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._lock = threading.Lock()
        self._forgiven = threading.Condition(self._lock)
        self._start: _Start | None = None
        self._host: HostConnection | None = None
        self._deaths = self._refusals = 0
        self._not_before = self._quarantined_until = 0.0
        self._last = ""
        self._closed = False
        self.underway: dict[int, Underway] = {}
        self._late: dict[int, Underway] = {}
        self._process = os.getpid()
        self.starts = 0
        self.ends = 0
        """Number of processes that died."""

    def __repr__(self) -> str:
        host = self.running
        now = "quarantined" if self.quarantined else "running" if host else "not running"
        return f"Supervisor({self.place.name} = {self.place.value}, {now}, {self.starts} starts)"

    @property
    def quarantined(self) -> str:
        """Why the driver is in quarantine; empty if it is not."""
        left = self._quarantined_until - time.monotonic()
        if left <= 0:
            return ""
        return (
            f"quarantined in this program for {max(1, round(left))} s more: its process died "
            f"{self._deaths} times in a row, last it {self._last}; a program that is started now "
            "asks it at once, and penstock doctor --last-crash says more"
        )

    @property
    def last_end(self) -> str:
        """How the last process that died ended."""
        return self._last

    @property
    def running(self) -> HostConnection | None:
        """The host that runs now."""
        host = self._host
        return host if host is not None and not host.session.end_reason else None

    def connection(self, deadline_ns: int | None = None) -> HostConnection:
        """The connection to the host, which is started if necessary.

        Waits for a short backoff that ends before the deadline. Raises `DeadObject` if the host may
        not be started, fails to start, or is not ready by the deadline.
        """
        if self._process != os.getpid():
            raise StateError("the process of a driver belongs to the process that was forked")
        found = self._connected(deadline_ns)
        if isinstance(found, _Pause):
            left = remaining_seconds(deadline_ns)
            if found.seconds >= (MOST_WAITED if left is None else min(left, MOST_WAITED)):
                raise DeadObject(found.message)
            with self._forgiven:
                self._forgiven.wait_for(lambda: self._closed or not self._not_before, found.seconds)
            found = self._connected(deadline_ns)
            if isinstance(found, _Pause):
                raise DeadObject(found.message)
        return found

    def _connected(self, deadline_ns: int | None) -> HostConnection | _Pause:
        if (running := self.running) is not None:
            return running
        with self._lock:
            start = self._start
            if start is None:
                start = _Start(self._begin)
                try:
                    start.thread.start_within(remaining_seconds(deadline_ns))
                except RuntimeError as error:
                    raise DeadObject(f"driver {self.place.name}: {error}") from error
                self._start = start
        if not start.done.wait(remaining_seconds(deadline_ns)):
            raise DeadObject(f"the process of driver {self.place.name} is still being started")
        start.thread.join()
        if start.pause is not None:
            return start.pause
        if isinstance(start.failure, DriverError):
            raise DeadObject(str(start.failure)) from start.failure
        if start.failure is not None:
            raise start.failure
        assert start.host is not None
        return start.host

    def _begin(self, start: _Start) -> None:
        """Starts the host in a thread, so that later calls find it if this one gives up."""
        late = None
        try:
            host = self.running or self._started()
            if isinstance(host, _Pause):
                start.pause = host
                return
            with self._lock:
                start.host = host
                if self._closed:
                    late = host
                    start.failure = DeadObject(f"driver {self.place.name} is closed")
                else:
                    self._host = host
        except BaseException as error:  # noqa: BLE001  # the waiting thread raises it
            start.failure = error
        finally:
            if late is not None:
                late.close()
            with self._lock:
                self._start = None
            start.done.set()

    def _started(self) -> HostConnection | _Pause:
        self._settle()
        if self._closed:
            raise DeadObject(f"driver {self.place.name} is closed")
        if reason := self.quarantined:
            raise DeadObject(f"driver {self.place.name} is {reason}")
        if (pause := self._not_before - time.monotonic()) > 0:
            message = (
                f"the process of driver {self.place.name} {self._last}; "
                f"it is started again in {pause:.1f} s"
            )
            if self._refusals:
                # A driver that failed to load is unlikely to load so soon.
                raise DeadObject(message)
            return _Pause(pause, message)
        try:
            host = HostConnection(self.place, self._ended)
        except DriverError as error:
            output, died = "", True
            if isinstance(error, NotStarted):
                output, died = error.output, error.died
            self._bury(0, f"could not be started: {error}", output, died=died)
            raise
        self.starts += 1
        self._refusals = 0
        return host

    def await_end(self, host: HostConnection, deadline_ns: int | None = None) -> None:
        """Waits until the end of a dead *host* is known and recorded, or until the deadline."""
        if host.session.end_reason and not host.settle(deadline_ns):
            # A caller that gives up is in the record all the same.
            self._late.update(self.underway)

    def succeeded(self) -> None:
        """An execution succeeded: resets the count of deaths."""
        if self._deaths or self._refusals:
            with self._forgiven:
                self._deaths = self._refusals = 0
                self._not_before = self._quarantined_until = 0.0
                self._forgiven.notify_all()

    @contextmanager
    def recording(self, call: Underway, deadline_ns: int | None = None) -> Iterator[None]:
        """A block in which a crash record names *call*. At its end, unless the deadline is first,
        the record is complete, and `DeadObject` says how the process ended.
        """
        key = id(call)
        self.underway[key] = call
        try:
            yield
        except DeadObject as error:
            host = self._host
            if host is None or not host.session.end_reason:
                raise
            before = host.session.end_reason
            self.await_end(host, deadline_ns)
            if str(error) != before or host.session.end_reason == before:
                raise
            raise DeadObject(host.session.end_reason) from error
        finally:
            self.underway.pop(key, None)

    def close(self) -> None:
        """Disconnects from the host for good, even while it starts. A second call does nothing."""
        with self._forgiven:
            self._closed = True
            start = self._start
            self._forgiven.notify_all()
        if start is not None:
            start.done.wait(END_SECONDS)
        with self._lock:
            host, self._host = self._host, None
        if host is not None:
            host.close()

    def forget(self) -> None:
        """In a child process made by `fork`: closes inherited descriptors."""
        host, self._host = self._host, None
        if host is not None:
            host.close()

    def _settle(self) -> None:
        """Closes the resources of a host that has ended."""
        host, self._host = self._host, None
        if host is not None:
            host.settle()
            host.close()
        self._late.clear()

    def _ended(self, host: HostConnection, how: str) -> None:
        """Called by the host's own thread."""
        output = host.output_tail()
        end = how + wrote_last(output)
        log.warning("the process of driver %s (%d) %s", self.place.name, host.pid, end)
        self._bury(host.pid, how, output)

    def _bury(self, pid: int, how: str, output: str, *, died: bool = True) -> None:
        """Counts and records a death, or a refusal once; *pid* is 0 without a process.

        A process that is killed between calls did not crash: whoever ends a program ends its
        processes too, often these first.
        """
        known = not died and how == self._last
        self._count(how, died=died)
        calls, barred = list((self._late | self.underway).values()), bool(self.quarantined)
        if not known and (calls or how not in ENDED_BY_OTHERS):
            facts: dict[str, Any] = {"deaths": self._deaths, "quarantined": barred}
            Crash.of(self.place, calls, pid=pid, how=how, output=output, **facts).keep()

    def _count(self, how: str, *, died: bool = True) -> None:
        with self._lock:
            self._last = how
            self._refusals += not died
            self._deaths += died
            self.ends += died
            now, row = time.monotonic(), self._deaths + self._refusals
            doubled = min(row - 2, 30)
            pause = min(FIRST_PAUSE * 2**doubled, MOST_PAUSE) if row > 1 else 0.0
            if died and self._deaths >= MOST_DEATHS:
                pause = QUARANTINE_SECONDS
                self._quarantined_until = now + pause
            self._not_before = now + pause
