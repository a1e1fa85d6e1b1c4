"""What all templates share: the memory of a shader, its threads, and its text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from penstock.compiler.program import Access, Program
from penstock.drivers.webgpu.calls import GROUP
from penstock.drivers.webgpu.emit.address import Flat, Through, Walk, sum_of
from penstock.drivers.webgpu.emit.library import ZERO, called, needed
from penstock.drivers.webgpu.emit.types import literal, loaded, size_of
from penstock.ir import DType

MOST_GROUPS: Final = 65_535
"""Workgroups along one dimension that every device takes."""


class Slot(Struct, frozen=True):
    """Where a shader finds a tensor: an *array* of words, from word *base* on."""

    array: str
    base: int = 0


class Printed(Struct, frozen=True):
    """A shader's text without its bindings, its workgroups, the arrays that it accesses by atomic
    operations, and those whose elements are vectors of four words, or *pairs* of words.
    """

    text: str
    groups: tuple[int, int, int]
    atomic: frozenset[str] = frozenset()
    vectors: frozenset[str] = frozenset()
    pairs: frozenset[str] = frozenset()


class Memory:
    """Prints reads of tensors in the *slots* of their roots."""

    def __init__(self, program: Program, slots: Mapping[int, Slot], atomic: str = "") -> None:
        self.program, self._slots, self._atomic = program, slots, atomic

    def slot(self, tensor: int) -> Slot:
        return self._slots[self.program.root(tensor)]

    def element(self, tensor: int, index: str) -> str:
        """Element *index*, an u32, of *tensor*."""
        slot, dtype = self.slot(tensor), self.program.tensors[tensor].dtype
        if slot.base:
            index = f"({index} + {slot.base * 4 // size_of(dtype)}u)"
        return loaded(slot.array, index, dtype, atomic=slot.array == self._atomic)

    def word(self, tensor: int, index: str) -> str:
        """Word *index*, an u32, of *tensor*."""
        slot = self.slot(tensor)
        return f"{slot.array}[{index}{f' + {slot.base}u' if slot.base else ''}]"

    def lookup(self, table: int, index: str, dtype: DType) -> str:
        """Element *index* of a constant tensor."""
        return self.element(table, f"({index})")

    def place(self, walk: Walk, name: str, flat: Flat, more: int = 0) -> str:
        """The address *flat*, called *name* in *walk*, and *more* elements further, as an i32."""
        return " + ".join([walk.at(name, 0, more), *(self._chosen(t) for t in flat.through)])

    def _chosen(self, through: Through) -> str:
        number = f"u32({sum_of(through.offset, through.steps)})"
        inside = f"clamp({self.element(through.tensor, f'({number})')}, 0, {through.size - 1})"
        return inside if through.stride == 1 else f"{inside} * {through.stride}"

    def read(self, access: Access, walk: Walk, name: str, flat: Flat) -> str:
        """What *access* reads, once all its loops are open in *walk*."""
        dtype = self.program.tensors[access.tensor].dtype
        value = self.element(access.tensor, f"u32({self.place(walk, name, flat)})")
        return guarded(value, literal(access.fill or 0, dtype), walk.inside(name))


def guarded(value: str, fill: str, condition: str) -> str:
    """*value*, or *fill* where *condition* does not hold. A read outside an array does no harm: it
    has some value.
    """
    return f"select({fill}, {value}, {condition})" if condition else value


def decoded(sizes: Sequence[int], flat: str) -> list[str]:
    """Statements that take the loops from *flat*, the number of their point as an i32. Loops of one
    iteration have none.
    """
    lines, total = list[str](), math.prod(sizes)
    stride = total
    for loop, size in enumerate(sizes):
        stride //= max(size, 1)
        if size == 1:
            continue
        text = flat if stride == 1 else f"{flat} / {stride}"
        if stride * size != total:
            text = f"({text}) % {size}"
        lines.append(f"let i{loop} = {text};")
    return lines


def groups_of(threads: int, group: int) -> tuple[tuple[int, int, int], int]:
    """Workgroups of *group* threads for so many, and the threads of one row of workgroups."""
    count = max(1, -(-threads // group))
    rows = -(-count // MOST_GROUPS)
    columns = -(-count // rows)
    return (columns, rows, 1), columns * group


def entry_point(
    threads: int, lines: Sequence[str], group: int = GROUP
) -> tuple[list[str], tuple[int, int, int]]:
    """The entry point, which runs *lines* for each `t`, an i32, of so many threads. A workgroup
    has *group* of them.
    """
    groups, row = groups_of(threads, group)
    first = "i32(g.x)" if groups[1] == 1 else f"i32(g.x) + i32(g.y) * {row}"
    return [
        f"@compute @workgroup_size({group})",
        "fn main(@builtin(global_invocation_id) g: vec3<u32>) {",
        f"let t = {first};",
        f"if (t >= {threads}) {{ return; }}",
        *lines,
        "}",
    ], groups


def assembled(lines: Sequence[str]) -> str:
    """The text of *lines* with the functions that they call. One line of the entry point begins
    with `let t`.
    """
    text = "\n".join(lines)
    library = needed(called(text))
    if "zero" in library:
        library, text = f"{ZERO}\n{library}", text.replace("let t =", "zero = g.z;\nlet t =", 1)
    return f"{library}\n{text}\n"


def divided(text: str) -> str:
    """*text*, a shader, with a uniform that says at which thread and row of workgroups a dispatch
    begins. It is in a group of its own, because the others are the same for all dispatches.
    """
    head, main, rest = text.partition("fn main(")
    given, brace, body = rest.partition("{\n")
    names = [name for name in "gw" if f" {name}:" in given]
    for name in names:
        given = given.replace(f" {name}:", f" own_{name}:")
    # No template reads the column of a workgroup.
    moved = "".join(f"let {name} = own_{name} + dispatched.xyz;\n" for name in names)
    uniform = "@group(1) @binding(0) var<uniform> dispatched: vec4<u32>;\n"
    return f"{uniform}{head}{main}{given}{brace}{moved}{body}"


def stored_small(array: str, base: int, dtype: DType, word: str) -> list[str]:
    """Statements that write the lowest bits of *word*, the others being 0, to the element `at` of
    *dtype*, of 8 or 16 bits, of an array of atomic words: other threads write the other elements of
    its word.
    """
    size = size_of(dtype)
    each, mask = 4 // size, "0xffu" if size == 1 else "0xffffu"
    return [
        f"let by = (at % {each}u) * {8 * size}u;",
        f"let place = at / {each}u{f' + {base}u' if base else ''};",
        f"atomicAnd(&{array}[place], ~({mask} << by));",
        f"atomicOr(&{array}[place], ({word}) << by);",
    ]
