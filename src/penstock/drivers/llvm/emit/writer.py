"""Prints expressions as instructions on vectors of any width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from penstock.compiler.expression import Expression, Step
from penstock.drivers.llvm.emit import doubles, pairs
from penstock.drivers.llvm.emit.assembler import Reg
from penstock.drivers.llvm.emit.functions import FUNCTIONS
from penstock.drivers.llvm.emit.ranges import is_whole
from penstock.drivers.llvm.emit.scalars import Scalars
from penstock.ir import DType

F16, F32, F64 = DType.FLOAT16, DType.FLOAT32, DType.FLOAT64

UNCHANGED: Final = frozenset(["bitcast", "cast", "select"])
"""What is done to float16 values as they are; anything else is computed in float32."""


class Writer(Scalars):
    """Writes expressions: single steps, elementary functions, pairs of 8-bit values by proof."""

    def write(self, expression: Expression, arguments: Sequence[Reg]) -> Reg:
        """The result of *expression*."""
        values = dict(enumerate(arguments))
        return self.value(expression, values, expression.result)

    def value(self, expression: Expression, values: dict[int, Reg], number: int) -> Reg:
        """Value *number* of *expression*; *values* has those that are known, and gets others."""
        if number in values:
            return values[number]
        pair = pairs.found(expression, self.machine.isa.rounds_down).get(number)
        if pair is not None:
            x, y = (self.value(expression, values, leaf) for leaf in (pair.x, pair.y))
            x_type, y_type, made = (expression.dtype_of(v) for v in (pair.x, pair.y, number))
            values[number] = pairs.write(self, pair, x, y, (x_type, y_type, made))
            return values[number]
        step = expression.steps[number - len(expression.arguments)]
        given = [self.value(expression, values, a) for a in step.arguments]
        dtypes = [expression.dtype_of(a) for a in step.arguments]
        if step.operation == "cast" and is_whole(expression, step.arguments[0], step.dtype):
            values[number] = self.truncated(given[0], step.dtype)
        else:
            values[number] = self.step(step, given, dtypes)
        return values[number]

    def step(self, step: Step, given: list[Reg], dtypes: list[DType]) -> Reg:
        name, dtype = step.operation, step.dtype
        if F16 in dtypes and name not in UNCHANGED:
            wide = [F32 if d is F16 else d for d in dtypes]
            values = [self.cast(v, d, w) for v, d, w in zip(given, dtypes, wide, strict=True)]
            made = F32 if dtype is F16 else dtype
            return self.cast(self.step(replace(step, dtype=made), values, wide), made, dtype)
        if dtype is F32 and name in FUNCTIONS:
            return FUNCTIONS[name](self, *given)
        if dtype is F32 and name in doubles.WIDENED:
            values = [self.cast(v, F32, F64) for v in given]
            function = doubles.modulo if name == "mod" else doubles.FUNCTIONS[name]
            return self.cast(function(self, *values), F64, F32)
        if dtype is F64 and name in doubles.FUNCTIONS:
            return doubles.FUNCTIONS[name](self, *given)
        return super().step(step, given, dtypes)
