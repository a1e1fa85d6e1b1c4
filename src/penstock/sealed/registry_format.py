"""The bytes of a registry's file, and the rows in them. Nothing is read from them before all are
authentic.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Collection
from typing import Final

from penstock.errors import InputError, OtherVersion, SealBroken
from penstock.sealed.registry import (
    FILE_RECORD_BYTES,
    MOST_FILES,
    MOST_ROWS,
    Owner,
    RegistryState,
    Row,
    pack_records,
    unpack_records,
)

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


class Contents:
    """A registry of *owner* that *key* authenticated or will authenticate. A change makes new
    contents.

    *table* has one fixed-size record for each row, the oldest first, and *files* what was recorded
    of all their files, in the same order. *head* are the first bytes of the file; None until `pack`
    has made them.
    """

    __slots__ = ("files", "head", "key", "owner", "state", "table")

    def __init__(
        self,
        owner: Owner,
        key: bytes,
        state: RegistryState,
        table: bytes = b"",
        files: bytes = b"",
        head: bytes | None = None,
    ) -> None:
        self.owner, self.key, self.state = owner, key, state
        self.table, self.files, self.head = table, files, head

    @classmethod
    def empty(cls, owner: Owner, key: bytes, changes: int) -> Contents:
        """A new registry without rows, which starts at the count *changes*."""
        return cls(owner, key, RegistryState(os.urandom(16), changes))

    @classmethod
    def unpack(cls, content: memoryview, owner: Owner, key: bytes) -> Contents:
        """The registry in *content*, a whole file of at least `HEAD_BYTES` bytes.

        Raises `SealBroken` where *key* does not authenticate every byte, or for another driver's
        registry, and `OtherVersion` for one of another format or version of the driver.
        """
        head = bytes(content[:HEAD_BYTES])
        if not hmac.compare_digest(
            head[_FIELDS.size :], _mac(key, head[: _FIELDS.size], content[HEAD_BYTES:])
        ):
            raise SealBroken("the registry was altered, or sealed with another key")
        magic, format_, spare, count, changes, registry, driver, version = _FIELDS.unpack_from(head)
        if magic != MAGIC or format_ != FORMAT or spare:
            raise OtherVersion(
                f"the registry has format {format_}, and this version reads {FORMAT}"
            )
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
        fields = _FIELDS.pack(
            MAGIC,
            FORMAT,
            0,
            len(self.table) // _ENTRY.size,
            self.state.changes,
            self.state.registry,
            self.owner.driver_digest,
            self.owner.version_digest,
        )
        body = self.table + self.files
        self.head = fields + _mac(self.key, fields, body)
        return self.head + body

    def find(self, token: bytes, entry: bytes) -> Row | None:
        """The row of that token and entry; None where there is none."""
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
        """With *row* in place of one of its token and entry; the oldest rows make room. Raises
        `InputError`.
        """
        if (len(row.token), len(row.entry)) != (32, 16):
            raise InputError("a registry's row has a token of 32 bytes and an entry id of 16")
        if max(len(row.models), len(row.datas)) > MOST_FILES:
            raise InputError(f"a registry's row has at most {MOST_FILES} files of each kind")
        changes = self.state.changes + 1
        packed = _ENTRY.pack(row.token, row.entry, changes, len(row.models), len(row.datas))
        table, files = self._cut(row.token, [row.entry])
        table, files = table + packed, files + pack_records(row)
        if (spare := len(table) // _ENTRY.size - MOST_ROWS) > 0:
            gone = table[: spare * _ENTRY.size]
            table = table[len(gone) :]
            files = files[FILE_RECORD_BYTES * _count_files(gone) :]
        return self._changed(table, files)

    def without(self, token: bytes, entries: Collection[bytes]) -> Contents:
        """Without the rows of *entries* of *token*; itself where there are none."""
        table, files = self._cut(token, entries)
        return self if len(table) == len(self.table) else self._changed(table, files)

    def emptied(self) -> Contents:
        """Without any row; itself where there are none."""
        return self._changed(b"", b"") if self.table else self

    def _changed(self, table: bytes, files: bytes) -> Contents:
        state = RegistryState(self.state.registry, self.state.changes + 1)
        return Contents(self.owner, self.key, state, table, files)

    def _place(self, token: bytes, entry: bytes) -> int:
        """Where the record of that row begins in the table; -1 where there is none."""
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
        """The row whose record begins at *at* in the table, with *before* files of rows before it."""
        token, entry, sequence, models, datas = _ENTRY.unpack_from(self.table, at)
        start, stop = before * FILE_RECORD_BYTES, (before + models + datas) * FILE_RECORD_BYTES
        try:
            return Row(token, entry, *unpack_records(self.files[start:stop], models), sequence)
        except ValueError:
            raise SealBroken("a row of the registry has no possible value") from None


def _count_files(table: bytes) -> int:
    """How many files the rows of *table* have together."""
    size = _ENTRY.size
    return sum(table[_MODELS_AT::size]) + sum(table[_DATAS_AT::size])


def _mac(key: bytes, fields: bytes, body: bytes | memoryview) -> bytes:
    """Authenticates everything in the file but the place of the MAC itself."""
    made = hmac.new(key, _DOMAIN + fields, "sha256")
    made.update(body)
    return made.digest()
