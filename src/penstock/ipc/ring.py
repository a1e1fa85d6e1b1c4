"""Ring buffer of requests and answers in shared memory: executions without system calls.

docs/wire-protocol.md has the layout: a page of words, each written by one side alone, then *slots*
pairs of slots, one for a request and one for its answer. Writing its number to the word
`REQUESTED`, or `ANSWERED`, publishes it. A side that has waited for a bounded time writes 1 to its
`*_WAITS` word and waits for its doorbell, which the other side rings after it publishes.

Each side treats the other as hostile: it copies a field into private memory once and checks it
there. The only valid numbers are the current one and the next; any other closes the ring.

x86 makes stores visible in order (total store order), so one word publishes what was written before
it. Python orders no stores on other processors. There, every publication rings the doorbell, and a
side trusts only what it reads after that: system calls order memory on both sides.

The other process has the same open file as a doorbell and may change its flags, fill it or close it
at any moment. Ringing and listening are therefore one system call each that asks not to block:
`pwritev2` with RWF_NOWAIT for a pipe (Linux 6.4 and later), else `send` with MSG_DONTWAIT for a
socket pair. An eventfd has no such call.
"""

from __future__ import annotations

import functools
import mmap
import os
import platform
import select
import socket
import stat
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from time import monotonic_ns
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

from penstock import knobs
from penstock.errors import InvalidArgument, ResourceExhaustedTransient, WireError
from penstock.ipc.system import SHRINK, is_sealed
from penstock.ipc.transport import close_all
from penstock.memory.mapping import OUT_OF_ROOM

NS_PER_MS: Final = 1_000_000

FD_SETSIZE: Final = 1024
"""`select` accepts descriptors below this number."""

DRAINED: Final = 4096
"""Bytes of a doorbell that are cleared at a time."""

NOT_ON_WINDOWS: Final = "doorbells need descriptors that can be polled, which Windows has not"

Heard: TypeAlias = Literal["rung", "dead", "nothing"]


class Doorbell:
    """One direction of waking: this process waits for *listen_fd* and writes *ring_fd*.

    A descriptor is -1 if only the other process has it. The doorbell owns both descriptors, even if
    this raises `InvalidArgument` because one is neither a pipe nor a socket of a pair.
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
        """A doorbell with both ends; raises `ResourceExhaustedTransient`."""
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
        """Wakes the listener, unless the doorbell is full or its listener has closed it."""
        try:
            end = self._sockets.get(self.ring_fd)
            if end is not None:
                end.send(b"\1", DONT_WAIT)
            elif sys.platform == "linux":
                os.pwritev(self.ring_fd, _RING, -1, os.RWF_NOWAIT)
        except (BlockingIOError, BrokenPipeError, ConnectionError):
            return

    def silence(self) -> bool:
        """Clears the doorbell. Returns False if no process has the other end open."""
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
        """Closes both descriptors. A second call does nothing."""
        self._close()


@functools.cache
def pipes_take_no_wait() -> bool:
    """Whether a single call on a pipe can be non-blocking."""
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
    """Waits for *bell*, and for *life_fd*, a pidfd or similar; for one thread at a time."""

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
        """The event that happens first. A doorbell whose other end is closed counts as "dead"."""
        if timeout_ns is None:
            found = [fd for fd, _ in self._poll.poll()]
        elif self._fds:
            # Precise to the microsecond; `poll` rounds up to milliseconds.
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
    """The socket of *fd*; None for a pipe."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) and pipes_take_no_wait():
        return None
    if sys.platform != "win32" and stat.S_ISSOCK(mode):
        end = socket.socket(fileno=fd)
        if (end.family, end.type) == (socket.AF_UNIX, socket.SOCK_STREAM):
            # Non-blocking: Python then does not wait before a call.
            end.settimeout(0)
            return end
        end.detach()
    raise InvalidArgument("a doorbell is a pipe, or one of a pair of sockets")


def _close(fds: Iterable[int], sockets: dict[int, socket.socket]) -> None:
    for end in sockets.values():
        end.detach()
    close_all(fds)


DONT_WAIT: Final[int] = getattr(socket, "MSG_DONTWAIT", 0)
_RING: Final = (b"\1",)


REQUESTED: Final = 0
CLIENT_WAITS: Final = 8
CANCELLED: Final = 16
ANSWERED: Final = 24
SERVER_WAITS: Final = 32

