"""FlatBuffers schemas as data: what a table's fields are, parsed from one line of text a table.

Notation of a table: `name: type` or `name: type = default`, separated by `; `. A type is a scalar,
an enumeration (stored as its scalar), `string`, a table, a union, or `[element]` for a vector. `_`
is a slot that is no longer used. Fields take slots in order; a union takes two, `<name>_type` and
`<name>`. Notation of an enumeration: its scalar type, then its members in the order of their
numbers from 0; `NAME=number` sets another number. Notation of a union: its members from 0.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import numpy as np
from msgspec import Struct

from penstock.export.tflite import schema
from penstock.ir.operation import AttributeValue

SCALARS: Final[dict[str, str]] = {
    "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i",
    "uint32": "I", "int64": "q", "uint64": "Q", "float32": "f", "float64": "d",
}  # fmt: skip
"""Scalar types with their `struct` codes."""


class Kind(enum.IntEnum):
    """How a field is stored."""

    SCALAR = 0
    NUMBERS = 1
    STRING = 2
    TABLE = 3
    TABLES = 4
    STRINGS = 5
    UNION = 6


class Field(Struct, frozen=True, dict=True):
    """One field of a table.

    *scalar* is the scalar type of SCALAR and NUMBERS. *enum* is the enumeration that names its
    values ("" for plain numbers). *target* is the table (TABLE, TABLES) or union (UNION). *default*
    is the value of an absent field: a number for scalars, None for others.
    """

    name: str
    slot: int
    kind: Kind
    scalar: str = ""
    enum: str = ""
    target: str = ""
    default: bool | int | float | None = None

    @cached_property
    def packer(self) -> struct.Struct:
        """Packs one SCALAR."""
        return _PACKERS[self.scalar]

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Little-endian NumPy dtype of SCALAR and NUMBERS."""
        return _DTYPES[self.scalar]


_PACKERS: Final = {name: struct.Struct("<" + code) for name, code in SCALARS.items()}
_DTYPES: Final = {name: np.dtype(name).newbyteorder("<") for name in SCALARS}


