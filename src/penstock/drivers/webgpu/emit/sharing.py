"""Shaders that differ in numbers alone become one shader, which reads these numbers of each kernel
from a uniform.

A system's driver takes much longer to compile a shader than to run it, and what it keeps of one
still costs a start its time. Most layers of a network differ from others in sizes and zero points.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct

NUMBER: Final = re.compile(
    r"(?<=[\w)\]]) ([+-]) (\d+)(?![\w.])"
    r"|\bi32\((-?\d+)\)"
    r"|\bf32\((-?\d[\d.e+-]*)\)"
    r"|(?<![\w.])(0x[0-9a-fA-F]+|\d+)(u?)(?![\w.])"
)
"""A number that is added or subtracted, one with its type, or any other integer."""

CONSTANT: Final = re.compile(r"(@\w+\(|array<[^;(]*, )$")
"""What comes before a number that has to be constant: of an attribute, or the size of an array."""

COSTLY: Final = re.compile(r"([/%] |\bi\d+ < )$")
"""What comes before a number that is better constant: a divisor, or how often a loop is run."""

WORDS: Final = 4
"""Numbers of one element of the uniform's array, which WebGPU aligns to 16 bytes."""

MOST_NUMBERS: Final = 4096
"""Numbers of one kernel: 16 KiB, which every device lets a uniform have."""

MAIN: Final = "fn main("

Fixed: TypeAlias = Literal["none", "costly", "all"]
"""Which numbers of a text stay as they are: those that WGSL wants constant alone; also divisors and
how often loops are run, for threads that do little else; or all.
"""


class Sharing(NamedTuple):
    """The *shaders*, and for each text the number of its shader and the numbers that it reads."""

    shaders: tuple[str, ...]
    users: tuple[tuple[int, tuple[int, ...]], ...]


class _Number(Struct, frozen=True):
    """A number in a text: its *kind* (i32, u32 or f32), its 32 *bits*, and how it is printed."""

    kind: str
    bits: int
    text: str


def shared(texts: Sequence[tuple[str, Fixed]]) -> Sharing:
    """One shader for all of *texts* that differ in numbers alone, in such that are not fixed."""
    groups: dict[object, dict[str, list[_Number]]] = {}
    keys: dict[str, tuple[str, ...]] = {}
    for text, fixed in texts:
        if text not in keys:
            keys[text], numbers = _taken_apart(text, fixed)
            groups.setdefault(keys[text], {})[text] = numbers
    shaders, users = list[str](), dict[str, tuple[int, tuple[int, ...]]]()
    for members in groups.values():
        columns = list(zip(*members.values(), strict=True))
        slots = dict[tuple[int, ...], int]()
        for column in columns:
            values = tuple(number.bits for number in column)
            if len(set(values)) > 1:
                slots.setdefault(values, len(slots))
        if len(slots) > MOST_NUMBERS:
            for text in members:
                users[text] = len(shaders), ()
                shaders.append(text)
            continue
        for text, values in zip(members, zip(*slots, strict=True) if slots else ((),), strict=True):
            users[text] = len(shaders), values
        first = next(iter(members))
        shaders.append(_reading(first, keys[first], columns, slots) if slots else first)
    return Sharing(tuple(shaders), tuple(users[text] for text, _ in texts))


def array_of(numbers: Sequence[int]) -> np.ndarray:
    """The contents of the uniform that has *numbers*."""
    return np.array([*numbers, *[0] * (-len(numbers) % WORDS)], np.uint32)


def _taken_apart(text: str, fixed: Fixed) -> tuple[tuple[str, ...], list[_Number]]:
    """*text* between its numbers, with their kinds, and its numbers."""
    pieces, numbers, end = list[str](), list[_Number](), 0
    for match in _numbers(text, fixed):
        sign, added, signed, real, whole, unsigned = match.groups()
        if added is not None:
            number = _Number("i32", int(sign + added) & 0xFFFFFFFF, match[0])
        elif signed is not None:
            number = _Number("i32", int(signed) & 0xFFFFFFFF, match[0])
        elif real is not None:
            number = _Number("f32", int(np.float32(real).view(np.uint32)), match[0])
        else:
            base = 16 if whole.startswith("0x") else 10
            number = _Number("u32" if unsigned else "i32", int(whole, base), match[0])
        form = "+" if added is not None else number.kind
        pieces += [text[end : match.start()], form]
        numbers.append(number)
        end = match.end()
    return (*pieces, text[end:]), numbers


def _numbers(text: str, fixed: Fixed) -> Iterator[re.Match[str]]:
    """The numbers of *text* that a uniform may have."""
    for match in NUMBER.finditer(text) if fixed != "all" else ():
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if CONSTANT.search(line) is None and not (fixed == "costly" and COSTLY.search(line)):
            yield match


def _reading(
    text: str,
    pieces: tuple[str, ...],
    columns: Sequence[tuple[_Number, ...]],
    slots: dict[tuple[int, ...], int],
) -> str:
    """The shader that reads the numbers that differ, of which *text* is one case."""
    parts, used, is_main = list[str](), dict[str, str](), False
    for place, column in enumerate(columns):
        before, form = pieces[2 * place], pieces[2 * place + 1]
        is_main = is_main or MAIN in before
        parts.append(before)
        slot = slots.get(tuple(number.bits for number in column))
        if slot is None:
            parts.append(column[0].text)
            continue
        kind = column[0].kind
        value = f"numbers[{slot // WORDS}].{'xyzw'[slot % WORDS]}"
        value = value if kind == "u32" else f"bitcast<{kind}>({value})"
        if is_main:
            # Compilers of shaders do not move what is read out of loops.
            name = f"number{slot}_{kind}"
            used[name] = value
            value = name
        parts.append(f" + {value}" if form == "+" else value)
    parts.append(pieces[-1])
    head, main, rest = "".join(parts).partition(MAIN)
    given, brace, body = rest.partition("{\n")
    lets = "".join(f"let {name} = {value};\n" for name, value in used.items())
    binding, count = text.count("@group(0) @binding("), -(-len(slots) // WORDS)
    uniform = f"@group(0) @binding({binding}) var<uniform> numbers: array<vec4<u32>, {count}>;\n"
    return f"{uniform}{head}{main}{given}{brace}{lets}{body}"
