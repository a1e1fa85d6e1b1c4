"""Replaces chains that depend on one 8-bit value by a table of their 256 results."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from penstock.compiler.arithmetic import evaluate
from penstock.compiler.expression import Expression, Scope, Step, Value
from penstock.compiler.interpreter import product_of
from penstock.compiler.program import Kernel, Program, Tensor
from penstock.compiler.simplify import whole
from penstock.interrupts import polled
from penstock.ir import DType, NDArray

BYTES: Final = frozenset({DType.INT8, DType.UINT8})

LEAST_STEPS: Final = 4
"""The least steps that a table replaces."""

LEAST_WIDE: Final = 12
"""As `LEAST_STEPS`, for results of more than 8 bits: processors gather these one by one."""

LONG: Final = 8
"""Simple steps that take as long as one that is not."""

SIMPLE: Final = frozenset([
    "abs", "add", "and", "bitcast", "cast", "equal", "less", "less_equal", "maximum", "minimum",
    "mul", "neg", "not", "or", "select", "shift_left", "shift_right", "sub", "xor",
])  # fmt: skip


def tabulate(program: Program) -> Program:
    """*program* with tables. A table is a constant vector, indexed by the bits of the value."""
    tables = _Tables(program)
    kernels = [tables.kernel(k) for k in polled(program.kernels)]
    return replace(
        program, tensors=tuple(tables.tensors), constants=tables.constants, kernels=tuple(kernels)
    )


class _Tables:
    def __init__(self, program: Program) -> None:
        self.tensors = list(program.tensors)
        self.constants = dict(program.constants)
        self._known: dict[tuple[str, bytes], int] = {}

    def kernel(self, kernel: Kernel) -> Kernel:
        kernel = whole(kernel)
        body = kernel.body if product_of(kernel) else self._expression(kernel.body)
        return replace(kernel, body=body, finish=self._expression(kernel.finish))

    def _expression(self, expression: Expression) -> Expression:
        count = len(expression.arguments)
        kept = _of_two(expression, _leaves(expression))
        leaves = _origins(expression)
        scope = Scope(*expression.arguments)
        values: dict[int, Value] = {}

        def value(number: int) -> Value:
            if number not in values:
                values[number] = made(number)
            return values[number]

        def made(number: int) -> Value:
            if number < count:
                return scope.argument(number)
            cone = _cone(expression, number, leaves[number])
            if cone is not None and _pays(expression, number, cone) and number not in kept:
                (pivot,) = leaves[number]
                table = self._table(expression, number, pivot)
                index = value(pivot).cast(DType.UINT8)
                return scope.lookup(table, index, expression.dtype_of(number))
            step = expression.steps[number - count]
            given = tuple(value(a).index for a in step.arguments)
            return scope.step(Step(step.operation, given, step.dtype, step.value))

        return scope.finish(value(expression.result))

    def _table(self, expression: Expression, number: int, pivot: int) -> int:
        """The tensor with the values of step *number* for every value of *pivot*."""
        dtype = expression.dtype_of(pivot)
        every = np.arange(256, dtype=np.uint8).view(dtype.numpy)
        results = _evaluated(expression, number, pivot, every, self.constants)
        key = expression.dtype_of(number).value, results.tobytes()
        if key not in self._known:
            self.tensors.append(Tensor(expression.dtype_of(number), (256,), "table"))
            self._known[key] = len(self.tensors) - 1
            self.constants[self._known[key]] = results
        return self._known[key]


def _pays(expression: Expression, number: int, cone: set[int]) -> bool:
    """Whether a table of value *number* takes less time than the steps of *cone*."""
    if expression.dtype_of(number) in BYTES:
        return len(cone) >= LEAST_STEPS
    steps = (expression.steps[at - len(expression.arguments)] for at in cone)
    return sum(1 if s.operation in SIMPLE else LONG for s in steps) >= LEAST_WIDE


def _leaves(expression: Expression) -> list[frozenset[int]]:
    """For each value, the arguments and 8-bit values that it is computed from."""
    count = len(expression.arguments)
    found: list[frozenset[int]] = [frozenset({i}) for i in range(count)]
    for step in expression.steps:
        parts = [
            frozenset({a}) if expression.dtype_of(a) in BYTES and found[a] else found[a]
            for a in step.arguments
        ]
        found.append(frozenset().union(*parts))
    return found


def _origins(expression: Expression) -> list[frozenset[int]]:
    """As `_leaves`, but an 8-bit value that depends on one other alone is no leaf: that one is."""
    count = len(expression.arguments)
    found: list[frozenset[int]] = [frozenset({i}) for i in range(count)]

    def origin(value: int) -> frozenset[int]:
        if expression.dtype_of(value) not in BYTES:
            return found[value]
        alone = len(found[value]) <= 1 and all(
            expression.dtype_of(o) in BYTES for o in found[value]
        )
        return found[value] if alone else frozenset({value})

    for step in expression.steps:
        parts = [origin(a) for a in step.arguments]
        found.append(frozenset().union(*parts))
    return found


def _of_two(expression: Expression, leaves: list[frozenset[int]]) -> set[int]:
    """The steps within functions of two 8-bit values with an 8-bit result: drivers compute such a
    function as a whole.
    """
    count, found = len(expression.arguments), set[int]()
    for place, step in enumerate(expression.steps):
        if step.dtype not in BYTES or len(leaves[count + place]) != 2:
            continue
        left = list(step.arguments)
        while left:
            at = left.pop()
            if at >= count and at not in found and expression.dtype_of(at) not in BYTES:
                found.add(at)
                left.extend(expression.steps[at - count].arguments)
    return found


def _cone(expression: Expression, number: int, leaves: frozenset[int]) -> set[int] | None:
    """The steps between the one 8-bit value that *number* depends on, and it; None if it depends
    on others.
    """
    if len(leaves) != 1:
        return None
    (pivot,) = leaves
    if expression.dtype_of(pivot) not in BYTES or pivot == number:
        return None
    count, cone, left = len(expression.arguments), set(), [number]
    while left:
        at = left.pop()
        if at == pivot or at in cone:
            continue
        step = expression.steps[at - count]
        if step.operation != "constant":
            cone.add(at)
        left.extend(step.arguments)
    return cone


def _evaluated(
    expression: Expression, number: int, pivot: int, every: NDArray, constants: dict[int, NDArray]
) -> NDArray:
    """Step *number* for each value in *every* of *pivot*."""
    scope = Scope(expression.dtype_of(pivot))
    result = scope.finish(scope.rewritten(expression, number, {pivot: scope.argument(0)}))
    made = evaluate(result, [every], constants.__getitem__)
    return np.ascontiguousarray(np.broadcast_to(made, every.shape))
