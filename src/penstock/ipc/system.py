"""System calls, checks of descriptors, and threads that isolation needs.

The types are the same on every platform. On systems other than Linux each call raises `OSError`.
"""

from __future__ import annotations

import _thread
import errno
import mmap
import os
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import WireError
from penstock.logs import Log

if TYPE_CHECKING:
    from penstock.hal import Memory

STATFS_BYTES: Final = 512
"""Larger than a `struct statfs`, whose first word is the kind."""

CREDENTIALS: Final = struct.Struct("3i")
"""Process, user and group of a peer (`struct ucred`)."""

SO_PEERPIDFD: Final = 77
"""The process at the other end of a Unix socket, as a descriptor (Linux 6.5 and later)."""

LINUX_ONLY: Final = "drivers run in processes of their own on Linux only"


def memory_file(name: str, *, sealable: bool = False) -> int:
    """A descriptor of new anonymous memory, closed in children; see memfd_create(2)."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    flags = os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealable else 0)
    return os.memfd_create(name, flags)


def is_memory(fd: int) -> bool:
    """Whether a descriptor is memory, so that reading it never blocks."""
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) >= 0
    except (OSError, ValueError):
        return False


def filesystem_of(fd: int) -> int:
    """The kind of *fd*'s file system as in `linux/magic.h`; 0 if unknown."""
    if sys.platform != "linux":
        return 0
    import ctypes

    status = ctypes.create_string_buffer(STATFS_BYTES)
    if not 0 <= fd < 1 << 31 or ctypes.CDLL(None).fstatfs(ctypes.c_int(fd), status):
        return 0
    kind: int = struct.unpack_from("l", status.raw)[0]
    return kind


def connect_within(sock: socket.socket, address: str | bytes, seconds: float) -> None:
    """Connects a Unix socket. Raises `TimeoutError` if no process accepts, and `OSError`."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    whole = int(seconds)
    limit = struct.pack("ll", whole, max(1, int((seconds - whole) * 1e6)))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    try:
        sock.connect(address)
    except BlockingIOError as error:
        raise TimeoutError("the process that listens there accepts no client") from error


def is_stopped(process: int) -> bool:
    """Whether a process was stopped by a signal, or by a debugger."""
    return _state(process) in (b"T", b"t")


def has_ended(process: int) -> bool:
    """Whether a process has ended, also if its parent does not know it yet."""
    return _state(process) in (b"", b"Z", b"X")


def _state(process: int) -> bytes:
    # The program's name, in parentheses, may contain any character.
    after = _proc(process, "stat").rpartition(b")")[2]
    return b"".join(after.split()[:1])


def command_of(process: int) -> list[str]:
    """The command line of a process; empty if it has ended."""
    return _proc(process, "cmdline").decode("utf-8", "surrogateescape").split("\0")[:-1]


def _proc(process: int, name: str) -> bytes:
    """A file of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{process}/{name}").read_bytes()
    except OSError:
        return b""


def wait_for_end(pidfd: int, seconds: float) -> bool:
    """Whether the process of a descriptor ends within that time."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def event() -> int:
    """A descriptor that becomes readable by `signal_event`; see eventfd(2)."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    return os.eventfd(0, os.EFD_CLOEXEC)


def signal_event(fd: int) -> None:
    """Makes an event readable."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    os.eventfd_write(fd, 1)


def open_process(pid: int) -> int:
    """A descriptor of a process, safe if its number is reused; see pidfd_open(2)."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    return os.pidfd_open(pid)


def kill_process(pidfd: int) -> None:
    """Ends the process of a descriptor at once. Raises `ProcessLookupError` if it has ended."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    import signal

    signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def peer(sock: socket.socket) -> tuple[int, int]:
    """The peer's process and user; for a listening socket, those that called `listen`."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    content = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    process, user, _ = CREDENTIALS.unpack(content)
    return process, user


