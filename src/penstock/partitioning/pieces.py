"""How many contiguous pieces of memory an operation copies, or combines with a repeated operand.

Engines that copy take their time for each piece as much as for each byte: pieces of two elements
cost many times what a long row does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, TypeAlias

from penstock.ir import Operand, Operation, Subgraph
from penstock.ir.types import static_shape

Sizes: TypeAlias = "tuple[int, ...]"

COPYING: Final = frozenset({
    "CONCATENATION", "PACK", "STRIDED_SLICE", "SLICE", "SPLIT", "SPLIT_V", "UNPACK", "PAD", "PADV2",
    "MIRROR_PAD", "TRANSPOSE", "SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "SPACE_TO_BATCH_ND",
    "BATCH_TO_SPACE_ND", "TILE", "BROADCAST_TO", "STABLEHLO_BROADCAST_IN_DIM", "ONE_HOT", "FILL",
    "RANGE", "ZEROS_LIKE",
})  # fmt: skip
"""Operations that write elements of their inputs elsewhere."""

REPEATING: Final = frozenset({"TILE", "BROADCAST_TO", "STABLEHLO_BROADCAST_IN_DIM", "ONE_HOT"})
"""Those of them that write an element several times."""

FILLING: Final = frozenset({"FILL", "RANGE", "ZEROS_LIKE"})
"""Those of them that write one piece."""


def pieces_of(subgraph: Subgraph, operation: Operation) -> float | None:
    """Pieces that *operation*, one of `COPYING` or an element-wise one, handles. None if a shape is
    known only during a run.
    """
    operands = [subgraph.operands[i] for i in operation.inputs]
    read = _known([o for o in operands if o.has_value])
    values = _known([o for o in operands if o.has_value and not o.is_constant])
    made = _known([subgraph.operands[i] for i in operation.outputs])
    if not read or not values or not made:
        return None
    return float(_count(operation, read, values, made))


def is_swap(subgraph: Subgraph, operation: Operation) -> bool:
    """Whether a transposition exchanges two neighbouring blocks of axes, the last axis among them:
    for each place of the axes before them it is that of a matrix.
    """
    ports = operation.inputs[0], operation.outputs[0]
    shapes = _known([subgraph.operands[i] for i in ports])
    if shapes is None:
        return True
    blocks = _blocks(*shapes)
    if blocks and blocks[0][0] == 0:
        blocks = blocks[1:]
    return len(blocks) <= MATRIX_AXES


MATRIX_AXES: Final = 2


def _count(
    operation: Operation, read: list[Sizes], values: list[Sizes], made: list[Sizes]
) -> float:
    key = operation.key
    if key in {"PACK", "UNPACK"}:
        parts, axis = values if key == "PACK" else made, operation.attributes.integer("axis")
        return sum(math.prod(part[: axis % (len(part) + 1)]) for part in parts)
    if key == "TRANSPOSE":
        return _moved(values[0], made[0])
    if key in FILLING:
        return 1
    if key in REPEATING:
        return math.prod(made[0]) / _run(values[0], made[0])
    if key in COPYING:
        return sum(
            min(math.prod(one), math.prod(other)) / _run(one, other)
            for one in values
            for other in made
        )
    return math.prod(made[0]) / min(_alike(one, made[0]) for one in read)


def _known(operands: Iterable[Operand]) -> list[Sizes] | None:
    """The shapes of *operands*; None if one is known only during a run."""
    shapes = [static_shape(operand.shape) for operand in operands]
    known = [shape for shape in shapes if shape is not None]
    return known if len(known) == len(shapes) else None


def _run(given: Sizes, made: Sizes) -> int:
    """Elements that lie in a row in both shapes, where one is a part of the other."""
    run = 1
    for one, other in zip(reversed(given), reversed(made), strict=False):
        run *= min(one, other)
        if one != other:
            break
    return max(1, run)


def _alike(given: Sizes, made: Sizes) -> int:
    """Elements of the result in a row for which an operand is read in a row, or one element of it
    is repeated.
    """
    own = (1,) * (len(made) - len(given)) + given
    run, repeats = 1, None
    for size, wanted in zip(reversed(own), reversed(made), strict=True):
        if wanted == 1:
            continue
        if repeats not in {None, size == 1}:
            break
        repeats = size == 1
        run *= wanted
    return max(1, run)


def _moved(given: Sizes, made: Sizes) -> float:
    blocks = _blocks(given, made)
    elements = math.prod(given)
    if blocks and blocks[-1][0] == len(blocks) - 1:
        return elements / max(1, blocks[-1][1])
    return elements


def _blocks(given: Sizes, made: Sizes) -> list[tuple[int, int]]:
    """The transposition from *given* to *made* as blocks of axes that stay together: for each block
    of the result, its place in *given* among the blocks, and its elements.

    Axes of one element do not count. Axes of the same extent are taken in order.
    """
    sizes = [size for size in given if size != 1]
    free = list(range(len(sizes)))
    order: list[int] = []
    for size in (size for size in made if size != 1):
        axis = next((axis for axis in free if sizes[axis] == size), None)
        if axis is None:
            return []
        free.remove(axis)
        order.append(axis)
    starts: list[list[int]] = []
    for axis in order:
        if starts and starts[-1][-1] + 1 == axis:
            starts[-1].append(axis)
        else:
            starts.append([axis])
    places = sorted(block[0] for block in starts)
    return [(places.index(block[0]), math.prod(sizes[axis] for axis in block)) for block in starts]
