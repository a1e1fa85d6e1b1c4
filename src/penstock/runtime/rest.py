"""Waiting until the other threads of this process are at rest: an engine's go on spinning after its
run has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

WINDOW_NS: Final = 5_000_000
"""What is looked at: systems may count the time of a running thread at their ticks only, of which
there are as few as 250 a second.
"""

BUSY: Final = 0.05
"""Threads are at rest that together use less than this share of one processor."""

LONGEST_NS: Final = 100_000_000
"""How long the threads of engines spin, at the most. ONNX Runtime's do so for a million pauses of
the processor: up to 50 ms.
"""


def used_by_others_ns() -> int:
    """The processor time that the threads of this process but the calling one have used."""
    return time.process_time_ns() - time.thread_time_ns()


class Rest:
    """Waits for the others. Threads that do not end are the program's own: in vain is waited half
    as long each time.
    """

    def __init__(
        self,
        used: Callable[[], int] = used_by_others_ns,
        clock: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._used, self._clock, self._sleep = used, clock, sleep
        self._longest_ns = LONGEST_NS

    def __call__(self) -> None:
        """Returns when the other threads are at rest, or have not come to it."""
        began = self._clock()
        while not self._at_rest():
            if self._clock() - began >= self._longest_ns:
                self._longest_ns //= 2
                return
        self._longest_ns = LONGEST_NS

    def _at_rest(self) -> bool:
        began, used = self._clock(), self._used()
        self._sleep(WINDOW_NS / 1e9)
        return self._used() - used < BUSY * (self._clock() - began)
