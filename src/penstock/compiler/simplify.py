"""Makes the expressions of kernels simpler: constants that are read become numbers of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from penstock.compiler.expression import Expression, Number, Scope, Step, Value, identity
from penstock.compiler.interpreter import product_of
from penstock.compiler.program import Access, Kernel, Program
from penstock.compiler.rewriting import rebuilt
from penstock.interrupts import polled
from penstock.ir import NDArray

POWERS: Final = {1.0: 1, 2.0: 2, 3.0: 3}
"""Exponents of powers that are products."""


def simplify(program: Program) -> Program:
    """*program* without reads of constants whose elements are all equal, and without powers that
    are products.
    """
    known: dict[int, Number | None] = {}

    def number(access: Access) -> Number | None:
        """What *access* always reads; None if it differs."""
        root = program.root(access.tensor)
        if root not in program.constants:
            return None
        if root not in known:
            known[root] = _only(program.constants[root])
        value = known[root]
        return None if access.fill is not None and access.fill != value else value

    def simple(kernel: Kernel) -> Kernel:
        if product_of(kernel) is not None:
            return kernel
        reads, body = _without(kernel.reads, kernel.body, 0, number)
        extras, finish = _without(kernel.extras, kernel.finish, 1, number)
        return replace(
            kernel, reads=reads, body=_powerless(body), extras=extras, finish=_powerless(finish)
        )

    return rebuilt(program, [simple(k) for k in polled(program.kernels)])


def whole(kernel: Kernel) -> Kernel:
    """*kernel* with all that it computes in its body, if it combines nothing and has no extras."""
    if kernel.combine != "none" or kernel.extras or kernel.finish.is_identity:
        return kernel
    scope = Scope(*kernel.body.arguments)
    given = [scope.argument(i) for i in range(len(kernel.body.arguments))]
    made = scope.inline(kernel.finish, scope.inline(kernel.body, *given))
    body = scope.finish(made)
    return replace(kernel, body=body, finish=identity(body.dtype), sums=body.dtype)


def _only(values: NDArray) -> Number | None:
    """The number that all *values* are."""
    if not values.size or values.dtype.kind not in "fiub":
        return None
    first = values.reshape(-1)[:1]
    # By their bits: 0.0 and -0.0 are other numbers, and NaN is equal to nothing.
    bits = values.reshape(-1).view(np.uint8).reshape(values.size, -1)
    if not (bits == bits[:1]).all() or bool(np.isnan(first.astype(np.float64)).any()):
        return None
    found: Number = first[0].item()
    return found


def _without(
    accesses: Sequence[Access],
    expression: Expression,
    first: int,
    number: Callable[[Access], Number | None],
) -> tuple[tuple[Access, ...], Expression]:
    """The *accesses* that read different numbers, and *expression* of these alone; the first
    *first* arguments of it are none of them.
    """
    found = [number(a) for a in accesses]
    if all(f is None for f in found):
        return tuple(accesses), expression
    dtypes = expression.arguments
    kept = [i for i, f in enumerate(found) if f is None]
    scope = Scope(*dtypes[:first], *(dtypes[first + i] for i in kept))
    values = [scope.argument(i) for i in range(first)]
    for place, value in enumerate(found):
        if value is None:
            values.append(scope.argument(first + kept.index(place)))
        else:
            values.append(scope.constant(value, dtypes[first + place]))
    return tuple(accesses[i] for i in kept), scope.finish(scope.inline(expression, *values))


def _powerless(expression: Expression) -> Expression:
    """*expression* with products in the place of small powers of floats."""
    if not any(s.operation == "power" for s in expression.steps):
        return expression
    count = len(expression.arguments)
    scope = Scope(*expression.arguments)
    values: list[Value] = [scope.argument(i) for i in range(count)]
    for step in expression.steps:
        factors = 0
        if step.operation == "power" and step.dtype.is_float and step.arguments[1] >= count:
            exponent = expression.steps[step.arguments[1] - count]
            if exponent.operation == "constant":
                factors = POWERS.get(float(exponent.value or 0), 0)
        if factors:
            base = values[step.arguments[0]]
            made = base
            for _ in range(factors - 1):
                made = made * base
            values.append(made)
            continue
        given = tuple(values[a].index for a in step.arguments)
        values.append(scope.step(Step(step.operation, given, step.dtype, step.value)))
    return scope.finish(values[expression.result])
