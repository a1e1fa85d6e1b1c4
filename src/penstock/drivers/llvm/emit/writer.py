"""Prints expressions as instructions on vectors of any width."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.compiler.expression import Expression, Step
from penstock.drivers.llvm.emit import pairs
from penstock.drivers.llvm.emit.assembler import Reg
from penstock.drivers.llvm.emit.functions import FUNCTIONS
from penstock.drivers.llvm.emit.scalars import Scalars
from penstock.ir import DType


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
        vectors = self.lanes % self.machine.isa.lanes == 0
        pair = (
            pairs.found(expression, self.machine.isa.rounds_down).get(number) if vectors else None
        )
        if pair is not None:
            x, y = (self.value(expression, values, leaf) for leaf in (pair.x, pair.y))
            x_type, y_type, made = (expression.dtype_of(v) for v in (pair.x, pair.y, number))
            values[number] = pairs.write(self, pair, x, y, (x_type, y_type, made))
            return values[number]
        step = expression.steps[number - len(expression.arguments)]
        given = [self.value(expression, values, a) for a in step.arguments]
        dtypes = [expression.dtype_of(a) for a in step.arguments]
        values[number] = self.step(step, given, dtypes)
        return values[number]

    def step(self, step: Step, given: list[Reg], dtypes: list[DType]) -> Reg:
        if step.operation in FUNCTIONS and step.dtype is DType.FLOAT32:
            return FUNCTIONS[step.operation](self, *given)
        return super().step(step, given, dtypes)
