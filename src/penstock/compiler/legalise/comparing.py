"""Comparisons, logic of booleans, and choices between two values."""

from __future__ import annotations

from typing import Final

from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.elementwise import (
    MOVED,
    PLAIN,
    arguments,
    centred,
    emit,
    is_stored,
)
from penstock.compiler.legalise.quantised import NARROW, rescale, scale_of
from penstock.driverkit.site import require
from penstock.ir import DType

COMPARISONS: Final = {
    "LESS": ("less", False, False),
    "LESS_EQUAL": ("less_equal", False, False),
    "GREATER": ("less", True, False),
    "GREATER_EQUAL": ("less_equal", True, False),
    "EQUAL": ("equal", False, False),
    "NOT_EQUAL": ("equal", False, True),
}
"""The scalar operation of each comparison, whether its operands change places, whether it is
negated.
"""


@legal(*COMPARISONS)
def comparison(operation: Operation) -> None:
    """Compares numbers and booleans, and quantised values in steps of 2**-8."""
    site = operation.site
    name, swapped, negated = COMPARISONS[site.operation.type]
    scope, (a, b) = arguments(operation, 2)
    require(a.dtype is b.dtype, "a comparison of two types")
    if a.dtype in NARROW or (name == "equal" and is_stored(operation)):
        a, b = (
            rescale(
                centred(v, operation, i).apply("shift_left", 8),
                scale_of(site.input(i), "an operand").scale,
            )
            for i, v in enumerate((a, b))
        )
    else:
        ordered = a.dtype in PLAIN or a.dtype is DType.INT16
        require(ordered or (a.dtype is DType.BOOL and name == "equal"), "this comparison")
    first, second = (b, a) if swapped else (a, b)
    result = scope.compare(name, first, second)
    emit(operation, result.apply("not") if negated else result, 2)


@legal("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT")
def logic(operation: Operation) -> None:
    kind = operation.site.operation.type.removeprefix("LOGICAL_").lower()
    count = 1 if kind == "not" else 2
    _, values = arguments(operation, count)
    require(all(v.dtype is DType.BOOL for v in values), "logic of another type than bool")
    emit(operation, values[0].apply(kind, *values[1:]), count)


@legal("SELECT", "SELECT_V2")
def select(operation: Operation) -> None:
    """The first value where the condition holds, otherwise the second one."""
    site = operation.site
    scope, (condition, a, b) = arguments(operation, 3)
    require(condition.dtype is DType.BOOL, "a condition of another type than bool")
    require(a.dtype is b.dtype is site.output().dtype in MOVED, "types of this choice")
    result = scope.finish(scope.select(condition, a, b))
    sources = [operation.tensor(i) for i in range(3)]
    shapes = [operation.shape(s) for s in sources]
    require(site.operation.type == "SELECT_V2" or shapes[1] == shapes[2], "values of two shapes")
    if site.operation.type == "SELECT" and len(shapes[0]) == 1 and len(shapes[1]) > 1:
        rows = (*shapes[0], *(1,) * (len(shapes[1]) - 1))
        sources[0] = operation.build.alias(rows, sources[0])
    operation.elementwise("select", result, sources)
