"""Replaces arithmetic of float64, which WGSL does not have, where something quicker is the same.

Between two integers it becomes a search in a table. TFLite's 8-bit fully connected layers scale
their sums in float64, round once and clamp. Such a function of one integer rises in steps. The
table has the least integer of each step, computed here: the result is the same for every integer.

Between values of float32 it becomes arithmetic of float32, whose results are as near as the class
`exact` asks of floats. Any other is computed by functions (`doubles`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec.structs import replace

from penstock.compiler.arithmetic import evaluate
from penstock.compiler.expression import Expression, Scope, Step, Value
from penstock.compiler.program import Kernel, Program, Tensor
from penstock.compiler.routine import Assign, Block, If, Routine, Statement, While
from penstock.interrupts import polled
from penstock.ir import DType, NDArray

F64, I32 = DType.FLOAT64, DType.INT32
RISING: Final = frozenset([
    "cast", "constant", "mul", "add", "sub", "round_away", "round_even", "floor", "ceil", "trunc",
    "minimum", "maximum",
])  # fmt: skip
"""Operations that rise with their value, if the other one is a constant, positive for products."""

MOST_LEVELS: Final = (1 << 16) - 1

Table = Callable[[NDArray], int]
"""Adds a constant vector of int32. Returns its tensor."""


def with_steps(program: Program) -> Program:
    """*program* with such tables."""
    tensors, constants = list(program.tensors), dict(program.constants)

    def table(array: NDArray) -> int:
        tensors.append(Tensor(I32, array.shape, "steps"))
        constants[len(tensors) - 1] = array
        return len(tensors) - 1

    kernels = tuple(_replaced(k, table) for k in polled(program.kernels))
    return replace(program, tensors=tuple(tensors), constants=constants, kernels=kernels)


def _replaced(kernel: Kernel, table: Table) -> Kernel:
    """*kernel* with other expressions. A routine gets no tables, which it would have to read."""
    if kernel.routine is not None:
        return replace(kernel, routine=narrowed_routine(kernel.routine))
    body, finish = without_f64(kernel.body, table), without_f64(kernel.finish, table)
    return replace(kernel, body=body, finish=finish)


def narrowed_routine(routine: Routine) -> Routine:
    """*routine* with float32 for float64 between values of float32."""
    return replace(routine, body=_narrowed_block(routine.body))


def _narrowed_block(block: Block) -> Block:
    def changed(statement: Statement) -> Statement:
        if isinstance(statement, Assign):
            return replace(statement, value=_narrowed(statement.value))
        if isinstance(statement, While):
            before = _narrowed_block(statement.before)
            return replace(statement, before=before, body=_narrowed_block(statement.body))
        if isinstance(statement, If):
            return replace(statement, body=_narrowed_block(statement.body))
        return statement

    return tuple(changed(statement) for statement in block)


def without_f64(expression: Expression, table: Table) -> Expression:
    """*expression* without float64, as far as it can be replaced."""
    return _narrowed(stepped(expression, table))


def _narrowed(expression: Expression) -> Expression:
    """*expression* with float32 for float64, unless that is made from integers or becomes some."""
    given = [[expression.dtype_of(a) for a in step.arguments] for step in expression.steps]
    mixed = any(
        step.operation == "cast" and F64 in {step.dtype, dtypes[0]} and not both_float(step, dtypes)
        for step, dtypes in zip(expression.steps, given, strict=True)
    )
    if mixed or F64 in {*expression.arguments, expression.dtype}:
        return expression
    steps = tuple(
        replace(step, dtype=DType.FLOAT32) if step.dtype is F64 else step
        for step in expression.steps
    )
    return replace(expression, steps=steps)


def both_float(step: Step, given: list[DType]) -> bool:
    """Whether a cast is between types of floats."""
    return step.dtype.is_float and given[0].is_float


def stepped(expression: Expression, table: Table) -> Expression:
    """*expression* with searches in tables, which are made by *table*."""
    if all(step.dtype is not F64 for step in expression.steps):
        return expression
    count, scope = len(expression.arguments), Scope(*expression.arguments)
    values: dict[int, Value] = {}

    def value(number: int) -> Value:
        if number not in values:
            values[number] = made(number)
        return values[number]

    def made(number: int) -> Value:
        if number < count:
            return scope.argument(number)
        step = expression.steps[number - count]
        if (pivot := _pivot(expression, number)) is not None:
            lowest, found = _levels(expression, number, pivot)
            return _searched(scope, value(pivot), lowest, found, table).cast(step.dtype)
        given = tuple(value(a).index for a in step.arguments)
        return scope.step(Step(step.operation, given, step.dtype, step.value))

    return scope.finish(value(expression.result))


def _pivot(expression: Expression, number: int) -> int | None:
    """The int32 value of which value *number*, an integer, is a rising function by way of
    float64; None if it is not.
    """
    count = len(expression.arguments)
    step = expression.steps[number - count]
    if step.operation != "cast" or not step.dtype.is_integer or (step.dtype.bits or 64) > 32:
        return None
    at: int = step.arguments[0]
    if expression.dtype_of(at) is not F64:
        return None
    while at >= count and expression.dtype_of(at) is F64:
        step = expression.steps[at - count]
        if step.operation not in RISING:
            return None
        moving = [a for a in step.arguments if not _is_constant(expression, a)]
        if len(moving) != 1 or not _rises(expression, step, moving[0]):
            return None
        at = moving[0]
    return at if expression.dtype_of(at) is I32 else None


def _is_constant(expression: Expression, value: int) -> bool:
    at = value - len(expression.arguments)
    return at >= 0 and expression.steps[at].operation == "constant"


def _rises(expression: Expression, step: Step, moving: int) -> bool:
    if step.operation == "sub":
        return step.arguments[0] == moving
    if step.operation != "mul":
        return True
    (other,) = [a for a in step.arguments if a != moving]
    return float(expression.steps[other - len(expression.arguments)].value or 0) >= 0


def _levels(expression: Expression, number: int, pivot: int) -> tuple[int, NDArray]:
    """The least result, and the least pivot of each greater one."""
    scope = Scope(I32)
    function = scope.finish(scope.rewritten(expression, number, {pivot: scope.argument(0)}))

    def at(numbers: NDArray) -> NDArray:
        return evaluate(function, [numbers.astype(np.int32)], _no_table).astype(np.int64)

    least, most = -(2**31), 2**31 - 1
    lowest, highest = at(np.array([least, most]))
    if not 0 <= highest - lowest <= MOST_LEVELS:
        raise ValueError(f"a function of {highest - lowest + 1} results")
    wanted = np.arange(lowest + 1, highest + 1)
    low, high = np.full(len(wanted), least), np.full(len(wanted), most)
    while (low < high).any():
        middle = (low + high) >> 1
        reached = at(middle) >= wanted
        high = np.where(reached, middle, high)
        low = np.where(reached, low, middle + 1)
    return int(lowest), low.astype(np.int32)


def _searched(scope: Scope, x: Value, lowest: int, found: NDArray, table: Table) -> Value:
    """*lowest*, and one more for each element of *found* that is at most *x*: by halving."""
    size = 1
    while size <= len(found):
        size *= 2
    padded = np.full(max(size - 1, 1), 2**31 - 1, np.int32)
    padded[: len(found)] = found
    number = table(padded)
    place = scope.constant(0, I32)
    while (size := size // 2) > 0:
        probe = scope.lookup(number, (place + (size - 1)).cast(DType.UINT32), I32)
        place = scope.select(probe <= x, place + size, place)
    # Behind the last element every integer counts, the greatest one too.
    return place.apply("minimum", len(found)) + lowest


def _no_table(number: int) -> NDArray:
    raise ValueError(f"a table {number} within float64")
