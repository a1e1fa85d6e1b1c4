"""A client's connection to a host process, with a watchdog, and its output."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock import knobs
from penstock.errors import DeviceUnavailable, InputError, WireError
from penstock.hal.fence import remaining_seconds
from penstock.ipc import system
from penstock.ipc.channel import Session
from penstock.ipc.crash_records import how_ended, reason_of_loss, tail
from penstock.ipc.deadlines import Silence, StoppedProcess
from penstock.ipc.host.heartbeat import HeartbeatView
from penstock.ipc.host_sockets import Place
from penstock.ipc.starting import Started, connect
from penstock.ipc.transport import close_all
from penstock.logs import Log, printable

log = Log("penstock.ipc")

LOOK_SECONDS: Final = 0.25
"""Seconds between two checks of a host."""

LINE_BYTES: Final = 4096
"""Most bytes of one line of a host's output that are logged."""

MOST_CHUNKS: Final = 64
"""Chunks of 64 KiB of output read at a time, so that a flood cannot hide the host's end."""

END_SECONDS: Final = 3.0
"""Seconds to wait for the end of a child host after the last connection was closed."""


class HostConnection:
    """A host that accepted this client. *ended* is called once with the cause if it dies."""

    def __init__(self, place: Place, ended: Callable[[HostConnection, str], None]) -> None:
        self.place = place
        self._limit = knobs.driver_timeout_ms() / 1000
        self._started: Started = connect(place)
        self._ended = ended
        self._process = os.getpid()
        self._closing = self._reaped = False
        self._condemned = ""
        try:
            self._heartbeat = HeartbeatView(self._started.page)
            self._wake = system.event()
        except (WireError, OSError) as error:
            self._refuse()
            message = f"driver {place.name}: its process is no host process: {error}"
            raise DeviceUnavailable(message) from error
        self._written = 0
        self._rest = b""
        self._lock = threading.Lock()
        pidfd = self._started.pidfd
        self.session = Session(
            self._started.connection,
            lambda: system.signal_event(self._wake),
            pidfd if pidfd >= 0 else None,
            self._watching if pidfd >= 0 else None,
        )
        self._watcher = system.PatientThread(self._watch, name=f"penstock-watch-{place.name}")
        try:
            self._watcher.start_within()
        except RuntimeError as error:
            self._closing = True
            self.session.close(partial(os.close, self._wake))
            self._heartbeat.close()
            self._refuse()
            raise DeviceUnavailable(f"driver {place.name}: {error}") from error

    @property
    def pid(self) -> int:
        """The driver's process."""
        return self._started.pid

    @property
    def devices(self) -> int:
        """The driver's number of devices."""
        return self._started.devices

    @property
    def sandbox(self) -> tuple[tuple[str, str], ...]:
        """The host's report on each measure of its sandbox."""
        return self._started.sandbox

    def output_tail(self) -> str:
        """The end of the host's standard output and error."""
        return tail(self._started.output)

    def close(self) -> None:
        """Disconnects; a second call does nothing. A child of `fork` only closes descriptors."""
        if os.getpid() != self._process:
            self.session.leave()
            close_all([*self._descriptors, self._wake])
            return
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self.session.end("the connection to the driver's process is closed")
        if threading.current_thread() is not self._watcher:
            self._watcher.join()
        self._release()

    def settle(self, deadline_ns: int | None = None) -> bool:
        """Waits until the end of a dead host is known, for some seconds or until the deadline.

        Returns whether it is known. Without a deadline it then closes the connection.
        """
        if threading.current_thread() is not self._watcher and os.getpid() == self._process:
            seconds = 2 * END_SECONDS
            if (left := remaining_seconds(deadline_ns)) is not None:
                seconds = min(seconds, left)
            self._watcher.join(seconds)
            if self._watcher.is_alive():
                return False
        if deadline_ns is None:
            self.close()
        return True

    def kill(self, why: str) -> None:
        """Kills an unusable host for the reason *why*: calls of its clients raise `DeadObject`.

        A process that may not be a host keeps running; only this connection ends.
        """
        self._condemned = why
        self.session.end(f"{self._name} was killed: {why}")
        self._kill()

    @property
    def _name(self) -> str:
        return f"the process of driver {self.place.name} ({self.pid})"

    @property
    def _descriptors(self) -> list[int]:
        return [self._started.pidfd, self._started.page, self._started.output]

    def _kill(self) -> None:
        if self._started.pidfd >= 0:
            with contextlib.suppress(OSError):
                system.kill_process(self._started.pidfd)

    def _refuse(self) -> None:
        """Disconnects from a host that cannot be watched."""
        self._started.connection.close()
        if self._started.child:
            self._kill()
            self._wait_for_end(END_SECONDS)
            self._reap()
        close_all(self._descriptors)

    def _watching(self, deadline_ns: int) -> StoppedProcess:
        is_stopped, limit_ns = partial(system.is_stopped, self.pid), int(self._limit * 1e9)
        return StoppedProcess(is_stopped, self._name, limit_ns, deadline_ns)

    def _release(self) -> None:
        if self._started.child:
            beats = self._heartbeat.read()
            if not self._wait_for_end(END_SECONDS) and self._heartbeat.read() == beats:
                # It serves no other client either: a host in use keeps its heartbeat.
                self._kill()
                self._wait_for_end(END_SECONDS)
            self._reap()
            if not self._reaped:
                # It has other clients, or ends slowly: no zombie stays.
                with contextlib.suppress(RuntimeError, MemoryError):
                    system.start_thread(_reap_at_end, self._started.broker)
        self._drain(last=True)
        self.session.close(partial(os.close, self._wake))
        self._heartbeat.close()
        close_all(self._descriptors)

    def _watch(self) -> None:
        if sys.platform == "win32":
            raise OSError(system.LINUX_ONLY)
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if self._started.pidfd >= 0:
            poll.register(self._started.pidfd, select.POLLIN)
        silence = Silence(self._heartbeat.read(), time.monotonic(), LOOK_SECONDS)
        while True:
            found = {fd for fd, _ in poll.poll(LOOK_SECONDS * 1000)}
            if self._closing:
                return
            self._drain()
            if self._started.pidfd in found:
                self._over(self._how_it_ended())
                return
            if self.session.end_reason:
                # The socket may show its end first. On a busy machine the broker, which knows how
                # the driver's process ended, ends much later than that process.
                ended = self._wait_for_end(1.0) or (
                    system.has_ended(self.pid) and self._wait_for_end(END_SECONDS)
                )
                self._over(self._how_it_ended() if ended else self._killed(self.session.end_reason))
                return
            silent = silence.at_look(self._heartbeat.read(), time.monotonic())
            if silent > (limit := self._patience()):
                self._over(self._killed(f"hung: no sign of life for {limit:g} s"))
                return
            self.session.flush(time.monotonic_ns())

    def _patience(self) -> float:
        """Seconds without a heartbeat after which a host counts as hung."""
        try:
            self._limit = knobs.driver_timeout_ms() / 1000
        except InputError:
            log.debug("invalid settings: the heartbeat's limit stays at %s s", self._limit)
        return self._limit

    def _over(self, how: str) -> None:
        self._drain(last=True)
        self.session.end(f"{self._name} {how}", certain=True)
        self._ended(self, how)

    def _killed(self, why: str) -> str:
        """Ends an unusable host."""
        self._kill()
        if self._started.child and self._wait_for_end(END_SECONDS):
            self._reap()
        return f"was killed: {why}"

    def _how_it_ended(self) -> str:
        # Another connection of this process may have started it.
        status = self._reap() if self._started.pidfd >= 0 else None
        if self._condemned:
            return f"was killed: {self._condemned}"
        if reason := reason_of_loss(status, self.output_tail()):
            return f"ended itself: {reason}"
        return how_ended(status)

    def _wait_for_end(self, seconds: float) -> bool:
        return self._started.pidfd >= 0 and system.wait_for_end(self._started.pidfd, seconds)

    def _reap(self) -> int | None:
        if sys.platform == "win32":
            return None
        try:
            pid, status = os.waitpid(self._started.broker, os.WNOHANG)
        except ChildProcessError:
            self._reaped = True
            return None
        self._reaped = bool(pid)
        return status if pid else None

    def _drain(self, *, last: bool = False) -> None:
        """Logs the host's new output, line by line."""
        if sys.platform == "win32":
            return
        for _ in range(MOST_CHUNKS):
            output = self._started.output
            try:
                # The host frees old output to save memory, which leaves a hole in the file.
                self._written = os.lseek(output, self._written, os.SEEK_DATA)
                content = os.pread(output, 1 << 16, self._written)
            except OSError:
                break
            if not content:
                break
            self._written += len(content)
            *lines, self._rest = (self._rest + content).split(b"\n")
            if len(self._rest) > LINE_BYTES:
                lines.append(self._rest)
                self._rest = b""
            self._log(lines)
        if last:
            self._log([self._rest])
            self._rest = b""

    def _log(self, lines: list[bytes]) -> None:
        for line in lines:
            text = printable(line.strip(b"\0\r")[:LINE_BYTES].decode("utf-8", "replace"))
            if text:
                log.info("%s (%d): %s", self.place.name, self.pid, text)


def _reap_at_end(pid: int) -> None:
    # Another connection of this process may have been first.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
