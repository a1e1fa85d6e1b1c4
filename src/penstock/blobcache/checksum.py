"""The checksum of a blob cache's file: CRC-32C's polynomial, initial value 0, no final inversion.

Without the two inversions the checksum is linear and blind to zeros in front. Both help: the words
are cut into lanes that advance together, and the lanes' checksums are put together with one matrix
each time their length doubles. (The standard CRC-32C of the same bytes is another number.)
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

POLYNOMIAL: Final = 0x82F63B78
_SHORT: Final = 1024  # bytes below which NumPy does not pay
_LOG_WORDS: Final = 6
_WORDS: Final = 1 << _LOG_WORDS  # of 4 bytes, in a lane


def checksum(data: bytes | bytearray | memoryview) -> int:
    """The 32-bit checksum of *data*."""
    if len(data) < _SHORT:
        return _bytewise(data)
    return _lanes(data)


def _bytewise(data: bytes | bytearray | memoryview) -> int:
    table, crc = _byte_table(), 0
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc


def _lanes(data: bytes | bytearray | memoryview) -> int:
    import numpy as np

    lanes = -(-len(data) // (4 * _WORDS))
    padded = np.zeros(4 * lanes * _WORDS, np.uint8)
    padded[len(padded) - len(data) :] = np.frombuffer(data, np.uint8)
    columns = np.ascontiguousarray(padded.view("<u4").reshape(lanes, _WORDS).T)
    low, high = _word_tables()
    crcs = np.zeros(lanes, np.uint32)
    for column in columns:
        crcs ^= column
        crcs = low[crcs & 0xFFFF] ^ high[crcs >> 16]
    log_words = _LOG_WORDS
    while len(crcs) > 1:
        if len(crcs) % 2:
            crcs = np.concatenate([np.zeros(1, np.uint32), crcs])
        crcs = _apply(_advance(log_words), crcs[0::2]) ^ crcs[1::2]
        log_words += 1
    return int(crcs[0])


@cache
def _byte_table() -> tuple[int, ...]:
    """The checksum of each byte."""
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


@cache
def _word_tables() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """What four zero bytes make of the low and of the high half of a state, uint32 [65536] each."""
    import numpy as np

    tables = []
    for bits in np.split(_advance(0), 2):
        table = np.zeros(1, np.uint32)
        for bit in bits:
            table = np.concatenate([table, table ^ bit])
        tables.append(table)
    return tables[0], tables[1]


@cache
def _advance(log_words: int) -> NDArray[np.uint32]:
    """What 4 * 2**log_words zero bytes make of each single bit, uint32 [32]."""
    import numpy as np

    if log_words:
        half = _advance(log_words - 1)
        return _apply(half, half)
    bits = [_bytewise((1 << bit).to_bytes(4, "little")) for bit in range(32)]
    return np.array(bits, np.uint32)


def _apply(matrix: NDArray[np.uint32], states: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The product over GF(2) of a matrix, given by its 32 columns, with each of *states*."""
    import numpy as np

    result = np.zeros_like(states)
    for bit, column in enumerate(matrix):
        result ^= (states >> np.uint32(bit) & np.uint32(1)) * column
    return result
