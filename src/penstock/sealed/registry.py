"""What a driver remembers of the entries it sealed, and what it is measured by."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, Protocol

from msgspec import Struct

from penstock.arguments import check_kind
from penstock.distribution import BY_THE_PROGRAM
from penstock.errors import Unreadable
from penstock.sealed.header import driver_identity, identity
from penstock.sealed.keys import KeyStore
from penstock.sealed.locks import FORK_GATE

MOST_FILES: Final = 32
"""Most files of one kind in an entry (NNAPI section 2.1)."""
MOST_ROWS: Final = 4096
"""Rows a registry keeps; the oldest make room for a new one."""

_RECORD: Final = struct.Struct("<32sQ")
FILE_RECORD_BYTES: Final = _RECORD.size
"""What a registry keeps of a file, in bytes."""


class FileRecord(Struct, frozen=True):
    """What one file was sealed as: *digest* is `file_digest` of its header, *length* its payload's
    bytes.
    """

    digest: bytes
    length: int


class Row(Struct, frozen=True):
    """One entry: *models* and *datas* list its files in order. *sequence* is the registry's count
    when the row was inserted.
    """

    token: bytes
    entry: bytes
    models: tuple[FileRecord, ...]
    datas: tuple[FileRecord, ...]
    sequence: int = 0


class RegistryState(Struct, frozen=True):
    """*registry* (16 random bytes) names this registry since it was last emptied; *changes* counts
    what was done to it.
    """

    registry: bytes
    changes: int


class Owner:
    """Whose registry it is: a driver's name and its version string, and where its code comes from
    (`origin`). The digest of the driver is of its name and origin.
    """

    __slots__ = ("driver", "driver_digest", "origin", "version", "version_digest")

    def __init__(self, driver: str, version: str, origin: str = BY_THE_PROGRAM) -> None:
        for text in (driver, version, origin):
            check_kind(text, str, "a driver's name, version and origin are text")
        self.driver, self.version, self.origin = driver, version, origin
        self.driver_digest = driver_identity(driver, origin)
        self.version_digest = identity(version)

    @property
    def digits(self) -> str:
        """Hexadecimal digits for names of files and of counts."""
        return f"{self.driver_digest.hex()[:16]}-{self.version_digest.hex()[:32]}"


class Registry(Protocol):
    """The persistent, authenticated table (token, entry id) -> hashes of every file, of one driver
    version.

    Publication is: `begin` (both the new row and the replaced one are valid), the files are written
    or renamed into place, `publish` (the replaced row goes). A process may die between any two of
    them.

    A reading method raises `SealBroken`, `OtherVersion` or `RolledBack` for a registry that is not
    what this key's holders wrote last, and `Unreadable` when the system fails; all may be called by
    several threads and processes at once. A row is never changed, and may be dropped at any time: a
    miss.
    """

    def state(self) -> RegistryState | None:
        """The verified state; None where there is no registry yet."""
        ...

    def open(self) -> RegistryState:
        """The verified state; a registry that is missing or cannot be trusted is made anew, empty.

        Raises `Unreadable` when it cannot be made.
        """
        ...

    def begin(self, row: Row) -> None:
        """Inserts *row*, beside others of its token. A registry that cannot be trusted is emptied
        first.

        Raises `Unreadable`; the row is then not in it. After returning, the row survives a loss of
        power.
        """
        ...

    def publish(self, token: bytes, entry: bytes, replaced: Sequence[bytes] = ()) -> None:
        """*entry*'s files stand where they are found; the rows of *replaced* entries of the token
        go.
        """
        ...

    def find(self, token: bytes, entry: bytes) -> Row | None:
        """The row, verified; None when there is none."""
        ...

    def remove(self, token: bytes, entry: bytes) -> None:
        """Forgets the row, if there is one: its files are refused from then on."""
        ...

    def rows(self) -> tuple[Row, ...]:
        """Every row, verified, in no promised order."""
        ...

    def clear(self) -> None:
        """Forgets every row."""
        ...


class Measure:
    """*key* must have authenticated the registry, and its count be *least* or more."""

    __slots__ = ("key", "least")

    def __init__(self, key: bytes, least: int) -> None:
        self.key, self.least = key, least


class Measures:
    """The user's key, and the highest count known of registry *name* under each key. Thread-safe."""

    def __init__(self, keys: KeyStore, name: str) -> None:
        self._keys, self._name = keys, name
        self._highest: dict[bytes, int] = {}

    def now(self) -> Measure:
        """To be asked before the registry is read, so that the count cannot be too high. Raises
        `Unreadable`.
        """
        return self._of(self._keys.key())

    def renewed(self) -> Measure:
        """By the key as the store holds it now, for a registry that is about to be made. Raises
        `Unreadable`.
        """
        return self._of(self._keys.refresh())

    def other_than(self, used: Measure) -> Measure | None:
        """By the key that took the place of the one in *used*; None where none did."""
        try:
            measure = self.renewed()
        except Unreadable:
            return None
        return None if measure.key == used.key else measure

    def seen(self, key: bytes, count: int) -> None:
        """A registry that *key* authenticated stands at *count*."""
        with FORK_GATE.passed():
            self._highest[key] = max(count, self._highest.get(key, 0))

    def store(self, key: bytes, count: int) -> None:
        """As `seen`, for all processes where the key store keeps counts."""
        self.seen(key, count)
        self._keys.store_count(self._name, count)

    def _of(self, key: bytes) -> Measure:
        self.seen(key, self._keys.count(self._name) or 0)
        return Measure(key, self._highest[key])


def pack_records(row: Row) -> bytes:
    """The files of *row*, model files first: 32 bytes of digest and 8 of length each,
    little-endian.
    """
    return b"".join(_RECORD.pack(f.digest, f.length) for f in (*row.models, *row.datas))


def unpack_records(
    content: bytes, models: int
) -> tuple[tuple[FileRecord, ...], tuple[FileRecord, ...]]:
    """Inverse of `pack_records`: the model files, the data files. Raises `ValueError`."""
    files, rest = divmod(len(content), _RECORD.size)
    if rest or not 0 <= models <= min(files, MOST_FILES) or files - models > MOST_FILES:
        raise ValueError("records of no entry")
    records = tuple(FileRecord(*fields) for fields in _RECORD.iter_unpack(content))
    return records[:models], records[models:]
