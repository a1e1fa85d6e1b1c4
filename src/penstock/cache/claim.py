"""Who holds a lease, and whether that process still lives."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import structs

from penstock.cache.index import Count

MOST_CLAIM_BYTES: Final = 4096


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What the holder of a lease says of itself in the lease file.

    The process *pid* that *started* at this tick of the system *boot*, in the process *namespace* (each
    empty where the platform does not tell), claims the entry for *seconds*, *until* this second since the
    epoch. With *late* its driver will write the *models* and *datas* files some time before then; where it is
    also *marked* it has given that up once no opening of the entry's lock is (`penstock.cache.marks`).
    """

    pid: Annotated[int, msgspec.Meta(ge=1)]
    started: str
    boot: str
    namespace: str
    until: float
    seconds: float
    late: bool = False
    models: Count = 0
    datas: Count = 0
    marked: bool = False

    @classmethod
    def of_this_process(cls, now: float, seconds: float) -> Claim:
        pid = os.getpid()
        return cls(
            pid=pid,
            started=started(pid),
            boot=boot(),
            namespace=namespace(),
            until=now + seconds,
            seconds=seconds,
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

    def expired(self, now: float) -> bool:
        """Whether its time is over, or a clock that was set back makes it look longer than it was given."""
        return not now < self.until <= now + self.seconds

    def dead(self) -> bool:
        """Whether the process is known to be gone. One that cannot be seen from here counts as alive."""
        if self.boot != (here := boot()):
            return bool(here)
        if self.namespace != namespace():
            return False
        if self.started:
            return started(self.pid) != self.started
        return not _exists(self.pid)


def boot() -> str:
    """What names this run of the system; empty where nothing does."""
    return _text("/proc/sys/kernel/random/boot_id").strip()


def namespace() -> str:
    """What names the set of processes that this one can see; empty where there is one only."""
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


def started(pid: int) -> str:
    """When process *pid* started, in ticks; empty where nothing tells, or where there is none."""
    # The second field is the program's name in parentheses, which may hold any.
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _exists(pid: int) -> bool:
    if sys.platform == "win32":  # where a signal of 0 would be a Ctrl-C
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError, ValueError):
        return False
    except OSError:
        return True
    return True


def _text(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text("utf-8", "replace")
    return ""
