"""Scalar expressions: what a kernel computes at each point of its loops.

An expression is a list of steps, each one scalar operation on earlier results. It has no branches
and no memory: a driver prints it as straight code in any vector width, and NumPy evaluates it on
whole arrays (`penstock.compiler.arithmetic`). The expressions of quantised operations are integer
arithmetic, bit for bit as TFLite's reference kernels compute it.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from penstock.ir import DType

Number: TypeAlias = int | float | bool

UNARY: Final = frozenset([
    "neg", "abs", "sign", "floor", "ceil", "trunc", "round_even", "round_away", "sqrt", "rsqrt",
    "exp", "log", "sin", "cos", "tanh", "logistic", "expm1", "erf", "not", "cast",
    "bitcast", "leading_zeros",
])  # fmt: skip
BINARY: Final = frozenset([
    "add", "sub", "mul", "div", "mod", "power", "minimum", "maximum", "less", "less_equal",
    "equal", "and", "or", "xor", "shift_left", "shift_right", "high_product", "divide_by_power",
])  # fmt: skip
OPERATIONS: Final = {
    **dict.fromkeys(UNARY, 1),
    **dict.fromkeys(BINARY, 2),
    "constant": 0,
    "select": 3,
    "rescale": 3,
    "rescale_wide": 3,
    "lookup": 1,
}
"""The number of arguments of each scalar operation. `arithmetic` defines the operations."""


class Step(Struct, frozen=True, array_like=True):
    """One scalar operation on the values *arguments*, with a result of type *dtype*.

    *value* is the number of a `constant`, or the tensor, a constant vector, that a `lookup` reads.
    """

    operation: str
    arguments: tuple[int, ...]
    dtype: DType
    value: Number | None = None


class Expression(Struct, frozen=True, array_like=True):
    """Steps over *arguments*, the types of the values that the kernel reads.

    Value i is argument i, and then step i - len(arguments). *result* is the value that the
    expression returns.
    """

    arguments: tuple[DType, ...]
    steps: tuple[Step, ...]
    result: int

    def dtype_of(self, value: int) -> DType:
        """The type of a value."""
        count = len(self.arguments)
        return self.arguments[value] if value < count else self.steps[value - count].dtype

    @property
    def dtype(self) -> DType:
        """The type of the result."""
        return self.dtype_of(self.result)

    @property
    def is_identity(self) -> bool:
        """Whether the result is an argument, unchanged."""
        return self.result < len(self.arguments)

    @property
    def tables(self) -> tuple[int, ...]:
        """The constant tensors that lookups read."""
        return tuple(int(s.value or 0) for s in self.steps if s.operation == "lookup")


def identity(dtype: DType) -> Expression:
    """The expression that returns its only argument."""
    return Expression((dtype,), (), 0)


class Value:
    """A value of an expression that is being written; operators add steps to its `Scope`."""

    __slots__ = ("dtype", "index", "scope")

    def __init__(self, scope: Scope, index: int, dtype: DType) -> None:
        self.scope, self.index, self.dtype = scope, index, dtype

    def __add__(self, other: Value | Number) -> Value:
        return self.scope.add("add", self, other)

    def __sub__(self, other: Value | Number) -> Value:
        return self.scope.add("sub", self, other)

    def __mul__(self, other: Value | Number) -> Value:
        return self.scope.add("mul", self, other)

    def __truediv__(self, other: Value | Number) -> Value:
        return self.scope.add("div", self, other)

    def __neg__(self) -> Value:
        return self.scope.add("neg", self)

    def __lt__(self, other: Value | Number) -> Value:
        return self.scope.compare("less", self, other)

    def __le__(self, other: Value | Number) -> Value:
        return self.scope.compare("less_equal", self, other)

    def apply(self, operation: str, *others: Value | Number) -> Value:
        """*operation* of this value and *others*, with a result of this value's type."""
        return self.scope.add(operation, self, *others)

    def cast(self, dtype: DType) -> Value:
        """The value as *dtype*. Floats are truncated to integers, and integers wrap."""
        if self.dtype is dtype:
            return self
        return self.scope.add("cast", self, dtype=dtype)

    def clamp(self, low: Number | None, high: Number | None) -> Value:
        """The value within *low* and *high*; None does not bound it. NaN stays NaN."""
        value = self if low is None else self.bounded("maximum", low)
        return value if high is None else value.bounded("minimum", high)

    def bounded(self, operation: str, bound: Number) -> Value:
        """The `maximum` or `minimum` of this value and *bound*. NaN stays NaN."""
        if not self.dtype.is_float:
            return self.apply(operation, bound)
        # The second of two floats is the result where one of them is NaN.
        return self.scope.constant(bound, self.dtype).apply(operation, self)

    def bitcast(self, dtype: DType) -> Value:
        """The bits of this value as *dtype*, which is as wide."""
        return self.scope.add("bitcast", self, dtype=dtype)


