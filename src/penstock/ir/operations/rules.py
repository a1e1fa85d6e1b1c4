"""Building blocks of shape rules and fold rules.

A dimension is None if it is unknown before running. A shape rule derives as much as possible from
the known part. It raises `ShapeMismatch` only for a contradiction that no value of the unknown part
can resolve. Fold rules compute the output values of small shape computations. A limit on their size
keeps folding within microseconds, whatever the file contains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from penstock.errors import InvalidAttribute, ShapeMismatch, ShapeOverflow
from penstock.ir.operations.spec import FoldRule, ShapeContext, ShapeRule
from penstock.ir.types import DType, NDArray, Shape

Dimension: TypeAlias = "int | None"

MAX_DIMENSION: Final = 2**31 - 1
"""Greatest dimension: 32 bits, as in TFLite and in NNAPI. A rule that computes a greater one
raises.
"""

MAX_LISTED: Final = 4096

MAX_RANK: Final = 64
"""Greatest length of a vector that can be a shape."""


def like(index: int = 0) -> ShapeRule:
    """Every output has the shape of input *index*."""

    def rule(context: ShapeContext) -> Sequence[Shape]:
        return (context.shape(index),) * context.output_count

    return rule


def declared(context: ShapeContext) -> Sequence[Shape]:
    """Outputs have the shapes that the model declares, for operations whose shapes are not
    computed.
    """
    return tuple(context.declared(i) for i in range(context.output_count))


def unknown(context: ShapeContext) -> Sequence[Shape]:
    """Outputs of unknown rank."""
    return (None,) * context.output_count


def fixed(*shapes: Shape) -> ShapeRule:
    """Outputs with these shapes, independent of the inputs."""

    def rule(context: ShapeContext) -> Sequence[Shape]:
        return shapes[: context.output_count]

    return rule


def fill(context: ShapeContext, *shapes: Shape) -> Sequence[Shape]:
    """*shapes* for the first outputs of the operation. Further outputs have unknown rank."""
    return (*shapes, *[None] * context.output_count)[: context.output_count]


def ranked(context: ShapeContext, index: int, *ranks: int) -> Shape:
    """The shape of input *index*, whose rank must be one of *ranks*."""
    shape = context.shape(index)
    if shape is not None and len(shape) not in ranks:
        wanted = " or ".join(map(str, ranks))
        raise ShapeMismatch(f"input {index} has shape {shape}, which is not of rank {wanted}")
    return shape


def at_least(context: ShapeContext, index: int, rank: int) -> Shape:
    """The shape of input *index*, whose rank must be at least *rank*."""
    shape = context.shape(index)
    if shape is not None and len(shape) < rank:
        raise ShapeMismatch(f"input {index} has shape {shape}, which is not of rank {rank} or more")
    return shape


def dimension(shape: Shape, axis: int) -> Dimension:
    """One dimension; None if the rank is unknown. Raises `ShapeMismatch` if the dimension does not
    exist.
    """
    if shape is None:
        return None
    if not -len(shape) <= axis < len(shape):
        raise ShapeMismatch(f"shape {shape} has no dimension {axis}")
    return shape[axis]


def dimensions(context: ShapeContext, index: int, rank: int) -> tuple[Dimension, ...]:
    """The dimensions of input *index*, whose rank must be *rank*."""
    shape = ranked(context, index, rank)
    return (None,) * rank if shape is None else shape


def vector(context: ShapeContext, index: int) -> Dimension:
    """The number of elements of input *index*, which must be a vector."""
    return dimensions(context, index, 1)[0]


def of_rank(rank: Dimension) -> Shape:
    """A shape of unknown dimensions; None if the rank is unknown, or greater than any shape's."""
    return None if rank is None or rank > MAX_RANK else (None,) * rank


def with_dimension(shape: tuple[Dimension, ...], axis: int, *sizes: Dimension) -> Shape:
    """*shape* with *sizes* in place of dimension *axis*, which is not negative."""
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


def agree(a: Dimension, b: Dimension, what: str) -> Dimension:
    """The dimension that is consistent with both *a* and *b*."""
    if a is None:
        return b
    if b is not None and a != b:
        raise ShapeMismatch(f"{what}: {a} and {b} should be equal")
    return a


def agree_shapes(a: Shape, b: Shape, what: str) -> Shape:
    """The shape that is consistent with both *a* and *b*."""
    if a is None or b is None:
        return b if a is None else a
    if len(a) != len(b):
        raise ShapeMismatch(f"{what}: shapes {a} and {b} differ in rank")
    return tuple(agree(x, y, what) for x, y in zip(a, b, strict=True))


