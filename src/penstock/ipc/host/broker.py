"""The broker: parent of a driver's process.

It starts that process, accepts clients, and ends the process after the last client. It runs no code
of the driver.

The broker keeps what a driver must not have: the listening socket and (`sealing`) the user's key.
It passes each client's socket to the driver's process, and kills that process if it does not end.

The driver's process gets its own namespaces if the kernel allows that to this user. Two more
processes are needed then. A process cannot enter another PID namespace; it can only start children
there. The first process in a namespace receives no signals from inside it, so it cannot run the
driver: it waits for the driver's process and reports its exit status.
"""

from __future__ import annotations

import array
import gc
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn

from penstock import knobs
from penstock.ipc.sandbox import kernel
from penstock.ipc.sandbox.kernel import Measure, die_with, die_with_parent
from penstock.ipc.system import LINUX_ONLY, kill_process, open_peer, open_process, peer

STARTED: Final = b"+"
READY: Final = b"="
REFUSED: Final = b"-"
ENDED: Final = b"!"
"""Each begins a line of the report: a PID, success, the reason of a failure, an exit status."""

PR_SET_CHILD_SUBREAPER: Final = 36

MOST_REASON: Final = 512


class Launched(NamedTuple):
    """The parent's view of the new process: the child *process* to wait for.

    The descriptor *report* is a pipe with the exit status of the driver's process. It is -1 if the
    child is that process. *read* is the part of the report that was already read.
    """

    process: int
    report: int = -1
    read: bytes = b""


def launch(
    drive: Callable[[Measure, Callable[[], None]], NoReturn],
    *,
    apart: bool,
    kept: Sequence[socket.socket] = (),
) -> Launched:
    """Starts a process that calls *drive*.

    *drive* gets the result for its namespaces, and a function to call once they are set up. After
    an `OSError` before that call, the process is started again without namespaces, as if *apart*
    were False. The child closes *kept*. Call this before other threads start.
    """
    if sys.platform == "win32":
        raise OSError(LINUX_ONLY)
    reason = "switched off by the knob namespaces"
    parent = os.getpid()
    if apart:
        (report, write_report), (go, write_go) = os.pipe(), os.pipe()
        kernel.prctl(PR_SET_CHILD_SUBREAPER, 1)
        first = os.fork()
        if not first:
            for sock in kept:
                sock.close()
            os.close(report)
            os.close(write_go)
            _enter(write_report, go, parent, drive)
        os.close(write_report)
        os.close(go)
        os.waitpid(first, 0)
        # Only now is this process the parent of the one in the namespaces, and can end with it.
        with suppress(BrokenPipeError):
            os.write(write_go, READY)
        os.close(write_go)
        launched = _launched(report)
        if isinstance(launched, Launched):
            return launched
        reason = launched
    driver = os.fork()
    if not driver:
        for sock in kept:
            sock.close()
        die_with(parent)
        drive(Measure(kernel.NAMESPACES, False, reason), lambda: None)
    return Launched(driver)


def _launched(report: int) -> Launched | str:
    """The first process in the namespaces, once the driver's is set up; else the reason."""
    process, reason, rest = 0, b"the process that tried them ended", b""
    while part := os.read(report, 1 << 12):
        rest += part
        while b"\n" in rest:
            line, _, rest = rest.partition(b"\n")
            if line.startswith(STARTED):
                process = int(line[1:])
            elif line == READY:
                return Launched(process, report, rest)
            elif line.startswith(REFUSED):
                reason = line[1 : 1 + MOST_REASON]
    os.close(report)
    if process:
        with suppress(ChildProcessError):
            os.waitpid(process, 0)
    return f"the kernel refuses them: {reason.decode('utf-8', 'replace')}"


def _enter(
    report: int, go: int, parent: int, drive: Callable[[Measure, Callable[[], None]], NoReturn]
) -> NoReturn:
    """In the first child: enters the namespaces, starts a process there, and ends."""
    if sys.platform == "win32":
        raise OSError(LINUX_ONLY)
    try:
        kernel.enter_namespaces()
        first = os.fork()
    except OSError as error:
        _refuse(report, error)
    if first:
        os.write(report, b"%s%d\n" % (STARTED, first))
        os._exit(0)
    if os.read(go, 1) != READY:
        os._exit(1)
    os.close(go)
    die_with_parent()
    driver = os.fork()
    if driver:
        _wait_for(driver, report)
    if not os.path.exists(f"/proc/{parent}"):
        # It ended before the kernel was asked to end this process with it.
        os._exit(1)

    def ready() -> None:
        os.write(report, READY + b"\n")
        os.close(report)

    try:
        drive(kernel.HELD_NAMESPACES, ready)
    except OSError as error:
        _refuse(report, error)