def open_peer(sock: socket.socket) -> int:
    """A descriptor of the peer's process. `ProcessLookupError` if it ended, or is not visible."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    try:
        content = sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from None
    else:
        descriptor: int = struct.unpack("i", content)[0]
        return descriptor
    process, _ = peer(sock)
    if process <= 0:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    return os.pidfd_open(process)


def children_of(process: int) -> list[int]:
    """The processes that the first thread of *process* started and that live."""
    return [int(child) for child in _proc(process, f"task/{process}/children").split()]


def descendants_of(process: int) -> list[int]:
    """Living descendants of *process*: its children, and theirs."""
    found: list[int] = []
    todo = [process]
    while todo:
        children = children_of(todo.pop())
        found += children
        todo += children
    return found


def current_user() -> int:
    """The user whose rights this process has."""
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    return os.geteuid()


def map_to_read(fd: int, nbytes: int) -> mmap.mmap:
    """Read-only memory of a descriptor, shared with its writer."""
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    return mmap.mmap(fd, nbytes, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)


if sys.platform == "linux":
    import fcntl

    SHRINK: Final = fcntl.F_SEAL_SHRINK
    SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

    def is_sealed(fd: int, seals: int = SEALS) -> bool:
        """Whether *fd* has these *seals*, by default all. Huge pages never count: their owner can
        punch holes while they are read.
        """
        try:
            held = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            return held & seals == seals and os.fstatvfs(fd).f_bsize <= mmap.PAGESIZE
        except (OSError, OverflowError, ValueError):
            return False

    def may_grow(fd: int) -> bool:
        """Whether *fd* is memory that a process can make longer."""
        try:
            return not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_GROW
        except (OSError, OverflowError, ValueError):
            return False

else:
    SHRINK: Final = 0
    SEALS: Final = 0

    def is_sealed(fd: int, seals: int = SEALS) -> bool:  # noqa: ARG001  # as where there are seals
        """Whether *fd* has these *seals*: never, without seals."""
        return False

    def may_grow(fd: int) -> bool:  # noqa: ARG001  # as where there are seals
        """As above, where no memory has seals."""
        return False


PATIENCE_SECONDS: Final = 5.0
"""Seconds a new thread has to start running."""

_unstarted: set[object] = set()


def start_thread(work: Callable[..., object], *arguments: Any) -> None:
    """Starts a daemon thread that does *work*, without waiting.

    It may never run, see `unstarted_threads`. Raises `RuntimeError` or `MemoryError`.
    """
    birth = object()
    _unstarted.add(birth)
    try:
        _thread.start_new_thread(_run, (birth, work, arguments))
    except BaseException:
        _unstarted.discard(birth)
        raise


def start_thread_or_run(work: Callable[..., object], *arguments: Any) -> None:
    """As `start_thread`. Without room for a thread, it does *work* at once in this thread."""
    try:
        start_thread(work, *arguments)
    except (RuntimeError, MemoryError):
        work(*arguments)


class PatientThread(threading.Thread):
    """A daemon thread whose `start` waits until it runs. `RuntimeError` after *seconds*, or without
    room for a thread; the thread may still run later.
    """

    def __init__(self, work: Callable[..., object], *arguments: Any, name: str) -> None:
        super().__init__(target=work, args=arguments, name=name, daemon=True)
        # The event that `threading.Thread.start` waits for.
        self._started = _Patient()

    def start_within(self, seconds: float | None = None) -> None:
        """As `start`, with that timeout instead of `PATIENCE_SECONDS`, if it is less."""
        if seconds is not None:
            self._started.seconds = min(seconds, PATIENCE_SECONDS)
        try:
            self.start()
        except MemoryError as error:
            raise RuntimeError("there is no memory for a thread") from error


class _Patient(threading.Event):
    seconds = PATIENCE_SECONDS

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None and not super().wait(self.seconds):
            raise RuntimeError("a thread that was started does not run: no memory is left")
        return super().wait(timeout)


def unstarted_threads() -> set[object]:
    """One object for each thread that was started and has not run yet."""
    return set(_unstarted) | {each for each in threading.enumerate() if not _is_alive(each)}


def _is_alive(thread: threading.Thread) -> bool:
    try:
        return thread.is_alive()
    except (AssertionError, RuntimeError):
        # A thread that was not started here, and that has ended.
        return True


def _run(birth: object, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    _unstarted.discard(birth)
    work(*arguments)


DMA_BUF_MAGIC: Final = 0x444D4142
"""The magic number of the file system of dma-bufs (`linux/magic.h`)."""


def cannot_shrink(fd: int) -> bool:
    """Whether the memory of *fd* cannot be truncated: it is sealed against that, or a dma-buf."""
    return is_sealed(fd, SHRINK) or filesystem_of(fd) == DMA_BUF_MAGIC


def descriptor_in(memory: Memory) -> int | None:
    """The open descriptor of *memory*; None if it has none."""
    match memory.handle:
        case bool():
            return None
        case int(fd) | (int(fd), *_):
            return fd if is_open(fd) else None
    return None


def is_open(fd: int) -> bool:
    """Whether *fd* is an open descriptor of this process."""
    try:
        os.fstat(fd)
    except (OSError, OverflowError):
        return False
    return True


def may_shrink(memory: Memory) -> bool:
    """Whether *memory* is a descriptor that another process could truncate while it is mapped."""
    fd = descriptor_in(memory)
    return fd is not None and not cannot_shrink(fd)


def check_cannot_shrink(memory: Memory) -> None:
    """Raises `WireError` if `may_shrink(memory)`."""
    if may_shrink(memory):
        raise WireError(
            f"a {memory.name} memory that may shrink is not mapped for another process: "
            "seal it against shrinking, or send a copy that is"
        )


log = Log("penstock.ipc")

FUSE_DESCRIPTOR: Final = (
    "rejected a descriptor of a FUSE file system, or of one that does not answer: any call on it "
    "may block for ever"
)

FUSE_MAGIC: Final = 0x65735546
"""The magic number that the kernel reports for every FUSE file system (`linux/magic.h`)."""

ANSWER_SECONDS: Final = 1.0
"""The timeout for a file system in another namespace."""

MAX_PENDING: Final = 16
"""The most threads that may wait for such answers at a time."""

_asking: Final = threading.BoundedSemaphore(MAX_PENDING)

_to_close: Final[SimpleQueue[int]] = SimpleQueue()
_closers: list[int] = []


def accepted(fd: int) -> int:
    """*fd*, or -1 if calls on it may block forever. A background thread closes it then."""
    if not may_block(fd):
        return fd
    _to_close.put(fd)
    if not _closers:
        # Only the first one: a client may send as many as it likes.
        log.warning(FUSE_DESCRIPTOR)
        _closers.append(fd)
        # If no thread can be started now, the next such descriptor starts it.
        try:
            start_thread(_close_in_background)
        except (RuntimeError, MemoryError):
            _closers.clear()
    return -1


def may_block(fd: int) -> bool:
    """Whether calls on *fd* may block on another program's file system. False if unknown."""
    if sys.platform != "linux" or is_memory(fd):
        return False
    try:
        if not os.readlink(f"/proc/self/fd/{fd}").startswith("/"):
            # Pipes, sockets and events belong to the kernel.
            return False
        lines = Path(f"/proc/self/fdinfo/{fd}").read_text("ascii", "replace").splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        # Only dma-bufs have this field, and they are on no visible mount.
        if "exp_name" in fields:
            return False
        kind = _kind_of_mount(fields["mnt_id"].strip())
    except (OSError, KeyError):
        return False
    if kind is None:
        return _is_fuse_or_silent(fd)
    return kind.partition(".")[0] in {"fuse", "fuseblk"}


def _kind_of_mount(number: str) -> str | None:
    """The kind of file system of the mount *number*; None if this process cannot see it."""
    with Path("/proc/self/mountinfo").open("r", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            if line.split(" ", 1)[0] == number:
                return line.partition(" - ")[2].split(" ", 1)[0]
    return None


def _is_fuse_or_silent(fd: int) -> bool:
    slots = _asking
    if not slots.acquire(blocking=False):
        return True
    kinds: list[int] = []
    answered = threading.Event()

    def ask() -> None:
        try:
            kinds.append(filesystem_of(fd))
        finally:
            slots.release()
            answered.set()

    try:
        start_thread(ask)
    except (RuntimeError, MemoryError):
        slots.release()
        return True
    return not answered.wait(ANSWER_SECONDS) or kinds == [FUSE_MAGIC]


def _close_in_background() -> None:
    while True:
        fd = _to_close.get()
        with suppress(OSError):
            os.close(fd)
