"""A tensor with a block replaced: DYNAMIC_UPDATE_SLICE, and what StableHLO's shares with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from penstock.compiler.expression import Scope
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.elementwise import I32, MOVED
from penstock.compiler.program import Access, Position, along
from penstock.driverkit.site import require
from penstock.ir import DType

STARTS: Final = frozenset({DType.INT32, DType.INT64})


@legal("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(operation: Operation) -> None:
    """The operand with a block replaced, at a start that is clamped so that the block fits."""
    site = operation.site
    dtype = site.output().dtype
    require({site.input(0).dtype, site.input(1).dtype} == {dtype} <= MOVED, "types of this update")
    scales = {site.input(0).quantization, site.input(1).quantization, site.output().quantization}
    require(len(scales) == 1, "an update of another scale")
    whole, block, places = site.shapes()
    require(places == (len(whole),) and len(block) == len(whole), "an update of another rank")
    require(site.output_shape() == whole, "a result of another shape")
    require(all(b <= w for b, w in zip(block, whole, strict=True)), "an update that does not fit")
    require(site.input(2).dtype in STARTS, "starts of this type")
    if site.input(2).is_constant:
        first = [
            min(max(start, 0), w - b)
            for start, w, b in zip(site.integers(2, "its start"), whole, block, strict=True)
        ]
        replace_block(operation, whole, block, first)
    else:
        starts = operation.tensor(2)
        begins = [Access(starts, (Position(axis),)) for axis in range(len(whole))]
        choose_block(operation, whole, block, begins)


def replace_block(
    operation: Operation, whole: Sequence[int], block: Sequence[int], first: Sequence[int]
) -> None:
    """The output: input 0 of the shape *whole*, with input 1 of the shape *block* at *first*, where
    it fits. Copies the block, and what lies around it.
    """
    build, target = operation.build, operation.target()
    places = tuple(Position(f, ((loop, 1),)) for loop, f in enumerate(first))
    update = Access(operation.tensor(1), along(*range(len(block))))
    build.copy("update", update, Access(target, places), block)
    for begins, sizes in _around(whole, block, first):
        axes = tuple(Position(b, ((loop, 1),)) for loop, b in enumerate(begins))
        build.copy("keep", Access(operation.tensor(0), axes), Access(target, axes), sizes)


def _around(
    whole: Sequence[int], block: Sequence[int], first: Sequence[int]
) -> Iterator[tuple[list[int], list[int]]]:
    """(begins, sizes) of the blocks that lie around a block: before and behind it along each axis,
    where it lies along the axes before.
    """
    for axis, (size, length, begin) in enumerate(zip(whole, block, first, strict=True)):
        behind = begin + length
        for start, count in ((0, begin), (behind, size - behind)):
            if count:
                begins = [*first[:axis], start, *(0 for _ in whole[axis + 1 :])]
                yield begins, [*block[:axis], count, *whole[axis + 1 :]]


def choose_block(
    operation: Operation, whole: Sequence[int], block: Sequence[int], begins: Sequence[Access]
) -> None:
    """As `replace_block`, where only a run knows the numbers *begins*, one for each axis: takes
    each element from the block or from the operand.
    """
    dtype, rank = operation.site.output().dtype, len(whole)
    positions, flags = list(along(*range(rank))), []
    for axis in range(rank):
        if block[axis] < whole[axis]:
            places, inside = _along(operation, begins[axis], whole[axis], block[axis])
            positions[axis] = Position(0, ((axis, 1),), places)
            flags.append(Access(inside, along(axis)))
    x = operation.whole(operation.tensor(0))
    reads = [x, Access(operation.tensor(1), tuple(positions)), *flags]
    scope = Scope(dtype, dtype, *[DType.BOOL] * len(flags))
    result = scope.argument(1)
    for number in range(len(flags)):
        result = scope.select(scope.argument(2 + number), result, scope.argument(0))
    target = operation.target()
    operation.build.emit("update", whole, reads, scope.finish(result), operation.whole(target))


def _along(operation: Operation, begin: Access, size: int, length: int) -> tuple[int, int]:
    """Two vectors: which position of the block each position of an axis is, and whether it is."""
    build = operation.build
    every = build.constant(I32, (size,), lambda: np.arange(size))
    reads = [Access(every, along(0)), begin]

    def emit(name: str, *, inside: bool) -> int:
        scope = Scope(I32, build.tensors[begin.tensor].dtype)
        first = scope.argument(1).clamp(0, size - length).cast(I32)
        place = scope.argument(0) - first
        made = place.clamp(0, length - 1)
        if inside:
            made = scope.compare("equal", made, place)
        target = build.tensor(made.dtype, (size,))
        build.emit(name, (size,), reads, scope.finish(made), Access(target, along(0)))
        return target

    return emit("places", inside=False), emit("inside", inside=True)
