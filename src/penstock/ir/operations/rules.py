"""Building blocks of shape rules: dimensions where None is "not known before running".

A block answers with what follows from the known part, and raises `ShapeMismatch` only for what no
value of the unknown part can repair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from penstock.errors import InvalidAttribute, ShapeMismatch, ShapeOverflow
from penstock.ir.operations.spec import Port, ShapeContext, ShapeRule
from penstock.ir.types import DType, Shape

Dimension: TypeAlias = "int | None"

MAX_DIMENSION: Final = 2**31 - 1
"""Dimensions are 32-bit in TFLite and in NNAPI; what a rule computes beyond that is refused."""


MAX_LISTED: Final = 4096

MAX_RANK: Final = 64
"""Shape vectors longer than this are no shapes."""


def like(index: int = 0) -> ShapeRule:
    """Every output has the shape of input *index*."""

    def rule(context: ShapeContext) -> Sequence[Shape]:
        return (context.shape(index),) * context.output_count

    return rule


def declared(context: ShapeContext) -> Sequence[Shape]:
    """Outputs keep the shapes the model declares: the rule of operations whose shapes are not
    computed.
    """
    return tuple(context.declared(i) for i in range(context.output_count))


def unknown(context: ShapeContext) -> Sequence[Shape]:
    """Outputs of unknown rank."""
    return (None,) * context.output_count


def fixed(*shapes: Shape) -> ShapeRule:
    """Outputs of these shapes, whatever the inputs."""

    def rule(context: ShapeContext) -> Sequence[Shape]:
        return shapes[: context.output_count]

    return rule


def fill(context: ShapeContext, *shapes: Shape) -> Sequence[Shape]:
    """*shapes* cut to the outputs that the operation has; outputs beyond them have unknown rank."""
    return (*shapes, *[None] * context.output_count)[: context.output_count]


def ranked(context: ShapeContext, index: int, *ranks: int) -> Shape:
    """Shape of input *index*, whose rank must be one of *ranks*."""
    shape = context.shape(index)
    if shape is not None and len(shape) not in ranks:
        wanted = " or ".join(map(str, ranks))
        raise ShapeMismatch(f"input {index} has shape {shape}, which is not of rank {wanted}")
    return shape


def at_least(context: ShapeContext, index: int, rank: int) -> Shape:
    """Shape of input *index*, whose rank must be *rank* or more."""
    shape = context.shape(index)
    if shape is not None and len(shape) < rank:
        raise ShapeMismatch(f"input {index} has shape {shape}, which is not of rank {rank} or more")
    return shape


def dimension(shape: Shape, axis: int) -> Dimension:
    """One dimension, unknown where the rank is; `ShapeMismatch` where there is none such."""
    if shape is None:
        return None
    if not -len(shape) <= axis < len(shape):
        raise ShapeMismatch(f"shape {shape} has no dimension {axis}")
    return shape[axis]


def agree(a: Dimension, b: Dimension, what: str) -> Dimension:
    """The dimension that *a* and *b* must both be."""
    if a is None:
        return b
    if b is not None and a != b:
        raise ShapeMismatch(f"{what}: {a} and {b} should be equal")
    return a


def agree_shapes(a: Shape, b: Shape, what: str) -> Shape:
    """The shape that *a* and *b* must both be."""
    if a is None or b is None:
        return b if a is None else a
    if len(a) != len(b):
        raise ShapeMismatch(f"{what}: shapes {a} and {b} differ in rank")
    return tuple(agree(x, y, what) for x, y in zip(a, b, strict=True))


def broadcast(a: Shape, b: Shape) -> Shape:
    """NumPy's broadcasting over shapes with unknown dimensions (NNAPI section 8.1).

    An unknown dimension against a known one other than 1 gives the known one.
    """
    if a is None or b is None:
        return None
    rank = max(len(a), len(b))
    result: list[int | None] = []
    for x, y in zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True):
        if x in {1, y}:
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


def constant_integers(context: ShapeContext, index: int) -> tuple[int, ...] | None:
    """The elements of input *index* as integers, where its value is known before running.

    Vectors longer than any shape computation needs count as unknown.
    """
    shape = context.shape(index)
    count = None if shape is None else product(shape)
    if count is None or count > MAX_LISTED:
        return None
    value = context.value(index)
    return None if value is None else tuple(int(v) for v in value.reshape(-1).tolist())


def constant_integer(context: ShapeContext, index: int) -> int | None:
    """The single element of input *index*, where its value is known before running."""
    values = constant_integers(context, index)
    if values is None:
        return None
    if len(values) != 1:
        raise ShapeMismatch(f"input {index} should hold one number, not {len(values)}")
    return values[0]


def length(context: ShapeContext, index: int) -> Dimension:
    """Number of elements of a vector input (a scalar counts as one), where known."""
    shape = ranked(context, index, 0, 1)
    return None if shape is None else shape[0] if shape else 1


def elements(context: ShapeContext, index: int) -> Dimension:
    """Number of elements of an input of any rank, where known."""
    shape = context.shape(index)
    return None if shape is None else product(shape)


def product(dimensions: Sequence[Dimension]) -> Dimension:
    """Product of dimensions; a zero wins over an unknown."""
    result: Dimension = 1
    for size in dimensions:
        if size == 0:
            return 0
        result = None if result is None or size is None else result * size
    return result


def positive(context: ShapeContext, name: str) -> int:
    """An attribute that must be 1 or more (strides, dilations, block sizes)."""
    value = context.attributes.integer(name)
    if value < 1:
        raise InvalidAttribute(f"attribute {name!r} must be positive, not {value}")
    return value


BLOCK_SCALES: Final = Port("block_scales", frozenset({DType.FLOAT16}), optional=True)
"""The port of what `check_blocks` checks."""


def check_blocks(context: ShapeContext, index: int) -> None:
    """Scales of blocks, where input *index* brings them: [rows, blocks] for the matrix that is
    input 1, whose rows they divide evenly.
    """
    if not context.has(index):
        return
    matrix, scales = ranked(context, 1, 2), ranked(context, index, 2)
    agree(dimension(matrix, 0), dimension(scales, 0), "rows and rows of scales")
    depth, blocks = dimension(matrix, 1), dimension(scales, 1)
    if depth is not None and blocks is not None and (blocks == 0 or depth % blocks):
        raise ShapeMismatch(f"rows of {depth} do not divide into {blocks} blocks")


def bounded(size: int) -> int:
    """A computed dimension: `ShapeMismatch` below zero, `ShapeOverflow` beyond 32 bits."""
    if size < 0:
        raise ShapeMismatch(f"an output dimension would be {size}")
    if size > MAX_DIMENSION:
        raise ShapeOverflow(f"an output dimension would be {size}")
    return size


def positions(size: Dimension, extent: Dimension, stride: int, dilation: int = 1) -> Dimension:
    """How often a dilated window of *extent* elements fits into *size*, a stride apart."""
    if size is None or extent is None:
        return None
    return max(size - ((extent - 1) * dilation + 1) + stride, 0) // stride


def window(
    size: Dimension, extent: Dimension, stride: int, dilation: int, padding: str
) -> Dimension:
    """Number of positions of a window of *extent* elements over *size* (NNAPI section 8.1).

    SAME: ceil(size / stride); VALID: as often as the dilated window fits, which may be never; a
    window that reaches a stride further than that is refused, as TFLite does.
    """
    if padding == "SAME":
        return None if size is None else -(-size // stride)
    if size is not None and extent is not None:
        effective = (extent - 1) * dilation + 1
        if size - effective + stride <= -stride:
            raise ShapeMismatch(f"a window of {effective} does not fit into {size}")
    return positions(size, extent, stride, dilation)
