"""The registry: a driver's record of the entries that it sealed.

Its file is authenticated as a whole before anything is read from it.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from msgspec import Struct

from penstock.arguments import check_kind
from penstock.distribution import BY_THE_PROGRAM
from penstock.errors import InputError, OtherVersion, SealBroken, Unreadable
from penstock.sealed.header import driver_identity, identity
from penstock.sealed.keys import KeyStore
from penstock.sealed.locks import FORK_GATE

MOST_FILES: Final = 32
"""Most files of one kind in an entry (NNAPI section 2.1)."""
MOST_ROWS: Final = 4096
"""Most rows of a registry; a new row replaces the oldest."""

_RECORD: Final = struct.Struct("<32sQ")
FILE_RECORD_BYTES: Final = _RECORD.size
"""Bytes of a file's record in a registry."""


class FileRecord(Struct, frozen=True):
    """Record of one sealed file: `file_digest` of its header, and its payload's length."""

    digest: bytes
    length: int


class Row(Struct, frozen=True):
    """One entry: its files in order, and the registry's count at its insertion."""

    token: bytes
    entry: bytes
    models: tuple[FileRecord, ...]
    datas: tuple[FileRecord, ...]
    sequence: int = 0


class RegistryState(Struct, frozen=True):
    """*registry*, 16 random bytes since it was last emptied, and the number of *changes*."""

    registry: bytes
    changes: int


class Owner:
    """Owner of a registry: a driver's name, version and *origin* of its code."""

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
    """The persistent, authenticated table of one driver version.

    It maps (token, entry id) to hashes of files. Publication has three steps: `begin` (the old and
    the new row are valid), writing the files, and `publish` (removes the old row). A process may
    die at any point.

    Reads raise `SealBroken`, `OtherVersion` or `RolledBack` if the registry is not the last one
    that was written with this key, `Unreadable` for errors of the system. Any thread and process
    may call. A row never changes, but may be dropped: a miss.
    """

    def state(self) -> RegistryState | None:
        """The verified state; None if there is no registry yet."""
        ...

    def open(self) -> RegistryState:
        """The verified state. A registry that is missing or fails verification is created empty.

        Raises `Unreadable` if it cannot be created.
        """
        ...

    def begin(self, row: Row) -> None:
        """Inserts *row* durably, keeping other rows of its token.

        A registry that fails verification is emptied first. If it raises `Unreadable`, the row is
        not stored.
        """
        ...

    def publish(self, token: bytes, entry: bytes, replaced: Sequence[bytes] = ()) -> None:
        """Removes the rows of the token's *replaced* entries: *entry*'s files are in place."""
        ...

    def find(self, token: bytes, entry: bytes) -> Row | None:
        """The row, verified; None if there is none."""
        ...

    def remove(self, token: bytes, entry: bytes) -> None:
        """Removes the row, if there is one: its files are rejected from then on."""
        ...

    def rows(self) -> tuple[Row, ...]:
        """Every row, verified, in any order."""
        ...

    def clear(self) -> None:
        """Forgets every row."""
        ...


class Measure(Struct, frozen=True):
    """*key* must have authenticated the registry, and its count be *least* or more."""

    key: bytes
    least: int

    def __repr__(self) -> str:
        return f"Measure(least={self.least})"


class Measures:
    """The user's key, and the highest known count of registry *name*. Thread-safe."""

    def __init__(self, keys: KeyStore, name: str) -> None:
        self._keys, self._name = keys, name
        self._highest: dict[bytes, int] = {}

    def now(self) -> Measure:
        """Call it before the registry is read, so the count is not too high. `Unreadable`."""
        return self._of(self._keys.key())

    def renewed(self) -> Measure:
        """With the key that is stored now, for a new registry. Raises `Unreadable`."""
        return self._of(self._keys.refresh())

    def other_than(self, used: Measure) -> Measure | None:
        """The measure by the key that replaced the one in *used*; None if none did."""
        try:
            measure = self.renewed()
        except Unreadable:
            return None
        return None if measure.key == used.key else measure

    def seen(self, key: bytes, count: int) -> None:
        """Records that a registry authenticated by *key* has *count*."""
        with FORK_GATE.passed():
            self._highest[key] = max(count, self._highest.get(key, 0))

    def store(self, key: bytes, count: int) -> None:
        """As `seen`, for all processes if the key store keeps counts."""
        self.seen(key, count)
        self._keys.store_count(self._name, count)

    def _of(self, key: bytes) -> Measure:
        self.seen(key, self._keys.count(self._name) or 0)
        return Measure(key, self._highest[key])


