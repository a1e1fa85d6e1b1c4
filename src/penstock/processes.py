"""A process by its number, and by what no later process of the same number has."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from msgspec import Struct


class Process(Struct, frozen=True):
    """The process *pid* that *started* at this tick of the system *boot*, in the process
    *namespace*; each is empty where the platform does not tell.
    """

    pid: int
    started: str = ""
    boot: str = ""
    namespace: str = ""

    def ended(self) -> bool | None:
        """Whether it is gone; None of one that cannot be seen from here."""
        if self.boot != (here := boot()):
            return True if here else None
        if self.namespace != namespace():
            return None
        if self.started:
            return started(self.pid) != self.started
        return not _exists(self.pid)


def this_process() -> Process:
    """The process that asks."""
    pid = os.getpid()
    return Process(pid, started(pid), boot(), namespace())


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