class Table(Struct, frozen=True, dict=True):
    """One table: its fields in slot order (unused slots left out)."""

    name: str
    fields: tuple[Field, ...]

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The value of an empty table."""
        return {f.name: f.default for f in self.fields}

    @cached_property
    def by_name(self) -> dict[str, Field]:
        return {f.name: f for f in self.fields}

    @cached_property
    def slots(self) -> int:
        """The number of slots up to that of the last field."""
        return max((f.slot for f in self.fields), default=-1) + 1


class Schema:
    """The tables, enumerations and unions of one file format. Tables and enumerations are parsed on
    first use.
    """

    def __init__(
        self,
        identifier: bytes,
        root: str,
        tables: Mapping[str, str],
        enums: Mapping[str, str],
        unions: Mapping[str, str],
    ) -> None:
        self.identifier, self.root = identifier, root
        self.unions = {name: tuple(text.split()) for name, text in unions.items()}
        self._texts = tables
        self._enum_texts = enums
        self._enums: dict[str, tuple[str, dict[str, int]]] = {}
        self._tables: dict[str, Table] = {}
        self._names: dict[str, dict[int, str]] = {}

    def table(self, name: str) -> Table:
        """The table called *name*. Raises `KeyError` if the schema does not have it."""
        found = self._tables.get(name)
        if found is None:
            found = self._tables[name] = Table(name, tuple(self._parse(self._texts[name])))
        return found

    def number(self, enumeration: str, name: str) -> int:
        """The number of a member of an enumeration. Raises `KeyError` if there is no such
        member.
        """
        return self._enum(enumeration)[1][name]

    def numbers(self, enumeration: str) -> Mapping[str, int]:
        return self._enum(enumeration)[1]

    def name(self, enumeration: str, number: int) -> str | None:
        """The name of a number of an enumeration, or None."""
        names = self._names.get(enumeration)
        if names is None:
            names = self._names[enumeration] = {v: k for k, v in self._enum(enumeration)[1].items()}
        return names.get(number)

    def _enum(self, name: str) -> tuple[str, dict[str, int]]:
        """The scalar type of an enumeration, and the numbers of its members."""
        found = self._enums.get(name)
        if found is None:
            found = self._enums[name] = _enumeration(self._enum_texts[name])
        return found

    def _parse(self, text: str) -> list[Field]:
        fields: list[Field] = []
        slot = 0
        for item in filter(None, text.split("; ")):
            if item == "_":
                slot += 1
                continue
            name, _, rest = item.partition(": ")
            type_name, _, default = rest.partition(" = ")
            if type_name in self.unions:
                fields.append(Field(f"{name}_type", slot, Kind.SCALAR, "uint8", default=0))
                slot += 1
            fields.append(self._field(name, slot, type_name, default))
            slot += 1
        return fields

    def _field(self, name: str, slot: int, type_name: str, default: str) -> Field:
        element = type_name.strip("[]")
        vector = element != type_name
        if element == "string":
            return Field(name, slot, Kind.STRINGS if vector else Kind.STRING)
        if element in self.unions:
            return Field(name, slot, Kind.UNION, target=element)
        if element in self._texts:
            return Field(name, slot, Kind.TABLES if vector else Kind.TABLE, target=element)
        scalar, names = (
            (self._enum(element)[0], element) if element in self._enum_texts else (element, "")
        )
        if vector:
            return Field(name, slot, Kind.NUMBERS, scalar, names)
        return Field(name, slot, Kind.SCALAR, scalar, names, default=_default(scalar, default))


def _enumeration(text: str) -> tuple[str, dict[str, int]]:
    """The scalar type of an enumeration, and the numbers of its members."""
    scalar, _, items = text.partition(": ")
    found: dict[str, int] = {}
    following = 0
    for item in items.split():
        name, _, number = item.partition("=")
        found[name] = int(number or following)
        following = found[name] + 1
    return scalar, found


def _default(scalar: str, text: str) -> bool | int | float:
    if scalar == "bool":
        return text == "true"
    return float(text or 0) if scalar.startswith("float") else int(text or 0)


TFLITE: Final = Schema(schema.FILE_IDENTIFIER, "Model", schema.TABLES, schema.ENUMS, schema.UNIONS)
"""TensorFlow Lite schema v3."""
OPTIONS_OF_OPERATOR: Final = dict(item.split(": ") for item in schema.OPTIONS.split("; "))
"""The options table of each operator that has one."""

BLOCK_SCALED: Final[Mapping[str, int]] = {"EMBEDDING_LOOKUP": 2, "FULLY_CONNECTED": 3}
"""Operations with an input of scales of blocks, and its position. The weights are at position 1."""

STATE_INPUTS: Final[dict[str, tuple[int, ...]]] = {
    "SVDF": (4,),
    "RNN": (4,),
    "UNIDIRECTIONAL_SEQUENCE_RNN": (4,),
    "BIDIRECTIONAL_SEQUENCE_RNN": (4, 8),
    "LSTM": (18, 19),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (18, 19),
    "BIDIRECTIONAL_SEQUENCE_LSTM": (35, 36, 37, 38),
}
"""Positions of the state tensors that TFLite's recurrent operators change in place."""

RANDOM_INPUTS: Final[Mapping[str, int]] = {
    "RANDOM_UNIFORM": 1,
    "RANDOM_STANDARD_NORMAL": 1,
    "MULTINOMIAL": 2,
}
"""Number of inputs of TFLite's random operators. The generator's position, which TFLite stores
inside the operator, comes after them.
"""

BASIC_LSTM_STATES: Final = (1, 4)


def state_positions(kind: str, attributes: Mapping[str, AttributeValue]) -> tuple[int, ...]:
    """Positions of the state inputs of a recurrent operation; empty for other types."""
    if kind == "LSTM" and attributes.get("kernel_type") == "BASIC":
        return BASIC_LSTM_STATES
    return STATE_INPUTS.get(kind, ())
