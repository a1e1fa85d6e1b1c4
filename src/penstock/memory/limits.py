"""Limits on the size of a single array, checked before it is allocated.

A file of a few hundred bytes may request an array of any size (FILL, BROADCAST_TO, RANGE). A system
that overcommits memory would end the process, or another one, when the array is written.
"""

from __future__ import annotations

import errno
import os
import sys
from functools import cache
from typing import Final

from penstock import knobs
from penstock.errors import LimitExceeded

MIB: Final = 1 << 20
BEYOND_FILE_LIMIT: Final = (
    "it does not fit into the limit that this process has for the size of files, which holds for "
    "memory shared by descriptor too: raise it with 'ulimit -f'"
)
UNKNOWN_MEMORY: Final = 8192 * MIB
"""Bytes assumed if the system does not report its memory."""


def most_bytes() -> int:
    """The most bytes of one array: the knob `tensor_limit_mib`, or half of the memory."""
    wanted = knobs.tensor_limit_mib()
    return wanted * MIB if wanted > 0 else available_memory() // 2


def check_bytes(size: int, what: str) -> None:
    """Raises `LimitExceeded` for an array of more bytes than one may take."""
    # Sizes below every limit skip the settings: models have many small arrays.
    if size > MIB and size > most_bytes():
        raise LimitExceeded(
            f"{what} takes {size} bytes; the limit is {most_bytes()} (knob tensor_limit_mib)"
        )


def explained(error: OSError) -> OSError:
    """*error* of memory that the system keeps as a file; names the file limit if that is met."""
    return OSError(errno.EFBIG, BEYOND_FILE_LIMIT) if error.errno == errno.EFBIG else error


@cache
def available_memory() -> int:
    """Bytes of memory for this process: the machine's, or its cgroup's limit."""
    return min(_of_machine(), of_cgroup())


def of_cgroup(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> int:
    """The least limit of the cgroups, of version 2 or 1, that this process is in."""
    try:
        with open(own, encoding="utf-8") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except (OSError, ValueError):
        return sys.maxsize
    found = [sys.maxsize]
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers not in {"", "memory"}:
            continue
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        # In a container, the cgroup may be the visible root, or have the host's name for it.
        parts = [part for part in path.split("/") if part]
        found += [
            _number("/".join([root, controllers, *parts[:depth], name]))
            for depth in range(len(parts) + 1)
        ]
    return min(found)


def _number(path: str) -> int:
    try:
        with open(path, encoding="utf-8") as file:
            return int(file.read())
    except (OSError, ValueError):
        # The file is missing, or contains `max`.
        return sys.maxsize


def _of_machine() -> int:
    if sys.platform == "win32":
        return UNKNOWN_MEMORY
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return UNKNOWN_MEMORY
