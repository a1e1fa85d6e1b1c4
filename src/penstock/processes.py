"""Identifies a process by its number and by data that a later process of that number lacks."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from msgspec import Struct


class Process(Struct, frozen=True):
    """The process *pid* that *started* at this tick of the system *boot*, in the pid *namespace*.

    A field is empty if the platform does not provide it.
    """

    pid: int
    started: str = ""
    boot: str = ""
    namespace: str = ""

    def ended(self) -> bool | None:
        """Whether the process has ended; None if it is invisible from this process."""
        if self.boot != (here := boot()):
            return True if here else None
        if self.namespace != namespace():
            return None
        if self.started:
            return started(self.pid) != self.started
        return not _exists(self.pid)


def this_process() -> Process:
    """The current process."""
    pid = os.getpid()
    return Process(pid, started(pid), boot(), namespace())


def boot() -> str:
    """The identifier of this system boot; empty if unavailable."""
    return _text("/proc/sys/kernel/random/boot_id").strip()


def namespace() -> str:
    """The identifier of the pid namespace; empty if the platform has none."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def started(pid: int) -> str:
    """The start time of process *pid* in ticks; empty if unknown or if there is no such process."""
    # The second field is the program's name in parentheses, which may contain any character.
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _exists(pid: int) -> bool:
    if sys.platform == "win32":  # there, signal 0 means Ctrl-C
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError, ValueError):
        return False
    except OSError:
        return True
    return True


def _text(path: str) -> str:
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""
