"""What time stamps of generated code mean, and what this processor reaches at most.

Both are measured once a process, when the first run is measured.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Final, Protocol

from penstock.drivers.llvm.emit.peak import FUNCTIONS, Kind, products_a_turn
from penstock.drivers.llvm.run.addresses import address_of, aligned
from penstock.errors import GeneralFailure

CALIBRATION_SECONDS: Final = 0.01

TURNS: Final = 20_000
REPEATS: Final = 9

_TICKS: Final = ctypes.CFUNCTYPE(ctypes.c_int64)
_LOOP: Final = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)


class Functions(Protocol):
    """Loaded object code, by the names of its functions."""

    def address(self, name: str) -> int: ...


class Machine:
    """The measured properties of this processor. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ns_a_tick = 0.0
        self._peaks: dict[Kind, float] = {}

    def ns_a_tick(self, code: Functions) -> float:
        """Nanoseconds between two ticks of the clock that *code* reads."""
        with self._lock:
            if not self._ns_a_tick:
                self._ns_a_tick = _calibrated(_TICKS(code.address("ticks")))
            return self._ns_a_tick

    def peak(self, code: Functions, kind: Kind, lanes: int) -> float:
        """The most multiply-accumulates of *kind* a nanosecond, on one thread, with vectors of
        *lanes* sums. 0 if *code* has no loop that measures them.
        """
        with self._lock:
            if kind not in self._peaks:
                try:
                    loop = _LOOP(code.address(FUNCTIONS[kind]))
                except GeneralFailure:
                    return 0.0
                self._peaks[kind] = products_a_turn(kind, lanes) * TURNS / _fastest(loop)
            return self._peaks[kind]


def _calibrated(ticks: ctypes._CFunctionType) -> float:
    """The ratio of two clocks, over some milliseconds."""
    marks = []
    for pause in (0.0, CALIBRATION_SECONDS):
        time.sleep(pause)
        # Of some readings, the one that was interrupted least.
        readings = []
        for _ in range(5):
            before = time.perf_counter_ns()
            tick = int(ticks())
            after = time.perf_counter_ns()
            readings.append((after - before, (before + after) / 2, tick))
        marks.append(min(readings)[1:])
    (first_ns, first), (last_ns, last) = marks
    return (last_ns - first_ns) / max(1, last - first)


def _fastest(loop: ctypes._CFunctionType) -> float:
    """The least time of the loop, in nanoseconds."""
    room = aligned(256)
    room[...] = 0
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter_ns()
        loop(TURNS, address_of(room))
        times.append(time.perf_counter_ns() - begin)
    return max(1.0, min(times))


machine: Final = Machine()
