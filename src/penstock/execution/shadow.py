"""Which runs are compared, and what came of it: one `Shadow` for each compiled model."""

from __future__ import annotations

import itertools
import math
import threading
import time
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from penstock.cache.verdicts import DriverVerdict

GOLDEN: Final = (math.sqrt(5) - 1) / 2
POLL_SECONDS: Final = 0.01


class ShadowReport(Struct, frozen=True):
    """What shadow verification of one compiled model has done so far.

    *chosen* runs were to be compared: so many were *compared* and *departed* from the reference by
    more than rounding, *dropped* because comparing was behind, *skipped* because there was nothing
    to compare or no way to, and *failed* because the reference failed at them or the comparison was
    stopped. The others wait. *verdicts* are those that were found here.
    """

    chosen: int
    compared: int
    departed: int
    dropped: int
    skipped: int
    failed: int
    verdicts: tuple[DriverVerdict, ...]

    @property
    def waiting(self) -> int:
        """Runs whose comparison has not ended yet."""
        return self.chosen - self.compared - self.dropped - self.skipped - self.failed


class Shadow:
    """Chooses runs by *rate*, a share (float) or the first so many (int). Thread-safe."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._runs = itertools.count()
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(
            ("chosen", "compared", "departed", "dropped", "skipped", "failed"), 0
        )
        self._verdicts: list[DriverVerdict] = []

    def choose(self) -> bool:
        """Whether the run that begins now is to be compared."""
        run = next(self._runs)
        if isinstance(self._rate, int):
            chosen = run < self._rate
        else:
            # A period in the caller's inputs never meets one in the choice.
            chosen = run * GOLDEN % 1.0 < self._rate
        if chosen:
            self.count("chosen")
        return chosen

    def count(self, *what: str) -> None:
        """Adds one to the counts of these names."""
        with self._lock:
            for name in what:
                self._counts[name] += 1

    def add(self, verdict: DriverVerdict) -> None:
        """Notes what was found."""
        with self._lock:
            self._verdicts.append(verdict)

    def report(self) -> ShadowReport:
        """The counts by now."""
        with self._lock:
            return ShadowReport(**self._counts, verdicts=tuple(self._verdicts))

    def wait(self, timeout: float | None = None) -> bool:
        """Waits at most *timeout* seconds for all comparisons; whether they have ended."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while self.report().waiting > 0:
            if time.monotonic() >= end:
                return False
            time.sleep(POLL_SECONDS)
        return True
