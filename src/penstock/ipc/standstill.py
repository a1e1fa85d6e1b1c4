"""Processes that stand still: none of their threads will do anything before somebody continues them
(`SIGSTOP`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from penstock.errors import DeadObject

LOOK_NS: Final = 100_000_000
SHORTEST_LOOK_NS: Final = 5_000_000
"""How often a process is looked at while a call waits for it: eight times until the deadline,
within these limits.
"""

AGAIN_NS: Final = 1_000_000_000
"""The least that starting a process in place of another, and asking it, takes."""


class Standstill:
    """Looks at the process of a driver, in words *who*, during one call that has a deadline and
    leaves nothing behind in the caller's memory. From half of the time on such a call is given up
    where the process stands still, and would be found to hang, which takes *limit_ns*, too late for
    another one: the rest is the fall-back's.
    """

    def __init__(
        self,
        is_stopped: Callable[[], bool],
        who: str,
        limit_ns: int,
        deadline_ns: int,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._is_stopped, self._who, self._limit_ns = is_stopped, who, limit_ns
        now = clock()
        self._deadline_ns, self._clock = deadline_ns, clock
        self._half_ns = now + max(0, deadline_ns - now) // 2
        self._since_ns: int | None = None
        self.next_ns = self._after(now)
        """When it is to be looked at again."""

    def look(self) -> None:
        """Raises `DeadObject` where the call is to be given up."""
        now = self._clock()
        if now < self.next_ns:
            return
        self.next_ns = self._after(now)
        if not self._is_stopped():
            self._since_ns = None
            return
        if self._since_ns is None:
            # One look alone may have met a moment's pause.
            self._since_ns = now
            return
        hangs_ns = self._since_ns + self._limit_ns
        if now >= self._half_ns and hangs_ns + AGAIN_NS > self._deadline_ns:
            limit = f"{self._limit_ns / 1e9:g} s"
            raise DeadObject(
                f"{self._who} is stopped, and does not answer before the deadline; SIGCONT lets it go on, or it is "
                f"killed after {limit} without a sign of life, and penstock doctor --last-crash has a record from then on"
            )

    def _after(self, now: int) -> int:
        pause = max(SHORTEST_LOOK_NS, min(LOOK_NS, (self._deadline_ns - now) // 8))
        return min(now + pause, self._deadline_ns)
