"""A driver's process: makes the devices, serves the clients that the broker sends, and ends after
the last of them.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial, reduce
from importlib import import_module
from typing import Any, Final, NoReturn, cast

from penstock.errors import PenstockError, WireError
from penstock.hal import Device
from penstock.hal.loading import failed_to_load, made_devices
from penstock.hal.loss import end_with_engine
from penstock.ipc import forms, wire
from penstock.ipc.codec import decode_to_host, encode
from penstock.ipc.device_sharing import ClientDevice, SharingDevice
from penstock.ipc.dispatch import Dispatcher
from penstock.ipc.host.broker import collect_from_now_on, taken
from penstock.ipc.host.heartbeat import Heartbeat, end_lost_process, end_process
from penstock.ipc.host.serving import Client
from penstock.ipc.quotas import Account, Accounts
from penstock.ipc.system import LINUX_ONLY, check_cannot_shrink, start_thread
from penstock.ipc.transport import Connection, close_all

GREETING_NS: Final = 10_000_000_000
"""Nanoseconds a client has to send its greeting."""

PARTING_SECONDS: Final = 2.0
"""Seconds devices have to close after the last client disconnects."""

BACKLOG: Final = 128

MAX_CLIENTS: Final = 512
"""Most connections that a host serves at a time."""

MAX_CLIENTS_OF_USER: Final = 256
"""How many clients of a service may belong to one user."""


class Guest:
    """A connection that has not yet sent its greeting. *ended* is called once, when it ends."""

    def __init__(self, sock: socket.socket, user: int, ended: Callable[[Guest], None]) -> None:
        # No connection may send descriptors before `welcome`.
        self.user, self.connection = user, Connection(sock, 0)
        self.connection.expect = _refuse_greeting
        self._ended = ended
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._is_greeted = False
        self.is_admitted = self.has_ended = False

    def greet(self) -> None:
        """Lets a thread own the connection and close it. Raises `EOFError` if the peer has left."""
        with self._lock:
            if self.has_ended:
                raise EOFError("the client has disconnected")
            self._is_greeted = True

    def serve(self, dispatchers: list[Dispatcher], account: Account) -> None:
        """Serves it as a client. Raises `RuntimeError` or `MemoryError` if there is no room."""
        self._client = client = Client(self.connection, dispatchers, self.leave, account)
        client.start()

    def leave(self) -> None:
        """Removes the connection from the count. A second call does nothing."""
        with self._lock:
            ended, self.has_ended = self.has_ended, True
        if not ended:
            self._ended(self)

    def hang_up(self) -> None:
        """Ends its calls and removes it from the count, even if none of its threads can."""
        self.connection.shut()
        if self._client is not None:
            self._client.finish()
        self.leave()
        with self._lock:
            if not self._is_greeted:
                self.connection.close()

    def has_left(self) -> bool:
        """Whether it has disconnected. The event may be of an earlier socket with this number."""
        try:
            return self.connection.is_over()
        except (OSError, ValueError):
            # Closed here.
            return False

    def refuse(self) -> None:
        """Closes the connection of a process that is not accepted."""
        # The process that accepted it has the socket too.
        self.connection.shut()
        self.connection.close()
        self.leave()


def _refuse_greeting(nbytes: int) -> None:
    """Refuses memory: no account is charged for a connection before it is accepted."""
    raise WireError(f"a message of {nbytes} bytes before `Welcome`")


class Host:
    """Serves the driver of *place* (name, value and origin of its entry point) to clients.

    Clients' sockets arrive on *guests*. *processes* are this process and the broker. *sandbox* is
    the result of each measure. A *service* keeps its clients' quotas by user, and hides its output.
    """

    def __init__(
        self,
        place: tuple[str, str, str],
        guests: socket.socket,
        processes: tuple[int, int],
        sandbox: tuple[tuple[str, str], ...] = (),
        *,
        service: bool = False,
    ) -> None:
        self._name, self._value, self._origin = place
        self._service = service
        self._guests, self._processes = guests, processes
        guests.setblocking(False)
        # A service's output belongs to its administrator.
        self._heartbeat = Heartbeat(trims=not service)
        shown = os.devnull if service else "/proc/self/fd/2"
        self._output = os.open(shown, os.O_RDONLY)
        self._page = os.open(f"/proc/self/fd/{self._heartbeat.fd}", os.O_RDONLY)
        self._lock = threading.Lock()
        self._accounts = Accounts(service=service)
        self._clients = 0
        self._clients_of: Counter[int] = Counter()
        self._wake, self._woken = os.pipe()
        if sys.platform != "win32":
            os.set_blocking(self._woken, False)
        self._devices: list[SharingDevice] = []
        self._refusal = ""
        self._sandbox = sandbox

    def run(self) -> NoReturn:
        """Serves until no more clients connect, or refuses all of them, then ends the process."""
        logging.basicConfig(
            stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s"
        )
        end_with_engine(end_lost_process)
        try:
            made = made_devices(self._name, entry(self._value), self._origin)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a driver may raise anything
            traceback.print_exc()
            self._refusal = failed_to_load(error)
        else:
            self._devices = [SharingDevice(device) for device in made]
        collect_from_now_on()
        self._heartbeat.start()
        try:
            self._accept()
        except MemoryError:
            end_process("no memory is left")
        self._part()

    def _accept(self) -> None:
        """Accepts clients until no more connect, and notices those that disconnect."""
        if sys.platform != "linux":
            raise OSError(LINUX_ONLY)
        poll = select.epoll()
        poll.register(self._guests.fileno(), select.EPOLLIN)
        poll.register(self._wake, select.EPOLLIN)
        guests: dict[int, Guest] = {}
        while True:
            for fd, _ in poll.poll():
                if fd == self._wake:
                    os.read(self._wake, 1 << 12)
                    guests = {fd: guest for fd, guest in guests.items() if not guest.has_ended}
                elif (guest := guests.get(fd)) is not None and guest.has_left():
                    guest.hang_up()
            for _ in range(BACKLOG):
                try:
                    received = taken(self._guests)
                except BlockingIOError:
                    break
                if received is None:
                    return
                descriptor, user = received
                self._take_on(socket.socket(fileno=descriptor), user, guests, poll)

    def _take_on(self, sock: socket.socket, user: int, guests: dict[int, Guest], poll: Any) -> None:
        """Accepts a client; from now on the epoll *poll* reports its end."""
        if sys.platform != "linux":
            raise OSError(LINUX_ONLY)
        fd = sock.fileno()
        guest = guests[fd] = Guest(sock, user, self._left)
        with self._lock:
            self._clients += 1
        try:
            # Only the end of the socket is reported.
            poll.register(fd, select.EPOLLONESHOT)
            start_thread(self._greet, guest)
        except (OSError, RuntimeError, MemoryError):
            guest.refuse()

    def _greet(self, guest: Guest) -> None:
        connection = guest.connection
        try:
            guest.greet()
            self._admit(guest)
            received = connection.receive(time.monotonic_ns() + GREETING_NS)
            close_all(received.descriptors)
            hello = decode_to_host(received.data)
            if not isinstance(hello, wire.Hello):
                raise WireError(f"{type(hello).__name__} before Hello")
            reason = self._refusal
            if hello.wire_version != wire.WIRE_VERSION:
                version = hello.wire_version
                reason = f"this host speaks wire version {wire.WIRE_VERSION}, not {version}"
            if reason:
                connection.send(encode(wire.Refused(reason)))
                raise WireError(reason)
            welcome = wire.Welcome(
                wire.WIRE_VERSION, *self._processes, len(self._devices), sandbox=self._sandbox
            )
            connection.send(encode(welcome), (self._page, self._output))
            connection.most = forms.MAX_HANDLES
            owner = str(guest.user).encode() if self._service else b""
            make = partial(Dispatcher, owns_device=False, admit=check_cannot_shrink, owner=owner)
            dispatchers = [make(cast("Device", ClientDevice(device))) for device in self._devices]
            guest.serve(dispatchers, self._accounts.connection(guest.user))
        except (EOFError, OSError, PenstockError, RuntimeError, MemoryError):
            guest.refuse()

    def _admit(self, guest: Guest) -> None:
        """Counts a client. Raises `WireError` if there are too many, `EOFError` if it has left."""
        why = ""
        with self._lock:
            if guest.has_ended:
                raise EOFError("the client has disconnected")
            if self._clients > MAX_CLIENTS:
                why = f"a driver's process has {MAX_CLIENTS} connections at a time"
            elif self._service and self._clients_of[guest.user] >= MAX_CLIENTS_OF_USER:
                why = f"one user may have {MAX_CLIENTS_OF_USER} connections to a service at a time"
            else:
                guest.is_admitted = True
                self._clients_of[guest.user] += 1
        if why:
            with suppress(TimeoutError):
                guest.connection.send(encode(wire.Refused(why)), (), time.monotonic_ns())
            raise WireError(why)

    def _left(self, guest: Guest) -> None:
        with self._lock:
            self._clients -= 1
            if guest.is_admitted:
                self._clients_of[guest.user] -= 1
        # A full pipe wakes the reader too, and the accepting thread must not wait for itself.
        with suppress(BlockingIOError):
            os.write(self._woken, b"\0")

    def _part(self) -> NoReturn:
        """Ends the process, even if a call or a device does not end."""
        try:
            start_thread(self._close_devices)
            time.sleep(PARTING_SECONDS)
        finally:
            os._exit(0)

    def _close_devices(self) -> None:
        for device in self._devices:
            with suppress(Exception):
                device.close()
        os._exit(0)


def entry(value: str) -> Callable[[], Any]:
    """Loads the object that an entry point names: `module` or `module:attribute`."""

    def load() -> Any:
        module, colon, attributes = map(str.strip, value.partition("[")[0].partition(":"))
        path = attributes.split(".") if colon else []
        if not all(map(str.isidentifier, (*module.split("."), *path))):
            raise ValueError(f"{value!r} does not name an object as module:attribute")
        return reduce(getattr, path, import_module(module))

    return load
