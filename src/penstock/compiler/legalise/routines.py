"""`RoutineWriter`: writes the statements of a routine in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from penstock.compiler.expression import Expression, Number, Scope, Value, identity
from penstock.compiler.legalise.builder import Builder
from penstock.compiler.program import Access, Kernel, Position
from penstock.compiler.routine import (
    OWN,
    Assign,
    If,
    Load,
    Routine,
    Statement,
    Store,
    While,
)
from penstock.ir import DType

BOOL: Final = DType.BOOL
I32: Final = DType.INT32
F32: Final = DType.FLOAT32


class Variable(Struct, frozen=True):
    """A variable of a routine: its number and type."""

    number: int
    dtype: DType


class RoutineWriter:
    """Writes a routine that has a memory of *words* int32 elements, the tensor *memory*.

    Functions of `Value`s say what is computed: `w.let(lambda a, b: a + b, x, y)`.
    """

    def __init__(self, build: Builder, words: int) -> None:
        self._build = build
        self.memory = build.tensor(I32, (words,))
        self._variables: list[DType] = []
        self._reads: dict[int, int] = {}
        self._block: list[Statement] = []

    def variable(self, dtype: DType) -> Variable:
        """A new variable."""
        self._variables.append(dtype)
        return Variable(len(self._variables) - 1, dtype)

    def let(self, compute: Callable[..., Value], *arguments: Variable) -> Variable:
        """A new variable that is *compute* of *arguments*."""
        value = self._expression(compute, arguments)
        made = self.variable(value.dtype)
        self._block.append(Assign(made.number, value, tuple(a.number for a in arguments)))
        return made

    def number(self, value: Number, dtype: DType = I32) -> Variable:
        """A new variable that is *value*."""
        made = self.variable(dtype)
        self.set_number(made, value)
        return made

    def set(self, target: Variable, compute: Callable[..., Value], *arguments: Variable) -> None:
        """*target* becomes *compute* of *arguments*."""
        value = self._expression(compute, arguments)
        self._block.append(Assign(target.number, value, tuple(a.number for a in arguments)))

    def set_number(self, target: Variable, value: Number) -> None:
        scope = Scope()
        made = scope.finish(scope.constant(value, target.dtype))
        self._block.append(Assign(target.number, made))

    def copy(self, target: Variable, source: Variable) -> None:
        """*target* becomes *source*."""
        self._block.append(Assign(target.number, identity(source.dtype), (source.number,)))

    def load(self, tensor: int, index: Variable) -> Variable:
        """A new variable: element *index* of *tensor*."""
        made = self.variable(self._build.tensors[tensor].dtype)
        source = OWN
        if tensor != self.memory:
            source = self._reads.setdefault(tensor, len(self._reads))
        self._block.append(Load(made.number, source, index.number))
        return made

    def recall(self, base: int, index: Variable, dtype: DType = I32) -> Variable:
        """A new variable: word *base* + *index* of the memory, as *dtype*, of 32 bits."""
        word = self.load(self.memory, self._word(base, index))
        return word if dtype is I32 else self.let(lambda v: v.bitcast(dtype), word)

    def keep(self, base: int, index: Variable, value: Variable) -> None:
        """Word *base* + *index* of the memory becomes *value*, which has 32 bits."""
        if value.dtype is not I32:
            value = self.let(lambda v: v.bitcast(I32), value)
        self._block.append(Store(self._word(base, index).number, value.number))

    def _word(self, base: int, index: Variable) -> Variable:
        return self.let(lambda i: i + base, index) if base else index

    @contextmanager
    def loop(self, condition: Callable[[], Variable]) -> Iterator[None]:
        """Repeats the statements of the context while the variable that *condition* writes is
        true.
        """
        with self._inside() as before:
            holds = condition()
        with self._inside() as body:
            yield
        self._block.append(While(tuple(before), holds.number, tuple(body)))

    @contextmanager
    def each(self, count: int | Variable, first: int | Variable = 0) -> Iterator[Variable]:
        """Repeats the statements of the context for each number from *first* up to *count*."""
        index = self.number(first) if isinstance(first, int) else self.let(lambda f: f, first)
        end = self.number(count) if isinstance(count, int) else count
        with self.loop(lambda: self.let(lambda i, n: i < n, index, end)):
            yield index
            self.set(index, lambda i: i + 1, index)

    @contextmanager
    def when(self, condition: Callable[..., Value], *arguments: Variable) -> Iterator[None]:
        """Runs the statements of the context if *condition* of *arguments* is true."""
        holds = self.let(condition, *arguments)
        with self._inside() as body:
            yield
        self._block.append(If(holds.number, tuple(body)))

    def emit(self, name: str, turns: int) -> None:
        """Adds the kernel that runs the routine; see `Routine` for *turns*."""
        routine = Routine(tuple(self._variables), tuple(self._reads), tuple(self._block), turns)
        write = Access(self.memory, (Position(),))
        self._build.add(
            Kernel(name, (), (), identity(I32), identity(I32), write, sums=I32, routine=routine)
        )

    @contextmanager
    def _inside(self) -> Iterator[list[Statement]]:
        outer, self._block = self._block, []
        try:
            yield self._block
        finally:
            self._block = outer

    @staticmethod
    def _expression(compute: Callable[..., Value], arguments: Sequence[Variable]) -> Expression:
        scope = Scope(*(a.dtype for a in arguments))
        return scope.finish(compute(*(scope.argument(i) for i in range(len(arguments)))))


__all__ = ["RoutineWriter", "Variable"]
