"""Generates the code of a planned program: a function a kernel, and `run`, which calls them."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock.compiler.expression import Expression
from penstock.compiler.memory import Plan
from penstock.compiler.program import Kernel, Program
from penstock.drivers.llvm.emit import dense, depthwise
from penstock.drivers.llvm.emit.assembler import Function, module
from penstock.drivers.llvm.emit.nest import Nest
from penstock.drivers.llvm.emit.template import Template
from penstock.drivers.llvm.frame import Word
from penstock.drivers.llvm.isa import Isa
from penstock.interrupts import polled
from penstock.ir import NDArray

CONSTANT_ALIGNMENT: Final = 64


class Generated(Struct, frozen=True, eq=False):
    """A module's text, the bytes of its constants, and the size of its arena. *templates* says by
    which template each kernel is computed.
    """

    text: str
    constants: bytes
    arena: int
    functions: int
    templates: tuple[str, ...]


def template_of(program: Program, kernel: Kernel, isa: Isa) -> Template:
    """The template that computes *kernel*."""
    for family in (dense, depthwise):
        matched: Template | None = family.match(program, kernel, isa)
        if matched is not None:
            return matched
    return Nest(program, kernel, isa)


class Module:
    """Collects the functions, constants and calls of one module."""

    def __init__(self, plan: Plan, isa: Isa) -> None:
        self.plan, self.program, self.isa = plan, plan.program, isa
        self.functions: dict[object, Function] = {}
        self.constants = bytearray()
        self._places: dict[object, int] = {}
        ports = [*self.program.inputs, *self.program.outputs]
        self._ports = {self.program.root(t): k for k, t in reversed(list(enumerate(ports)))}
        self.entry = entry = Function("run", ["frame"], kernel=False)
        self._words = {
            word: entry.value(f"load ptr, ptr {entry.at('%frame', 8 * word)}, align 8", "ptr").name
            for word in (Word.PORTS, Word.ARENA, Word.CONSTANTS, Word.STOP)
        }
        self._share = [
            entry.value(f"load i64, ptr {entry.at('%frame', 8 * word)}, align 8", "i64").name
            for word in (Word.LOW, Word.HIGH)
        ]

    def place(self, key: object, array: NDArray) -> int:
        """The offset of a constant; equal keys share it."""
        if key not in self._places:
            self.constants.extend(b"\0" * (-len(self.constants) % CONSTANT_ALIGNMENT))
            self._places[key] = len(self.constants)
            self.constants.extend(np.ascontiguousarray(array).tobytes())
        return self._places[key]

    def pointer(self, tensor: int) -> str:
        entry = self.entry
        if tensor in self.program.constants:
            place = self.place(tensor, self.program.constants[tensor])
            return entry.at(self._words[Word.CONSTANTS], place)
        if tensor in self._ports:
            slot = entry.at(self._words[Word.PORTS], 8 * self._ports[tensor])
            return entry.value(f"load ptr, ptr {slot}, align 8", "ptr").name
        return entry.at(self._words[Word.ARENA], self.plan.offsets[tensor])

    def kernel(self, kernel: Kernel) -> str:
        """Adds the code and the call of *kernel*; returns the name of its template."""
        template = template_of(self.program, kernel, self.isa)
        key = template.name, template.key, _key(self.program, kernel, template.tensors)
        if key not in self.functions:
            self.functions[key] = template.write(f"k{len(self.functions)}")
        pointers = [self.pointer(t) for t in template.tensors]
        for array in template.constants():
            content = array.dtype.str, array.shape, array.tobytes()
            place = self.place(content, array)
            pointers.append(self.entry.at(self._words[Word.CONSTANTS], place))
        self._call(self.functions[key], pointers, template.units)
        return template.name

    def _call(self, function: Function, pointers: list[str], units: int) -> None:
        entry = self.entry
        begin, end = (
            entry.value(f"lshr i64 {entry.mul(share, units)}, 16", "i64").name
            for share in self._share
        )
        given = [f"ptr {p}" for p in pointers]
        given += [f"i64 {begin}", f"i64 {end}", f"ptr {self._words[Word.STOP]}"]
        entry.line(f"call void @{function.name}({', '.join(given)})")

    def text(self) -> str:
        """The module."""
        self.entry.line("ret i32 0")
        return module([*self.functions.values(), self.entry])


def generate(plan: Plan, isa: Isa) -> Generated:
    """The code of *plan* for *isa*. `run(frame)` executes it (`penstock.drivers.llvm.frame`)."""
    made = Module(plan, isa)
    templates = tuple(made.kernel(k) for k in polled(plan.program.kernels))
    return Generated(made.text(), bytes(made.constants), plan.size, len(made.functions), templates)


def _key(program: Program, kernel: Kernel, tensors: tuple[int, ...]) -> object:
    """Equal for kernels whose code is equal: tensors by shape and place among the arguments."""
    numbers = {t: i for i, t in enumerate(tensors)}

    def number(tensor: int) -> int:
        return numbers.get(program.root(tensor), -1)

    accesses = []
    for access in (*kernel.reads, *kernel.extras, kernel.write):
        tensor = program.tensors[access.tensor]
        axes = tuple(
            (p.offset, p.steps, None if p.through is None else number(p.through))
            for p in access.axes
        )
        place = number(access.tensor)
        accesses.append((place, tensor.shape, tensor.dtype.value, axes, repr(access.fill)))
    tables = tuple(number(t) for t in (*kernel.body.tables, *kernel.finish.tables))
    expressions = repr(_untabled(kernel.body)), repr(_untabled(kernel.finish))
    return (
        expressions, kernel.sizes, len(kernel.loops), kernel.combine, tuple(accesses), tables,
        len(kernel.reads),
    )  # fmt: skip


def _untabled(expression: Expression) -> Expression:
    steps = tuple(replace(s, value=0) if s.operation == "lookup" else s for s in expression.steps)
    return replace(expression, steps=steps)
