"""A verifying FlatBuffers reader: untrusted bytes become plain Python values, or an error that
names the defect.

A `Schema` drives it. Every offset, vtable, vector length and string is checked before use, in
integers that cannot overflow. Reference: the FlatBuffers binary format ("Internals" in the
FlatBuffers documentation).
"""

from __future__ import annotations

import struct
import sys
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct

from penstock import errors
from penstock.export.tflite.fields import Field, Kind, Schema, Table
from penstock.interrupts import polled
from penstock.loaders.header import check_header

MAX_DEPTH: Final = 32
MEMORY_PER_BYTE: Final = 44
MEMORY_ALLOWANCE: Final = 1 << 20
"""The default memory limit for the content of a buffer: for each byte, and an allowance."""

TABLE_MEMORY: Final = 112
SLOT_MEMORY: Final = 32
ARRAY_MEMORY: Final = 144
NUMBER_MEMORY: Final = 10
"""Memory for each stored byte. Four bytes become a Python number in a tuple, which takes at most
40.
"""

BLOB_MEMORY: Final = 128
STRING_MEMORY: Final = 64
REFERENCE_MEMORY: Final = 16

EXHAUSTED: Final = "the file refers to more content than it has room for"

Values: TypeAlias = "dict[str, Any]"
"""One table: field name to value.

Scalars are int, float or bool. Strings are str. Vectors of numbers are NumPy arrays that view the
file; vectors of `uint8` are a `Blob`. Tables are `Values`, vectors of tables and of strings are
lists. Absent scalars have their default, other absent fields are None. A union is the pair
`<name>_type` (the discriminant) and `<name>` (None for a discriminant that the schema does not
know).
"""

_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_VTABLE: Final = struct.Struct("<HH")


class Blob(Struct, frozen=True):
    """A vector of bytes: *length* bytes at *offset* of the file."""

    offset: int
    length: int


class _Defect(Exception):
    """A defect while it propagates. Each level adds its part of the path."""

    def __init__(self, kind: type[errors.ModelError], message: str, offset: int) -> None:
        super().__init__(message)
        self.kind, self.message, self.offset = kind, message, offset
        self.path: list[str] = []

    def error(self) -> errors.ModelError:
        where = ".".join(reversed(self.path)).replace(".[", "[")
        return self.kind(self.message, where=where or None, offset=self.offset)


