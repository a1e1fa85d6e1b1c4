"""The general template: one thread for each element that a kernel writes, or for each word of
small elements, with the reduced loops inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from penstock.compiler.expression import Expression
from penstock.compiler.interpreter import least_of, product_of
from penstock.compiler.program import Access, Kernel, Program
from penstock.compiler.rewriting import is_whole
from penstock.drivers.webgpu.emit.library import ZERO, called, needed
from penstock.drivers.webgpu.emit.scalars import WIDE_CALLS, Scalars
from penstock.drivers.webgpu.emit.types import WIDE, bits, literal, loaded, size_of, variable
from penstock.ir import DType

GROUP = 64
"""Threads of a workgroup."""

MOST_GROUPS = 65_535
"""Workgroups along one dimension that every device takes."""


class Slot(Struct, frozen=True):
    """Where a shader finds a tensor: an *array* of words, from word *base* on."""

    array: str
    base: int = 0


class Printed(Struct, frozen=True):
    """A shader's text without its bindings, its workgroups, and the arrays that it accesses by
    atomic operations.
    """

    text: str
    groups: tuple[int, int, int]
    atomic: frozenset[str] = frozenset()


class Memory:
    """Prints accesses of tensors in the *slots* of their roots."""

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

    def lookup(self, table: int, index: str, dtype: DType) -> str:
        """Element *index* of a constant tensor."""
        return self.element(table, f"({index})")

    def place(self, access: Access) -> str:
        """The element that *access* names, as an i32."""
        shape = self.program.tensors[access.tensor].shape
        offset, terms, more = 0, dict[int, int](), list[str]()
        stride = 1
        for size, position in zip(reversed(shape), reversed(access.axes), strict=True):
            if position.through is None:
                offset += position.offset * stride
                for loop, step in position.steps:
                    terms[loop] = terms.get(loop, 0) + step * stride
            else:
                chosen = self.element(
                    position.through, f"u32({sum_of(position.offset, position.steps)})"
                )
                inside = f"clamp({chosen}, 0, {size - 1})"
                more.append(inside if stride == 1 else f"{inside} * {stride}")
            stride *= size
        text = sum_of(offset, tuple(sorted(terms.items())))
        if more:
            text = " + ".join(([] if text == "0" else [text]) + more)
        return text

    def outside(self, access: Access, sizes: tuple[int, ...]) -> str:
        """The condition that a read with a fill lies inside; "" if it always does."""
        shape = self.program.tensors[access.tensor].shape
        found = []
        for size, position in zip(shape, access.axes, strict=True):
            if position.through is not None:
                continue
            low, high = position.span(sizes)
            at = sum_of(position.offset, position.steps)
            if low < 0:
                found.append(f"{at} >= 0")
            if high >= size:
                found.append(f"{at} < {size}")
        return " && ".join(found)

    def read(self, scalars: Scalars, access: Access, sizes: tuple[int, ...]) -> str:
        """Writes the read of *access* in loops of *sizes*. Returns the variable."""
        dtype = self.program.tensors[access.tensor].dtype
        index = f"u32({self.place(access)})"
        condition = "" if access.fill is None else self.outside(access, sizes)
        if not condition:
            place = scalars.name(index, DType.UINT32)
            return scalars.name(self.element(access.tensor, place), dtype)
        place = f"p{len(scalars.lines)}"
        value = f"x{len(scalars.lines)}"
        scalars.lines += [
            f"var {value}: {variable(dtype)} = {literal(access.fill or 0, dtype)};",
            f"if ({condition}) {{",
            f"let {place} = {index};",
            f"{value} = {self.element(access.tensor, place)};",
            "}",
        ]
        return value


def sum_of(offset: int, steps: Sequence[tuple[int, int]]) -> str:
    """The sum of loops times steps, and *offset*."""
    text = ""
    for loop, step in steps:
        size = f"i{loop}" if abs(step) == 1 else f"i{loop} * {abs(step)}"
        text += f" {'-' if step < 0 else '+'} {size}"
    if offset or not text:
        text += f" {'-' if offset < 0 else '+'} {abs(offset)}"
    return text[3:] if text.startswith(" + ") else f"0{text}"


def decoded(loops: Sequence[int], flat: str) -> list[str]:
    """Statements that take the loops from *flat*, the number of their point as an i32."""
    lines, stride = list[str](), math.prod(loops)
    for loop, size in enumerate(loops):
        stride //= max(size, 1)
        if size == 1:
            lines.append(f"let i{loop} = 0;")
            continue
        text = flat if stride == 1 else f"{flat} / {stride}"
        if stride * size != math.prod(loops):
            text = f"({text}) % {size}"
        lines.append(f"let i{loop} = {text};")
    return lines


def groups_of(threads: int) -> tuple[tuple[int, int, int], int]:
    """Workgroups for so many threads, and the threads of one row of them."""
    count = max(1, -(-threads // GROUP))
    rows = -(-count // MOST_GROUPS)
    columns = -(-count // rows)
    return (columns, rows, 1), columns * GROUP


def entry_point(threads: int, lines: Sequence[str]) -> tuple[list[str], tuple[int, int, int]]:
    """The entry point, which runs *lines* for each `t`, an i32, of so many threads."""
    groups, row = groups_of(threads)
    first = "i32(g.x)" if groups[1] == 1 else f"i32(g.x) + i32(g.y) * {row}"
    return [
        f"@compute @workgroup_size({GROUP})",
        "fn main(@builtin(global_invocation_id) g: vec3<u32>) {",
        f"let t = {first};",
        f"if (t >= {threads}) {{ return; }}",
        *lines,
        "}",
    ], groups


def assembled(lines: Sequence[str]) -> str:
    """The text of *lines* with the functions that they call. The second of its entry point's lines
    begins with `let t`.
    """
    text = "\n".join(lines)
    library = needed(called(text))
    if "zero" in library:
        library, text = f"{ZERO}\n{library}", text.replace("let t =", "zero = g.z;\nlet t =", 1)
    return f"{library}\n{text}\n"


def nest(program: Program, kernel: Kernel, slots: Mapping[int, Slot]) -> Printed:
    """The shader of any kernel without a routine."""
    target = program.tensors[kernel.write.tensor]
    size, count = size_of(target.dtype), math.prod(kernel.loops)
    whole = is_whole(kernel.write, kernel.loops, target.shape)
    written = slots[program.root(kernel.write.tensor)]
    atomic = written.array if size < 4 and not whole else ""
    memory = Memory(program, slots, atomic)
    scalars = Scalars(memory.lookup)
    result = point(memory, scalars, kernel)
    inner = [*decoded(kernel.loops, "f"), *scalars.lines]
    kind = variable(target.dtype)
    if size >= 4 or not whole:
        stored = _stored(memory, kernel, result, target.dtype, atomic)
        main, groups = entry_point(count, ["let f = t;", *inner, *stored])
        return Printed(assembled(main), groups, frozenset({atomic} - {""}))
    each = 4 // size
    function = [f"fn point(f: i32) -> {kind} {{", *inner, f"return {result};", "}"]
    base = f" + {written.base}" if written.base else ""
    lines = [
        "var word = 0u;",
        f"let last = min(t * {each} + {each}, {count});",
        f"for (var f = t * {each}; f < last; f++) {{",
        f"let v = {bits('point(f)', target.dtype)};",
        f"word |= v << (u32(f % {each}) * {8 * size}u);",
        "}",
        f"{written.array}[t{base}] = word;",
    ]
    main, groups = entry_point(-(-count // each), lines)
    return Printed(assembled([*function, *main]), groups)


def point(memory: Memory, scalars: Scalars, kernel: Kernel) -> str:
    """Writes what one point of the outer loops computes. Returns its value."""
    first = len(kernel.loops)
    if kernel.combine == "none":
        reads = [memory.read(scalars, a, kernel.sizes) for a in kernel.reads]
        result = scalars.expression(kernel.body, reads)
    else:
        start = literal(least_of(kernel).item(), kernel.sums)
        if kernel.order == "fused":
            start = memory.read(scalars, kernel.extras[0], kernel.loops)
        scalars.lines.append(f"var sum: {variable(kernel.sums)} = {start};")
        for loop, size in enumerate(kernel.reduced, first):
            head = f"for (var i{loop} = 0; i{loop} < {size}; i{loop}++) {{"
            scalars.lines.append(head if size != 1 else f"{{ let i{loop} = 0;")
        reads = [memory.read(scalars, a, kernel.sizes) for a in kernel.reads]
        scalars.lines.append(f"sum = {_combined(scalars, kernel, reads)};")
        scalars.lines += ["}"] * len(kernel.reduced)
        result = "sum"
    extras = [memory.read(scalars, a, kernel.loops) for a in kernel.extras]
    return scalars.expression(kernel.finish, [result, *extras])


def _combined(scalars: Scalars, kernel: Kernel, reads: Sequence[str]) -> str:
    """The text of `sum` combined with one more value."""
    dtype = kernel.sums
    if kernel.order == "fused" and product_of(kernel) is not None:
        steps = kernel.body.steps
        factors = Expression(kernel.body.arguments, steps[:-1], 0)
        values = factor_names(scalars, factors, steps[-1].arguments, reads)
        return f"fused({values[0]}, {values[1]}, sum)"
    value = scalars.expression(kernel.body, reads)
    combine = kernel.combine
    if combine in {"any", "all"}:
        return f"sum {'|' if combine == 'any' else '&'} {value}"
    if combine in {"maximum", "minimum"}:
        if dtype.is_float:
            # A NaN is left out.
            return f"select(sum, {value}, {value} {'>' if combine == 'maximum' else '<'} sum)"
        name = WIDE_CALLS[combine] if dtype is WIDE else combine[:3]
        return f"{name}(sum, {value})"
    operation = "add" if combine == "sum" else "mul"
    if dtype is WIDE:
        return f"{WIDE_CALLS[operation]}(sum, {value})"
    return _rounded(f"sum {'+' if combine == 'sum' else '*'} {value}", dtype)


def factor_names(
    scalars: Scalars, factors: Expression, wanted: Sequence[int], reads: Sequence[str]
) -> list[str]:
    """The names of the values *wanted* of the expression *factors*."""
    return [
        scalars.expression(Expression(factors.arguments, factors.steps, value), reads)
        for value in wanted
    ]


def _rounded(text: str, dtype: DType) -> str:
    if dtype is DType.FLOAT16:
        return f"round_half({text})"
    rules: dict[DType, Callable[[str], str]] = {
        DType.INT8: "wrap8({})".format,
        DType.INT16: "wrap16({})".format,
        DType.UINT8: "(({}) & 0xffu)".format,
        DType.UINT16: "(({}) & 0xffffu)".format,
    }
    return rules[dtype](text) if dtype in rules else text


def _stored(memory: Memory, kernel: Kernel, result: str, dtype: DType, atomic: str) -> list[str]:
    """Statements that write *result* to its element."""
    slot, size = memory.slot(kernel.write.tensor), size_of(dtype)
    lines = [f"let at = u32({memory.place(kernel.write)});"]
    base = f" + {slot.base}u" if slot.base else ""
    if not atomic:
        if size == 8:
            lines.append(f"{slot.array}[2u * at{base}] = {result}.x;")
            lines.append(f"{slot.array}[2u * at + 1u{base}] = {result}.y;")
            return lines
        return [*lines, f"{slot.array}[at{base}] = {bits(result, dtype)};"]
    # Other threads write the other elements of the word.
    each, mask = 4 // size, "0xffu" if size == 1 else "0xffffu"
    lines += [
        f"let by = (at % {each}u) * {8 * size}u;",
        f"let word = at / {each}u{base};",
        f"atomicAnd(&{slot.array}[word], ~({mask} << by));",
        f"atomicOr(&{slot.array}[word], ({bits(result, dtype)}) << by);",
    ]
    return lines