HEAD_BYTES: Final = 4096
MAX_SLOTS: Final = 64
MIN_SLOT_BYTES: Final = 256
MAX_SLOT_BYTES: Final = 1 << 20

REQUEST: Final = struct.Struct("<QQQQQQQ")
"""Header of a request.

Number, kind, number of the bound request, deadline (`time.monotonic_ns()`; 0: none), loop timeout
in nanoseconds (0: none), flags, and the length of the payload that follows.
"""

ANSWER: Final = struct.Struct("<QQQqqQ")
"""Header of an answer.

Its number, its kind, nanoseconds that it took, nanoseconds on the device and in the driver (-1:
unknown), and the length of the payload that follows.
"""

LONGEST_LOOP_NS: Final = 2**63 - 1
"""The longest loop timeout that a request carries."""

EMPTY: Final = 0
"""A request for an empty answer, and that answer."""
RUN: Final = 1
"""Runs the bound request of this number."""
BIND: Final = 2
"""Binds the payload, a `wire.RingRequest`, to this number and runs it."""

DONE: Final = 1
"""Answer kind of an execution that returns only its times."""
REPLY: Final = 2
"""The payload is a reply of the codec: `Executed`, `Failure` or `Stopped`."""

CLOSED: Final = 2**64 - 1
"""Value of `ANSWERED` once the device's side accepts no more requests."""

MEASURE: Final = 1
STOPPABLE: Final = 2
"""The client may write `CANCELLED`."""
PRIORITY_SHIFT: Final = 2
"""Flags from this bit on are the index of the priority."""
LINGER: Final = 1 << 4
"""The next request is likely soon: the device's side spins for it before it sleeps."""
MAX_FLAGS: Final = 1 << 5

TOTAL_STORE_ORDER: Final = platform.machine().lower() in {"x86_64", "amd64", "i386", "i686", "x86"}

LOOKS: Final = range(10)
"""Reads of a word between two reads of the clock."""

LOOKING_NS: Final = 25_000
"""How long one side spins before it yields the processor to the other side."""

SLEEP_NS: Final = 500_000_000
"""Longest single wait: a side that missed a doorbell checks the word again after it."""


class Layout(NamedTuple):
    """Offsets in a region of *slots* pairs of *slot_bytes* each."""

    slots: int
    slot_bytes: int

    def check(self) -> None:
        """Raises `InvalidArgument` for a layout that no region may have."""
        if not 1 <= self.slots <= MAX_SLOTS:
            raise InvalidArgument(f"a ring of {self.slots} slots; 1 to {MAX_SLOTS} are possible")
        if not MIN_SLOT_BYTES <= self.slot_bytes <= MAX_SLOT_BYTES or self.slot_bytes % 64:
            possible = f"multiples of 64 from {MIN_SLOT_BYTES} to {MAX_SLOT_BYTES}"
            raise InvalidArgument(f"slots of {self.slot_bytes} bytes, not {possible}")

    @property
    def nbytes(self) -> int:
        return HEAD_BYTES + 2 * self.slots * self.slot_bytes

    def request_at(self, number: int) -> int:
        """The offset of the slot of request *number*; its answer's is one slot further."""
        return HEAD_BYTES + 2 * self.slot_bytes * (number % self.slots)


DEFAULT_LAYOUT: Final = Layout(4, 16 << 10)


class Region:
    """The mapped region of a ring: *data* its bytes, *words* the same as words."""

    def __init__(self, fd: int, layout: Layout) -> None:
        """Maps *fd*, which the caller keeps and closes.

        Raises `InvalidArgument` if it has another size or may shrink, `ResourceExhaustedTransient`.
        """
        layout.check()
        self.layout = layout
        try:
            size = os.fstat(fd).st_size
            if size != layout.nbytes:
                raise InvalidArgument(f"a ring's region of {size} bytes, not {layout.nbytes}")
            if sys.platform == "linux" and not is_sealed(fd, SHRINK):
                raise InvalidArgument("a ring's region that is not sealed against shrinking")
            self._map = mmap.mmap(fd, layout.nbytes, access=mmap.ACCESS_WRITE)
        except (OSError, ValueError, OverflowError) as error:
            lacks_room = getattr(error, "errno", None) in OUT_OF_ROOM
            kind = ResourceExhaustedTransient if lacks_room else InvalidArgument
            raise kind(f"a ring's region cannot be mapped: {error}") from error
        self.data = memoryview(self._map)
        self.words = self.data[:HEAD_BYTES].cast("Q")

    def payload(self, at: int, nbytes: int) -> bytes:
        """A private copy of *nbytes* bytes at *at*; the caller has checked the bounds."""
        return bytes(self.data[at : at + nbytes])

    def close(self) -> None:
        """Unmaps the region. A second call does nothing."""
        self.words.release()
        self.data.release()
        self._map.close()


