"""Frames and descriptors over a Unix stream socket between two processes.

Neither process trusts the other. A frame is a header, the number of its descriptors and of its
bytes, and the bytes. Descriptors travel by `SCM_RIGHTS` with the header. Further descriptors travel
with one byte for each batch that one kernel message can carry.
"""

from __future__ import annotations

import array
import errno
import os
import select
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.errors import DriverError, GeneralFailure, ResourceExhaustedTransient, WireError
from penstock.hal.fence import MOST_MS, remaining_seconds
from penstock.ipc import forms, wire
from penstock.ipc.system import LINUX_ONLY, accepted, is_open

HEADER: Final = struct.Struct("<IQ")
"""Number of a frame's descriptors, and of its bytes."""

BATCH: Final = 128
"""Descriptors in one kernel message. Linux allows at most 253."""

CHUNK: Final = 1 << 20
"""Bytes by which a frame's memory grows as they arrive."""


class Received(NamedTuple):
    """One frame. The receiver closes its *descriptors*; -1 is a rejected one (see `accepted`).

    If it is not *complete*, this process had no room for the descriptors, and the list is empty.
    """

    data: bytes
    descriptors: list[int]
    complete: bool = True


class _Part(NamedTuple):
    """One kernel message of a frame, of at least one byte. Kept for later, it has duplicates."""

    data: memoryview
    descriptors: Sequence[int]


class _Partial:
    """A frame that has been received in part."""

    def __init__(self) -> None:
        self.header = b""
        self.descriptors: list[int] = []
        self.truncated = False
        self.expected = 0
        self.batches = 1
        self.length: int | None = None
        self.data = bytearray()


