"""Waking another process: a doorbell for each direction, heard together with the other's death.

The other process has the same open file and may do with it what it likes: clear its flags, fill it,
close it, at any moment. So no ringing and no hearing goes by flags, or looks first: each is one
system call that is itself told not to wait. A pipe's is `pwritev2` with RWF_NOWAIT, which Linux has
from 6.4 on; elsewhere a doorbell is a pair of sockets, and the call `send` with MSG_DONTWAIT. An
eventfd, cheaper than sockets, has none.
"""

from __future__ import annotations

import functools
import os
import select
import socket
import stat
import sys
import weakref
from collections.abc import Iterable
from typing import Any, Final, Literal, Self, TypeAlias

from penstock.errors import InvalidArgument, ResourceExhaustedTransient
from penstock.ipc.transport import close_all

NS_PER_MS: Final = 1_000_000

FD_SETSIZE: Final = 1024
"""Descriptors that `select` takes are below it."""

DRAINED: Final = 4096
"""Bytes of ringing that are forgotten at a time."""

NOT_ON_WINDOWS: Final = "doorbells need descriptors that can be polled, which Windows has not"

Heard: TypeAlias = Literal["rung", "dead", "nothing"]


class Doorbell:
    """One direction. *listen_fd* is the end that is heard, *ring_fd* the one that is rung; -1 where
    the other process alone has that end. Both descriptors belong to it, also where it cannot be
    made.

    Raises `InvalidArgument` for what is neither a pipe nor a socket of a pair.
    """

    listen_fd: int
    ring_fd: int
    _room: list[bytearray]
    _sockets: dict[int, socket.socket]
    _close: weakref.finalize[..., Any]

    def __init__(self, listen_fd: int, ring_fd: int) -> None:
        if sys.platform == "win32":
            raise OSError(NOT_ON_WINDOWS)
        self.listen_fd, self.ring_fd = listen_fd, ring_fd
        fds = {listen_fd, ring_fd} - {-1}
        self._room = [bytearray(DRAINED)] if listen_fd >= 0 else []
        self._sockets = {}
        try:
            for fd in fds:
                if (end := _end(fd)) is not None:
                    self._sockets[fd] = end
            self._close = weakref.finalize(self, _close, fds, self._sockets)
        except BaseException:
            _close(fds, self._sockets)
            raise

    @classmethod
    def create(cls) -> Self:
        """A new one with both ends; raises `ResourceExhaustedTransient` where no descriptor is
        left.
        """
        if sys.platform == "win32":
            raise OSError(NOT_ON_WINDOWS)
        try:
            if pipes_take_no_wait():
                return cls(*os.pipe())
            listener, ringer = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise ResourceExhaustedTransient(f"no doorbell: {error}") from error
        return cls(listener.detach(), ringer.detach())

    def ring(self) -> None:
        """Wakes who listens. One that is full needs no more ringing; one whose listener is gone
        gets none.
        """
        try:
            end = self._sockets.get(self.ring_fd)
            if end is not None:
                end.send(b"\1", DONT_WAIT)
            elif sys.platform == "linux":
                os.pwritev(self.ring_fd, _RING, -1, os.RWF_NOWAIT)
        except (BlockingIOError, BrokenPipeError, ConnectionError):
            return

    def silence(self) -> bool:
        """Forgets the ringing so far; False where nobody has the other end any more."""
        try:
            end = self._sockets.get(self.listen_fd)
            if end is not None:
                return bool(end.recv_into(self._room[0], 0, DONT_WAIT))
            if sys.platform == "linux":
                return bool(os.preadv(self.listen_fd, self._room, -1, os.RWF_NOWAIT))
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        return False

    def close(self) -> None:
        """Twice is harmless."""
        self._close()


@functools.cache
def pipes_take_no_wait() -> bool:
    """Whether one call on a pipe may be told not to wait."""
    if sys.platform != "linux":
        return False
    fds = os.pipe()
    try:
        return os.pwritev(fds[1], _RING, -1, os.RWF_NOWAIT) == 1
    except OSError:
        return False
    finally:
        close_all(fds)


class Listener:
    """Waits for *bell*, and for *life_fd* (a pidfd, or any descriptor that becomes readable when
    the other process is gone; None without one). For one thread at a time.
    """

    _bell: Doorbell
    _life_fd: int | None
    _fds: list[int]
    _poll: Any

    def __init__(self, bell: Doorbell, life_fd: int | None = None) -> None:
        if sys.platform == "win32":
            raise OSError(NOT_ON_WINDOWS)
        self._bell, self._life_fd = bell, life_fd
        self._poll = select.poll()
        self._poll.register(bell.listen_fd, select.POLLIN)
        fds = [bell.listen_fd]
        if life_fd is not None:
            self._poll.register(life_fd, select.POLLIN)
            fds.append(life_fd)
        self._fds = fds if max(fds) < FD_SETSIZE else []

    def wait(self, timeout_ns: int | None) -> Heard:
        """What happens first; ringing is forgotten once it is heard. A bell that nobody can ring
        any more is a death.
        """
        if timeout_ns is None:
            found = [fd for fd, _ in self._poll.poll()]
        elif self._fds:
            # To the microsecond, where `poll` rounds up to milliseconds.
            found = select.select(self._fds, (), (), max(0, timeout_ns) / 1e9)[0]
        else:
            found = [fd for fd, _ in self._poll.poll(-(-max(0, timeout_ns) // NS_PER_MS))]
        heard: Heard = "nothing"
        for fd in found:
            if fd == self._life_fd:
                return "dead"
            heard = "rung" if self._bell.silence() else "dead"
        return heard


def _end(fd: int) -> socket.socket | None:
    """The socket that *fd* is; None of a pipe."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) and pipes_take_no_wait():
        return None
    if not stat.S_ISSOCK(mode):
        raise InvalidArgument("a doorbell is a pipe, or one of a pair of sockets")
    end = socket.socket(fileno=fd)
    if sys.platform == "win32" or end.family != socket.AF_UNIX or end.type != socket.SOCK_STREAM:
        end.detach()
        raise InvalidArgument("a doorbell is a pipe, or one of a pair of sockets")
    # What Python would wait by, of its own.
    end.settimeout(0)
    return end


def _close(fds: Iterable[int], sockets: dict[int, socket.socket]) -> None:
    for end in sockets.values():
        end.detach()
    close_all(fds)


DONT_WAIT: Final[int] = getattr(socket, "MSG_DONTWAIT", 0)
_RING: Final = (b"\1",)
