"""The parent of a driver's process: it takes clients on, ends the driver when the last of them is
gone, and runs no code of the driver's.

What a driver must not hold stays here: the socket at which clients are met, and (`sealing`) the
user's key. The driver's process is given each client's socket, and is killed where it does not end
by itself, whatever its threads are doing.
"""

from __future__ import annotations

import array
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn

from penstock import knobs
from penstock.ipc.host.launching import Launched, status_of
from penstock.ipc.linux import LINUX_ONLY, kill_process, open_peer, open_process, peer

PARTING_SECONDS: Final = 3.0
"""How long a driver may take to close its devices once its last client is gone, before it is
killed.
"""

ACCEPT_PAUSE: Final = 0.1
"""Seconds before a client is taken on again, after that could not be: there was no descriptor for
it, most likely.
"""

BACKLOG: Final = 128

MOST_SOCKETS: Final = 1024
"""Clients, and those whom the driver's process refuses, at a time."""

DESCRIPTORS: Final = 3 * MOST_SOCKETS
"""Two a client, and room for what the process itself needs."""

IN: Final = 1
"""EPOLLIN."""
SCM_RIGHTS: Final = 1

GUEST: Final = struct.Struct("=qi")
"""What a client's socket is sent with: its user, and its number here, with which it is sent back
where the driver's process had no descriptor for it.
"""

DRIVER_ENDED: Final = 128


class Wanted(NamedTuple):
    """What the process was started for: the entry point *name* = *value* of *origin*, and its
    sockets, to the *first* client and to meet others at.

    *users* are those whose processes are taken on, None for whoever reaches the socket. A *service*
    runs on without clients.
    """

    name: str
    value: str
    origin: str
    first: socket.socket | None
    listener: socket.socket | None
    users: frozenset[int] | None
    service: bool


class Met:
    """A client: its socket, whose end is seen here too, and its process, where that can be seen."""

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
    """Keeps the driver's process, which is given its clients by *guests*, and asks at the other end
    of *asked* for what takes the key.
    """

    def __init__(
        self,
        launched: Launched,
        guests: Any,
        asked: socket.socket,
        wanted: Wanted,
    ) -> None:
        self._launched, self._child = launched, open_process(launched.process)
        self._guests, self._asked, self._wanted = guests, asked, wanted
        self._listener = listener = wanted.listener
        guests.setblocking(False)
        self._met: dict[int, Met] = {}
        self._refused: set[int] = set()
        self._poll = _epoll()
        self._poll.register(self._child, IN)
        self._poll.register(asked, IN)
        self._poll.register(guests, IN)
        if listener is not None:
            listener.setblocking(False)
            # Peers see the credentials of the last `listen`.
            listener.listen(BACKLOG)
            self._poll.register(listener, IN)

    def run(self) -> NoReturn:
        """Until the driver's process has ended; this one ends as that did."""
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
                # Whoever waits there is still there at once: without a pause this would go round
                # and round.
                time.sleep(ACCEPT_PAUSE)
                return
            self._take_on(sock)

    def _take_on(self, sock: socket.socket) -> None:
        """Gives the client to the driver's process; one that cannot be given to it is hung up on."""
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
                # Of a socket its end is told, and nothing else.
                self._poll.register(fd, IN if fd == process else 0)
                self._met[fd] = met
            give(self._guests, sock.fileno(), user, sock.fileno())
        except OSError:
            self._leave(Met(sock, process))

    def _hear(self) -> None:
        """Which clients the driver's process had no descriptor for."""
        for _ in range(BACKLOG):
            try:
                told = self._guests.recv(GUEST.size)
            except OSError:
                return
            if not told:
                self._poll.unregister(self._guests)
                return
            if len(told) == GUEST.size and (number := GUEST.unpack(told)[1]) in self._met:
                self._refused.add(number)

    def _give_again(self) -> None:
        """Perhaps the driver's process has a descriptor now."""
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
            # The driver's process has the same socket: closing it here does not take it from the
            # poll.
            with suppress(OSError):
                self._poll.unregister(fd)
        # Where its process has ended, a child of it may still have the other end.
        with suppress(OSError):
            met.sock.shutdown(socket.SHUT_RDWR)
        met.close()

    def _seal(self) -> None:
        """From the first question on a thread answers them. What that takes is not imported before."""
        self._poll.unregister(self._asked)
        from penstock.ipc.host.keeping import Sealer
        from penstock.ipc.threads import begin

        sealer = Sealer(self._asked, self._wanted.origin)
        try:
            begin(sealer.serve)
        except (RuntimeError, MemoryError):
            self._asked.close()

    def _list_refusals(self) -> None:
        """In a thread, from what the driver's process gives before it has any code of the driver's."""
        from penstock.ipc.sandbox.refusals import list_refusals
        from penstock.ipc.threads import begin

        self._guests.setblocking(True)
        if (given := taken(self._guests)) is not None:
            begin(list_refusals, given[0])
        self._guests.setblocking(False)

    def _part(self) -> None:
        """Tells the driver's process that no client comes any more."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        with suppress(OSError, ValueError):
            self._poll.unregister(self._guests)
        self._guests.close()


def end_as(status: int) -> NoReturn:
    """Ends this process as a child did whose status `os.waitpid` gave: whoever waits for it sees no
    difference.
    """
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


def _epoll() -> Any:
    if sys.platform != "linux":
        raise OSError(LINUX_ONLY)
    return select.epoll()


def _raise_limit() -> None:
    """Of descriptors, as far as the system lets this process."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def give(guests: Any, descriptor: int, user: int = 0, number: int = 0) -> None:
    """Sends a descriptor to the process at the other end: a client's socket, with its user, and its
    *number* here. Raises `OSError`.
    """
    rights = (socket.SOL_SOCKET, SCM_RIGHTS, array.array("i", [descriptor]))
    guests.sendmsg([GUEST.pack(user, number)], [rights])


def taken(guests: Any) -> tuple[int, int] | None:
    """The next descriptor that was given, and its user; None where none comes any more.

    Raises `BlockingIOError` where none has come.
    """
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
        # There was no room for it here.
        guests.send(data)