def _refuse(report: int, error: OSError) -> NoReturn:
    reason = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    with suppress(OSError):
        os.write(report, REFUSED + reason.replace("\n", " ").encode("utf-8", "replace") + b"\n")
    os._exit(1)


def _wait_for(driver: int, report: int) -> NoReturn:
    """In the first process of the namespaces: reaps orphans and reports how the driver ended."""
    if sys.platform == "win32":
        raise OSError(LINUX_ONLY)
    os.closerange(0, report)
    os.closerange(report + 1, 1 << 16)
    while True:
        process, status = os.waitpid(-1, 0)
        if process == driver:
            with suppress(OSError):
                os.write(report, b"%s%d\n" % (ENDED, status))
            os._exit(0)


def status_of(launched: Launched) -> int:
    """Exit status of the driver's process, as `os.waitpid` reports it; waits for the child."""
    status = os.waitpid(launched.process, 0)[1]
    if launched.report < 0:
        return status
    report = launched.read
    # Its only writer has ended.
    while part := os.read(launched.report, 1 << 12):
        report += part
    os.close(launched.report)
    reported = report.rpartition(ENDED)[2].removesuffix(b"\n")
    return int(reported) if reported.isdigit() else status


PARTING_SECONDS: Final = 3.0
"""Seconds a driver has to close its devices after its last client; then it is killed."""

ACCEPT_PAUSE: Final = 0.1
"""The pause before another attempt to accept a client, usually for lack of descriptors."""

BACKLOG: Final = 128

MOST_SOCKETS: Final = 1024
"""Most clients at a time, including those that the driver's process refuses."""

DESCRIPTORS: Final = 3 * MOST_SOCKETS
"""Descriptor limit: two for each client, and some for the process."""

IN: Final = 1
"""EPOLLIN."""
SCM_RIGHTS: Final = 1

GUEST: Final = struct.Struct("=qi")
"""Sent with a client's socket: its user and its number, which is returned on failure."""

DRIVER_ENDED: Final = 128


def collect_from_now_on() -> None:
    """Turns collection of garbage on, but for the objects that there are: they stay."""
    gc.freeze()
    gc.enable()


class Wanted(NamedTuple):
    """What to start: the entry point *name* = *value* of *origin*.

    *first* is the first client's socket. *listener* accepts other clients of *users* (None: any
    user). A *service* keeps running without clients.
    """

    name: str
    value: str
    origin: str
    first: socket.socket | None
    listener: socket.socket | None
    users: frozenset[int] | None
    service: bool


class Met:
    """A client: its socket, whose end the broker polls, and its process, if identified."""

    __slots__ = ("process", "sock", "user")

    def __init__(self, sock: socket.socket, process: int, user: int = 0) -> None:
        self.sock, self.process, self.user = sock, process, user

    @property
    def descriptors(self) -> list[int]:
        return [fd for fd in (self.sock.fileno(), self.process) if fd >= 0]

    def close(self) -> None:
        self.sock.close()
        if self.process >= 0:
            os.close(self.process)


