"""Gives one function to kernels whose code differs in numbers alone: zero points, factors, bounds.

A number that is not the same in all of them is read from a table that each kernel has among its
constants. Numbers that are the same stay where they are, and so does the code of a kernel that is
like no other.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from penstock.drivers.llvm.emit.assembler import BYTES_OF, Function, lanes_of
from penstock.ir import NDArray

TABLE: Final = "numbers"
"""The argument that points to the table of a kernel."""

SLOT: Final = 8
"""Bytes of a number in a table."""

LEAST_LINES: Final = 80
"""Functions of fewer lines compile faster than sharing them pays for."""

MOST_NUMBERS: Final = 8
"""Numbers that a function reads from a table: each takes a register, or a place on the stack."""

VECTOR: Final = re.compile(r"splat \(((?!i1 )\w+) ([^)]+)\)")
INDEX: Final = re.compile(r"(?:(?<=, )|(?<=, i64 ))\d+(?=\)?$)")
"""A vector of one number, and the number at the end of a line."""

INDEXED: Final = (" mul nsw i64 ", " @llvm.smin.i64(")
"""The instructions whose number may be another: they are outside of innermost loops."""

FIXED: Final = re.compile(r"  %\w+ = (?:shl|lshr|ashr|[us]div|[us]rem) ")
"""Instructions that are others, and slow ones, for numbers that are not known."""

HOLE: Final = "\0"
Number: TypeAlias = tuple[str, str]
"""The type of a number, a vector's where all of its elements have it, and what is written of it."""


class Form(Struct, frozen=True):
    """The code of a function: its lines with holes, and the numbers in the holes."""

    text: str
    numbers: tuple[Number, ...]


def share(functions: Sequence[Function]) -> list[tuple[Function, NDArray | None]]:
    """For each of *functions* the one that computes the same, and the table that it reads for it
    (None: it reads none).
    """
    forms = [form(f.body) for f in functions]
    alike: dict[tuple[str, tuple[str, ...], str], list[int]] = {}
    for number, (function, found) in enumerate(zip(functions, forms, strict=True)):
        # A function is named for what it computes, too. Not every argument is in its code.
        stem = function.name.partition("_")[2]
        alike.setdefault((stem, function.arguments, found.text), []).append(number)
    made: list[tuple[Function, NDArray | None]] = [(f, None) for f in functions]
    for (_, _, text), members in alike.items():
        columns = [*zip(*(forms[m].numbers for m in members), strict=True)]
        places: dict[tuple[Number, ...], int] = {}
        for column in columns:
            if len(set(column)) > 1:
                places.setdefault(column, len(places))
        small = text.count("\n") < LEAST_LINES
        if len(members) == 1 or (places and (small or len(places) > MOST_NUMBERS)):
            continue
        function = functions[members[0]]
        if places:
            function.replace(filled(text, columns, places), TABLE)
        for row, member in enumerate(members):
            table = table_of([column[row] for column in places]) if places else None
            made[member] = function, table
    return made


def form(body: str) -> Form:
    """The form of the instructions *body*."""
    numbers: list[Number] = []

    def vector(found: re.Match[str]) -> str:
        scalar, written = found.groups()
        # The type of an operand is written before it, and no other of such elements between them.
        before = found.string[: found.start()]
        end = before.rindex(f" x {scalar}>")
        numbers.append((f"{before[before.rindex('<', 0, end) : end]} x {scalar}>", written))
        return HOLE

    def index(found: re.Match[str]) -> str:
        numbers.append(("i64", found[0]))
        return HOLE

    def opened(line: str) -> str:
        if "splat (" in line:
            return line if FIXED.match(line) else VECTOR.sub(vector, line)
        if INDEXED[0] in line or INDEXED[1] in line:
            return INDEX.sub(index, line)
        return line

    text = "\n".join(opened(line) for line in body.split("\n"))
    return Form(text, tuple(numbers))


def filled(
    text: str, columns: Sequence[tuple[Number, ...]], places: dict[tuple[Number, ...], int]
) -> str:
    """The instructions with numbers in their holes: those of *places* are read from the table."""
    loads = [line for column, place in places.items() for line in _load(column[0][0], place)]
    pieces = text.split(HOLE)
    made = [pieces[0]]
    for column, piece in zip(columns, pieces[1:], strict=True):
        place = places.get(column)
        made += [_written(*column[0]) if place is None else f"%{TABLE}.{place}", piece]
    return "\n".join([*loads, "".join(made)])


def _written(type_: str, number: str) -> str:
    lanes, scalar = lanes_of(type_)
    return number if lanes == 1 else f"splat ({scalar} {number})"


def _load(type_: str, place: int) -> list[str]:
    name = f"%{TABLE}.{place}"
    lanes, scalar = lanes_of(type_)
    at = f"  {name}.at = getelementptr i8, ptr %{TABLE}, i64 {SLOT * place}"
    if lanes == 1:
        return [at, f"  {name} = load {scalar}, ptr {name}.at, align {SLOT}"]
    one, mask = f"{name}.one", f"<{lanes} x i32> zeroinitializer"
    return [
        at,
        f"  {one} = load {scalar}, ptr {name}.at, align {SLOT}",
        f"  {name}.first = insertelement {type_} poison, {scalar} {one}, i64 0",
        f"  {name} = shufflevector {type_} {name}.first, {type_} poison, {mask}",
    ]


def table_of(numbers: Sequence[Number]) -> NDArray:
    """The bytes of a table."""
    slots = (_bytes(lanes_of(type_)[1], number).ljust(SLOT, b"\0") for type_, number in numbers)
    return np.frombuffer(b"".join(slots), np.uint8)


def _bytes(scalar: str, number: str) -> bytes:
    """The bytes in memory of a number as LLVM's language writes it."""
    if scalar == "half":
        return int(number.removeprefix("0xH"), 16).to_bytes(2, "little")
    if scalar in {"float", "double"}:
        (value,) = struct.unpack(">d", bytes.fromhex(number.removeprefix("0x")))
        return struct.pack("<f" if scalar == "float" else "<d", value)
    size = BYTES_OF[scalar]
    return (int(number) % (1 << 8 * size)).to_bytes(size, "little")
