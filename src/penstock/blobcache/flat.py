"""A blob cache as bytes: NNAPI's layout, little-endian, every entry aligned to 8 bytes.

| offset | content |
|---|---|
| 0 | u32 magic: 0x5F426224, that is `_Bb$` with the first letter in the highest byte |
| 4 | u32 version of this layout: 3 |
| 8 | u32 device version |
| 12 | 4 zero bytes |
| 16 | u64 number of entries |
| 24 | i32 bytes of the build id |
| 28 | the build id, UTF-8; zero bytes up to the next multiple of 8 at or after 32 + its size |
| then | per entry u64 key size, u64 value size, key, value, zero bytes up to a multiple of 8 |

Entries are in order of last use, the least recent first, so reading them in order into an empty
cache restores that order. A file has `nn$$` and a u32 checksum of all following bytes before this.

The checksum has CRC-32C's polynomial, but initial value 0 and no final inversion, so it differs
from the standard CRC-32C. It is then linear and ignores leading zeros. So the words are cut into
lanes that advance together, and one matrix for each doubling of the length combines the lanes'
checksums.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from penstock.arguments import check_kind
from penstock.blobcache.policy import Limits
from penstock.errors import CacheError, InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


POLYNOMIAL: Final = 0x82F63B78
_SHORT: Final = 1024  # bytes below which NumPy is slower
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
    """Effect of four zero bytes on the low and the high half of a state, uint32 [65536] each."""
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
    """Effect of 4 * 2**log_words zero bytes on each single bit, uint32 [32]."""
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


Entries = Iterable[tuple[bytes, bytes]]

MAGIC: Final = (ord("_") << 24) + (ord("B") << 16) + (ord("b") << 8) + ord("$")
LAYOUT_VERSION: Final = 3
FILE_MAGIC: Final = b"nn$$"
MAX_BUILD_ID: Final = 1024

_HEADER: Final = struct.Struct("<IIIIQi")
_ENTRY: Final = struct.Struct("<QQ")
_FILE_HEADER: Final = struct.Struct("<4sI")
_BASE: Final = 32  # start of the entries without a build id: a C compiler's size of the header


class MalformedBlobs(CacheError, ValueError):
    """Bytes are not a flattened blob cache, or a part of one is missing or altered."""


@dataclass(frozen=True, slots=True)
class Version:
    """Version of a blob cache: blobs of another device version or build are not read.

    *device* is a 32-bit number, *build* at most 1024 bytes of UTF-8. Raises `InputError` otherwise.
    """

    device: int = 1
    build: str = ""

    def __post_init__(self) -> None:
        check_kind(self.device, int, "a device version is a 32-bit number")
        check_kind(self.build, str, "a build id is text")
        if not 0 <= self.device < 1 << 32:
            raise InputError(f"a device version is a 32-bit number, not {self.device}")
        if len(self.build.encode()) > MAX_BUILD_ID:
            raise InputError(f"a build id has at most {MAX_BUILD_ID} bytes")


def flattened_size(entries: Entries, version: Version) -> int:
    """Size in bytes of the result of `flatten`."""
    sizes = (_align(_ENTRY.size + len(k) + len(v)) for k, v in entries)
    return _align(_BASE + len(version.build.encode())) + sum(sizes)


def largest_flattened(limits: Limits, version: Version) -> int:
    """Most bytes that a cache of these limits has when flattened.

    Keys and values have 1 byte or more, so no entry takes more than 12 times its counted bytes.
    """
    return _align(_BASE + len(version.build.encode())) + 12 * limits.total


def flatten(entries: Entries, version: Version) -> bytes:
    """*entries* as bytes, in their order."""
    entries, build = list(entries), version.build.encode()
    header = _HEADER.pack(MAGIC, LAYOUT_VERSION, version.device, 0, len(entries), len(build))
    parts = [_padded(header + build, _align(_BASE + len(build)))]
    for key, value in entries:
        part = _ENTRY.pack(len(key), len(value)) + key + value
        parts.append(_padded(part, _align(len(part))))
    return b"".join(parts)


def unflatten(data: memoryview, version: Version) -> list[tuple[bytes, bytes]] | None:
    """The entries in *data*; None if another version wrote them.

    Raises `MalformedBlobs` for anything that `flatten` cannot have written. A size in the data is
    checked against the number of bytes before it is used.
    """
    if len(data) < _HEADER.size:
        raise MalformedBlobs(f"{len(data)} bytes end inside the header of {_HEADER.size}")
    magic, layout, device, gap, count, build_size = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise MalformedBlobs(f"the magic is {magic:#010x}, not {MAGIC:#010x}")
    if (layout, device) != (LAYOUT_VERSION, version.device):
        return None
    start = _align(_BASE + build_size)
    if build_size < 0 or start > len(data):
        raise MalformedBlobs(f"{len(data)} bytes cannot hold a build id of {build_size}")
    build_end = _HEADER.size + build_size
    if data[_HEADER.size : build_end] != version.build.encode():
        return None
    if gap or any(data[build_end:start]):
        raise MalformedBlobs("the padding of the header is not zero")
    entries: dict[bytes, bytes] = {}
    for index in range(count):
        key, value, start = _read_entry(data, start, index)
        if key in entries:
            raise MalformedBlobs(f"entry {index} has the key of an entry before it")
        entries[key] = value
    if start != len(data):
        raise MalformedBlobs(f"{len(data) - start} bytes follow the last entry")
    return list(entries.items())


def _read_entry(data: memoryview, start: int, index: int) -> tuple[bytes, bytes, int]:
    """Key and value of the entry at *start*, and the start of the next one."""
    if start + _ENTRY.size > len(data):
        raise MalformedBlobs(f"entry {index} is missing")
    key_size, value_size = _ENTRY.unpack_from(data, start)
    if not key_size or not value_size:
        raise MalformedBlobs(f"entry {index} has an empty key or value")
    key_start = start + _ENTRY.size
    value_start = key_start + key_size
    stop = value_start + value_size
    following = _align(stop)
    if following > len(data):
        sizes = f"{key_size} + {value_size} bytes"
        raise MalformedBlobs(f"entry {index} of {sizes} does not end in these bytes")
    if any(data[stop:following]):
        raise MalformedBlobs(f"the padding of entry {index} is not zero")
    return bytes(data[key_start:value_start]), bytes(data[value_start:stop]), following


def wrap(flat: bytes) -> bytes:
    """The file that holds *flat*."""
    return _FILE_HEADER.pack(FILE_MAGIC, checksum(flat)) + flat


def unwrap(file: bytes) -> memoryview:
    """The flattened cache in a file. Raises `MalformedBlobs` if the checksum or header is wrong."""
    if len(file) < _FILE_HEADER.size:
        raise MalformedBlobs(f"a file of {len(file)} bytes is no blob cache")
    magic, expected = _FILE_HEADER.unpack_from(file)
    if magic != FILE_MAGIC:
        raise MalformedBlobs(f"the file starts with {magic!r}, not {FILE_MAGIC!r}")
    flat = memoryview(file)[_FILE_HEADER.size :]
    if (actual := checksum(flat)) != expected:
        raise MalformedBlobs(f"the checksum is {actual:#010x}; the file says {expected:#010x}")
    return flat


def largest_file(limits: Limits, version: Version) -> int:
    """Most bytes of a file of these limits."""
    return _FILE_HEADER.size + largest_flattened(limits, version)


def _align(size: int) -> int:
    return -(-size // 8) * 8


def _padded(data: bytes, size: int) -> bytes:
    return data + bytes(size - len(data))
