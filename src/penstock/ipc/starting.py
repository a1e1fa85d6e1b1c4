"""Finding or starting the host process of a driver; equal settings of one user share it."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from penstock import errors, knobs
from penstock.hal.loading import MAX_DEVICES
from penstock.ipc import host_sockets, system, wire
from penstock.ipc.codec import decode_to_client, encode
from penstock.ipc.crash_records import how_ended, tail, wrote_last
from penstock.ipc.host.broker import PARTING_SECONDS
from penstock.ipc.host_sockets import (
    AddressInUse,
    Place,
    SocketDirectory,
    connect_service,
    services,
    socket_directory,
)
from penstock.ipc.system import LINUX_ONLY, peer
from penstock.ipc.transport import Connection, Received, close_all
from penstock.logs import Log, printable

log = Log("penstock.ipc")

ABOVE: Final = 16
"""Descriptors passed to a new process are numbered from here on, above their numbers in it."""

ATTEMPTS: Final = 20
"""How often a client retries while a host is ending, or another client is starting one."""

END_SECONDS: Final = 3.0
"""Seconds that a killed host has to end."""

MOST_DESCRIPTORS: Final = 2
"""Most descriptors with one message of a host: those of `welcome`, or a fence."""

HOST: Final = ("-P", "-m", "penstock.ipc.host")
ALONE: Final = (*HOST, "--alone")
"""Serves only its first client."""

KEPT_PREFIXES: Final = ("LC_", "XDG_", "PENSTOCK_", "OMP_", "OPENBLAS_", "MKL_")
KEPT: Final = (
    *host_sockets.KEPT,
    "LANGUAGE",
    "TMPDIR",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPYCACHEPREFIX",
)
"""The variables that a host inherits: settings of Penstock and numerical libraries, places."""


class NotStarted(errors.DeviceUnavailable):
    """No process accepted this client.

    *output* is the end of the started process's output. *died* is False if no process was started,
    or if it runs and refuses, for example because its driver cannot be loaded.
    """

    def __init__(self, message: str, output: str = "", *, died: bool = True) -> None:
        super().__init__(message)
        self.output, self.died = output, died


class _Silent(Exception):
    """The *process* at the other end accepts no clients."""

    def __init__(self, process: int) -> None:
        super().__init__(f"process {process} does not answer")
        self.process = process


class Started(NamedTuple):
    """A connection to a host that accepted this client.

    *pid* is the driver's process as the host reports it, *broker* its parent, *child* whether that
    is this process's child. *pidfd* refers to the broker if it is certain. *page* is the
    heartbeat's page, *output* the output file.
    """

    connection: Connection
    pid: int
    broker: int
    child: bool
    pidfd: int
    page: int
    output: int
    devices: int
    sandbox: tuple[tuple[str, str], ...]


def unavailable() -> str | None:
    """Why drivers cannot run in separate processes on this system; None if they can."""
    if sys.platform != "linux":
        return (
            "drivers in processes of their own need memory descriptors and process descriptors, "
            "which only Linux has"
        )
    needed = ("memfd_create", "pidfd_open", "posix_spawn", "eventfd")
    if missing := [name for name in needed if not hasattr(os, name)]:
        return f"drivers in processes of their own need {', '.join(missing)} of the system"
    return None


def environment() -> dict[str, str]:
    """The environment of a host started now."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT or name.startswith(KEPT_PREFIXES)
    }
    kept["PYTHONPATH"] = os.pathsep.join(os.path.abspath(p or ".") for p in sys.path)
    return kept


def address_of(place: Place, settings: Mapping[str, str]) -> str:
    """Socket name of the host of *place*: equal in all processes that would start the same host."""
    digest = hashlib.sha256()
    parts = [sys.executable, *place, str(wire.WIRE_VERSION)]
    parts += [f"{name}={value}" for name, value in sorted(settings.items())]
    for part in parts:
        content = part.encode("utf-8", "surrogateescape")
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:40]


def connect(place: Place) -> Started:
    """Connects to the host of *place*, and starts it if necessary.

    A host that is stopped, or does not answer within the time of a start, is replaced. This client
    gets a private host if the process may not be a host, or if there is no directory for sockets.

    Raises `NotAvailable` on other systems, `DeviceUnavailable` with the reason, and `NotStarted` if
    a process was started.
    """
    if reason := unavailable():
        raise errors.NotAvailable(reason)
    if path := services().get(place.name):
        return _served(place, path)
    with socket_directory() as found:
        return _connected(place, found)


