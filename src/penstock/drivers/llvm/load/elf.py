"""Parses relocatable objects: ELF, 64 bits, little-endian, for x86-64 and aarch64 (System V ABI,
chapter "Object Files", and the ELF supplements of both architectures).

The bytes come from outside. Every offset, size and index is checked before it is used, and what
generated code never has (writable data, thread-local data, symbols of other libraries) is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from msgspec import Struct

from penstock.errors import GeneralFailure
from penstock.ir import NDArray

Architecture: TypeAlias = Literal["x86_64", "aarch64"]

MACHINES: Final[Mapping[int, Architecture]] = {62: "x86_64", 183: "aarch64"}
"""`e_machine` of the architectures that are loaded."""

HEADER: Final = np.dtype(
    [
        ("magic", "<u4"), ("class", "u1"), ("data", "u1"), ("ident_version", "u1"), ("abi", "u1"),
        ("pad", "<u8"), ("type", "<u2"), ("machine", "<u2"), ("version", "<u4"), ("entry", "<u8"),
        ("program_headers", "<u8"), ("sections", "<u8"), ("flags", "<u4"), ("size", "<u2"),
        ("program_size", "<u2"), ("program_count", "<u2"), ("section_size", "<u2"),
        ("section_count", "<u2"), ("names", "<u2"),
    ]
)  # fmt: skip
SECTION: Final = np.dtype(
    [
        ("name", "<u4"), ("type", "<u4"), ("flags", "<u8"), ("address", "<u8"), ("offset", "<u8"),
        ("size", "<u8"), ("link", "<u4"), ("info", "<u4"), ("align", "<u8"), ("entry", "<u8"),
    ]
)  # fmt: skip
SYMBOL: Final = np.dtype(
    [
        ("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
        ("size", "<u8"),
    ]
)  # fmt: skip
RELOCATION: Final = np.dtype(
    [("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")]
)

MAGIC: Final = 0x464C457F
RELOCATABLE: Final = 1
PROGBITS, SYMBOLS, STRINGS, RELA, NOBITS, REL = 1, 2, 3, 4, 8, 9
SYMBOL_SECTIONS: Final = 18
"""The type of a section that holds the sections of symbols, for objects with too many."""

WRITE, ALLOC, EXECUTE, TLS, COMPRESSED = 1, 2, 4, 0x400, 0x800
RESERVED: Final = 0xFF00
"""The least number of a section that has a meaning of its own."""

LOCAL: Final = 0
FUNCTION: Final = 2

LARGEST: Final = 1 << 30
"""The most bytes of an object, and the greatest addend."""

UNWINDING: Final = ".eh_frame"
"""The section that tells how to leave functions by an exception. Nobody does."""

GREATEST_ALIGNMENT: Final = 4096


class Section(Struct, frozen=True, eq=False):
    """A section that is loaded: its bytes, a view of the object."""

    name: str
    content: NDArray
    align: int
    executable: bool


class Symbol(Struct, frozen=True):
    """A function or datum that can be found by name: in which section, where, and its size."""

    section: int
    offset: int
    size: int
    is_function: bool


class Object(Struct, frozen=True, eq=False):
    """A checked object. *symbols* are all named ones of loaded sections.

    Relocations are arrays of one length: section and offset of the place, type, section and offset
    of the target, without and with its addend.
    """

    architecture: Architecture
    sections: tuple[Section, ...]
    symbols: Mapping[str, Symbol]
    places: NDArray
    offsets: NDArray
    types: NDArray
    targets: NDArray
    values: NDArray


def parse(content: bytes | memoryview) -> Object:
    """The object in *content*. Raises `GeneralFailure` for one that cannot be loaded."""
    return _Reader(content).read()


def broken(message: str) -> GeneralFailure:
    """The error for an object that cannot be loaded."""
    return GeneralFailure(f"the object code cannot be loaded: {message}")


class _Header(Struct):
    """The header of a section, as numbers of Python: NumPy's take most of the time of a load."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class _Reader:
    def __init__(self, content: bytes | memoryview) -> None:
        self._bytes = np.frombuffer(content, np.uint8)
        if len(self._bytes) > LARGEST:
            raise broken(f"it has {len(self._bytes)} bytes, more than {LARGEST}")

    def _table(self, what: str, kind: np.dtype[Any], offset: int, size: int) -> NDArray:
        """*size* bytes at *offset* as records of *kind*."""
        if offset > len(self._bytes) or size > len(self._bytes) - offset:
            raise broken(f"its {what} ends at byte {offset + size} of {len(self._bytes)}")
        if size % kind.itemsize:
            raise broken(f"its {what} has {size} bytes, no multiple of {kind.itemsize}")
        return self._bytes[offset : offset + size].view(kind)

    def read(self) -> Object:
        header = self._table("header", HEADER, 0, HEADER.itemsize)[0]
        known = int(header["magic"]), int(header["class"]), int(header["data"])
        if known != (MAGIC, 2, 1):
            raise broken("it is no ELF file of 64 bits, little-endian")
        machine = int(header["machine"])
        if int(header["type"]) != RELOCATABLE or machine not in MACHINES:
            raise broken(f"it is of type {header['type']} for machine {machine}")
        if int(header["section_size"]) != SECTION.itemsize:
            raise broken(f"its section headers have {header['section_size']} bytes each")
        start, count = int(header["sections"]), int(header["section_count"])
        table = self._table("table of sections", SECTION, start, count * SECTION.itemsize)
        self._headers = [_Header(*fields) for fields in table.tolist()]
        self._names = self._strings(int(header["names"]))
        self._numbers = [-1] * count
        """The number of each section among those that are loaded; -1 for others."""
        sections = self._sections()
        symbols = self._symbols()
        self._sizes = [len(s.content) for s in sections]
        named = self._named(symbols)
        return Object(MACHINES[machine], sections, named, *self._relocations(symbols))

    def _header(self, number: int) -> _Header:
        if not 0 <= number < len(self._headers):
            raise broken(f"it names section {number} of {len(self._headers)}")
        return self._headers[number]

    def _content(self, number: int, kind: np.dtype[Any]) -> NDArray:
        header = self._header(number)
        return self._table(f"section {number}", kind, header.offset, header.size)

    def _strings(self, number: int) -> bytes:
        if self._header(number).type != STRINGS:
            raise broken(f"section {number} has no names, but is used for them")
        return self._content(number, np.dtype(np.uint8)).tobytes()

    def _name(self, strings: bytes, offset: int) -> str:
        end = strings.find(b"\0", offset)
        if offset >= len(strings) or end < 0:
            raise broken(f"a name at {offset} does not end in its {len(strings)} bytes")
        return strings[offset:end].decode("utf-8", "backslashreplace")

    def _sections(self) -> tuple[Section, ...]:
        found: list[Section] = []
        for number, header in enumerate(self._headers):
            flags, kind = header.flags, header.type
            if not flags & ALLOC:
                continue
            name = self._name(self._names, header.name)
            if name == UNWINDING:
                continue
            # A table of pointers is writable only until it is relocated.
            if flags & WRITE and not name.startswith(".data.rel.ro"):
                raise broken(f"its section {name} is writable, and generated code has no such data")
            if flags & (TLS | COMPRESSED) or kind != PROGBITS:
                raise broken(f"its section {name} has the type {kind} and the flags {flags:#x}")
            align = max(1, header.align)
            if align > GREATEST_ALIGNMENT or align & (align - 1):
                raise broken(f"its section {name} is aligned to {align} bytes")
            content = self._content(number, np.dtype(np.uint8))
            self._numbers[number] = len(found)
            found.append(Section(name, content, align, bool(flags & EXECUTE)))
        return tuple(found)

    def _symbols(self) -> NDArray:
        types = [h.type for h in self._headers]
        tables = [n for n, type_ in enumerate(types) if type_ == SYMBOLS]
        if len(tables) != 1 or SYMBOL_SECTIONS in types:
            raise broken(f"it has {len(tables)} tables of symbols, or one that is extended")
        self._symbol_table = tables[0]
        return self._content(tables[0], SYMBOL)

    def _named(self, symbols: NDArray) -> dict[str, Symbol]:
        strings = self._strings(self._header(self._symbol_table).link)
        found: dict[str, Symbol] = {}
        for start, info, _, section, value, size in symbols.tolist():
            if not start:
                continue
            name = self._name(strings, start)
            if section == 0:
                raise broken(f"it needs {name!r}, which it does not define")
            if section >= RESERVED or (number := self._number(section)) < 0:
                continue
            room = self._sizes[number]
            if value > room or size > room - value:
                raise broken(f"its symbol {name!r} ends outside its section of {room} bytes")
            binding, kind = divmod(info, 16)
            if name in found and binding != LOCAL:
                raise broken(f"it defines {name!r} twice")
            found.setdefault(name, Symbol(number, value, size, kind == FUNCTION))
        return found

    def _number(self, section: int) -> int:
        self._header(section)
        return self._numbers[section]

    def _relocations(self, symbols: NDArray) -> tuple[NDArray, ...]:
        made: list[tuple[NDArray, ...]] = []
        for number, header in enumerate(self._headers):
            kind, place = header.type, header.info
            if kind not in {RELA, REL} or self._number(place) < 0:
                continue
            if kind == REL or header.link != self._symbol_table:
                raise broken(f"its relocations of section {place} have no addends or other symbols")
            made.append(self._of_section(place, self._content(number, RELOCATION), symbols))
        if not made:
            return tuple(np.zeros(0, np.int64) for _ in range(5))
        return tuple(np.concatenate(parts) for parts in zip(*made, strict=True))

    def _of_section(
        self, section: int, relocations: NDArray, symbols: NDArray
    ) -> tuple[NDArray, ...]:
        place = self._numbers[section]
        size, numbers = self._sizes[place], np.array(self._numbers)
        if np.any(relocations["symbol"] >= len(symbols)):
            raise broken(f"a relocation of section {section} names a symbol that does not exist")
        chosen = symbols[relocations["symbol"]]
        if np.any((chosen["section"] == 0) | (chosen["section"] >= len(self._headers))):
            raise broken(f"a relocation of section {section} names a symbol without a section")
        targets = numbers[chosen["section"]]
        if np.any(targets < 0):
            raise broken(f"a relocation of section {section} names a section that is not loaded")
        if np.any(chosen["value"] > np.array(self._sizes, np.uint64)[targets]):
            raise broken(f"a relocation of section {section} names a symbol outside its section")
        addends = relocations["addend"]
        reaches = np.any((addends > LARGEST) | (addends < -LARGEST))
        if reaches or np.any(relocations["offset"] >= size):
            raise broken(f"a relocation of section {section} reaches too far")
        values = chosen["value"].astype(np.int64) + addends
        offsets = relocations["offset"].astype(np.int64)
        return (
            np.full(len(relocations), place), offsets, relocations["type"].astype(np.int64),
            targets, values,
        )  # fmt: skip
