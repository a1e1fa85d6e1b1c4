"""Waking another process: a doorbell for each direction, heard together with the other's death.

On Linux a doorbell is an eventfd, elsewhere a pipe. The other process holds the same open file and may do with it
what it likes: neither ringing nor hearing ever waits on it, whatever its flags or its count.
"""

from __future__ import annotations

import os
import select
import sys
import weakref
from typing import Any, Final, Literal, Self, TypeAlias

from penstock.errors import ResourceExhaustedTransient

HAS_EVENTFD: Final = sys.platform == "linux" and hasattr(os, "eventfd")

NS_PER_MS: Final = 1_000_000

FD_SETSIZE: Final = 1024
"""Descriptors that `select` takes are below it."""

NOT_ON_WINDOWS: Final = "doorbells need descriptors that can be polled, which Windows has not"

Heard: TypeAlias = Literal["rung", "dead", "nothing"]


class Doorbell:
    """One direction. *listen_fd* is the end that is heard, *ring_fd* the one that is rung; -1 where the other
    process alone has that end. Both descriptors belong to it, also where it cannot be made.
    """

    listen_fd: int
    ring_fd: int
    _room: Any  # a poll object, a type that Windows has not
    _close: weakref.finalize[..., Any]

    def __init__(self, listen_fd: int, ring_fd: int) -> None:
        if sys.platform == "win32":
            raise OSError(NOT_ON_WINDOWS)
        self.listen_fd, self.ring_fd = listen_fd, ring_fd
        try:
            self._room = select.poll()
            if ring_fd >= 0:
                self._room.register(ring_fd, select.POLLOUT)
            self._close = weakref.finalize(self, _close, {listen_fd, ring_fd})
        except BaseException:
            _close({listen_fd, ring_fd})
            raise

    @classmethod
    def create(cls) -> Self:
        """A new one with both ends; raises `ResourceExhaustedTransient` where no descriptor is left."""
        if sys.platform == "win32":
            raise OSError(NOT_ON_WINDOWS)
        try:
            if sys.platform == "linux" and HAS_EVENTFD:
                fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                return cls(fd, fd)
            listen_fd, ring_fd = os.pipe()
            os.set_blocking(listen_fd, False)
            os.set_blocking(ring_fd, False)
        except OSError as error:
            raise ResourceExhaustedTransient(f"no doorbell: {error}") from error
        return cls(listen_fd, ring_fd)

    def ring(self) -> None:
        """Wakes who listens. One that is full needs no more ringing; one whose listener is gone gets none."""
        if not self._room.poll(0):
            return
        try:
            if sys.platform == "linux" and HAS_EVENTFD:
                os.eventfd_write(self.ring_fd, 1)
            else:
                os.write(self.ring_fd, b"\1")
        except (BlockingIOError, BrokenPipeError):
            return

    def silence(self) -> None:
        """Forgets the ringing so far."""
        try:
            if sys.platform == "linux" and HAS_EVENTFD:
                # A read that the other side cannot turn into one that waits.
                os.preadv(self.listen_fd, [bytearray(8)], -1, os.RWF_NOWAIT)
            else:
                os.read(self.listen_fd, 4096)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Twice is harmless."""
        self._close()


class Listener:
    """Waits for *bell*, and for *life_fd* (a pidfd, or any descriptor that becomes readable when the other process is
    gone; None without one). For one thread at a time.
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
        """What happens first; ringing is forgotten once it is heard."""
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
            heard = "rung"
            self._bell.silence()
        return heard


def _close(fds: set[int]) -> None:
    for fd in fds - {-1}:
        os.close(fd)