def _connected(place: Place, found: SocketDirectory | None) -> Started:
    """As `connect`, over the sockets of the directory *found*."""
    settings = environment()
    name = address_of(place, settings)
    last = ""
    for attempt in range(ATTEMPTS):
        try:
            sock, pid, output = _reach(found, name, place, settings)
        except AddressInUse:
            time.sleep(0.005 * attempt)
            continue
        except OSError as error:
            if found is not None and isinstance(error, PermissionError | TimeoutError):
                # Another user's process, or one that accepts no clients: start a private host,
                # whose socket no other client can find.
                found = None
                continue
            lacks = error.errno in errors.NO_DESCRIPTOR
            why = f"{errors.NO_DESCRIPTOR_LEFT} ({error})" if lacks else error
            message = f"driver {place.name}: no process for it: {why}"
            raise NotStarted(message, died=False) from error
        try:
            started = _enter(sock, place, pid, knobs.driver_timeout_ms() / 1000)
            if started.pidfd >= 0 or found is None:
                return started
            return _known(started, found, name, place)
        except _Silent as silent:
            last = str(silent)
            if not _end(silent.process, place):
                found = None
        except EOFError as error:
            last = str(error)
            if pid is not None:
                how = how_ended(_end_child(pid))
                wrote = tail(output).strip()
                message = f"driver {place.name}: its process {how} before it accepted a client"
                raise NotStarted(message + wrote_last(wrote), wrote) from None
        except errors.DeviceUnavailable as error:
            died = not isinstance(error, NotStarted) or error.died
            raise NotStarted(str(error), tail(output).strip(), died=died) from error
        finally:
            close_all([output])
    raise errors.DeviceUnavailable(f"driver {place.name}: no process accepted this client: {last}")


def _served(place: Place, path: str) -> Started:
    """Connects to the service at *path*, whose process this client does not start."""
    try:
        return _enter(connect_service(place.name, path), place, None)
    except EOFError as error:
        message = f"driver {place.name}: its service at {path} accepts no client: {error}"
        raise NotStarted(message, died=False) from None
    except errors.DeviceUnavailable as error:
        raise NotStarted(str(error), died=False) from error


def _reach(
    found: SocketDirectory | None, name: str, place: Place, settings: Mapping[str, str]
) -> tuple[socket.socket, int | None, int]:
    """A socket to the host; its process and output if it was started. May raise `AddressInUse`."""
    if sys.platform == "win32":
        raise OSError(LINUX_ONLY)
    if found is None:
        return _started(place, settings, None)
    try:
        sock = found.connect(name, knobs.driver_timeout_ms() / 1000)
    except ConnectionResetError:
        raise AddressInUse from None
    if sock is not None:
        if peer(sock)[1] != os.geteuid():
            sock.close()
            raise PermissionError(errno.EPERM, "another user listens there")
        return sock, None, -1
    with found.listen(name) as listener:
        return _started(place, settings, listener)


def _started(
    place: Place, settings: Mapping[str, str], listener: socket.socket | None
) -> tuple[socket.socket, int, int]:
    """A new process, which has the other end of the socket, and *listener* for other clients."""
    if sys.platform == "win32":
        raise OSError(LINUX_ONLY)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    output = -1
    with theirs:
        try:
            output = system.memory_file("penstock-output")
            passed = [theirs.fileno(), *([] if listener is None else [listener.fileno()])]
            pid = _spawn(place, settings, passed, output)
        except BaseException:
            ours.close()
            close_all([output])
            raise
    return ours, pid, output


def _spawn(place: Place, settings: Mapping[str, str], passed: Sequence[int], output: int) -> int:
    """Starts the process in a separate session: a terminal's interrupt is for the client alone.

    *passed* is the socket of its first client and, if others can connect, the socket that listens.
    """
    if sys.platform == "win32":
        raise OSError(LINUX_ONLY)
    import fcntl

    high: list[int] = []
    try:
        try:
            high += [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, ABOVE) for fd in (output, *passed)]
        except OSError as error:
            # For a number beyond the limit of descriptors, the system reports an invalid argument.
            if error.errno != errno.EINVAL:
                raise
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from None
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, high[0], 1),
            (os.POSIX_SPAWN_DUP2, high[0], 2),
            *((os.POSIX_SPAWN_DUP2, fd, 3 + at) for at, fd in enumerate(high[1:])),
        ]
        command = [sys.executable, *(HOST if len(passed) > 1 else ALONE), *place]
        return os.posix_spawn(
            sys.executable, command, dict(settings), file_actions=actions, setsid=True
        )
    finally:
        close_all(high)


def _known(started: Started, found: SocketDirectory, name: str, place: Place) -> Started:
    """A second connection, whose host the kernel identifies; else the first."""
    try:
        sock = found.connect(name, knobs.driver_timeout_ms() / 1000)
        if sock is None:
            return started
        again = _enter(sock, place, None)
    except (OSError, EOFError, errors.DeviceUnavailable):
        return started
    if again.pidfd < 0:
        started, again = again, started
    started.connection.close()
    close_all([started.page, started.output])
    return again


