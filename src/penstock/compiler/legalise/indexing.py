"""Elements chosen by index: gathers at constant and at computed positions, and lookups of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from penstock.compiler.expression import Scope, Value
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.elementwise import F32, I32, I64, MOVED
from penstock.compiler.legalise.moving import copy, through
from penstock.compiler.legalise.quantised import NARROW
from penstock.compiler.program import Access, Position, along
from penstock.driverkit.checks import axis_of
from penstock.driverkit.site import Refused, require
from penstock.ir import DType

I8 = DType.INT8


def flat_steps(shape: Sequence[int], loops: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The steps of loops, one for each axis of a row-major tensor, through its elements."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return tuple(sorted((loop, stride) for loop, stride in zip(loops, strides, strict=True)))


def indexes(operation: Operation, position: int, size: int) -> int:
    """The indexes at input *position* as a vector of int32. The run fails if one is outside an axis
    of *size* elements; constant ones are refused.
    """
    operation.fail_if(
        position,
        f"an index outside 0..{size - 1}",
        lambda i: (i < 0).apply("or", (i < size).apply("not")),
    )
    return whole_numbers(operation, position)


def whole_numbers(operation: Operation, position: int) -> int:
    """The integers at input *position* as a vector of int32."""
    site, build = operation.site, operation.build
    operand = site.input(position)
    shape = site.shape(position)
    flat = (math.prod(shape),)
    require(operand.dtype in {I32, I64, DType.INT16}, f"indexes of {operand.dtype.value}")
    if operand.is_constant:
        model = site.model
        return build.constant(I32, flat, lambda: model.constant(operand).reshape(-1))
    source = build.alias(flat, operation.tensor(position))
    if operand.dtype is I32:
        return source
    made = build.tensor(I32, flat)
    scope = Scope(operand.dtype)
    body = scope.finish(scope.argument(0).cast(I32))
    operation.elementwise("indexes", body, [source], made)
    return made


@legal("GATHER")
def gather(operation: Operation) -> None:
    """The slices at given positions along an axis; leading batch dimensions are shared."""
    site = operation.site
    shape, chosen = site.shape(), _shape(operation, 1)
    axis = axis_of(site.attributes.integer("axis"), len(shape))
    batches = int(str(site.attributes.get("batch_dims", 0) or 0))
    shared = batches + len(chosen) if batches < 0 else batches
    fits = 0 <= shared <= min(axis, len(chosen)) and shape[:shared] == chosen[:shared]
    require(fits, f"{shared} batch dimensions along axis {axis}")
    require(site.input().dtype is site.output().dtype in MOVED, "types of this operation")
    loops = (*shape[:axis], *chosen[shared:], *shape[axis + 1 :])
    written = operation.build.tensor(site.output().dtype, loops)
    operation.build.aliases[operation.target()] = written
    inner = len(chosen) - shared
    places = [*along(*range(axis)), Position(), *along(*range(axis + inner, len(loops)))]
    if site.input(1).is_constant and len(chosen) == 1 and not shared:
        flat = site.value(1, "its positions").reshape(-1).astype(np.int64)
        inside = ((flat >= 0) & (flat < shape[axis])).all()
        require(inside, "positions outside the operand")
        places[axis] = through(operation, flat.tolist(), axis)
    else:
        table = indexes(operation, 1, shape[axis])
        steps = flat_steps(chosen, [*range(shared), *range(axis, axis + inner)])
        places[axis] = Position(0, steps, table)
    copy(operation, Access(operation.tensor(), tuple(places)), written)


def _shape(operation: Operation, position: int) -> tuple[int, ...]:
    """The shape of an input, which has elements."""
    return operation.site.shape(position)


@legal("GATHER_ND")
def gather_nd(operation: Operation) -> None:
    """The elements or slices at index vectors, the last dimension of the indexes."""
    site = operation.site
    shape, chosen = site.shape(), site.shape(1)
    require(len(chosen) > 0, "indexes without dimensions")
    depth, outer = chosen[-1], chosen[:-1]
    require(depth <= len(shape), f"indexes of {depth} numbers into {len(shape)} dimensions")
    require(site.input().dtype is site.output().dtype in MOVED, "types of this operation")
    table = whole_numbers(operation, 1)
    _check_vectors(operation, 1, shape[:depth])
    loops = (*outer, *shape[depth:])
    written = operation.build.tensor(site.output().dtype, loops)
    operation.build.aliases[operation.target()] = written
    steps = tuple((loop, stride * depth) for loop, stride in flat_steps(outer, range(len(outer))))
    places = [Position(number, steps, table) for number in range(depth)]
    rest = along(*range(len(outer), len(loops)))
    copy(operation, Access(operation.tensor(), (*places, *rest)), written)


def _check_vectors(operation: Operation, position: int, sizes: Sequence[int]) -> None:
    """The run fails if a component of an index vector is outside its axis, one of *sizes*."""
    site = operation.site
    operand = site.input(position)
    if operand.is_constant:
        values = site.value(position, "its indexes")
        require(((values >= 0) & (values < np.array(sizes))).all(), "an index outside the operand")
        return
    source = operation.tensor(position)
    dtype = operand.dtype
    limits = operation.build.constant(dtype, (len(sizes),), lambda: np.array(sizes))
    scope = Scope(dtype, dtype)
    index, size = scope.argument(0), scope.argument(1)
    wrong = scope.finish((index < 0).apply("or", (index < size).apply("not")))
    last = len(operation.shape(source)) - 1
    place = f"operation {site.index} ({site.operation.key}): an index outside the operand"
    reads = [operation.whole(source), Access(limits, along(last))]
    operation.build.fail_where(place, reads, wrong)


@legal("EMBEDDING_LOOKUP")
def embedding_lookup(operation: Operation) -> None:
    """The rows that ids name; rows of int8 and uint8 are dequantised by the scale of the table, or
    of the row.
    """
    site = operation.site
    require(not site.has(2), "scales of blocks")
    ids, table = site.shape(0), site.shape(1)
    source, made = site.input(1), site.output()
    names = indexes(operation, 0, table[0])
    loops = (math.prod(ids), *table[1:])
    written = operation.build.tensor(made.dtype, loops)
    operation.build.aliases[operation.target()] = written
    row = Position(0, ((0, 1),), names)
    read = Access(operation.tensor(1), (row, *along(*range(1, len(loops)))))
    if source.dtype is made.dtype:
        require(made.dtype in MOVED, "types of this operation")
        copy(operation, read, written)
        return
    require(source.dtype in NARROW and made.dtype is F32, "types of this operation")
    quantization = source.quantization
    if quantization is None or any(quantization.zero_points):
        raise Refused("a table that is not symmetric")
    scales = np.array(quantization.scales, np.float32)
    require(scales.size in {1, table[0]}, f"{scales.size} scales of {table[0]} rows")
    reads = [read]
    scope = Scope(source.dtype, F32) if scales.size > 1 else Scope(source.dtype)
    row_value = scope.argument(0)
    # Weights of uint8 are the bytes of int8 weights.
    value = (row_value.bitcast(I8) if source.dtype is DType.UINT8 else row_value).cast(F32)
    if scales.size > 1:
        reads.append(Access(operation.build.constant(F32, scales.shape, lambda: scales), (row,)))
        value = value * scope.argument(1)
    else:
        value = value * float(scales[0])
    result = scope.finish(value)
    operation.build.emit("rows", loops, reads, result, operation.whole(written))


def counted(operation: Operation, size: int, dtype: DType = I32) -> int:
    """The vector 0, 1, ... of *size* numbers."""
    return operation.build.constant(dtype, (size,), lambda: np.arange(size))


@legal("ONE_HOT")
def one_hot(operation: Operation) -> None:
    """A new dimension with one value at the index's position, and another elsewhere."""
    site = operation.site
    made = site.output_shape()
    axis = axis_of(site.attributes.integer("axis"), len(made))
    require(site.integers(1, "its depth") == [made[axis]], "a result of another depth")
    index, dtype = site.input().dtype, site.output().dtype
    require(index in {I32, I64}, f"indexes of {index.value}")
    require(site.input(2).dtype is site.input(3).dtype is dtype in MOVED, "types of this operation")
    numbers = counted(operation, made[axis], index)
    scope = Scope(index, index, dtype, dtype)
    same = scope.compare("equal", scope.argument(0), scope.argument(1))
    result = scope.finish(scope.select(same, scope.argument(2), scope.argument(3)))
    others = [loop for loop in range(len(made)) if loop != axis]
    values = [operation.tensor(i) for i in (2, 3)]
    reads = [
        Access(operation.tensor(), along(*others)),
        Access(numbers, along(axis)),
        *(Access(v, (Position(),) * len(operation.shape(v))) for v in values),
    ]
    operation.build.emit("one_hot", made, reads, result, operation.whole(operation.target()))