def common_shape(context: ShapeContext, first: int = 0, count: int | None = None) -> Shape:
    """The one shape of *count* inputs, by default of all from input *first* on."""
    shape: Shape = None
    for index in range(first, context.input_count if count is None else first + count):
        shape = agree_shapes(shape, context.shape(index), f"shape of input {index}")
    return shape


def same_shapes(context: ShapeContext) -> Sequence[Shape]:
    """One output: all inputs have its shape."""
    return (common_shape(context),)


def first_of_rank(rank: int, *, more: bool = False) -> ShapeRule:
    """One output with the shape of input 0, whose rank must be *rank*, or *more*."""
    return lambda context: (at_least(context, 0, rank) if more else ranked(context, 0, rank),)


def broadcast(a: Shape, b: Shape) -> Shape:
    """NumPy's broadcasting over shapes with unknown dimensions (NNAPI section 8.1).

    An unknown dimension and a known one other than 1 result in the known one.
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
    """One output: all inputs broadcast."""
    shape = context.shape(0)
    for index in range(1, context.input_count):
        shape = broadcast(shape, context.shape(index))
    return (shape,)


def normalize_axis(axis: int, rank: int) -> int:
    """*axis*, counted from the end if negative. Raises `ShapeMismatch` outside [-rank, rank)."""
    if not -rank <= axis < rank:
        raise ShapeMismatch(f"axis {axis} of a rank-{rank} operand")
    return axis + rank if axis < 0 else axis


def constant_integers(context: ShapeContext, index: int) -> tuple[int, ...] | None:
    """The elements of input *index* as integers; None if its value is unknown before running, or
    longer than a shape computation can need.
    """
    shape = context.shape(index)
    count = None if shape is None else product(shape)
    if count is None or count > MAX_LISTED:
        return None
    value = context.value(index)
    return None if value is None else tuple(int(v) for v in value.reshape(-1).tolist())


def constant_integer(context: ShapeContext, index: int) -> int | None:
    """The single element of input *index*; None if it is unknown before running."""
    values = constant_integers(context, index)
    if values is None:
        return None
    if len(values) != 1:
        raise ShapeMismatch(f"input {index} should hold one number, not {len(values)}")
    return values[0]


def length(context: ShapeContext, index: int) -> Dimension:
    """The number of elements of a vector input (1 for a scalar); None if unknown."""
    shape = ranked(context, index, 0, 1)
    return None if shape is None else shape[0] if shape else 1


def elements(context: ShapeContext, index: int) -> Dimension:
    """The number of elements of an input of any rank; None if unknown."""
    shape = context.shape(index)
    return None if shape is None else product(shape)


def product(dimensions: Sequence[Dimension]) -> Dimension:
    """The product of dimensions; a zero takes precedence over an unknown one."""
    result: Dimension = 1
    for size in dimensions:
        if size == 0:
            return 0
        result = None if result is None or size is None else result * size
    return result


def scaled(size: Dimension, factor: Dimension) -> Dimension:
    """*size* times *factor*; None if either is unknown."""
    return None if size is None or factor is None else bounded(size * factor)


def dilated(size: Dimension, factor: int) -> Dimension:
    """The size of a dimension with *factor* - 1 holes between its elements."""
    return size if size is None or size == 0 else bounded((size - 1) * factor + 1)


def quotient(total: Dimension, part: Dimension, what: str, whose: str = "") -> Dimension:
    """*total* over *part*; None if either is unknown. *what* and *whose* name them in errors.

    Raises `ShapeMismatch` if *part* is 0 or there is a remainder.
    """
    if total is None or part is None:
        return None
    if part == 0 or total % part:
        divisor = f"{whose} {part}".strip()
        raise ShapeMismatch(f"{total} {what} are not a multiple of {divisor}")
    return total // part


def positive(context: ShapeContext, name: str) -> int:
    """An attribute that must be at least 1 (strides, dilations, block sizes)."""
    value = context.attributes.integer(name)
    if value < 1:
        raise InvalidAttribute(f"attribute {name!r} must be positive, not {value}")
    return value


def check_blocks(context: ShapeContext, index: int) -> None:
    """Checks the scales of blocks in input *index*, if it is present. They are [rows, blocks] for
    the matrix that is input 1, and each row has a whole number of blocks.
    """
    if not context.has(index):
        return
    (rows, depth), (scales, blocks) = dimensions(context, 1, 2), dimensions(context, index, 2)
    agree(rows, scales, "rows and rows of scales")
    quotient(depth, blocks, "elements of a row", "the blocks'")


def bounded(size: int) -> int:
    """A computed dimension. Raises `ShapeMismatch` below zero, `ShapeOverflow` beyond 32 bits."""
    if size < 0:
        raise ShapeMismatch(f"an output dimension would be {size}")
    if size > MAX_DIMENSION:
        raise ShapeOverflow(f"an output dimension would be {size}")
    return size


def positions(size: Dimension, extent: Dimension, stride: int, dilation: int = 1) -> Dimension:
    """The number of positions of a dilated window of *extent* elements in *size*, a stride
    apart.
    """
    if size is None or extent is None:
        return None
    return max(size - ((extent - 1) * dilation + 1) + stride, 0) // stride


def window(
    size: Dimension, extent: Dimension, stride: int, dilation: int, padding: str
) -> Dimension:
    """The number of positions of a window of *extent* elements over *size* (NNAPI section 8.1).

    SAME: ceil(size / stride). VALID: the number that fits, which may be 0. As in TFLite, a window
    that exceeds *size* by a stride or more is rejected.
    """
    if padding == "SAME":
        return None if size is None else -(-size // stride)
    if size is not None and extent is not None:
        effective = (extent - 1) * dilation + 1
        if size - effective + stride <= -stride:
            raise ShapeMismatch(f"a window of {effective} does not fit into {size}")
    return positions(size, extent, stride, dilation)


MAX_FOLDED_ELEMENTS: Final = 512

_FOLDED: Final = frozenset(
    {DType.INT32, DType.INT64, DType.UINT32, DType.INT16, DType.BOOL, DType.FLOAT32, DType.FLOAT64}
)


def small_values(context: ShapeContext) -> list[NDArray] | None:
    """The values of all inputs; None if one is unknown or too large to fold."""
    values: list[NDArray] = []
    for index in range(context.input_count):
        if not context.has(index) or context.dtype(index) not in _FOLDED:
            return None
        shape = context.shape(index)
        if shape is None or not _small(shape):
            return None
        value = context.value(index)
        if value is None:
            return None
        values.append(value)
    return values


def _small(shape: Sequence[int | None]) -> bool:
    count = 1
    for size in shape:
        if size is None:
            return False
        count *= size
    return count <= MAX_FOLDED_ELEMENTS


def fits(*shape: int) -> bool:
    """Whether a value of this shape is small enough to fold."""
    return min(shape, default=0) >= 0 and _small(shape)


def folding(compute: Callable[..., Any]) -> FoldRule:
    """A fold rule for one output: *compute* of the values of all inputs.

    *compute* returns the result, or None if it cannot compute it. It limits the size of the result.
    An operation with a fused activation is not folded.
    """

    def rule(context: ShapeContext) -> Sequence[NDArray] | None:
        if context.attributes.get("fused_activation_function", "NONE") != "NONE":
            return None
        values = small_values(context)
        if values is None:
            return None
        with np.errstate(all="ignore"):
            try:
                result = compute(*values)
            except (ValueError, IndexError, OverflowError, ZeroDivisionError):
                return None
        return None if result is None else (np.asarray(result),)

    return rule


def broadcast_folding(function: Callable[..., Any]) -> FoldRule:
    """A fold rule for a function that broadcasts its operands."""

    def compute(*values: NDArray) -> Any:
        return function(*values) if fits(*np.broadcast_shapes(*(v.shape for v in values))) else None

    return folding(compute)


def elementwise(function: Callable[..., Any]) -> FoldRule:
    """A fold rule for a function that broadcasts its operands and keeps the dtype of the first."""

    def compute(first: NDArray, *others: NDArray) -> Any:
        result = function(first, *others)
        return None if result is None else np.asarray(result).astype(first.dtype, copy=False)

    return broadcast_folding(compute)


def relabelling(rule: ShapeRule) -> FoldRule:
    """A fold rule for an operation that reshapes its first input to the shape that *rule*
    infers.
    """

    def fold(context: ShapeContext) -> Sequence[NDArray] | None:
        values, (shape,) = small_values(context), rule(context)
        if values is None or shape is None or None in shape:
            return None
        return (values[0].reshape([d for d in shape if d is not None]),)

    return fold


def dividing(compute: Callable[[NDArray, NDArray], Any]) -> Callable[..., Any]:
    """*compute* of two operands; None for a division of integers by zero."""

    def divide(a: NDArray, b: NDArray) -> Any:
        return None if a.dtype.kind != "f" and not np.all(b) else compute(a, b)

    return divide


def truncated_quotient(a: NDArray, b: NDArray) -> NDArray:
    """TFLite's DIV: integers are truncated toward zero."""
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    quotient = np.abs(a) // np.abs(b)
    return np.asarray(np.where((a < 0) ^ (b < 0), -quotient, quotient))
