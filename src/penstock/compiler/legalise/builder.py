"""`Builder`: the program that legalisation writes, and `Operation`: what a rule sees of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

import numpy as np
from msgspec.structs import replace

from penstock.compiler.arithmetic import evaluate
from penstock.compiler.expression import Expression, Number, Scope, Value, identity
from penstock.compiler.program import (
    Access,
    Combine,
    Kernel,
    Position,
    Program,
    Tensor,
    along,
)
from penstock.driverkit.site import Refused, Site, require
from penstock.ir import DType, Model, NDArray, Operand, Subgraph
from penstock.ir.rounding import Sums
from penstock.ir.types import static_shape

Rule: TypeAlias = "Callable[[Operation], None]"
"""Writes the kernels of one operation. Raises `Refused` for one that it has no kernels for."""

SMALL: Final = 1 << 16
"""The most elements of a constant that a judgement reads."""

ORDERED: Final = frozenset(["CONV_2D", "CONV_3D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"])
"""Operations whose float sums are added in order where their results are rounded later."""

RULES: Final[dict[str, Rule]] = {}
"""The rules by the key of the operation."""


def legal(*types: str) -> Callable[[Rule], Rule]:
    """Registers a function as the rule of the operations *types*."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(types, rule))
        return rule

    return register


class Builder:
    """Collects the tensors and kernels of one subgraph.

    With *judging* set, nothing is computed from constants: a rule can be asked whether it has
    kernels for an operation, at little cost. *orders* has the order of sums for operands of the
    model's entry (`penstock.ir.rounding`).
    """

    def __init__(
        self, model: Model, *, judging: bool = False, orders: Mapping[int, Sums] | None = None
    ) -> None:
        self.model, self.judging = model, judging
        self._orders: Mapping[int, Sums] = orders or {}
        self.tensors: list[Tensor] = []
        self.constants: dict[int, NDArray] = {}
        self.kernels: list[Kernel] = []
        self.aliases: dict[int, int] = {}
        self.failures: list[tuple[int, str]] = []
        self._numbers: dict[int, int] = {}
        self._origin: tuple[int, ...] = ()
        self._graph, self._depth = model.entry, 0

    def mark(self) -> tuple[int, int, int]:
        """The state that `undo` returns to."""
        return len(self.tensors), len(self.kernels), len(self.failures)

    def undo(self, mark: tuple[int, int, int]) -> None:
        """Removes everything that was added since *mark*."""
        tensors, kernels, failures = mark
        del self.tensors[tensors:], self.kernels[kernels:], self.failures[failures:]
        self.constants = {t: a for t, a in self.constants.items() if t < tensors}
        self.aliases = {t: s for t, s in self.aliases.items() if t < tensors and s < tensors}
        self._numbers = {i: t for i, t in self._numbers.items() if t < tensors}

    @contextmanager
    def inside(self, graph: Subgraph, known: Mapping[int, int]) -> Iterator[int]:
        """Operands are those of *graph* in the context; *known* has the tensors of its inputs. The
        value is how many subgraphs the context is in.
        """
        outer = self._graph, self._numbers
        self._graph, self._numbers = graph, dict(known)
        self._depth += 1
        try:
            yield self._depth
        finally:
            self._graph, self._numbers = outer
            self._depth -= 1

    def operand(self, index: int) -> int:
        """The tensor of operand *index* of the subgraph that is written. Complex numbers are their
        parts, as float32, along an axis of its own.
        """
        if index not in self._numbers:
            operand = self._graph.operands[index]
            shape, is_complex = shape_of(operand), operand.dtype is DType.COMPLEX64
            dtype = DType.FLOAT32 if is_complex else operand.dtype
            made = self.tensor(dtype, (*shape, 2) if is_complex else shape, operand.name)
            self.tensors[made] = replace(self.tensors[made], is_complex=is_complex)
            if operand.is_constant and not self.judging:
                array = self.model.constant(operand)
                self.constants[made] = parts_of(array) if is_complex else array
            self._numbers[index] = made
        return self._numbers[index]

    def order(self, index: int) -> Sums:
        """The order of float sums that become operand *index* of the subgraph that is written."""
        return "any" if self._depth else self._orders.get(index, "any")

    def tensor(self, dtype: DType, shape: Sequence[int], name: str = "") -> int:
        """A new tensor."""
        self.tensors.append(Tensor(dtype, tuple(shape), name))
        return len(self.tensors) - 1

    def constant(self, dtype: DType, shape: Sequence[int], compute: Callable[[], NDArray]) -> int:
        """A new constant tensor. *compute* returns its array, and is not called for a judgement."""
        index = self.tensor(dtype, shape)
        if not self.judging:
            array = np.ascontiguousarray(compute(), dtype.numpy)
            self.constants[index] = array.reshape(self.tensors[index].shape)
        return index

    def alias(self, shape: Sequence[int], source: int) -> int:
        """A tensor with the elements of *source* in another *shape*."""
        tensor = self.tensor(self.tensors[source].dtype, shape)
        self.aliases[tensor] = source
        return tensor

    def begin(self, origin: int) -> None:
        """The kernels that follow are of operation *origin*."""
        self._origin = (origin,)

    def emit(
        self,
        name: str,
        loops: Sequence[int],
        reads: Sequence[Access],
        body: Expression,
        write: Access,
        *,
        reduced: Sequence[int] = (),
        combine: Combine = "none",
        sums: DType | None = None,
        finish: Expression | None = None,
        extras: Sequence[Access] = (),
        order: Sums = "any",
    ) -> None:
        """Adds a kernel. *sums* is the type that it combines in (None: that of the body)."""
        kept = sums or body.dtype
        self.kernels.append(
            Kernel(
                name,
                tuple(loops),
                tuple(reads),
                body,
                finish or identity(kept),
                write,
                tuple(reduced),
                combine,
                kept,
                tuple(extras),
                self._origin,
                order=order,
            )
        )

    def add(self, kernel: Kernel) -> None:
        """Adds *kernel*, as one of the operation whose kernels are written."""
        self.kernels.append(replace(kernel, origin=self._origin))

    def copy(self, name: str, source: Access, write: Access, loops: Sequence[int]) -> None:
        """Adds a kernel that copies elements."""
        self.emit(name, loops, [source], identity(self.tensors[source.tensor].dtype), write)

    def fail_where(self, message: str, reads: Sequence[Access], wrong: Expression) -> None:
        """The run fails with *message* if *wrong* is true of any of the elements that *reads* name.
        The loops are the axes of the first of them.
        """
        sizes = self.tensors[reads[0].tensor].shape
        flag = self.tensor(DType.BOOL, (1,))
        inner = [
            replace(
                a,
                axes=tuple(
                    replace(p, steps=tuple((loop + 1, s) for loop, s in p.steps)) for p in a.axes
                ),
            )
            for a in reads
        ]
        combine: Combine = "any" if sizes else "none"
        target = Access(flag, along(0))
        self.emit("check", (1,), inner, wrong, target, reduced=sizes, combine=combine)
        self.failures.append((flag, message))

    def require_types(self) -> None:
        """Refuses an operation whose operands are declared with other types than its kernels
        write.
        """
        tensors = self.tensors
        for target, source in self.aliases.items():
            self._require_type(target, tensors[source].dtype)
        for kernel in self.kernels:
            self._require_type(kernel.write.tensor, kernel.finish.dtype)

    def _require_type(self, tensor: int, dtype: DType) -> None:
        declared = self.tensors[tensor].dtype
        require(declared is dtype, f"{dtype.value} results in an operand of {declared.value}")

    def finish(self) -> Program:
        """The program, after all operations were written."""
        entry = self.model.entry
        inputs = tuple(self.operand(i) for i in entry.inputs)
        outputs = tuple(self.operand(i) for i in entry.outputs)
        return Program(
            tuple(self.tensors),
            self.constants,
            tuple(self.kernels),
            inputs,
            (*outputs, *(flag for flag, _ in self.failures)),
            self.aliases,
            tuple(message for _, message in self.failures),
        )