MOST: int = 2**31 - 1

BYTE_INDEXES: int = 1 << 8
"""As many indexes as 8 bits hold."""


@legal("ARG_MAX", "ARG_MIN")
def arg_extreme(operation: Operation) -> None:
    """The index of the first greatest or least value along an axis; NaN is ignored."""
    site = operation.site
    shape, dtype, made = site.shape(), site.input().dtype, site.output().dtype
    axes = site.integers(1, "its axis")
    require(len(axes) == 1, f"{len(axes)} axes")
    axis = axis_of(axes[0], len(shape))
    require(made in {I32, I64}, "types of this reduction")
    accepted = {F32, I32, I64, DType.BOOL, DType.INT16, *NARROW}
    require(dtype in accepted, "types of this reduction")
    kept = [a for a in range(len(shape)) if a != axis]
    loops, last = tuple(shape[a] for a in kept), len(kept)
    numbers = {a: loop for loop, a in enumerate([*kept, axis])}
    read = Access(operation.tensor(), along(*(numbers[a] for a in range(len(shape)))))
    best = I32 if dtype is DType.BOOL else dtype
    build, row = operation.build, along(*range(last))
    if dtype in NARROW and shape[axis] <= BYTE_INDEXES:
        _arg_extreme_of_bytes(operation, read, loops, shape[axis])
        return
    extremes = build.tensor(best, loops)
    scope = Scope(dtype)
    body = scope.finish(scope.argument(0).cast(best))
    greatest = site.operation.type == "ARG_MAX"
    build.emit(
        "extreme", loops, [read], body, Access(extremes, row), reduced=(shape[axis],),
        combine="maximum" if greatest else "minimum",
    )  # fmt: skip
    scope = Scope(dtype, best, I32)
    same = scope.compare("equal", scope.argument(0).cast(best), scope.argument(1))
    body = scope.finish(scope.select(same, scope.argument(2), MOST))
    finish = Scope(I32)
    first = finish.argument(0)
    # Rows of NaN alone have no extreme: the first place.
    found = finish.select(finish.compare("equal", first, MOST), finish.constant(0, I32), first)
    written = build.tensor(made, loops)
    build.aliases[operation.target()] = written
    counts = Access(counted(operation, shape[axis]), along(last))
    build.emit(
        "arg_extreme", loops, [read, Access(extremes, row), counts], body, Access(written, row),
        reduced=(shape[axis],), combine="minimum", sums=I32, finish=finish.finish(found.cast(made)),
    )  # fmt: skip