class Reader:
    """Reads one FlatBuffer of *schema* in *data*.

    Each reference to an item is charged for the item's memory, so that vectors with shared elements
    cannot make a small file large. `LimitExceeded` is raised when *memory* bytes are used up, by
    default `MEMORY_PER_BYTE` for each byte of *data* and `MEMORY_ALLOWANCE`; also for a text of
    more than *text* bytes.
    """

    def __init__(
        self,
        data: memoryview,
        schema: Schema,
        memory: int | None = None,
        *,
        text: int | None = None,
        exhausted: str = EXHAUSTED,
    ) -> None:
        self._most_text, self._exhausted = text, exhausted
        self.data, self.schema, self.size = data, schema, data.nbytes
        self._vtables: dict[int, tuple[int, ...]] = {}
        self._bytes = np.frombuffer(data, np.uint8)
        self.memory_left = (
            MEMORY_PER_BYTE * self.size + MEMORY_ALLOWANCE if memory is None else memory
        )

    def root(self) -> Values:
        """The root table, with everything that it refers to.

        Raises `NotAModel` for another format, `TruncatedModel` and `OffsetOutOfBounds` for content
        outside the file, and `LimitExceeded`. Each error has the path of the field and the file
        offset.
        """
        check_header(self.data[:8], self.size, self.schema.identifier)
        try:
            return self._table(self._target(0), self.schema.table(self.schema.root), 0)
        except _Defect as defect:
            raise defect.error() from None

    def bytes_of(self, blob: Blob | None) -> bytes:
        """A copy of a vector of bytes; empty if the vector is absent."""
        return b"" if blob is None else bytes(self.data[blob.offset : blob.offset + blob.length])

    def charge(self, amount: int, user: errors.Place | str | None) -> None:
        """Charges *amount* bytes for data made from the content. `LimitExceeded` names *user*."""
        self.memory_left -= amount
        if self.memory_left < 0:
            raise errors.LimitExceeded(self._exhausted, where=user)

    def _spend(self, amount: int, at: int) -> None:
        self.memory_left -= amount
        if self.memory_left < 0:
            raise _Defect(errors.LimitExceeded, self._exhausted, at)

    def _target(self, at: int) -> int:
        """Follows the offset stored at *at*, which is inside the file."""
        (distance,) = _U32.unpack_from(self.data, at)
        target: int = at + distance
        if not distance or target + 4 > self.size:
            message = f"refers to byte {target} of {self.size}; the file is damaged or truncated"
            raise _Defect(errors.OffsetOutOfBounds, message, at)
        return target

    def _table(self, at: int, table: Table, depth: int) -> Values:
        data, size = self.data, self.size
        if depth > MAX_DEPTH:
            raise _Defect(errors.LimitExceeded, f"tables are nested more than {MAX_DEPTH} deep", at)
        vtable = at - _I32.unpack_from(data, at)[0]
        entries = self._vtables.get(vtable)
        if entries is None:
            entries = self._vtable(vtable, at)
        count = len(entries)
        self._spend(TABLE_MEMORY + SLOT_MEMORY * len(table.fields) + 8 * count, at)
        values = table.defaults.copy()
        for field in table.fields:
            slot = field.slot
            if slot >= count:
                break
            if not entries[slot]:
                continue
            place = at + entries[slot]
            try:
                scalar = field.kind is Kind.SCALAR
                if place + (field.packer.size if scalar else 4) > size:
                    what = "a number" if scalar else "an offset"
                    message = f"the file of {size} bytes ends inside {what}"
                    raise _Defect(errors.TruncatedModel, message, place)
                if scalar:
                    values[field.name] = field.packer.unpack_from(data, place)[0]
                else:
                    values[field.name] = self._referred(self._target(place), field, values, depth)
            except _Defect as defect:
                defect.path.append(field.name)
                raise
        return values

    def _vtable(self, vtable: int, at: int) -> tuple[int, ...]:
        """The field offsets in a vtable. A vtable is checked once, whatever the number of tables
        that share it.
        """
        if vtable < 0 or vtable + 4 > self.size:
            raise _Defect(
                errors.OffsetOutOfBounds, f"the vtable would be at byte {vtable} of {self.size}", at
            )
        length, _ = _VTABLE.unpack_from(self.data, vtable)
        if length < 4 or length % 2 or vtable + length > self.size:
            message = f"a vtable of {length} bytes at byte {vtable} of {self.size}"
            raise _Defect(errors.TruncatedModel, message, at)
        self._spend(TABLE_MEMORY + SLOT_MEMORY * (length >> 1), at)
        entries: tuple[int, ...] = struct.unpack_from(
            f"<{(length - 4) >> 1}H", self.data, vtable + 4
        )
        self._vtables[vtable] = entries
        return entries

    def _referred(self, target: int, field: Field, values: Values, depth: int) -> Any:
        kind = field.kind
        if kind is Kind.NUMBERS:
            return self._numbers(target, field)
        if kind is Kind.STRING:
            return self._string(target)
        if kind is Kind.TABLE:
            return self._table(target, self.schema.table(field.target), depth + 1)
        if kind is Kind.UNION:
            members = self.schema.unions[field.target]
            which = values[f"{field.name}_type"]
            if not 0 < which < len(members):
                return None
            return self._table(target, self.schema.table(members[which]), depth + 1)
        return self._elements(target, field, depth)

    def _numbers(self, at: int, field: Field) -> Any:
        dtype = field.dtype
        count = self._length(at, dtype.itemsize)
        if field.scalar == "uint8":
            self._spend(BLOB_MEMORY, at)
            return Blob(at + 4, count)
        self._spend(ARRAY_MEMORY + NUMBER_MEMORY * count * dtype.itemsize, at)
        return np.ndarray(count, dtype, self._bytes, at + 4)

    def _elements(self, at: int, field: Field, depth: int) -> list[Any]:
        count = self._length(at, 4)
        self._spend(STRING_MEMORY + REFERENCE_MEMORY * count, at)
        found: list[Any] = []
        table = self.schema.table(field.target) if field.kind is Kind.TABLES else None
        try:
            for place in polled(range(at + 4, at + 4 + 4 * count, 4)):
                target = self._target(place)
                found.append(
                    self._string(target) if table is None else self._table(target, table, depth + 1)
                )
        except _Defect as defect:
            defect.path.append(f"[{len(found)}]")
            raise
        return found

    def _length(self, at: int, width: int) -> int:
        (count,) = _U32.unpack_from(self.data, at)
        end = at + 4 + count * width
        if end > self.size:
            message = f"a vector of {count} elements ends at byte {end} of {self.size}"
            raise _Defect(errors.TruncatedModel, message, at)
        return int(count)

    def _string(self, at: int) -> str:
        length = self._length(at, 1)
        end = at + 4 + length
        if end >= self.size or self.data[end]:
            raise _Defect(
                errors.TruncatedModel, f"a string of {length} bytes has no terminator", at
            )
        if self._most_text is not None and length > self._most_text:
            reason = f"a name or text of {length} bytes; the limit is {self._most_text}"
            raise _Defect(errors.LimitExceeded, reason, at)
        self._spend(STRING_MEMORY + length, at)
        text = str(self.data[at + 4 : end], "utf-8", "backslashreplace")
        if not text.isascii() or len(text) > length:
            self._spend(2 * sys.getsizeof(text), at)
        return text
