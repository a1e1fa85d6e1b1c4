"""StableHLO operations that move elements, or make them from their positions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from penstock.compiler.expression import Scope
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.elementwise import I32, MOVED
from penstock.compiler.legalise.moving import check_moved, copy, permute, through
from penstock.compiler.legalise.shapes import write_constant
from penstock.compiler.legalise.updating import STARTS, choose_block, replace_block
from penstock.compiler.program import Access, Position, along
from penstock.driverkit.site import require
from penstock.ir import DType, NDArray


@legal("STABLEHLO_RESHAPE")
def reshape(operation: Operation) -> None:
    """The same elements in the shape of the result."""
    site = operation.site
    require(
        math.prod(site.shape()) == math.prod(site.output_shape()), "a reshape of other elements"
    )
    require(site.input().dtype is site.output().dtype in MOVED, "types of this reshape")
    operation.rename(operation.tensor())


@legal("STABLEHLO_TRANSPOSE")
def transpose(operation: Operation) -> None:
    """Dimension i of the result is dimension permutation[i] of the operand."""
    check_moved(operation)
    permute(operation, operation.site.attributes.integers("permutation"))


@legal("STABLEHLO_BROADCAST_IN_DIM")
def broadcast_in_dim(operation: Operation) -> None:
    """Dimension i of the operand becomes dimension broadcast_dimensions[i], repeated if its size is
    1.
    """
    check_moved(operation)
    places = operation.site.attributes.integers("broadcast_dimensions")
    shape = operation.site.shape()
    positions = tuple(
        Position() if size == 1 else along(place)[0]
        for size, place in zip(shape, places, strict=True)
    )
    copy(operation, Access(operation.tensor(), positions))


@legal("STABLEHLO_CONCATENATE")
def concatenate(operation: Operation) -> None:
    """The operands one behind the other along a dimension, a copy each."""
    check_moved(operation)
    axis, target = operation.site.attributes.integer("dimension"), operation.target()
    start = 0
    for number in range(len(operation.site.inputs)):
        source = operation.tensor(number)
        loops = operation.shape(source)
        places = list(along(*range(len(loops))))
        places[axis] = Position(start, ((axis, 1),))
        operation.build.copy("join", operation.whole(source), Access(target, tuple(places)), loops)
        start += loops[axis]


@legal("STABLEHLO_SLICE")
def static_slice(operation: Operation) -> None:
    """Every stride-th element from a start to a limit in each dimension."""
    check_moved(operation)
    attributes = operation.site.attributes
    starts, strides = (attributes.integers(name) for name in ("start_indices", "strides"))
    positions = tuple(
        Position(start, ((loop, stride),))
        for loop, (start, stride) in enumerate(zip(starts, strides, strict=True))
    )
    copy(operation, Access(operation.tensor(), positions))


@legal("STABLEHLO_PAD")
def pad(operation: Operation) -> None:
    """A scalar between adjacent elements and at the edges; negative paddings crop."""
    site = operation.site
    dtype = site.output().dtype
    require(site.input().dtype is site.input(1).dtype is dtype in MOVED, "types of this padding")
    require(site.shape(1) == () and 0 not in site.shape(), "an empty operand, or several values")
    low, interior = (
        site.attributes.integers(name) for name in ("edge_padding_low", "interior_padding")
    )
    if any(interior) or not site.input(1).is_constant:
        _pad_by_choice(operation, low, interior)
        return
    value = site.value(1, "its padding value").item()
    positions = tuple(Position(-before, ((loop, 1),)) for loop, before in enumerate(low))
    fill = float(value) if dtype.is_float else value
    copy(operation, Access(operation.tensor(), positions, fill))


def _pad_by_choice(operation: Operation, low: Sequence[int], interior: Sequence[int]) -> None:
    """Takes each element from the operand, or from the padding value where none stands."""
    site, build = operation.site, operation.build
    dtype, made = site.output().dtype, site.output_shape()
    scope = Scope(dtype, dtype, *[DType.BOOL] * len(made))
    result, flags, positions = scope.argument(0), [], []
    sizes = zip(made, site.shape(), low, interior, strict=True)
    for loop, (count, size, before, holes) in enumerate(sizes):
        places, left = np.divmod(np.arange(count) - before, holes + 1)
        held = (left == 0) & (places >= 0) & (places < size)
        positions.append(through(operation, np.clip(places, 0, size - 1).tolist(), loop))
        flags.append(Access(_constant(operation, held), along(loop)))
        result = scope.select(scope.argument(2 + loop), result, scope.argument(1))
    reads = [
        Access(operation.tensor(), tuple(positions)),
        Access(operation.tensor(1), ()),
        *flags,
    ]
    target = operation.whole(operation.target())
    build.emit("stablehlo_pad", made, reads, scope.finish(result), target)


def _constant(operation: Operation, flags: NDArray) -> int:
    return operation.build.constant(DType.BOOL, flags.shape, lambda: flags)


@legal("STABLEHLO_IOTA")
def iota(operation: Operation) -> None:
    """0, 1, 2, ... along one dimension of the result."""
    site = operation.site
    shape, axis = site.output_shape(), site.attributes.integer("iota_dimension")
    require(0 <= axis < len(shape), "an iota along a dimension that is not there")
    sizes = [size if at == axis else 1 for at, size in enumerate(shape)]
    steps = np.arange(shape[axis]).astype(site.output().dtype.numpy).reshape(sizes)
    write_constant(operation, np.broadcast_to(steps, shape))


def starts_of(operation: Operation, first: int) -> list[Access]:
    """The start indices, scalars from input *first* on."""
    site = operation.site
    count = len(site.inputs)
    for number in range(first, count):
        given = site.input(number)
        require(given.dtype in STARTS and site.shape(number) == (), "start indices of this type")
    return [Access(operation.tensor(number), ()) for number in range(first, count)]


def known_starts(
    operation: Operation, first: int, whole: Sequence[int], block: Sequence[int]
) -> list[int] | None:
    """The start indices, clamped so that the block fits; None if only a run knows them."""
    site = operation.site
    if not all(site.input(at).is_constant for at in range(first, len(site.inputs))):
        return None
    starts = [site.integers(first + axis, "a start index")[0] for axis in range(len(whole))]
    return [min(max(s, 0), w - b) for s, w, b in zip(starts, whole, block, strict=True)]


@legal("STABLEHLO_DYNAMIC_SLICE")
def dynamic_slice(operation: Operation) -> None:
    """A block of given sizes from start indices, clamped so that it fits."""
    site = operation.site
    require(site.input().dtype is site.output().dtype in MOVED, "types of this slice")
    whole, block = site.shape(), site.output_shape()
    begins = starts_of(operation, 1)
    require(len(begins) == len(block) == len(whole), "start indices of another rank")
    known = known_starts(operation, 1, whole, block)
    positions = tuple(
        Position(known[axis], ((axis, 1),)) if known else from_start(operation, axis, *sizes)
        for axis, sizes in enumerate(zip(begins, whole, block, strict=True))
    )
    copy(operation, Access(operation.tensor(), positions))


def from_start(operation: Operation, axis: int, begin: Access, whole: int, size: int) -> Position:
    """*size* positions from a start on that only a run knows."""
    if whole == size:
        return along(axis)[0]
    build = operation.build
    every = build.constant(I32, (size,), lambda: np.arange(size))
    scope = Scope(I32, build.tensors[begin.tensor].dtype)
    first = scope.argument(1).clamp(0, whole - size).cast(I32)
    target = build.tensor(I32, (size,))
    body, reads = scope.finish(scope.argument(0) + first), [Access(every, along(0)), begin]
    build.emit("places", (size,), reads, body, Access(target, along(0)))
    return Position(0, ((axis, 1),), target)


@legal("STABLEHLO_DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(operation: Operation) -> None:
    """The operand with a block replaced at start indices, clamped so that it fits."""
    site = operation.site
    dtype = site.output().dtype
    require(site.input(0).dtype is site.input(1).dtype is dtype in MOVED, "types of this update")
    whole, block = site.shape(0), site.shape(1)
    begins = starts_of(operation, 2)
    require(len(begins) == len(block) == len(whole), "start indices of another rank")
    require(all(b <= w for b, w in zip(block, whole, strict=True)), "an update that does not fit")
    known = known_starts(operation, 2, whole, block)
    if known is None:
        choose_block(operation, whole, block, begins)
    else:
        replace_block(operation, whole, block, known)