def pack_records(row: Row) -> bytes:
    """The files of *row*, model files first: digest (32) and length (8, little-endian)."""
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


MAGIC: Final = b"\x89PNREGI\n"
FORMAT: Final = 1
_FIELDS: Final = struct.Struct("<8sHHIQ16s32s32s")
_MAC_BYTES: Final = 32
HEAD_BYTES: Final = _FIELDS.size + _MAC_BYTES
_ENTRY: Final = struct.Struct("<32s16sQBB")
_MOST_CHANGES: Final = (1 << 63) - 1
_MODELS_AT: Final = 56
_DATAS_AT: Final = 57
MOST_BYTES: Final = HEAD_BYTES + MOST_ROWS * (_ENTRY.size + 2 * MOST_FILES * FILE_RECORD_BYTES)
"""Size of the largest registry file: every row, with as many files as an entry may have."""
_DOMAIN: Final = b"penstock registry file\x00"


class Contents(Struct):
    """Contents of *owner*'s registry, authenticated by *key*; immutable.

    *table* has a record for each row, the oldest first, and *files* those of their files in that
    order. *head* is the start of the file, None before `pack`.
    """

    owner: Owner
    key: bytes
    state: RegistryState
    table: bytes = b""
    files: bytes = b""
    head: bytes | None = None

    def __repr__(self) -> str:
        return f"Contents({self.owner!r}, {self.state!r})"

    @classmethod
    def empty(cls, owner: Owner, key: bytes, changes: int) -> Contents:
        """A new registry without rows, which starts at the count *changes*."""
        return cls(owner, key, RegistryState(os.urandom(16), changes))

    @classmethod
    def unpack(cls, content: memoryview, owner: Owner, key: bytes) -> Contents:
        """Parses *content*, a whole file of at least `HEAD_BYTES` bytes.

        Raises `SealBroken` if *key* does not authenticate every byte, or for another driver's
        registry, and `OtherVersion` for another format or another version of the driver.
        """
        head = bytes(content[:HEAD_BYTES])
        if not hmac.compare_digest(
            head[_FIELDS.size :], _mac(key, head[: _FIELDS.size], content[HEAD_BYTES:])
        ):
            raise SealBroken("the registry was altered, or sealed with another key")
        magic, format_, spare, count, changes, registry, driver, version = _FIELDS.unpack_from(head)
        if magic != MAGIC or format_ != FORMAT or spare:
            raise OtherVersion(f"the registry has format {format_}, not {FORMAT}")
        if driver != owner.driver_digest:
            raise SealBroken("the registry is another driver's")
        if version != owner.version_digest:
            raise OtherVersion("the registry was written by another version of the driver")
        end = HEAD_BYTES + count * _ENTRY.size
        table, files = bytes(content[HEAD_BYTES:end]), bytes(content[end:])
        if (
            count > MOST_ROWS
            or changes > _MOST_CHANGES
            or len(table) != count * _ENTRY.size
            or len(files) != FILE_RECORD_BYTES * _count_files(table)
        ):
            raise SealBroken("the registry has no possible value")
        return cls(owner, key, RegistryState(registry, changes), table, files, head)

    def pack(self) -> bytes:
        """The file's bytes, authenticated; also sets *head*."""
        count, state = len(self.table) // _ENTRY.size, self.state
        digests = self.owner.driver_digest, self.owner.version_digest
        fields = _FIELDS.pack(MAGIC, FORMAT, 0, count, state.changes, state.registry, *digests)
        body = self.table + self.files
        self.head = fields + _mac(self.key, fields, body)
        return self.head + body

    def find(self, token: bytes, entry: bytes) -> Row | None:
        """The row of that token and entry; None if there is none."""
        at = self._place(token, entry)
        return None if at < 0 else self._row(at, _count_files(self.table[:at]))

    def rows(self) -> tuple[Row, ...]:
        """Every row, the oldest first."""
        found = []
        before = 0
        for at in range(0, len(self.table), _ENTRY.size):
            found.append(row := self._row(at, before))
            before += len(row.models) + len(row.datas)
        return tuple(found)

    def with_row(self, row: Row) -> Contents:
        """The contents with *row* for its former one, and without the oldest. `InputError`."""
        if (len(row.token), len(row.entry)) != (32, 16):
            raise InputError("a registry's row has a token of 32 bytes and an entry id of 16")
        if max(len(row.models), len(row.datas)) > MOST_FILES:
            raise InputError(f"a registry's row has at most {MOST_FILES} files of each kind")
        changes = self.state.changes + 1
        packed = _ENTRY.pack(row.token, row.entry, changes, len(row.models), len(row.datas))
        table, files = self._cut(row.token, [row.entry])
        table, files = table + packed, files + pack_records(row)
        if (spare := len(table) // _ENTRY.size - MOST_ROWS) > 0:
            oldest = table[: spare * _ENTRY.size]
            table = table[len(oldest) :]
            files = files[FILE_RECORD_BYTES * _count_files(oldest) :]
        return self._changed(table, files)

    def without(self, token: bytes, entries: Collection[bytes]) -> Contents:
        """The contents without the rows of *entries* of *token*; itself if there are none."""
        table, files = self._cut(token, entries)
        return self if len(table) == len(self.table) else self._changed(table, files)

    def emptied(self) -> Contents:
        """The contents without any row; the same object if there are none."""
        return self._changed(b"", b"") if self.table else self

    def _changed(self, table: bytes, files: bytes) -> Contents:
        state = RegistryState(self.state.registry, self.state.changes + 1)
        return Contents(self.owner, self.key, state, table, files)

    def _place(self, token: bytes, entry: bytes) -> int:
        """The offset of that row's record in the table; -1 if there is none."""
        if (len(token), len(entry)) != (32, 16):
            return -1
        at = self.table.find(wanted := token + entry)
        while at > 0 and at % _ENTRY.size:
            at = self.table.find(wanted, at + 1)
        return at

    def _cut(self, token: bytes, entries: Collection[bytes]) -> tuple[bytes, bytes]:
        """Table and files without the rows of *entries* of *token*."""
        table, files = self.table, self.files
        rest = self
        for entry in entries:
            if (at := rest._place(token, entry)) < 0:
                continue
            end = at + _ENTRY.size
            start, count = _count_files(table[:at]), _count_files(table[at:end])
            first, last = start * FILE_RECORD_BYTES, (start + count) * FILE_RECORD_BYTES
            table, files = table[:at] + table[end:], files[:first] + files[last:]
            rest = Contents(self.owner, self.key, self.state, table, files)
        return table, files

    def _row(self, at: int, before: int) -> Row:
        """The row whose record begins at *at* in the table, after *before* records of files."""
        token, entry, sequence, models, datas = _ENTRY.unpack_from(self.table, at)
        start, stop = before * FILE_RECORD_BYTES, (before + models + datas) * FILE_RECORD_BYTES
        try:
            return Row(token, entry, *unpack_records(self.files[start:stop], models), sequence)
        except ValueError:
            raise SealBroken("a row of the registry has no possible value") from None


def _count_files(table: bytes) -> int:
    """Number of files of all rows of *table*."""
    size = _ENTRY.size
    return sum(table[_MODELS_AT::size]) + sum(table[_DATAS_AT::size])


def _mac(key: bytes, fields: bytes, body: bytes | memoryview) -> bytes:
    """Authenticates everything in the file but the place of the MAC itself."""
    made = hmac.new(key, _DOMAIN + fields, "sha256")
    made.update(body)
    return made.digest()
