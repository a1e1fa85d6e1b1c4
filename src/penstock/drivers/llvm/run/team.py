"""The team: threads of this process that execute shares of runs, for all models together.

Its threads wait in generated code, without the interpreter lock, in the code of the model that
started the team. That code stays mapped until they have left it. The team ends when the last model
that uses it is closed, and begins anew with the next one. A forked child has no team.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np

from penstock.drivers.llvm.emit.team import (
    BOX_BYTES,
    MOST_WORKERS,
    SLEEPING,
    TEAM_BYTES,
    Box,
    Team,
)
from penstock.ir import NDArray
from penstock.threads import allowed_processors

SPIN_NS: Final = 50_000
"""Nanoseconds that a waiting thread spins before it sleeps. To wake a thread takes as long, where
the processor is a virtual one.
"""

FEWEST_SPINS: Final = 300
MOST_SPINS: Final = 30_000

SAMPLE: Final = 500
"""Turns by which the time of one is measured: a pause takes 40 cycles of one processor and 140 of
another.
"""

SPINS_CROWDED: Final = 1
"""The same with more threads than processors: whoever spins then keeps another from working."""

MOST_THREADS: Final = MOST_WORKERS + 1

PATIENCE: Final = 1.0
"""Seconds that closing the last model waits for the threads to end."""

ALIGNMENT: Final = 128

_ENTRY: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_PAUSES: Final = ctypes.PYFUNCTYPE(None, ctypes.c_int64)


class Loaded(Protocol):
    """Loaded object code. It stays mapped as long as this object lives."""

    def address(self, name: str) -> int:
        """The address of the function *name*."""
        ...


class Workers:
    """The memory and the threads of one team. Its threads refer to it, and end by `end`."""

    def __init__(self, code: Loaded) -> None:
        size = TEAM_BYTES + MOST_WORKERS * BOX_BYTES
        self._room = np.zeros(size + ALIGNMENT, np.uint8)
        start = -self._room.ctypes.data % ALIGNMENT
        self._memory: NDArray = self._room[start : start + size]
        self.address = self._memory.ctypes.data
        self._code = code
        self._work = _ENTRY(code.address("worker"))
        self._dismiss = _ENTRY(code.address("dismiss"))
        self.threads: list[threading.Thread] = []
        wait, wake = _functions()
        self._set(Team.WAIT, wait)
        self._set(Team.WAKE, wake)
        self._set(Team.SPINS, _turns_within(SPIN_NS, code))

    def grow(self, count: int) -> None:
        """Starts threads until there are *count*."""
        for number in range(len(self.threads), min(count, MOST_WORKERS)):
            thread = threading.Thread(
                target=_serve,
                args=(self, number),
                name=f"penstock-llvm-{number + 1}",
                daemon=True,
            )
            thread.start()
            self.threads.append(thread)
            # Runs see the worker from now on; a job that comes before its thread waits for it.
            self._set(Team.COUNT, number + 1)
        if len(self.threads) >= allowed_processors():
            self._set(Team.SPINS, SPINS_CROWDED)

    def box(self, number: int) -> int:
        """The address of the memory of worker *number*."""
        return self.address + TEAM_BYTES + number * BOX_BYTES

    def serve(self, number: int) -> None:
        """What worker *number* does, until the team ends."""
        self._work(self.address, self.box(number))

    def end(self) -> None:
        """Tells the threads to end. No run uses them, and none will."""
        for number in range(len(self.threads)):
            self._dismiss(self.address, self.box(number))

    def claimed(self) -> int:
        """How many workers belong to a run."""
        flags = self._memory[TEAM_BYTES + Box.CLAIMED :: BOX_BYTES]
        return int(np.count_nonzero(flags))

    def _set(self, place: Team, value: int) -> None:
        self._memory[place : place + 8].view(np.int64)[0] = value


class Member:
    """A model's use of the team, until it leaves. *address* is that of the team."""

    def __init__(self, workers: Workers, leave: Callable[[Workers], None]) -> None:
        self.address = workers.address
        self._workers: Workers | None = workers
        self._leave = leave

    def leave(self) -> None:
        """Ends the use; a second call does nothing."""
        workers, self._workers = self._workers, None
        if workers is not None:
            self._leave(workers)


class _Process:
    """The team of this process. Thread-safe."""

    def __init__(self) -> None:
        self.forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Begins without a team: the threads of a forked child's parent are not the child's."""
        # Reentrant: the garbage collector may close another model in the thread that holds it.
        self._lock = threading.RLock()
        self._workers: Workers | None = None
        self._members = 0
        self._ending: list[threading.Thread] = []

    def join(self, code: Loaded, threads: int) -> Member:
        """A use of the team by runs of up to *threads* threads, of which one is the caller's."""
        with self._lock:
            self._members += 1
            try:
                if self._workers is None:
                    self._workers = Workers(code)
                self._workers.grow(threads - 1)
            except BaseException:
                self._left(self._workers)
                raise
            return Member(self._workers, self._left)

    def _left(self, workers: Workers | None) -> None:
        with self._lock:
            if workers is not self._workers:  # of the parent process
                return
            self._members -= 1
            if not self._members and workers is not None:
                self._workers = None
                workers.end()
                self._ending += workers.threads

    def settle(self) -> None:
        """Waits for threads that were told to end, for a second at most."""
        with self._lock:
            ending, self._ending = self._ending, []
        for thread in ending:
            if thread is not threading.current_thread():
                thread.join(PATIENCE)

    def size(self) -> int:
        """How many threads there are now, callers of runs apart."""
        with self._lock:
            return 0 if self._workers is None else len(self._workers.threads)


_process: Final = _Process()
join: Final = _process.join
settle: Final = _process.settle
size: Final = _process.size


def _serve(workers: Workers, number: int) -> None:
    # The argument keeps the team's memory and code as long as the thread uses them.
    workers.serve(number)


def _turns_within(span_ns: int, code: Loaded) -> int:
    """How often a waiting thread looks in *span_ns* nanoseconds, measured."""
    pauses = _PAUSES(code.address("pauses"))
    times = []
    for _ in range(3):
        begin = time.perf_counter_ns()
        pauses(SAMPLE)
        times.append(time.perf_counter_ns() - begin)
    return min(MOST_SPINS, max(FEWEST_SPINS, SAMPLE * span_ns // max(1, min(times))))


def _functions() -> tuple[int, int]:
    """The addresses of the system's functions that wait for a word and wake for it."""
    system = SLEEPING[sys.platform]
    library: Any = ctypes
    opened = library.WinDLL(system.library) if system.library else ctypes.CDLL(None)
    wait, wake = (
        ctypes.cast(getattr(opened, name), ctypes.c_void_p).value or 0
        for name in (system.wait, system.wake)
    )
    return wait, wake