class Operation:
    """One operation, for its rule: its site, and its tensors in the builder."""

    def __init__(self, builder: Builder, site: Site) -> None:
        self.build, self.site = builder, site

    @property
    def is_half(self) -> bool:
        """Whether float32 operands stand for float16 ones."""
        return False

    @property
    def order(self) -> Sums:
        """The order of the float sums that become the first output: that of the reference device,
        where its sums have one.
        """
        if self.site.operation.type not in ORDERED:
            return "any"
        return self.build.order(self.site.output_indexes[0])

    def tensor(self, position: int = 0) -> int:
        """The tensor of input *position*."""
        self.site.input(position)
        return self.build.operand(self.site.input_indexes[position])

    def target(self, position: int = 0) -> int:
        """The tensor of output *position*."""
        self.site.output_shape(position)
        return self.build.operand(self.site.output_indexes[position])

    def shape(self, tensor: int) -> tuple[int, ...]:
        return self.build.tensors[tensor].shape

    def whole(self, tensor: int) -> Access:
        """All of *tensor*, a loop an axis."""
        return Access(tensor, along(*range(len(self.shape(tensor)))))

    def broadcast(self, tensor: int, rank: int) -> Access:
        """All of *tensor* for *rank* loops, broadcast: axes of one element do not move."""
        shape = self.shape(tensor)
        first = rank - len(shape)
        return Access(
            tensor,
            tuple(
                Position() if size == 1 else Position(0, ((first + axis, 1),))
                for axis, size in enumerate(shape)
            ),
        )

    def elementwise(
        self, name: str, body: Expression, sources: Iterable[int], target: int | None = None
    ) -> None:
        """Adds a kernel that computes *body* of *sources*, which broadcast, as *target*."""
        written = self.target() if target is None else target
        loops = self.shape(written)
        reads = [self.broadcast(s, len(loops)) for s in sources]
        self.build.emit(name, loops, reads, body, self.whole(written))

    def fail_if(self, position: int, message: str, wrong: Callable[[Value], Value]) -> None:
        """The run fails with *message* if *wrong* is true of an element of input *position*. An
        input that is constant is checked here: the operation is refused.
        """
        operand = self.site.input(position)
        scope = Scope(operand.dtype)
        body = scope.finish(wrong(scope.argument(0)))
        if operand.is_constant:
            if not self.build.judging or elements(shape_of(operand)) <= SMALL:
                found = evaluate(body, [self.site.value(position, "an operand")], _no_table)
                require(not np.any(found), message)
            return
        site = self.site
        place = f"operation {site.index} ({site.operation.key}): {message}"
        self.build.fail_where(place, [self.whole(self.tensor(position))], body)

    def rename(self, source: int, target: int | None = None) -> None:
        """Makes *target* (None: the output) an alias of *source*: the same elements."""
        written = self.target() if target is None else target
        self.build.aliases[written] = source


def _no_table(number: int) -> NDArray:
    raise Refused(f"a check with table {number}")


def shape_of(operand: Operand) -> tuple[int, ...]:
    """The shape of *operand*. Refuses one that only a run knows."""
    shape = static_shape(operand.shape)
    require(shape is not None, "a shape that is known only when it runs (shapes= makes it known)")
    return shape or ()


def parts_of(array: NDArray) -> NDArray:
    """Complex numbers as their real and imaginary parts, along an axis of its own."""
    return np.ascontiguousarray(array).view(np.float32).reshape(*array.shape, 2)


def elements(shape: Sequence[int]) -> int:
    return math.prod(shape)


def number(value: Number) -> Number:
    """*value* as a Python number."""
    return value.item() if isinstance(value, np.generic) else value
