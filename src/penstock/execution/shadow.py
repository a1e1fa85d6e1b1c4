"""Shadow verification of one compiled model: which runs are compared, and the counts."""

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
    """Counts and verdicts of the shadow verification of one compiled model.

    *chosen* runs were selected for comparison. Of these:

    - *compared* were compared, and *departed* differed from the reference by more than rounding;
    - *dropped* were not compared because comparing was behind;
    - *skipped* had nothing to compare, or no way to compare it;
    - *failed* because the reference failed, or because the comparison was stopped.

    The rest is pending. *verdicts* are the verdicts found by this model's runs.
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
        """The number of chosen runs whose comparison has not ended."""
        return self.chosen - self.compared - self.dropped - self.skipped - self.failed


class Shadow:
    """Chooses runs by *rate*: a share of all runs (float), or the first runs (int). Thread-safe."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._runs = itertools.count()
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(
            ("chosen", "compared", "departed", "dropped", "skipped", "failed"), 0
        )
        self._verdicts: list[DriverVerdict] = []

    def choose(self) -> bool:
        """Whether to compare the run that begins now."""
        run = next(self._runs)
        if isinstance(self._rate, int):
            chosen = run < self._rate
        else:
            # An irrational step: the choice cannot coincide with a period in the caller's inputs.
            chosen = run * GOLDEN % 1.0 < self._rate
        if chosen:
            self.count("chosen")
        return chosen

    def count(self, *what: str) -> None:
        """Increments the counts of these names."""
        with self._lock:
            for name in what:
                self._counts[name] += 1

    def add(self, verdict: DriverVerdict) -> None:
        """Records a verdict."""
        with self._lock:
            self._verdicts.append(verdict)

    def report(self) -> ShadowReport:
        """The present counts."""
        with self._lock:
            return ShadowReport(**self._counts, verdicts=tuple(self._verdicts))

    def wait(self, timeout: float | None = None) -> bool:
        """Waits at most *timeout* seconds for all comparisons; returns whether they have ended."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while self.report().waiting > 0:
            if time.monotonic() >= end:
                return False
            time.sleep(POLL_SECONDS)
        return True
