"""The general template: one thread for each element that a kernel writes, or for each word of
small elements, with the reduced loops inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from penstock.compiler.expression import Expression
from penstock.compiler.interpreter import least_of, product_of
from penstock.compiler.program import Kernel, Program
from penstock.compiler.rewriting import is_whole
from penstock.drivers.webgpu.emit.address import Flat, Walk, flat_of, joined
from penstock.drivers.webgpu.emit.scalars import CALLS, Scalars
from penstock.drivers.webgpu.emit.shader import (
    Memory,
    Printed,
    Slot,
    assembled,
    decoded,
    entry_point,
    stored_small,
)
from penstock.drivers.webgpu.emit.types import TWO_WORDS, bits, literal, size_of, variable
from penstock.ir import DType


def nest(program: Program, kernel: Kernel, slots: Mapping[int, Slot]) -> Printed:
    """The shader of any kernel without a routine."""
    return _Nest(program, kernel, slots).printed()


class _Nest:
    def __init__(self, program: Program, kernel: Kernel, slots: Mapping[int, Slot]) -> None:
        self.kernel, self.target = kernel, program.tensors[kernel.write.tensor]
        self.size, self.count = size_of(self.target.dtype), math.prod(kernel.loops)
        self.written = slots[program.root(kernel.write.tensor)]
        self.is_whole = is_whole(kernel.write, kernel.loops, self.target.shape)
        self.atomic = self.written.array if self.size < 4 and not self.is_whole else ""
        self.memory = Memory(program, slots, self.atomic)
        self.scalars = Scalars(self.memory.lookup)
        accesses = [*kernel.reads, *kernel.extras, kernel.write]
        flats = [
            flat_of(program, a, kernel.sizes if k < len(kernel.reads) else kernel.loops)
            for k, a in enumerate(accesses)
        ]
        outer = len(kernel.loops)
        self.loops, flats = joined(kernel.loops, flats, 0)
        self.reduced, flats = joined(kernel.reduced, flats, outer)
        self.flats: dict[str, Flat] = {f"a{k}": flat for k, flat in enumerate(flats)}
        self.walk = Walk(self.flats)

    def printed(self) -> Printed:
        size, kernel = self.size, self.kernel
        lines = self.scalars.lines
        lines += self.walk.enter(range(len(kernel.loops)))
        result = self._point()
        inner = [*decoded(self.loops, "f"), *lines]
        if size >= 4 or not self.is_whole:
            main, groups = entry_point(self.count, ["let f = t;", *inner, *self._stored(result)])
            return Printed(assembled(main), groups, frozenset({self.atomic} - {""}))
        each, kind = 4 // size, variable(self.target.dtype)
        function = [f"fn point(f: i32) -> {kind} {{", *inner, f"return {result};", "}"]
        base = f" + {self.written.base}" if self.written.base else ""
        main, groups = entry_point(
            -(-self.count // each),
            [
                "var word = 0u;",
                f"let last = min(t * {each} + {each}, {self.count});",
                f"for (var f = t * {each}; f < last; f++) {{",
                f"let v = {bits('point(f)', self.target.dtype)};",
                f"word |= v << (u32(f % {each}) * {8 * size}u);",
                "}",
                f"{self.written.array}[t{base}] = word;",
            ],
        )
        return Printed(assembled([*function, *main]), groups)

    def _read(self, number: int) -> str:
        """Writes the read of an access. Returns the variable."""
        access, name = self.kernel.accesses[number], f"a{number}"
        value = self.memory.read(access, self.walk, name, self.flats[name])
        return self.scalars.name(value, self.memory.program.tensors[access.tensor].dtype)

    def _point(self) -> str:
        """Writes what one point of the outer loops computes. Returns its value."""
        kernel, scalars, first = self.kernel, self.scalars, len(self.kernel.loops)
        inner, outer = range(len(kernel.reads)), range(len(kernel.reads), len(kernel.accesses))
        if kernel.combine == "none":
            result = scalars.expression(kernel.body, [self._read(k) for k in inner])
        else:
            start = literal(least_of(kernel).item(), kernel.sums)
            if kernel.order == "fused":
                start = self._read(len(kernel.reads))
            scalars.lines.append(f"var sum: {variable(kernel.sums)} = {start};")
            for loop, size in enumerate(self.reduced, first):
                if size != 1:
                    scalars.lines.append(f"for (var i{loop} = 0; i{loop} < {size}; i{loop}++) {{")
                    scalars.lines += self.walk.enter([loop])
            value = _combined(scalars, kernel, [self._read(k) for k in inner])
            scalars.lines.append(f"sum = {value};")
            scalars.lines += ["}"] * sum(size != 1 for size in self.reduced)
            result = "sum"
        return scalars.expression(kernel.finish, [result, *(self._read(k) for k in outer)])

    def _stored(self, result: str) -> list[str]:
        """Statements that write *result* to its element."""
        name, dtype = f"a{len(self.kernel.accesses)}", self.target.dtype
        place = self.memory.place(self.walk, name, self.flats[name])
        array, base = self.written.array, self.written.base
        lines = [f"let at = u32({place});"]
        if self.atomic:
            return [*lines, *stored_small(array, base, dtype, bits(result, dtype))]
        more = f" + {base}u" if base else ""
        if self.size == 8:
            lines.append(f"{array}[2u * at{more}] = {result}.x;")
            return [*lines, f"{array}[2u * at + 1u{more}] = {result}.y;"]
        return [*lines, f"{array}[at{more}] = {bits(result, dtype)};"]


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
        if dtype.is_float and dtype not in TWO_WORDS:
            # A NaN is left out.
            return f"select(sum, {value}, {value} {'>' if combine == 'maximum' else '<'} sum)"
        name = CALLS[dtype][combine] if dtype in TWO_WORDS else combine[:3]
        return f"{name}({value}, sum)"
    operation = "add" if combine == "sum" else "mul"
    if dtype in TWO_WORDS:
        return f"{CALLS[dtype][operation]}(sum, {value})"
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
