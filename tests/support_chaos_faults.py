"""Faults of a driver's process, brought about right before a message is sent, or right after it."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final, NamedTuple, get_args
from unittest import mock

import msgspec

from penstock.errors import PenstockError
from penstock.ipc import ring, wire
from penstock.ipc.codec import decode_to_host
from penstock.ipc.supervision import Supervisor
from penstock.ipc.transport import HEADER, Connection, Received

FAULTS: Final = (
    "killed",
    "stopped",
    "paused",
    "garbage",
    "oversized",
    "no descriptor in the host",
    "no descriptor in the client",
    "no memory in the host",
    "no memory in the client",
    "memory gone",
)

RING_KINDS: Final = {ring.EMPTY: "EMPTY", ring.RUN: "RUN", ring.BIND: "BIND"}

MESSAGES: Final = frozenset(
    kind.__name__ for kind in (*get_args(wire.Call), *get_args(wire.ToHost)) if kind is not wire.Ask
) | set(RING_KINDS.values())
"""Everything that a client sends: `Ask` stands around each call."""

OVERSIZED: Final = HEADER.pack(0, wire.MAX_FRAME + 1)
GARBAGE: Final = b"\xff" * 64


class Point(NamedTuple):
    """Where a fault comes: *when* is before or after."""

    message: str
    fault: str
    when: str


class Fault:
    """Brings one about once, at the first message of its type."""

    def __init__(self, supervisor: Supervisor, point: Point) -> None:
        self._message, self._fault, self._when = point
        self._pid = supervisor.connection().pid
        self._undo = ExitStack()
        self._lie = b""
        self.struck = False

    @contextmanager
    def armed(self) -> Iterator[None]:
        """While the block runs it is about to come."""
        send, receive, publish = Connection.send, Connection.receive, ring.publish

        def sending(one: Connection, data: bytes, fds: Any = (), limit: int | None = None) -> None:
            hit = named(data) == self._message and not self.struck
            if hit:
                self.struck = True
                if self._when == "before":
                    fds = self._before(one, fds)
            send(one, data, fds, limit)
            if hit and self._when == "after":
                self._after(fds)

        def receiving(one: Connection, limit: int | None = None) -> Received:
            lie, self._lie = self._lie, b""
            if lie == OVERSIZED:
                raise one._nonsense("a message that is too large")
            received = receive(one, limit)
            return Received(lie, received.descriptors) if lie else received

        def publishing(region: Any, watch: Any, word: int, number: int, *rest: Any) -> None:
            at = region.layout.request_at(number)
            kind = ring.REQUEST.unpack_from(region.data, at)[1]
            hit = RING_KINDS.get(kind) == self._message and not self.struck
            if hit:
                self.struck = True
                if self._when == "before":
                    self._in_request(region, at, number)
            publish(region, watch, word, number, *rest)
            if hit and self._when == "after":
                self._in_answer(region, at + region.layout.slot_bytes)

        with (
            mock.patch.object(Connection, "send", sending),
            mock.patch.object(Connection, "receive", receiving),
            mock.patch.object(ring, "publish", publishing),
            self._undo,
        ):
            yield

    def _before(self, connection: Connection, fds: Any) -> Any:
        match self._fault:
            case "garbage":
                connection._socket.send(GARBAGE)
            case "oversized":
                connection._socket.send(OVERSIZED)
            case "memory gone":
                # What whoever receives them finds of memory that was taken away.
                gone = os.memfd_create("gone", os.MFD_CLOEXEC)
                self._undo.callback(os.close, gone)
                return [gone] * len(fds)
            case _:
                self._strike()
        return fds

    def _after(self, fds: Any) -> None:
        match self._fault:
            case "garbage":
                self._lie = GARBAGE
            case "oversized":
                self._lie = OVERSIZED
            case "memory gone":
                # Sealed memory stays; a doorbell has none.
                for fd in fds:
                    with suppress(OSError):
                        os.ftruncate(fd, 0)
            case _:
                self._strike()

    def _in_request(self, region: Any, at: int, number: int) -> None:
        match self._fault:
            case "garbage":
                ring.REQUEST.pack_into(region.data, at, number + 7, 99, 0, 0, 0, 0, 0)
            case "oversized":
                ring.REQUEST.pack_into(region.data, at, number, ring.BIND, 0, 0, 0, 0, 2**63)
            case "memory gone":
                # A request to bind names pools that nobody has lent then.
                start = at + ring.REQUEST.size
                region.data[start : start + 8] = bytes(8)
            case _:
                self._strike()

    def _in_answer(self, region: Any, at: int) -> None:
        match self._fault:
            case "garbage":
                region.words[ring.ANSWERED] = 12345
            case "oversized":
                ring.ANSWER.pack_into(region.data, at, 1, ring.REPLY, 0, -1, -1, 2**63)
            case "memory gone":
                """Both sides have mapped it: it cannot go."""
            case _:
                self._strike()

    def _strike(self) -> None:
        match self._fault:
            case "killed":
                os.kill(self._pid, signal.SIGKILL)
            case "stopped" | "paused":
                os.kill(self._pid, signal.SIGSTOP)
                if self._fault == "paused":
                    timer = threading.Timer(0.1, wake, (self._pid,))
                    timer.start()
                    self._undo.callback(timer.join)
            case "no descriptor in the host":
                self._limit(self._pid, resource.RLIMIT_NOFILE, 4)
            case "no memory in the host":
                self._limit(self._pid, resource.RLIMIT_AS, 1 << 20)
            case "no descriptor in the client":
                self._limit(0, resource.RLIMIT_NOFILE, 4)
            case "no memory in the client":
                for owner, name in ((os, "memfd_create"), (mmap, "mmap"), (os, "eventfd")):
                    self._undo.enter_context(mock.patch.object(owner, name, no_memory))
            case _:
                raise AssertionError(self._fault)

    def _limit(self, pid: int, kind: int, value: int) -> None:
        soft, hard = resource.prlimit(pid, kind)
        resource.prlimit(pid, kind, (value, hard))
        self._undo.callback(restore, pid, kind, (soft, hard))


CALLS = {kind.__struct_config__.tag: kind.__name__ for kind in get_args(wire.Call)}
"""The name of each type of call, by its tag."""


def named(data: bytes) -> str:
    """The type of the message that is sent; that of the call in it, where it is one."""
    with suppress(PenstockError):
        message = decode_to_host(data)
        if isinstance(message, wire.Ask):
            return str(CALLS[msgspec.msgpack.decode(message.body)[0]])
        return type(message).__name__
    return ""


def no_memory(*arguments: object, **named_arguments: object) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def wake(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def restore(pid: int, kind: int, limits: tuple[int, int]) -> None:
    with suppress(ProcessLookupError):
        resource.prlimit(pid, kind, limits)
