"""How large a single array may be: what a model asks for is checked before it is allocated.

A file of a few hundred bytes may ask for an array of any size (FILL, BROADCAST_TO, RANGE). Systems that hand out
memory before they have it would end the process, or another, when it is written.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Final

from penstock import knobs
from penstock.errors import LimitExceeded

MIB: Final = 1 << 20
UNKNOWN_MEMORY: Final = 4096 * MIB
"""Where the system does not say how much memory it has."""


def most_bytes() -> int:
    """Bytes that one array may take: the knob `tensor_limit_mib`, else half of the machine's memory."""
    wanted = knobs.tensor_limit_mib()
    return wanted * MIB if wanted > 0 else _half_of_memory()


def check_bytes(size: int, what: str) -> None:
    """Raises `LimitExceeded` for an array of more bytes than one may take."""
    if size > most_bytes():
        raise LimitExceeded(
            f"{what} takes {size} bytes; the limit is {most_bytes()} (knob tensor_limit_mib)"
        )


@cache
def _half_of_memory() -> int:
    if sys.platform == "win32":
        return UNKNOWN_MEMORY
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (ValueError, OSError):
        return UNKNOWN_MEMORY