def _arg_extreme_of_bytes(
    operation: Operation, read: Access, loops: tuple[int, ...], size: int
) -> None:
    """The extreme of numbers of 16 bits: the value above the index, so that of equal values the
    first one is found.
    """
    build, dtype, wide = operation.build, operation.site.input().dtype, DType.UINT16
    greatest = operation.site.operation.type == "ARG_MAX"
    scope = Scope(dtype, wide)
    value = scope.argument(0)
    if dtype is DType.INT8:
        value = value.cast(DType.UINT8).apply("xor", 128)
    count = scope.argument(1)
    count = scope.constant(size - 1, wide) - count if greatest else count
    body = scope.finish(value.cast(wide).apply("shift_left", 8).apply("or", count))
    finish = Scope(wide)
    found = finish.argument(0).apply("and", 255)
    found = finish.constant(size - 1, wide) - found if greatest else found
    made = operation.site.output().dtype
    written = build.tensor(made, loops)
    build.aliases[operation.target()] = written
    counts = Access(counted(operation, size, wide), along(len(loops)))
    build.emit(
        "arg_extreme", loops, [read, counts], body, Access(written, along(*range(len(loops)))),
        reduced=(size,), combine="maximum" if greatest else "minimum", sums=wide,
        finish=finish.finish(found.cast(made)),
    )  # fmt: skip


MOST_SORTED: int = 1 << 12
"""The longest rows that are sorted by comparing all pairs."""


