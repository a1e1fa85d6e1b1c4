"""Operations that move elements: reshapes, slices, joins, padding, transposes, resizes, lookups.

A reshape is an alias. A join is a copy a part, at its offset. Everything else is one copy whose
positions say where each element comes from.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from penstock.compiler.expression import Scope
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.elementwise import MOVED
from penstock.compiler.legalise.quantised import integer_range, scale_of
from penstock.compiler.program import Access, Position, along
from penstock.driverkit.checks import axis_of
from penstock.driverkit.moving import (
    join_axis,
    moved_operands,
    order_of,
    split_of,
)
from penstock.driverkit.site import require
from penstock.ir import DType, Operand

WITH_ZERO_POINT = frozenset({DType.INT8, DType.UINT8, DType.INT16})
"""Types whose padding is the stored value of 0."""


def check_moved(operation: Operation) -> None:
    """Refuses operands of types that no kernel moves, and of other scales than the result's."""
    site = operation.site
    for operand in moved_operands(site):
        require(operand.dtype is site.output().dtype, "a result of another type")
        require(operand.dtype in MOVED, f"{operand.dtype.value} values are not moved here")


def copy(operation: Operation, source: Access, target: int | None = None) -> None:
    """Adds the copy of *source* to the output, a loop for each of its axes."""
    written = operation.target() if target is None else target
    name = operation.site.operation.type.lower()
    operation.build.copy(name, source, operation.whole(written), operation.shape(written))