def create_region(layout: Layout) -> int:
    """A descriptor of a new region, which the caller closes. `ResourceExhaustedTransient`."""
    try:
        if sys.platform == "linux":
            import fcntl

            fd = os.memfd_create("penstock-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.ftruncate(fd, layout.nbytes)
                seals = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            except BaseException:
                os.close(fd)
                raise
            return fd
        import tempfile

        with tempfile.TemporaryFile(prefix="penstock-ring-") as file:
            file.truncate(layout.nbytes)
            return os.dup(file.fileno())
    except OSError as error:
        raise ResourceExhaustedTransient(f"no region for a ring: {error}") from error


class Watch:
    """Waits for the other side's word *index* to change.

    By the word *waits* this side asks to be woken. It spins for *spin_ns* before it sleeps.
    """

    def __init__(
        self, region: Region, index: int, waits: int, listener: Listener, spin_ns: int
    ) -> None:
        self._words, self._index, self._waits = region.words, index, waits
        self._listener, self.spin_ns = listener, spin_ns
        self._barrier = threading.Lock()
        self._together = False

    def spin(self, seen: int, budget_ns: int) -> int:
        """The word once it changes from *seen*, or *seen* after *budget_ns*.

        Yields first if the other side last answered on this processor.
        """
        words, index = self._words, self._index
        value: int
        began = monotonic_ns()
        end, next_yield = began + budget_ns, began + LOOKING_NS
        while True:
            if self._together:
                _yield()
                value = words[index]
                if value != seen:
                    return value
            for _ in LOOKS:
                value = words[index]
                if value != seen:
                    self._together = False
                    return value
            now = monotonic_ns()
            if now >= end:
                return seen
            if now >= next_yield:
                next_yield = now + LOOKING_NS
                _yield()
                value = words[index]
                if value != seen:
                    self._together = True
                    return value

    def sleep(self, seen: int, timeout_ns: int | None) -> tuple[int, Heard]:
        """The word, *seen* if it is unchanged after *timeout_ns*, and the doorbell's event."""
        limit = SLEEP_NS if timeout_ns is None else min(timeout_ns, SLEEP_NS)
        words = self._words
        words[self._waits] = 1
        self.order()
        heard: Heard = "nothing"
        value: int = words[self._index]
        if value == seen or not TOTAL_STORE_ORDER:
            heard = self._listener.wait(limit)
            value = words[self._index] if TOTAL_STORE_ORDER or heard != "nothing" else seen
        words[self._waits] = 0
        return value, heard

    def glance(self, seen: int) -> int:
        """The word now; *seen* where only a doorbell orders memory and none has rung."""
        if not TOTAL_STORE_ORDER and self._listener.wait(0) == "nothing":
            return seen
        value: int = self._words[self._index]
        return value

    def order(self) -> None:
        """A full barrier between this side's stores and its next loads: a locked operation."""
        self._barrier.acquire(blocking=False)
        self._barrier.release()


def publish(
    region: Region, watch: Watch, word: int, number: int, waits: int, bell: Doorbell
) -> None:
    """Writes *number* to *word*, and wakes the other side if its word *waits* asks for it."""
    region.words[word] = number
    if TOTAL_STORE_ORDER:
        watch.order()
        if not region.words[waits]:
            return
    bell.ring()


def spin_budget_ns() -> int:
    """How long one side spins before it sleeps: the knob `ring_spin_us`; 0 without store order."""
    return knobs.ring_spin_us() * 1000 if TOTAL_STORE_ORDER else 0


_yield: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)


def due(value: int, last: int, newest: int, what: str) -> int:
    """*value*, read once from shared memory; raises `WireError` outside of [*last*, *newest*]."""
    if not last <= value <= newest:
        raise WireError(f"{what} number {value} after {last} of {newest}")
    return value
