"""The bytes of a file: its buffers, and plain Python values as a FlatBuffer.

`encode` is the inverse of `penstock.loaders.flatbuffer`, for the same schemas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import flatbuffers
import numpy as np
from flatbuffers import number_types

from penstock.export.tflite.fields import SCALARS, Field, Kind, Schema, Table
from penstock.interrupts import checkpoint
from penstock.ir.model import Model
from penstock.ir.operand import DataLocation, Operand
from penstock.ir.subgraph import Variable, constant_bytes

BLOB_ALIGNMENT: Final = 16

_FLAGS: Final = {name: getattr(number_types, f"{name.capitalize()}Flags") for name in SCALARS}


def encode(schema: Schema, root: Mapping[str, Any]) -> bytes:
    """The FlatBuffer with *root* as root table. Equal values give equal bytes.

    A table is a mapping of field names to values. An absent name and None mean an absent field.
    Vectors of numbers are sequences or arrays. A vector of `uint8` is any object with the buffer
    protocol; it is aligned to 16 bytes.
    """
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(_table(builder, schema, schema.table(schema.root), root), schema.identifier)
    return bytes(builder.Output())


def _table(builder: Any, schema: Schema, table: Table, values: Mapping[str, Any]) -> int:
    checkpoint()
    if unknown := set(values) - set(table.by_name):
        raise KeyError(f"table {table.name} has no field {', '.join(sorted(unknown))}")
    references = {
        field.name: _reference(builder, schema, field, values)
        for field in table.fields
        if field.kind is not Kind.SCALAR and values.get(field.name) is not None
    }
    slots = max((f.slot for f in table.fields), default=-1) + 1
    builder.StartObject(slots)
    for field in table.fields:
        if field.name in references:
            builder.PrependUOffsetTRelativeSlot(field.slot, references[field.name], 0)
        elif field.kind is Kind.SCALAR and values.get(field.name) is not None:
            builder.PrependSlot(_FLAGS[field.scalar], field.slot, values[field.name], field.default)
    offset: int = builder.EndObject()
    return offset


def _reference(builder: Any, schema: Schema, field: Field, values: Mapping[str, Any]) -> int:
    value = values[field.name]
    match field.kind:
        case Kind.NUMBERS:
            return _numbers(builder, field, value)
        case Kind.STRING:
            return int(builder.CreateString(value))
        case Kind.TABLE:
            return _table(builder, schema, schema.table(field.target), value)
        case Kind.UNION:
            member = schema.unions[field.target][values[f"{field.name}_type"]]
            return _table(builder, schema, schema.table(member), value)
        case Kind.TABLES:
            target = schema.table(field.target)
            return _offsets(builder, [_table(builder, schema, target, v) for v in value])
        case _:
            return _offsets(builder, [int(builder.CreateString(v)) for v in value])


def _offsets(builder: Any, offsets: list[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def _numbers(builder: Any, field: Field, value: Any) -> int:
    if field.scalar == "uint8":
        data = memoryview(value).cast("B")
        width, count = 1, data.nbytes
    else:
        array = np.ascontiguousarray(value, field.dtype)
        data = array.reshape(-1).view(np.uint8).data
        width, count = array.itemsize, array.size
    builder.StartVector(width, count, BLOB_ALIGNMENT if width == 1 else width)
    builder.head -= data.nbytes
    builder.Bytes[builder.head : builder.head + data.nbytes] = data
    return int(builder.EndVector())


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