@legal("TOPK_V2")
def top_k(operation: Operation) -> None:
    """The k greatest of the last dimension, equal ones in order, and their indexes. NaN is last."""
    site = operation.site
    shape, dtype = site.shape(), site.input().dtype
    require(len(shape) > 0 and shape[-1] <= MOST_SORTED, "rows of this length")
    count = site.output_shape()[-1]
    require(site.integers(1, "how many") == [count], "a result of another length")
    require(site.output().dtype is dtype in MOVED - {DType.BOOL}, "types of this operation")
    rows, last, size = shape[:-1], len(shape) - 1, shape[-1]
    build, source = operation.build, operation.tensor()
    numbers = counted(operation, size)
    row = along(*range(last))

    def ordered(x: Value) -> Value:
        if not x.dtype.is_float:
            return x
        known = x.scope.compare("equal", x, x)
        return x.scope.select(known, x, float("-inf"))

    # How many elements come before each one.
    scope = Scope(dtype, dtype, I32, I32)
    other, this = ordered(scope.argument(0)), ordered(scope.argument(1))
    earlier = scope.argument(2) < scope.argument(3)
    ties = scope.compare("equal", other, this).apply("and", earlier)
    before = scope.finish((this < other).apply("or", ties).cast(I32))
    places = build.tensor(I32, shape)
    reads = [
        Access(source, (*row, *along(last + 1))), Access(source, (*row, *along(last))),
        Access(numbers, along(last + 1)), Access(numbers, along(last)),
    ]  # fmt: skip
    build.emit(
        "places", shape, reads, before, operation.whole(places), reduced=(size,), combine="sum",
        sums=I32,
    )  # fmt: skip
    # The element whose place is r.
    scope = Scope(I32, I32, I32)
    same = scope.compare("equal", scope.argument(0), scope.argument(1))
    body = scope.finish(scope.select(same, scope.argument(2), MOST))
    chosen = build.tensor(I32, (*rows, count))
    reads = [
        Access(places, (*row, *along(last + 1))),
        Access(numbers, along(last)),
        Access(numbers, along(last + 1)),
    ]
    build.emit(
        "order", (*rows, count), reads, body, operation.whole(chosen), reduced=(size,),
        combine="minimum", sums=I32,
    )  # fmt: skip
    flat = build.alias((math.prod((*rows, count)),), chosen)
    steps = flat_steps((*rows, count), range(last + 1))
    read = Access(source, (*row, Position(0, steps, flat)))
    build.copy("greatest", read, operation.whole(operation.target()), (*rows, count))
    target = operation.target(1)
    scope = Scope(I32)
    body = scope.finish(scope.argument(0).cast(site.output(1).dtype))
    operation.elementwise("indexes", body, [chosen], target)


@legal("REVERSE_SEQUENCE")
def reverse_sequence(operation: Operation) -> None:
    """For each index of a dimension, the first lengths[i] elements of another one are reversed."""
    site = operation.site
    shape = site.shape()
    axis, batch = (
        axis_of(site.attributes.integer(name), len(shape)) for name in ("seq_dim", "batch_dim")
    )
    require(axis != batch and site.shape(1) == (shape[batch],), "lengths of another dimension")
    require(site.input().dtype is site.output().dtype in MOVED, "types of this operation")
    size = shape[axis]
    operation.fail_if(1, f"a length over {size}", lambda n: n.scope.constant(size, n.dtype) < n)
    lengths, build = whole_numbers(operation, 1), operation.build
    scope = Scope(I32, I32)
    length, place = scope.argument(0), scope.argument(1)
    body = scope.finish(scope.select(place < length, length - 1 - place, place))
    places = build.tensor(I32, (shape[batch], size))
    reads = [Access(lengths, along(0)), Access(counted(operation, size), along(1))]
    build.emit("places", (shape[batch], size), reads, body, operation.whole(places))
    flat = build.alias((shape[batch] * size,), places)
    positions = list(along(*range(len(shape))))
    positions[axis] = Position(0, flat_steps((shape[batch], size), (batch, axis)), flat)
    copy(operation, Access(operation.tensor(), tuple(positions)))


MOST_SUMMED: int = 1 << 12
"""The longest axes along which running sums are computed."""


@legal("CUMSUM")
def cumulative_sum(operation: Operation) -> None:
    """The running sum along an axis; from the end, or without the element itself."""
    site = operation.site
    shape, dtype = site.shape(), site.input().dtype
    axes = site.integers(1, "its axis")
    axis = axis_of(axes[0], len(shape))
    require(dtype is site.output().dtype and dtype in {F32, I32, I64}, "types of this operation")
    require(shape[axis] <= MOST_SUMMED, "a running sum along an axis of this length")
    direction = 1 if site.flag("reverse") else -1
    inner = len(shape)
    positions = list(along(*range(inner)))
    first = direction if site.flag("exclusive") else 0
    positions[axis] = Position(first, ((axis, 1), (inner, direction)))
    fill = 0.0 if dtype is F32 else 0
    read = Access(operation.tensor(), tuple(positions), fill)
    scope = Scope(dtype)
    body = scope.finish(scope.argument(0))
    target = operation.whole(operation.target())
    operation.build.emit(
        "cumsum", shape, [read], body, target, reduced=(shape[axis],), combine="sum", sums=dtype
    )
