"""Checks of expressions: what their operations take, and that steps use earlier values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from penstock.compiler.expression import OPERATIONS, Expression, Number, Step
from penstock.compiler.program import Program
from penstock.ir import DType

FLOATS: Final = frozenset(
    ["floor", "ceil", "trunc", "round_even", "round_away", "sqrt", "rsqrt", "exp", "log", "sin",
     "cos", "tanh", "logistic", "expm1", "erf"]
)  # fmt: skip
"""Operations of floats alone."""

BITS: Final = frozenset(["and", "or", "xor", "not"])
"""Operations of integers and booleans."""

INTEGERS: Final = frozenset(
    ["shift_left", "shift_right", "high_product", "divide_by_power", "rescale", "rescale_wide",
     "leading_zeros"]
)  # fmt: skip
"""Operations of integers, whose operands may differ in width."""

COMPARISONS: Final = frozenset(["less", "less_equal", "equal"])

BYTE_VALUES: Final = 256


def fault_of(program: Program, expression: Expression, given: Sequence[DType]) -> str | None:
    """What is wrong with an expression of arguments of the types *given*; None if nothing is."""
    if expression.arguments != tuple(given):
        names = [", ".join(d.value for d in each) for each in (expression.arguments, given)]
        return f"takes ({names[0]}) and is given ({names[1]})"
    count = len(expression.arguments)
    if not 0 <= expression.result < count + len(expression.steps):
        return f"returns value {expression.result}, which it does not compute"
    for number, step in enumerate(expression.steps, count):
        fault = _order_fault(step, number) or _type_fault(
            step, [expression.dtype_of(a) for a in step.arguments]
        )
        if fault is None and step.operation == "lookup":
            index = expression.dtype_of(step.arguments[0])
            fault = _table_fault(program, step, index)
        if fault is not None:
            return f"step {number - count} ({step.operation}) {fault}"
    return None


def _order_fault(step: Step, number: int) -> str | None:
    wanted: Mapping[str, int] = OPERATIONS
    if step.operation not in wanted:
        return "is no scalar operation"
    if len(step.arguments) != wanted[step.operation]:
        return f"has {len(step.arguments)} arguments instead of {wanted[step.operation]}"
    if any(not 0 <= a < number for a in step.arguments):
        return "reads a value that is computed after it"
    return None


def _type_fault(step: Step, given: Sequence[DType]) -> str | None:
    """What is wrong with the types of *step*, whose arguments have the types *given*."""
    name, made = step.operation, step.dtype
    if name == "constant":
        return _constant_fault(step)
    if name in {"cast", "lookup"}:
        return None
    if name == "bitcast":
        same = made.numpy.itemsize == given[0].numpy.itemsize
        return None if same else f"makes {made.value} of the bits of {given[0].value}"
    if name == "select":
        right = given[0] is DType.BOOL and given[1] is given[2] is made
    elif name in COMPARISONS:
        right = given[0] is given[1] and made is DType.BOOL
    elif name in INTEGERS:
        right = made.is_integer and all(d.is_integer for d in given)
    else:
        right = all(d is made for d in given)
        right &= not (name in FLOATS and not made.is_float)
        right &= not (name in BITS and made.is_float)
    if right:
        return None
    return f"makes {made.value} of ({', '.join(d.value for d in given)})"


def _constant_fault(step: Step) -> str | None:
    if step.value is None:
        return "has no value"
    if value_fits(step.value, step.dtype):
        return None
    return f"is {step.value!r}, which is no {step.dtype.value}"


def value_fits(value: Number, dtype: DType) -> bool:
    """Whether *value* is a number of *dtype*."""
    if dtype.is_float or dtype is DType.BOOL:
        return True
    bounds = np.iinfo(dtype.numpy)
    return isinstance(value, int) and bool(bounds.min <= value <= bounds.max)


def _table_fault(program: Program, step: Step, index: DType) -> str | None:
    """A table is a constant vector. An index of 8 bits reaches 256 elements."""
    table = step.value
    if not isinstance(table, int) or table not in program.constants:
        return f"reads table {table!r}, which is no constant tensor"
    tensor = program.tensors[table]
    if len(tensor.shape) != 1 or tensor.dtype is not step.dtype:
        return f"makes {step.dtype.value} of a table of {tensor.dtype.value} {list(tensor.shape)}"
    if not index.is_integer or index is DType.INT8:
        return f"has an index of type {index.value}"
    if index is DType.UINT8 and tensor.shape[0] < BYTE_VALUES:
        return f"reads a table of {tensor.shape[0]} elements by an index of 8 bits"
    return None
