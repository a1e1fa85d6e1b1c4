"""Writes FlatBuffers, from the end to the beginning.

The bytes are those of the package `flatbuffers`, whose builder takes several times as long, and
copies the constants whenever its memory grows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

Piece: TypeAlias = bytes | memoryview

_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")


class FlatBufferWriter:
    """Appends parts of a FlatBuffer, each in front of what is written. Places are counted from the
    end, as in the format's own offsets.
    """

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._size = 0
        self._largest = 1
        self._vtables: dict[tuple[int, ...], int] = {}

    def string(self, text: str) -> int:
        """Appends a string; returns its place."""
        content = text.encode()
        self._align(4, len(content) + 1)
        self._add(b"\0", 1)
        return self._counted(content, len(content), len(content))

    def vector(self, content: Piece, nbytes: int, count: int, alignment: int) -> int:
        """Appends a vector of *count* numbers, which are *content*; returns its place."""
        self._align(4, nbytes)
        self._align(alignment, nbytes)
        return self._counted(content, nbytes, count)

    def references(self, places: Sequence[int]) -> int:
        """Appends a vector of references to *places*; returns its place."""
        count = len(places)
        self._align(4, 4 * count)
        first = self._size + 4 * count
        offsets = (first - 4 * at - place for at, place in enumerate(places))
        return self._counted(struct.pack(f"<{count}I", *offsets), 4 * count, count)

    def table(self, slots: int, fields: Sequence[tuple[int, struct.Struct | None, object]]) -> int:
        """Appends a table with *slots* slots; returns its place.

        *fields* are the slot of each present field, with the packer of a number and its value, or
        None and the place that it refers to.
        """
        begin, places = self._size, [0] * slots
        for slot, packer, value in fields:
            if packer is None:
                self._reference(value)
            else:
                self._align(packer.size, 0)
                self._add(packer.pack(value), packer.size)
            places[slot] = self._size
        self._align(4, 0)
        at = len(self._pieces)
        self._add(b"", 4)
        place = self._size
        while places and not places[-1]:
            places.pop()
        row = (2 * len(places) + 4, place - begin, *(p and place - p for p in places))
        known = self._vtables.get(row)
        if known is None:
            self._add(struct.pack(f"<{len(row)}H", *row), 2 * len(row))
            known = self._vtables[row] = self._size
        self._pieces[at] = _I32.pack(known - place)
        return place

    def finished(self, root: int, identifier: bytes) -> bytes:
        """The whole FlatBuffer, with the table at *root*."""
        self._align(self._largest, 8)
        self._add(identifier, 4)
        self._reference(root)
        return b"".join(reversed(self._pieces))

    def _align(self, alignment: int, nbytes: int) -> None:
        """Appends zeros, so that something behind *nbytes* more bytes is aligned."""
        self._largest = max(self._largest, alignment)
        if padding := -(self._size + nbytes) % alignment:
            self._add(bytes(padding), padding)

    def _add(self, piece: Piece, nbytes: int) -> None:
        self._pieces.append(piece)
        self._size += nbytes

    def _counted(self, content: Piece, nbytes: int, count: int) -> int:
        self._add(content, nbytes)
        self._add(_U32.pack(count), 4)
        return self._size

    def _reference(self, place: object) -> None:
        assert isinstance(place, int)
        self._align(4, 0)
        self._add(_U32.pack(self._size - place + 4), 4)
