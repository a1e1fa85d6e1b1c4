"""The template of routines: their statements as they are, run by one thread."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from penstock.compiler.program import Kernel, Program
from penstock.compiler.routine import Assign, Block, If, Load, Routine, Store, While
from penstock.drivers.webgpu.emit.scalars import Scalars
from penstock.drivers.webgpu.emit.shader import Memory, Printed, Slot, assembled
from penstock.drivers.webgpu.emit.types import bits, literal, variable

NS_A_TURN: Final = 200
"""Nanoseconds of a turn of a loop, of the slowest device: Mesa's software on one core."""


def routine(program: Program, kernel: Kernel, slots: Mapping[int, Slot]) -> Printed:
    """The shader of a kernel that runs a routine."""
    if kernel.routine is None:
        raise ValueError("a kernel without a routine")
    return _Statements(program, kernel, kernel.routine, slots).printed()


class _Statements:
    def __init__(
        self, program: Program, kernel: Kernel, routine: Routine, slots: Mapping[int, Slot]
    ) -> None:
        self.program, self.routine = program, routine
        self.memory = Memory(program, slots)
        self.sources = [*routine.reads, kernel.write.tensor]
        self.scalars = Scalars(self.memory.lookup)
        self.lines = self.scalars.lines

    def printed(self) -> Printed:
        for number, dtype in enumerate(self.routine.variables):
            self.lines.append(f"var r{number}: {variable(dtype)} = {literal(0, dtype)};")
        self.block(self.routine.body)
        main = "fn main(@builtin(global_invocation_id) g: vec3<u32>) {"
        head = ["@compute @workgroup_size(1)", main, "let t = i32(g.x);"]
        lines = [*head, *self.lines, "}"]
        return Printed(assembled(lines), (1, 1, 1))

    def block(self, block: Block) -> None:
        for statement in block:
            match statement:
                case Assign(target, value, arguments):
                    given = [f"r{a}" for a in arguments]
                    self.lines.append(f"r{target} = {self.scalars.expression(value, given)};")
                case Load(target, source, index):
                    tensor = self.sources[source]
                    self.lines.append(
                        f"r{target} = {self.memory.element(tensor, self._place(tensor, index))};"
                    )
                case Store(index, value):
                    self._store(index, value)
                case If(condition, body):
                    self.lines.append(f"if (r{condition}) {{")
                    self.block(body)
                    self.lines.append("}")
                case While(before, condition, body):
                    self.lines.append("loop {")
                    self.block(before)
                    self.lines.append(f"if (!r{condition}) {{ break; }}")
                    self.block(body)
                    self.lines.append("}")

    def _place(self, tensor: int, index: int) -> str:
        """A variable with the number of an element, within its tensor."""
        last = math.prod(self.program.tensors[tensor].shape) - 1
        return self.scalars.place(f"u32(clamp(r{index}, 0, {last}))")

    def _store(self, index: int, value: int) -> None:
        tensor = self.sources[-1]
        slot, dtype = self.memory.slot(tensor), self.program.tensors[tensor].dtype
        place = self._place(tensor, index)
        base = f" + {slot.base}u" if slot.base else ""
        self.lines.append(f"{slot.array}[{place}{base}] = {bits(f'r{value}', dtype)};")
