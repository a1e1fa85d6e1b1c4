"""The heartbeat of a host process: a counter in shared memory that clients can only read."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from typing import Final, NoReturn

import numpy as np

from penstock import knobs
from penstock.errors import WireError
from penstock.ipc import system
from penstock.ir import NDArray

BEAT_SECONDS: Final = 1.0
PAGE: Final = 4096

BEATS_TO_START: Final = 5
"""Heartbeats within which a started thread must run."""

MOST_OUTPUT: Final = 4 << 20
"""Bytes of output that are kept in memory at each beat."""


class Heartbeat:
    """A thread that increments a counter in shared memory each second.

    The counter stops when the interpreter runs no threads. *fd* is the page, which no other process
    can map for writing. Raises `OSError`.

    The thread ends the process if a started thread does not run: memory is exhausted, and the
    thread that started it waits forever. With *trims* it also bounds the memory of the output.
    """

    fd: int
    _trims: bool

    def __init__(self, *, trims: bool = True) -> None:
        if sys.platform != "linux":
            raise OSError(system.LINUX_ONLY)
        import fcntl

        self._trims = trims
        self.fd = system.memory_file("penstock-heart", sealable=True)
        os.ftruncate(self.fd, PAGE)
        self._page = mmap.mmap(self.fd, PAGE)
        self._beats: NDArray = np.frombuffer(self._page, np.int64)
        size = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        # F_SEAL_FUTURE_WRITE, which Python 3.11 has no name for.
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, size | 0x0010 | fcntl.F_SEAL_SEAL)

    def start(self) -> None:
        """Begins to beat."""
        system.start_thread(self._beat)

    def _beat(self) -> None:
        try:
            pause = threading.Event()
            # Several heartbeats within the shortest silence that clients count as death.
            interval = min(BEAT_SECONDS, knobs.driver_timeout_ms() / 5000)
            waiting: dict[object, int] = {}
            while True:
                self._beats[0] += 1
                if self._trims:
                    trim_output()
                # Counts heartbeats, not seconds: a stopped process has no heartbeat.
                waiting = {
                    thread: waiting.get(thread, 0) + 1 for thread in system.unstarted_threads()
                }
                if max(waiting.values(), default=0) > BEATS_TO_START:
                    end_process("a thread that was started does not run: no memory is left")
                pause.wait(interval)
        except MemoryError:
            end_process("no memory is left")


def end_process(why: str) -> NoReturn:
    """Ends a process that cannot serve any more, without allocating memory or starting threads."""
    try:
        os.write(2, f"penstock.ipc: {why}\n".encode())
    finally:
        os._exit(1)


LOST_STATUS: Final = 96
"""The exit status of a process whose driver has lost its engine."""

LOST: Final = "penstock.ipc: the engine is lost: "
"""What the output of such a process has before the driver's reason."""


def end_lost_process(reason: str) -> NoReturn:
    """Ends a process whose driver has lost its engine, without waiting for threads that hang."""
    try:
        os.write(2, f"\n{LOST}{' '.join(reason.split())}\n".encode(errors="replace"))
    finally:
        os._exit(LOST_STATUS)


def trim_output() -> None:
    """Frees the memory of much output; a reader continues at its offset."""
    if sys.platform == "win32":
        return
    try:
        if os.fstat(2).st_blocks * 512 > MOST_OUTPUT:
            # The next write keeps its offset; the file has a hole before it.
            os.ftruncate(2, 0)
    except OSError:
        return


class HeartbeatView:
    """A client's view of the heartbeat page *fd*; `WireError` if it is none, or may shrink."""

    def __init__(self, fd: int) -> None:
        try:
            if not system.is_sealed(fd, system.SHRINK):
                raise WireError("the page of a host's heartbeat is not sealed against shrinking")
            self._page = system.map_to_read(fd, PAGE)
        except (OSError, ValueError) as error:
            raise WireError(f"the page of a host's heartbeat cannot be mapped: {error}") from None
        self._beats: memoryview | None = memoryview(self._page).cast("q")
        self._last = 0

    def read(self) -> int:
        """The number of heartbeats so far."""
        beats = self._beats
        if beats is not None:
            self._last = beats[0]
        return self._last

    def close(self) -> None:
        """Unmaps the page. No thread may be reading it."""
        beats, self._beats = self._beats, None
        if beats is not None:
            beats.release()
            self._page.close()