class Connection:
    """One end of a stream. Any thread may `send`; one thread at a time may `receive`.

    Deadlines are `time.monotonic_ns()` values. Partial frames are kept, so a missed deadline leaves
    the stream in order. A frame may carry up to *most* descriptors; the kernel closes more.
    `expect` is called before memory is allocated for a message of over `CHUNK` bytes, and may raise
    `WireError`.
    """

    expect: Callable[[int], None]

    def __init__(self, sock: socket.socket, most: int = forms.MAX_HANDLES) -> None:
        sock.setblocking(False)
        self.most = most
        self.expect = lambda _: None
        self._socket = sock
        self._sending = threading.Lock()
        self._unsent: deque[_Part] = deque()
        self._partial = _Partial()

    def fileno(self) -> int:
        """The descriptor of the socket; -1 once it is closed."""
        return self._socket.fileno()

    def send(
        self, data: bytes, descriptors: Sequence[int] = (), deadline_ns: int | None = None
    ) -> None:
        """Sends one frame. The caller keeps ownership of the descriptors.

        Raises `WireError` if the frame is too large, `GeneralFailure` for a closed descriptor,
        `ResourceExhaustedTransient` from the kernel, `TimeoutError` at the deadline, and `EOFError`
        if the other end is closed.
        """
        wire.check_length(len(data))
        if len(descriptors) > forms.MAX_HANDLES:
            raise WireError(f"{len(descriptors)} descriptors beside one message")
        header = HEADER.pack(len(descriptors), len(data))
        parts = [_Part(memoryview(header + data), descriptors)]
        if len(descriptors) > BATCH:
            # Checked before any part of the frame is sent.
            if not all(map(is_open, descriptors)):
                raise GeneralFailure("a descriptor that is not open cannot be sent")
            batches = range(BATCH, len(descriptors), BATCH)
            parts = [_Part(memoryview(header), descriptors[:BATCH])]
            parts += [_Part(memoryview(b"\0"), descriptors[at : at + BATCH]) for at in batches]
            parts += [_Part(memoryview(data), ())] if data else []
        left = remaining_seconds(deadline_ns)
        if not self._sending.acquire(timeout=-1 if left is None else left):
            raise TimeoutError("another message is still being sent")
        try:
            self._send_kept(deadline_ns)
            self._send_parts(parts, deadline_ns)
        finally:
            self._sending.release()

    def receive(self, deadline_ns: int | None = None) -> Received:
        """Receives the next frame.

        Raises `TimeoutError` if the frame is incomplete at the deadline, `EOFError` if the other
        end is closed, and `WireError` for a malformed frame: the stream is then unusable.
        """
        partial = self._partial
        while len(partial.header) < HEADER.size:
            missing = HEADER.size - len(partial.header)
            partial.header += self._pull(missing, deadline_ns, descriptors=True)
            if len(partial.descriptors) > self.most:
                raise self._nonsense(f"more than {self.most} descriptors came before a message")
        if partial.length is None:
            count, length = HEADER.unpack(partial.header)
            if count > self.most:
                raise self._nonsense(f"{count} descriptors announced beside one message")
            try:
                wire.check_length(length)
                if length > CHUNK:
                    self.expect(length)
            except WireError as error:
                raise self._nonsense(str(error)) from None
            partial.expected, partial.length = count, length
        while partial.batches * BATCH < partial.expected:
            self._pull(1, deadline_ns, descriptors=True)
            partial.batches += 1
            if len(partial.descriptors) > partial.expected:
                raise self._surplus()
        while (missing := partial.length - len(partial.data)) > 0:
            partial.data += self._pull(min(missing, CHUNK), deadline_ns)
        lacking = partial.expected - len(partial.descriptors)
        if lacking < 0 or (lacking and not partial.truncated):
            raise self._surplus()
        self._partial = _Partial()
        if lacking:
            close_all(partial.descriptors)
            return Received(bytes(partial.data), [], complete=False)
        return Received(bytes(partial.data), partial.descriptors)

    def is_over(self) -> bool:
        """Whether the other end is closed, as it is once its process has ended."""
        if sys.platform == "win32":
            raise OSError(LINUX_ONLY)
        poll = select.poll()
        poll.register(self._socket.fileno(), 0)
        return bool(poll.poll(0))

    def shut(self) -> None:
        """Ends the stream both ways: `send` and `receive` raise `EOFError`. From any thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket, which no other thread uses, and partial frames. May be repeated."""
        self._socket.close()
        while self._unsent:
            close_all(self._unsent.popleft().descriptors)
        close_all(self._partial.descriptors)
        self._partial = _Partial()

    def _surplus(self) -> WireError:
        got, expected = len(self._partial.descriptors), self._partial.expected
        return self._nonsense(f"{got} descriptors came beside a message that has {expected}")

    def _nonsense(self, complaint: str) -> WireError:
        close_all(self._partial.descriptors)
        self._partial = _Partial()
        return WireError(complaint)

    def _send_kept(self, deadline_ns: int | None) -> None:
        """Sends the rest of an earlier frame."""
        while self._unsent:
            part = self._unsent[0]
            sent = self._push(part.data, part.descriptors, deadline_ns)
            close_all(part.descriptors)
            self._unsent.popleft()
            if sent < len(part.data):
                self._unsent.appendleft(_Part(part.data[sent:], ()))

    def _send_parts(self, parts: list[_Part], deadline_ns: int | None) -> None:
        """Sends one frame. The part that is unsent at the deadline is kept for the next `send`.

        If it cannot be kept, the stream ends.
        """
        begun = False
        try:
            while parts:
                part = parts[0]
                sent = self._push(part.data, part.descriptors, deadline_ns)
                begun = True
                parts[0] = _Part(part.data[sent:], ())
                if sent == len(part.data):
                    del parts[0]
        except TimeoutError:
            if not begun:
                raise
            self._keep(parts)
        except DriverError as error:
            if not begun:
                raise
            self.shut()
            raise EOFError(str(error)) from None

    def _keep(self, parts: list[_Part]) -> None:
        try:
            for part in parts:
                kept: list[int] = []
                self._unsent.append(_Part(memoryview(bytes(part.data)), kept))
                kept.extend(os.dup(fd) for fd in part.descriptors)
        except OSError as error:
            self.shut()
            raise EOFError(f"no descriptor is left for what is still to be sent: {error}") from None

    def _push(
        self, data: bytes | memoryview, descriptors: Sequence[int], deadline_ns: int | None
    ) -> int:
        """Sends a part of *data*, at least one byte, with the descriptors."""
        if sys.platform == "win32":
            raise OSError(LINUX_ONLY)
        beside = []
        if descriptors:
            if not all(0 <= fd < 1 << 31 for fd in descriptors):
                raise GeneralFailure("a descriptor that is none cannot be sent")
            beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        while True:
            try:
                return self._socket.sendmsg([data], beside)
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline_ns)
            except (BrokenPipeError, ConnectionError) as error:
                raise EOFError(str(error)) from None
            except OSError as error:
                if self._socket.fileno() < 0:
                    raise EOFError("the connection is closed") from None
                if not descriptors:
                    raise EOFError(str(error)) from None
                if error.errno == errno.EBADF:
                    why = f"a descriptor that is not open cannot be sent: {error}"
                    raise GeneralFailure(why) from None
                raise ResourceExhaustedTransient(f"no descriptor can be sent: {error}") from None

    def _pull(self, nbytes: int, deadline_ns: int | None, *, descriptors: bool = False) -> bytes:
        """Receives up to *nbytes* bytes, and their *descriptors*; else the kernel closes those."""
        if sys.platform == "win32":
            raise OSError(LINUX_ONLY)
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        room = socket.CMSG_SPACE(min(BATCH, self.most) * 4) if descriptors else 0
        while True:
            try:
                data, beside, answer, _ = self._socket.recvmsg(nbytes, room, flags)
            except BlockingIOError:
                self._wait(select.POLLIN, deadline_ns)
                continue
            except OSError as error:
                raise EOFError(str(error)) from None
            for level, kind, content in beside:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    came = array.array("i")
                    came.frombytes(content[: len(content) - len(content) % came.itemsize])
                    self._partial.descriptors += map(accepted, came)
            self._partial.truncated |= descriptors and bool(answer & socket.MSG_CTRUNC)
            if not data:
                raise EOFError("the other process closed the connection")
            return data

    def _wait(self, events: int, deadline_ns: int | None) -> None:
        """Waits until the socket may be ready. Raises `TimeoutError` at the deadline."""
        if sys.platform == "win32":
            raise OSError(LINUX_ONLY)
        fd = self._socket.fileno()
        if fd < 0:
            raise EOFError("the connection is closed")
        poll = select.poll()
        poll.register(fd, events)
        if deadline_ns is None:
            poll.poll()
            return
        left = deadline_ns - time.monotonic_ns()
        if left <= 0 or not poll.poll(min(left / 1e6, MOST_MS)):
            raise TimeoutError("nothing happened by the deadline")


def close_all(descriptors: Iterable[int]) -> None:
    """Closes each of them."""
    for fd in descriptors:
        with suppress(OSError):
            os.close(fd)