class Scope:
    """Writes one expression: arguments of the given types, then steps. Equal steps are written
    once.
    """

    def __init__(self, *arguments: DType) -> None:
        self._arguments = arguments
        self._steps: list[Step] = []
        self._known: dict[tuple[Step, str], int] = {}

    def argument(self, index: int) -> Value:
        return Value(self, index, self._arguments[index])

    def constant(self, value: Number, dtype: DType) -> Value:
        """The number *value* as *dtype*."""
        exact = float(value) if dtype.is_float else bool(value) if dtype is DType.BOOL else value
        exact = exact if isinstance(exact, bool | float) else int(exact)
        return self.step(Step("constant", (), dtype, exact))

    def add(
        self, operation: str, first: Value, *others: Value | Number, dtype: DType | None = None
    ) -> Value:
        """A step; numbers among *others* become constants of the type of *first*."""
        values = [first, *(self._value(o, first.dtype) for o in others)]
        return self.step(Step(operation, tuple(v.index for v in values), dtype or first.dtype))

    def compare(self, operation: str, first: Value, other: Value | Number) -> Value:
        """A comparison: a step with a result of type bool."""
        return self.add(operation, first, other, dtype=DType.BOOL)

    def select(self, condition: Value, yes: Value, no: Value | Number) -> Value:
        """*yes* where *condition* holds, otherwise *no*."""
        chosen = self._value(no, yes.dtype)
        indexes = condition.index, yes.index, chosen.index
        return self.step(Step("select", indexes, yes.dtype))

    def lookup(self, table: int, index: Value, dtype: DType) -> Value:
        """Element *index* of the constant tensor *table*, a vector of *dtype*."""
        return self.step(Step("lookup", (index.index,), dtype, table))

    def inline(self, expression: Expression, *arguments: Value) -> Value:
        """The result of *expression* on *arguments*, whose steps become steps of this one."""
        values = list(arguments)
        for step in expression.steps:
            moved = tuple(values[a].index for a in step.arguments)
            values.append(self.step(Step(step.operation, moved, step.dtype, step.value)))
        return values[expression.result]

    def rewritten(self, expression: Expression, number: int, values: dict[int, Value]) -> Value:
        """Value *number* of *expression*, whose steps become steps of this one. *values* has those
        that are known, and gets the others that are needed.
        """
        if number not in values:
            step = expression.steps[number - len(expression.arguments)]
            given = tuple(self.rewritten(expression, a, values).index for a in step.arguments)
            values[number] = self.step(Step(step.operation, given, step.dtype, step.value))
        return values[number]

    def finish(self, result: Value) -> Expression:
        """The expression that returns *result*, without steps that it does not need."""
        count, needed = len(self._arguments), {result.index}
        for index in range(len(self._steps) - 1, -1, -1):
            if count + index in needed:
                needed.update(self._steps[index].arguments)
        kept = [i for i in range(len(self._steps)) if count + i in needed]
        numbers = {i: i for i in range(count)}
        numbers |= {count + old: count + new for new, old in enumerate(kept)}
        steps = [self._steps[i] for i in kept]
        moved = tuple(
            Step(s.operation, tuple(numbers[a] for a in s.arguments), s.dtype, s.value)
            for s in steps
        )
        return Expression(tuple(self._arguments), moved, numbers[result.index])

    def _value(self, given: Value | Number, dtype: DType) -> Value:
        return given if isinstance(given, Value) else self.constant(given, dtype)

    def step(self, step: Step) -> Value:
        """The result of *step*, whose arguments are values of this scope."""
        # 0.0 and -0.0 are equal, and differ as numbers.
        key = step, repr(step.value)
        if key not in self._known:
            self._known[key] = len(self._arguments) + len(self._steps)
            self._steps.append(step)
        return Value(self, self._known[key], step.dtype)
