"""The bytes of a file: its buffers, and plain Python values as a FlatBuffer.

`encode` is the inverse of `penstock.loaders.flatbuffer`, for the same schemas.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from penstock.export.tflite.fields import Field, Kind, Schema, Table
from penstock.export.tflite.flatbuffer import FlatBufferWriter
from penstock.facade import uncollected
from penstock.interrupts import checkpoint
from penstock.ir.model import Model
from penstock.ir.operand import DataLocation, Operand
from penstock.ir.subgraph import Variable, constant_bytes

BLOB_ALIGNMENT: Final = 16


def encode(schema: Schema, root: Mapping[str, Any]) -> bytes:
    """The FlatBuffer with *root* as root table. Equal values give equal bytes.

    A table is a mapping of field names to values. An absent name and None mean an absent field.
    Vectors of numbers are sequences or arrays. A vector of `uint8` is any object with the buffer
    protocol; it is aligned to 16 bytes. Raises `TypeError` for a number that its field cannot have.
    """
    writer = FlatBufferWriter()
    try:
        with uncollected:
            place = _table(writer, schema, schema.table(schema.root), root)
    except struct.error as error:
        raise TypeError(f"a number does not fit its field: {error}") from error
    return writer.finished(place, schema.identifier)


def _table(
    writer: FlatBufferWriter, schema: Schema, table: Table, values: Mapping[str, Any]
) -> int:
    checkpoint()
    if unknown := values.keys() - table.by_name.keys():
        raise KeyError(f"table {table.name} has no field {', '.join(sorted(unknown))}")
    fields: list[tuple[int, struct.Struct | None, object]] = []
    for field in table.fields:
        value = values.get(field.name)
        if value is None:
            continue
        if field.kind is not Kind.SCALAR:
            fields.append((field.slot, None, _reference(writer, schema, field, values)))
        elif value != field.default:
            if field.scalar == "bool" and value not in {False, True}:
                raise TypeError(f"{field.name} is true or false, not {value!r}")
            fields.append((field.slot, field.packer, value))
    return writer.table(table.slots, fields)


def _reference(
    writer: FlatBufferWriter, schema: Schema, field: Field, values: Mapping[str, Any]
) -> int:
    value = values[field.name]
    match field.kind:
        case Kind.NUMBERS:
            return _numbers(writer, field, value)
        case Kind.STRING:
            return writer.string(value)
        case Kind.TABLE:
            return _table(writer, schema, schema.table(field.target), value)
        case Kind.UNION:
            member = schema.unions[field.target][values[f"{field.name}_type"]]
            return _table(writer, schema, schema.table(member), value)
        case Kind.TABLES:
            target = schema.table(field.target)
            return writer.references([_table(writer, schema, target, v) for v in value])
        case _:
            return writer.references([writer.string(v) for v in value])


def _numbers(writer: FlatBufferWriter, field: Field, value: Any) -> int:
    if field.scalar == "uint8":
        data = memoryview(value).cast("B")
        return writer.vector(data, data.nbytes, data.nbytes, BLOB_ALIGNMENT)
    array = np.ascontiguousarray(value, field.dtype)
    alignment = BLOB_ALIGNMENT if array.itemsize == 1 else array.itemsize
    return writer.vector(array.tobytes(), array.nbytes, array.size, alignment)


ALIGNMENT: Final = 16
SMALL: Final = 128
"""Contents up to this size are always stored inside the FlatBuffer. Tools read most of them, and an
offset is as large.
"""


class Buffers:
    """Assigns buffer indexes. Buffer 0 is the empty buffer, as in TFLite."""

    PLACEHOLDER: Final = 1 << 40

    def __init__(self, model: Model) -> None:
        self._model = model
        self._contents: list[memoryview] = []
        self._known: dict[DataLocation | bytes, int] = {}
        self._movable: set[int] = set()
        self._tables: dict[tuple[object, object], int] = {}
        self.nbytes = 0

    def constant(self, item: Operand | Variable) -> int:
        """The buffer of a constant operand or an initial value; 0 if it has no bytes."""
        key = item.value if item.value is not None else item.location
        if key is None:
            return 0
        content = constant_bytes(self._model.pools, item)
        index = self._add(key, content)
        if content.nbytes > SMALL:
            self._movable.add(index)
        return index

    def blob(self, content: bytes) -> int:
        """A buffer with *content*."""
        return self._add(content, memoryview(content))

    def table_number(self, keys: Operand, values: Operand) -> int:
        """The number of the hash table with this content in this file."""
        key = keys.value or keys.location, values.value or values.location
        return self._tables.setdefault(key, len(self._tables))

    def _add(self, key: DataLocation | bytes, content: memoryview) -> int:
        if not content.nbytes:
            return 0
        if key not in self._known:
            self._contents.append(content)
            self._known[key] = len(self._contents)
            self.nbytes += content.nbytes
        return self._known[key]

    def inline(self) -> list[dict[str, Any]]:
        """The buffer tables with their bytes inside."""
        return [{}, *({"data": content} for content in self._contents)]

    def external(self, start: int) -> list[dict[str, Any]]:
        """The buffer tables, large constants behind a FlatBuffer of *start* bytes."""
        tables: list[dict[str, Any]] = self.inline()
        for index, at, content in self._placed(start):
            tables[index] = {"offset": at, "size": content.nbytes}
        return tables

    def tail(self, start: int) -> Iterator[bytes | memoryview]:
        """The bytes behind a FlatBuffer of *start* bytes."""
        for _, at, content in self._placed(start):
            yield bytes(at - start)
            yield content
            start = at + content.nbytes

    def _placed(self, start: int) -> Iterator[tuple[int, int, memoryview]]:
        for index in sorted(self._movable):
            content = self._contents[index - 1]
            start += -start % ALIGNMENT
            yield index, start, content
            start += content.nbytes
