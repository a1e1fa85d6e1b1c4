"""Who holds a lease, and whether that process still lives."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import structs

from penstock.cache.index import Count
from penstock.processes import Process, namespace, started

MOST_CLAIM_BYTES: Final = 4096
_MOST_PID: Final = (1 << 32) - 1
# What two looks at one clock may seem to differ by the wrong way round, in seconds.
_SLACK: Final = 1.0


class Now(NamedTuple):
    """What the clocks say: *wall*, seconds since the epoch, which anybody may set, and *up*,
    seconds since the system *boot* began, which nobody can; 0 and empty where the platform has no
    such clock.
    """

    wall: float
    up: float = 0.0
    boot: str = ""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What the holder of a lease says of itself in the lease file.

    The process *pid* that *started* at this tick of the system *boot*, in the process *namespace*
    (each empty where the platform does not tell), claims the entry for *seconds*, *until* this
    second since the epoch; it began when the system was *up* for so many seconds, 0 where that is
    not known. With *late* its driver will write the *models* and *datas* files some time before
    then; where it is also *marked* it has given that up once no opening of the entry's lock is
    (`penstock.cache.marks`).
    """

    pid: Annotated[int, msgspec.Meta(ge=1, le=_MOST_PID)]
    started: str
    boot: str
    namespace: str
    until: float
    seconds: float
    up: float = 0.0
    late: bool = False
    models: Count = 0
    datas: Count = 0
    marked: bool = False

    @classmethod
    def of_this_process(cls, now: Now, seconds: float) -> Claim:
        pid = os.getpid()
        return cls(
            pid=pid,
            started=started(pid),
            boot=now.boot,
            namespace=namespace(),
            until=now.wall + seconds,
            seconds=seconds,
            up=now.up,
        )

    def late_writers(self, models: int, datas: int, *, marked: bool) -> Claim:
        """The same process's claim while its driver is still to write the files."""
        return structs.replace(self, late=True, models=models, datas=datas, marked=marked)

    def pack(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def unpack(cls, content: bytes) -> Claim | None:
        """The claim; None for bytes that are none."""
        try:
            return msgspec.json.decode(content, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def over(self, now: Now) -> bool:
        """Whether the holder of a lease has had its time. A clock that was set back ends no lease."""
        if self._same_clock(now):
            return not now.up - self.up < self.seconds
        return not now.wall < self.until

    def expired(self, now: Now, most: float) -> bool:
        """Whether a late writer has had its time, of which it gets at most *most* seconds, whatever
        it claims.

        Nobody waits for it on a clock that was set back to before it began.
        """
        began = self.up if (same := self._same_clock(now)) else self.until - self.seconds
        age = (now.up if same else now.wall) - began
        return not -_SLACK < age < min(self.seconds, most)

    def _same_clock(self, now: Now) -> bool:
        return self.up > 0 and now.up > 0 and self.boot == now.boot != ""

    def dead(self) -> bool:
        """Whether the process is known to be gone. One that cannot be seen from here counts as
        alive.
        """
        return Process(self.pid, self.started, self.boot, self.namespace).ended() is True


def uptime() -> float:
    """Seconds since the system began, also while it slept; 0 where nothing tells."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return 0.0
