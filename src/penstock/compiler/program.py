"""The program of a model: kernels over tensors, without a target.

A kernel is a nest of loops around one expression. It reads tensors at positions that are sums of
its loops, and writes one tensor. Convolutions, matrix products, pooling, element-wise chains,
slices and transposes are all such nests; they differ in loops and positions alone. A driver finds
the nests that it has fast code for, and prints the others as they are. Few kernels are routines
instead (`penstock.compiler.routine`): their control flow depends on data.

Every pass of the compiler maps a `Program` to a `Program`. `penstock.compiler.checks` holds the
invariants, `penstock.compiler.interpreter` evaluates a program in NumPy, and
`penstock.compiler.printing` prints it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from penstock.compiler.expression import Expression, Number
from penstock.compiler.routine import Routine
from penstock.ir import DType, NDArray
from penstock.ir.rounding import Sums

Combine: TypeAlias = Literal["none", "sum", "product", "maximum", "minimum", "any", "all"]
"""How the values of the reduced loops become one. "none": there are no reduced loops."""

NEUTRAL: Final[Mapping[str, float]] = {"sum": 0, "product": 1, "any": 0, "all": 1}
"""The value that a reduction begins with, where it does not depend on the type."""


class Tensor(Struct, frozen=True):
    """A value of the program: elements of *dtype* in *shape*, row-major unless it is laid out.

    *is_complex*: it stands for complex numbers of the model, whose two parts are the last axis.
    """

    dtype: DType
    shape: tuple[int, ...]
    name: str = ""
    is_complex: bool = False


class Position(Struct, frozen=True, array_like=True):
    """A position along one axis of a tensor: *offset* plus the sum of loop * step.

    *through* is an int32 vector: the position is its element at that sum. Elements of a vector that
    is not constant are clamped to the axis, so that no read leaves the tensor. A flag of
    `Program.failures` says that an element lay outside.
    """

    offset: int = 0
    steps: tuple[tuple[int, int], ...] = ()
    through: int | None = None

    def span(self, sizes: tuple[int, ...]) -> tuple[int, int]:
        """The least and the greatest sum over loops of *sizes*."""
        ends = [(step * (sizes[loop] - 1)) for loop, step in self.steps]
        return self.offset + sum(min(e, 0) for e in ends), self.offset + sum(
            max(e, 0) for e in ends
        )


class Access(Struct, frozen=True, array_like=True):
    """The elements of *tensor* that a kernel reads or writes: a position along each axis.

    *fill* is the value of a read outside the tensor. Without it every position lies inside.
    """

    tensor: int
    axes: tuple[Position, ...]
    fill: Number | None = None

    def loops(self) -> frozenset[int]:
        """The loops on which the position depends."""
        return frozenset(loop for axis in self.axes for loop, _ in axis.steps)


class Border(Struct, frozen=True, array_like=True):
    """The elements around the middle of a tensor, all of one *value*: the first *before* and the
    last *behind* of each axis.
    """

    before: tuple[int, ...]
    behind: tuple[int, ...]
    value: Number


class Kernel(Struct, frozen=True):
    """One nest of loops.

    The outer loops have the sizes *loops*; the inner ones, numbered on from there, the sizes
    *reduced*. At each point *body* is computed from *reads*. *combine* makes one value of type
    *sums* of all points of the reduced loops. *finish* is computed once for each point of the outer
    loops, from that value and from *extras*, and its result is written to *write*. Outer loops
    write different elements.

    *order* is that of a sum of products of float32: "ordered", from zero, in the order of the
    reduced loops, each product rounded; "fused", the same from the first of *extras*, each product
    added before it is rounded. Any other sum may be added in any order.

    *border* is that of the written tensor, if the kernel writes it too. It is constant: a driver
    writes it when and how it likes, as long as no kernel reads it earlier.

    A kernel with a *routine* runs that instead. It has no loops, reads or expressions of its own;
    *write* names the vector that the routine writes, from its first element on.

    *name* says what the nest is (`convolution`, `add`), *origin* which operations of the model.
    """

    name: str
    loops: tuple[int, ...]
    reads: tuple[Access, ...]
    body: Expression
    finish: Expression
    write: Access
    reduced: tuple[int, ...] = ()
    combine: Combine = "none"
    sums: DType = DType.FLOAT32
    extras: tuple[Access, ...] = ()
    origin: tuple[int, ...] = ()
    border: Border | None = None
    order: Sums = "any"
    routine: Routine | None = None

    @property
    def ordered(self) -> bool:
        """Whether the order of the sum is given."""
        return self.order != "any"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of all loops, outer ones first."""
        return (*self.loops, *self.reduced)

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Everything that the kernel reads."""
        return (*self.reads, *self.extras)

    @property
    def tensors_read(self) -> tuple[int, ...]:
        """The tensors that the kernel reads, tables and positions included."""
        if self.routine is not None:
            return self.routine.reads
        through = [p.through for a in self.accesses for p in a.axes if p.through is not None]
        tables = (*self.body.tables, *self.finish.tables)
        return (*(a.tensor for a in self.accesses), *through, *tables)


class Program(Struct, frozen=True, eq=False):
    """Kernels in the order in which they run.

    *constants* has the values of constant tensors. *aliases* maps a tensor to another one whose
    elements it is, in the same order, in another shape. *inputs* and *outputs* are those of the
    model's entry, in its order. A tensor that is not constant, an input or an alias is written by
    kernels, each element once, before it is read.

    *failures* are messages of the last outputs, flags of type bool and shape [1] that follow those
    of the model. A run whose flag is true has failed, with that message: its inputs were such that
    the operation has no result.
    """

    tensors: tuple[Tensor, ...]
    constants: Mapping[int, NDArray]
    kernels: tuple[Kernel, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    aliases: Mapping[int, int]
    failures: tuple[str, ...] = ()

    @property
    def results(self) -> tuple[int, ...]:
        """The outputs of the model: *outputs* without flags."""
        return self.outputs[: len(self.outputs) - len(self.failures)]

    @property
    def flags(self) -> tuple[int, ...]:
        """The flags of *failures*, in their order."""
        return self.outputs[len(self.outputs) - len(self.failures) :]

    def root(self, tensor: int) -> int:
        """The tensor whose elements *tensor* has."""
        while tensor in self.aliases:
            tensor = self.aliases[tensor]
        return tensor


def along(*loops: int) -> tuple[Position, ...]:
    """The positions of a tensor that the given loops go through, an axis each."""
    return tuple(Position(0, ((loop, 1),)) for loop in loops)