@legal("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
def reshape(operation: Operation) -> None:
    site = operation.site
    size = math.prod(site.shape()) == math.prod(site.output_shape())
    require(size and site.input().dtype is site.output().dtype, "a reshape of other elements")
    require(site.input().dtype in MOVED | {DType.COMPLEX64}, "types of this reshape")
    operation.rename(operation.tensor())


@legal("TRANSPOSE")
def transpose(operation: Operation) -> None:
    check_moved(operation)
    permute(operation, order_of(operation.site))


def permute(operation: Operation, order: Sequence[int]) -> None:
    """Adds the copy whose axis i is axis order[i] of input 0."""
    source = [Position()] * len(order)
    for loop, axis in enumerate(order):
        source[axis] = along(loop)[0]
    copy(operation, Access(operation.tensor(), tuple(source)))


@legal("CONCATENATION", "PACK")
def join(operation: Operation) -> None:
    """The inputs one behind the other along an axis; uint8 ones rescaled to the result."""
    check_moved(operation)
    site = operation.site
    axis, target = join_axis(site), operation.target()
    rank, start = len(operation.shape(target)), 0
    for position in range(len(site.inputs)):
        source = operation.tensor(position)
        if site.operation.type == "PACK":
            shape = operation.shape(source)
            source = operation.build.alias((*shape[:axis], 1, *shape[axis:]), source)
        loops = operation.shape(source)
        places = list(along(*range(rank)))
        places[axis] = Position(start, ((axis, 1),))
        write = Access(target, tuple(places))
        _copy_part(operation, position, source, write, loops)
        start += loops[axis]


def _copy_part(
    operation: Operation, position: int, source: int, write: Access, loops: Sequence[int]
) -> None:
    site = operation.site
    given, made = site.input(position).quantization, site.output().quantization
    dtype = site.output().dtype
    rescales = dtype in {DType.UINT8, DType.INT8} and given != made and given and made
    if not rescales or site.operation.type == "PACK":
        operation.build.copy("join", operation.whole(source), write, loops)
        return
    first, last = scale_of(site.input(position), "an input"), scale_of(site.output(), "a result")
    if (first.scale, first.zero_point) == (last.scale, last.zero_point):
        operation.build.copy("join", operation.whole(source), write, loops)
        return
    require(dtype is DType.UINT8, f"parts of {dtype.value} in another scale than the result's")
    scale = np.float32(first.scale) * (np.float32(1) / np.float32(last.scale))
    bias = np.float32(-first.zero_point) * scale
    scope = Scope(dtype)
    real = scope.argument(0).cast(DType.FLOAT32) * float(scale) + float(bias)
    low, high = integer_range(dtype)
    whole = real.apply("round_away") + float(last.zero_point)
    result = scope.finish(whole.clamp(float(low), float(high)).cast(dtype))
    operation.build.emit("join", loops, [operation.whole(source)], result, write)


@legal("SPLIT", "SPLIT_V", "UNPACK")
def split(operation: Operation) -> None:
    """Parts along an axis, a copy each."""
    check_moved(operation)
    site = operation.site
    data, axis = split_of(site)
    source, start = operation.tensor(data), 0
    shape = operation.shape(source)
    for index in range(len(site.outputs)):
        target = operation.target(index)
        if site.operation.type == "UNPACK":
            full = operation.build.tensor(
                site.output().dtype, (*shape[:axis], 1, *shape[axis + 1 :])
            )
            operation.build.aliases[target] = full
            target = full
        places = list(along(*range(len(shape))))
        places[axis] = Position(start, ((axis, 1),))
        copy(operation, Access(source, tuple(places)), target)
        start += operation.shape(target)[axis]


def through(operation: Operation, chosen: Sequence[int], loop: int) -> Position:
    """The positions *chosen*, one for each value of *loop*."""
    table = np.asarray(chosen, np.int32)
    steps = set(np.diff(table).tolist())
    if len(table) == 1 or len(steps) == 1:
        return Position(int(table[0]), ((loop, steps.pop()),) if steps else ())
    constant = operation.build.constant(DType.INT32, table.shape, lambda: table)
    return Position(0, ((loop, 1),), constant)


@legal("TILE")
def tile(operation: Operation) -> None:
    """The operand as often along each axis as its multiples say. These may be known only to a run,
    which fails if they are not those of the result's shape.
    """
    site = operation.site
    dtype = site.output().dtype
    require(site.input().dtype is dtype in MOVED, f"{dtype.value} values are not moved here")
    shape, made = site.shape(), site.output_shape()
    require(len(shape) == len(made) and 0 not in shape, "a result of another rank, or of nothing")
    counts = tuple(total // size for size, total in zip(shape, made, strict=True))
    fits = all(n * size == total for n, size, total in zip(counts, shape, made, strict=True))
    require(fits, "a result that is not the operand several times")
    fail_unless_equal(operation, 1, counts, f"multiples that are not {list(counts)}")
    pairs = [size for pair in zip(counts, shape, strict=True) for size in pair]
    written = operation.build.tensor(dtype, pairs)
    operation.build.aliases[operation.target()] = written
    copy(operation, Access(operation.tensor(), along(*range(1, len(pairs), 2))), written)


def fail_unless_equal(
    operation: Operation, position: int, wanted: Sequence[int], message: str
) -> None:
    """The run fails unless input *position* has the numbers *wanted*. A constant one is refused."""
    site = operation.site
    operand, count = site.input(position), len(wanted)
    require(operand.dtype in {DType.INT32, DType.INT64}, "sizes of another type")
    if operand.is_constant:
        require(site.integers(position, "sizes") == list(wanted), message)
        return
    require(math.prod(site.shape(position)) == count, "sizes of another rank")
    flat = operation.build.alias((count,), operation.tensor(position))
    numbers = operation.build.constant(operand.dtype, (count,), lambda: np.array(wanted))
    scope = Scope(operand.dtype, operand.dtype)
    wrong = scope.compare("equal", scope.argument(0), scope.argument(1)).apply("not")
    place = f"operation {site.index} ({site.operation.key}): {message}"
    reads = [operation.whole(flat), operation.whole(numbers)]
    operation.build.fail_where(place, reads, scope.finish(wrong))


@legal("BROADCAST_TO")
def broadcast_to(operation: Operation) -> None:
    check_moved(operation)
    copy(operation, operation.broadcast(operation.tensor(), len(operation.site.output_shape())))


@legal("REVERSE_V2")
def reverse(operation: Operation) -> None:
    check_moved(operation)
    shape = operation.site.shape()
    axes = {axis_of(a, len(shape)) for a in operation.site.integers(1, "its axes")}
    positions = tuple(
        Position(size - 1, ((loop, -1),)) if loop in axes else along(loop)[0]
        for loop, size in enumerate(shape)
    )
    copy(operation, Access(operation.tensor(), positions))


@legal("SPACE_TO_DEPTH", "DEPTH_TO_SPACE")
def blocks(operation: Operation) -> None:
    """Blocks of pixels become channels, or channels blocks of pixels."""
    check_moved(operation)
    site = operation.site
    block = site.attributes.integer("block_size")
    inward = site.operation.type == "SPACE_TO_DEPTH"
    small = site.output_shape() if inward else site.shape()
    large = site.shape() if inward else site.output_shape()
    batch, height, width, _ = small
    depth = large[3]
    require(large[1:3] == (height * block, width * block), "an image that is not in whole blocks")
    dtype = site.output().dtype
    split_up = (batch, height, block, width, block, depth)
    together = (batch, height, width, block, block, depth)
    source = operation.build.alias(split_up if inward else together, operation.tensor())
    written = operation.build.tensor(dtype, together if inward else split_up)
    operation.build.aliases[operation.target()] = written
    order = (0, 1, 3, 2, 4, 5)
    copy(operation, Access(source, along(*order)), written)


def stored_zero(operand: Operand) -> int:
    """What *operand* is padded with: the stored value of 0. Types without a zero point have 0, and
    so have scales for each channel, as in the reference.
    """
    quantization = operand.quantization
    if operand.dtype not in WITH_ZERO_POINT or quantization is None or quantization.per_channel:
        return 0
    return quantization.zero_point


@legal("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND")
def batches(operation: Operation) -> None:
    """Blocks of pixels become batches, with padding; or batches blocks of pixels, cropped."""
    site = operation.site
    data, made = site.shape(), site.output_shape()
    sizes, edges = site.integers(1, "its block"), site.integers(2, "its padding")
    count = len(sizes)
    require(site.input().dtype is site.output().dtype in MOVED, "types of this operation")
    require(len(edges) == 2 * count < 2 * len(data), "a block of another rank")
    inward = site.operation.type == "SPACE_TO_BATCH_ND"
    blocks_, rest = math.prod(sizes), (made if inward else data)[1 + count :]
    small = made if inward else data
    batch = small[0] // blocks_
    source, target = operation.tensor(), operation.target()
    grid = small[1 : 1 + count]
    split_up = (*sizes, batch, *grid, *rest)
    zero = stored_zero(site.output())
    if inward:
        written = operation.build.tensor(site.output().dtype, split_up)
        operation.build.aliases[target] = written
        space = tuple(
            Position(-edges[2 * i], ((count + 1 + i, sizes[i]), (i, 1))) for i in range(count)
        )
        tail = along(*range(2 * count + 1, len(split_up)))
        positions = (*along(count), *space, *tail)
        fill = float(zero) if site.output().dtype.is_float else zero
        copy(operation, Access(source, positions, fill), written)
        return
    shaped = operation.build.alias(split_up, source)
    _interleave(operation, shaped, target, sizes, edges)


def _interleave(
    operation: Operation, source: int, target: int, sizes: Sequence[int], edges: Sequence[int]
) -> None:
    """A copy for each position within a block, of the pixels that are not cropped."""
    count, made = len(sizes), operation.shape(target)
    grid = operation.shape(source)[count + 1 : 2 * count + 1]
    for offsets in itertools.product(*(range(s) for s in sizes)):
        first, loops = [], []
        for i, offset in enumerate(offsets):
            low = max(0, -(-(edges[2 * i] - offset) // sizes[i]))
            high = min(grid[i], -(-(made[1 + i] + edges[2 * i] - offset) // sizes[i]))
            first.append(low)
            loops.append(max(0, high - low))
        if 0 in loops:
            continue
        read = (
            *(Position(o) for o in offsets),
            *along(0),
            *(Position(low, ((1 + i, 1),)) for i, low in enumerate(first)),
            *along(*range(1 + count, len(made))),
        )
        write = (
            *along(0),
            *(
                Position(low * sizes[i] + offsets[i] - edges[2 * i], ((1 + i, sizes[i]),))
                for i, low in enumerate(first)
            ),
            *along(*range(1 + count, len(made))),
        )
        sizes_of_loops = (made[0], *loops, *made[1 + count :])
        operation.build.copy("batches", Access(source, read), Access(target, write), sizes_of_loops)


@legal("CHANNEL_SHUFFLE")
def channel_shuffle(operation: Operation) -> None:
    """Channel g * n + i, of n in each group, moves to position i * groups + g."""
    site = operation.site
    shape, groups = site.shape(), site.attributes.integer("groups")
    axis = axis_of(site.attributes.integer("axis"), len(shape))
    same = site.input().quantization == site.output().quantization
    require(site.input().dtype is site.output().dtype in MOVED and same, "types of this operation")
    require(groups > 0 and shape[axis] % groups == 0, f"{groups} groups of {shape[axis]} channels")
    each = shape[axis] // groups
    before, after = shape[:axis], shape[axis + 1 :]
    source = operation.build.alias((*before, groups, each, *after), operation.tensor())
    written = operation.build.tensor(site.output().dtype, (*before, each, groups, *after))
    operation.build.aliases[operation.target()] = written
    order = [*range(axis), axis + 1, axis, *range(axis + 2, len(shape) + 1)]
    copy(operation, Access(source, along(*order)), written)