class Broker:
    """Manages the driver's process: sends it clients over *guests*, seals for it over *asked*."""

    def __init__(
        self, launched: Launched, guests: Any, asked: socket.socket, wanted: Wanted
    ) -> None:
        self._launched, self._child = launched, open_process(launched.process)
        self._guests, self._asked, self._wanted = guests, asked, wanted
        self._listener = listener = wanted.listener
        guests.setblocking(False)
        self._met: dict[int, Met] = {}
        self._refused: set[int] = set()
        self._poll: Any
        if sys.platform != "linux":
            raise OSError(LINUX_ONLY)
        self._poll = select.epoll()
        for each in (self._child, asked, guests):
            self._poll.register(each, IN)
        if listener is not None:
            listener.setblocking(False)
            # Peers see the credentials of the last `listen`.
            listener.listen(BACKLOG)
            self._poll.register(listener, IN)

    def run(self) -> NoReturn:
        """Runs until the driver's process has ended, then ends with its status."""
        _raise_limit()
        if knobs.sandbox_log():
            self._list_refusals()
        if self._wanted.first is not None:
            self._take_on(self._wanted.first)
        killed_at: float | None = None
        while True:
            if killed_at is None and not self._wanted.service and not self._met:
                self._part()
                killed_at = time.monotonic() + PARTING_SECONDS
            pause = None if killed_at is None else max(0.0, killed_at - time.monotonic())
            if self._refused:
                pause = ACCEPT_PAUSE
            heard = self._poll.poll(pause)
            for fd, _ in heard:
                if fd == self._child:
                    end_as(status_of(self._launched))
                elif fd == self._asked.fileno():
                    self._seal()
                elif fd == self._guests.fileno():
                    self._hear()
                elif (met := self._met.get(fd)) is not None:
                    self._leave(met)
            if self._refused and not heard:
                self._give_again()
            self._accept()
            if killed_at is not None and time.monotonic() >= killed_at:
                with suppress(ProcessLookupError):
                    kill_process(self._child)
                killed_at += PARTING_SECONDS

    def _accept(self) -> None:
        for _ in range(BACKLOG):
            if self._listener is None:
                return
            try:
                sock = self._listener.accept()[0]
            except BlockingIOError:
                return
            except OSError:
                # The waiting client is still in the queue: without a pause this loop would spin.
                time.sleep(ACCEPT_PAUSE)
                return
            self._take_on(sock)

    def _take_on(self, sock: socket.socket) -> None:
        """Passes the client to the driver's process, or closes its connection."""
        process = -1
        try:
            _, user = peer(sock)
            if self._wanted.users is not None and user not in self._wanted.users:
                raise PermissionError(f"user {user} is not this host's")
            if len(self._met) > 2 * MOST_SOCKETS:
                raise BlockingIOError
            with suppress(ProcessLookupError):
                process = open_peer(sock)
            met = Met(sock, process, user)
            for fd in met.descriptors:
                # Only the end of a socket is reported.
                self._poll.register(fd, IN if fd == process else 0)
                self._met[fd] = met
            give(self._guests, sock.fileno(), user, sock.fileno())
        except OSError:
            self._leave(Met(sock, process))

    def _hear(self) -> None:
        """Reads which clients the driver's process had no descriptor for."""
        for _ in range(BACKLOG):
            try:
                message = self._guests.recv(GUEST.size)
            except OSError:
                return
            if not message:
                self._poll.unregister(self._guests)
                return
            if len(message) == GUEST.size and (number := GUEST.unpack(message)[1]) in self._met:
                self._refused.add(number)

    def _give_again(self) -> None:
        """Sends refused clients again: the driver's process may have a descriptor now."""
        refused, self._refused = self._refused, set()
        for number in refused:
            met = self._met.get(number)
            if met is not None and met.sock.fileno() == number:
                try:
                    give(self._guests, number, met.user, number)
                except OSError:
                    self._leave(met)

    def _leave(self, met: Met) -> None:
        for fd in met.descriptors:
            self._met.pop(fd, None)
            # The driver's process has the same socket: closing it here does not remove it from the
            # poll.
            with suppress(OSError):
                self._poll.unregister(fd)
        # If its process has ended, a child of it may still have the other end.
        with suppress(OSError):
            met.sock.shutdown(socket.SHUT_RDWR)
        met.close()

    def _seal(self) -> None:
        """Starts a thread that seals at the first request; its imports happen there."""
        self._poll.unregister(self._asked)
        from penstock.ipc.host.sealing import Sealer
        from penstock.ipc.system import start_thread

        sealer = Sealer(self._asked, self._wanted.origin)
        try:
            start_thread(sealer.serve)
        except (RuntimeError, MemoryError):
            self._asked.close()

    def _list_refusals(self) -> None:
        """Lists rejected calls in a thread, whose descriptor comes before driver code runs."""
        from penstock.ipc.sandbox.seccomp import list_refusals
        from penstock.ipc.system import start_thread

        self._guests.setblocking(True)
        if (given := taken(self._guests)) is not None:
            start_thread(list_refusals, given[0])
        self._guests.setblocking(False)

    def _part(self) -> None:
        """Tells the driver's process that no more clients will connect."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        with suppress(OSError, ValueError):
            self._poll.unregister(self._guests)
        self._guests.close()


def end_as(status: int) -> NoReturn:
    """Ends this process as a child with that `os.waitpid` status did."""
    if sys.platform != "win32" and os.WIFSIGNALED(status):
        import resource

        number = os.WTERMSIG(status)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        os._exit(DRIVER_ENDED + number)
    os._exit(os.waitstatus_to_exitcode(status))


def _raise_limit() -> None:
    """Raises the limit of descriptors, as far as the system allows."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def give(guests: Any, descriptor: int, user: int = 0, number: int = 0) -> None:
    """Sends a client's socket with its user and its *number*. Raises `OSError`."""
    rights = (socket.SOL_SOCKET, SCM_RIGHTS, array.array("i", [descriptor]))
    guests.sendmsg([GUEST.pack(user, number)], [rights])


def taken(guests: Any) -> tuple[int, int] | None:
    """The next received descriptor and its user; None at the end. Raises `BlockingIOError`."""
    if sys.platform == "win32":
        raise OSError(LINUX_ONLY)
    while True:
        data, beside, _, _ = guests.recvmsg(
            GUEST.size, socket.CMSG_SPACE(4), getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        )
        if not data:
            return None
        for _, _, content in beside:
            descriptor: int = array.array("i", content)[0]
            return descriptor, GUEST.unpack(data)[0]
        # This process had no room for it.
        guests.send(data)
