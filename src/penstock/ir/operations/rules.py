"""Shape rules and their building blocks, shared by the families of the table."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import ShapeMismatch
from penstock.ir.operations.spec import ShapeContext, ShapeRule
from penstock.ir.types import Shape


def like(index: int = 0) -> ShapeRule:
    """Every output has the shape of input *index*."""

    def rule(context: ShapeContext) -> Sequence[Shape]:
        return (context.shape(index),) * context.output_count

    return rule


def declared(context: ShapeContext) -> Sequence[Shape]:
    """Outputs keep the shapes the model declares: the rule of operations whose shapes are not computed."""
    return tuple(context.declared(i) for i in range(context.output_count))


def broadcast(a: Shape, b: Shape) -> Shape:
    """NumPy's broadcasting over shapes with unknown dimensions (NNAPI section 8.1).

    An unknown dimension against a known one other than 1 gives the known one.
    """
    if a is None or b is None:
        return None
    rank = max(len(a), len(b))
    result: list[int | None] = []
    for x, y in zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True):
        if x == 1 or x == y:
            result.append(y)
        elif y == 1:
            result.append(x)
        elif x is None:
            result.append(y)
        elif y is None:
            result.append(x)
        else:
            raise ShapeMismatch(f"shapes {a} and {b} do not broadcast")
    return tuple(result)


def broadcasting(context: ShapeContext) -> Sequence[Shape]:
    """One output: all inputs broadcast together."""
    shape = context.shape(0)
    for index in range(1, context.input_count):
        shape = broadcast(shape, context.shape(index))
    return (shape,)


def normalize_axis(axis: int, rank: int) -> int:
    """A negative axis counted from the end; `ShapeMismatch` outside [-rank, rank)."""
    if not -rank <= axis < rank:
        raise ShapeMismatch(f"axis {axis} of a rank-{rank} operand")
    return axis + rank if axis < 0 else axis
