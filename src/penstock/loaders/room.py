"""How much the content of a model file may become in memory, and how long its names may be: the same for every format."""

from __future__ import annotations

from typing import Final

from penstock import knobs

MIB: Final = 1 << 20
MEMORY_PER_BYTE: Final = 16
LEAST_MEMORY: Final = 64 * MIB
"""What a file may become unless the knob `loading_limit_mib` says otherwise: networks of weights take little more than these."""

MAX_NAME: Final = 1 << 16
"""Bytes of one name or text in a model file. Names are copied into every plan, receipt and error."""


def room_for(size: int) -> int:
    """Bytes of memory that all but the weights of a file of *size* bytes may take."""
    given = knobs.loading_limit_mib()
    return given * MIB or max(MEMORY_PER_BYTE * size, LEAST_MEMORY)