def _end(process: int, place: Place) -> bool:
    """Kills an unusable host of *place*; False if it is no such host or cannot be killed."""
    try:
        pidfd = system.open_process(process)
    except OSError:
        # It has ended already.
        return True
    try:
        if system.command_of(process)[1:] != [*HOST, *place]:
            return False
        log.warning("killed the process of driver %s (%d): no answer", place.name, process)
        with suppress(ProcessLookupError):
            system.kill_process(pidfd)
        return system.wait_for_end(pidfd, END_SECONDS)
    except OSError:
        return False
    finally:
        os.close(pidfd)


def _greeted(
    connection: Connection, sock: socket.socket, place: Place, patience: float | None
) -> Received:
    """The answer to a greeting. `DeviceUnavailable` without one in the time of a start; `_Silent`
    if a stopped process of this user does not answer for *patience*.
    """
    limit = knobs.driver_start_ms()
    until = time.monotonic_ns() + limit * 1_000_000
    while True:
        now = time.monotonic_ns()
        try:
            pause = until if patience is None else min(until, now + int(patience * 1e9))
            return connection.receive(pause)
        except TimeoutError:
            if patience is None:
                raise errors.DeviceUnavailable(
                    f"driver {place.name}: its process accepted no client within "
                    f"{limit / 1000:g} s, the limit for loading a driver (knob driver_start_ms)"
                ) from None
            process = peer(sock)[0]
            stopped = any(map(system.is_stopped, (process, *system.descendants_of(process))))
            if time.monotonic_ns() >= until or stopped:
                raise _Silent(process) from None


def _enter(
    sock: socket.socket, place: Place, pid: int | None, patience: float | None = None
) -> Started:
    """Greets the host. Raises `EOFError` if it ends first, `_Silent` as `_greeted`."""
    connection = Connection(sock, MOST_DESCRIPTORS)
    descriptors: list[int] = []
    pidfd = -1
    try:
        connection.send(encode(wire.Hello(wire.WIRE_VERSION)))
        received = _greeted(connection, sock, place, patience if pid is None else None)
        descriptors = received.descriptors
        answer = decode_to_client(received.data)
        if isinstance(answer, wire.Refused):
            reason = printable(answer.reason)
            raise NotStarted(f"driver {place.name}: its process refuses: {reason}", died=False)
        if not isinstance(answer, wire.Welcome) or len(descriptors) != 2:
            raise errors.WireError(f"{type(answer).__name__} in answer to Hello")
        if not 0 <= answer.devices <= MAX_DEVICES:
            raise errors.WireError(f"{answer.devices} devices; the limit is {MAX_DEVICES}")
        if not system.is_memory(descriptors[1]):
            # Reading a pipe, or a file that a process created, may never end.
            close_all([descriptors.pop()])
            descriptors.append(os.open(os.devnull, os.O_RDONLY))
        broker, child = (answer.broker, False) if pid is None else (pid, True)
        # A process that this client did not start: the kernel and the host must agree on it.
        if child or peer(sock)[0] == broker:
            pidfd = system.open_process(broker)
            if not child and connection.is_over():
                # The number may already belong to another process.
                raise EOFError("it ended while it accepted a client")
        sandbox = tuple((printable(what), printable(how)) for what, how in answer.sandbox)
        page, output = descriptors
        return Started(
            connection, answer.pid, broker, child, pidfd, page, output, answer.devices, sandbox
        )
    except BaseException as error:
        connection.close()
        close_all([*descriptors, pidfd])
        if pid is not None and not isinstance(error, EOFError):
            _kill(pid)
        if isinstance(error, TimeoutError | errors.WireError | errors.DeadObject):
            message = f"driver {place.name}: its process is no host process: {error}"
            raise errors.DeviceUnavailable(message) from error
        if isinstance(error, OSError):
            raise EOFError(str(error)) from error  # noqa: TRY004  # of no type
        raise


def _kill(pid: int) -> None:
    if sys.platform == "win32":
        raise OSError(LINUX_ONLY)
    import signal

    os.kill(pid, signal.SIGKILL)
    _reap(pid)


def _end_child(pid: int) -> int | None:
    """The status of a child that has disconnected, killed if it does not end; None if unknown."""
    with suppress(OSError):
        process = system.open_process(pid)
        try:
            if not system.wait_for_end(process, END_SECONDS + PARTING_SECONDS):
                system.kill_process(process)
        finally:
            os.close(process)
    return _reap(pid)


def _reap(pid: int) -> int | None:
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return None
