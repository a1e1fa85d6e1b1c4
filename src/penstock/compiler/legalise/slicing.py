"""Operations that cut blocks of elements out of a tensor, or surround it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.compiler.expression import Scope
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.elementwise import MOVED
from penstock.compiler.legalise.moving import check_moved, copy, stored_zero, through
from penstock.compiler.program import Access, Position, along
from penstock.driverkit.moving import bounds_of, pads_of
from penstock.driverkit.site import require
from penstock.ir import DType, NDArray


@legal("SLICE")
def slice_(operation: Operation) -> None:
    """The block at constant begins, of constant sizes."""
    check_moved(operation)
    bounds = bounds_of(operation.site)
    _copy_slice(operation, list(zip(bounds.begin, bounds.end, bounds.step, strict=True)))


MASKS: Final = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


@legal("STRIDED_SLICE")
def strided_slice(operation: Operation) -> None:
    """Every step-th element from begin to end of each axis. Masks are bits by position: open
    bounds, one ellipsis, new axes, and axes that are reduced to one element and removed.
    """
    site = operation.site
    dtype = site.output().dtype
    require(site.input().dtype is dtype in MOVED, f"{dtype.value} values are not moved here")
    shape = site.shape()
    begins, ends, steps = (
        site.integers(p, what) for p, what in ((1, "its begin"), (2, "its end"), (3, "its strides"))
    )
    open_begin, open_end, ellipsis, new_axis, shrink = (site.attributes.integer(m) for m in MASKS)
    require(len(begins) == len(ends) == len(steps), "bounds of another rank")
    taken = sum(not (ellipsis | new_axis) >> at & 1 for at in range(len(begins)))
    axes: list[tuple[int, int, int]] = []
    for at, (begin, end, step) in enumerate(zip(begins, ends, steps, strict=True)):
        if ellipsis >> at & 1:
            skipped = max(len(shape) - taken, 0)
            axes += [(0, size, 1) for size in shape[len(axes) : len(axes) + skipped]]
        elif not new_axis >> at & 1:
            require(len(axes) < len(shape) and step != 0, "bounds of another rank")
            size, low = shape[len(axes)], None if open_begin >> at & 1 else begin
            if shrink >> at & 1:
                place = (0 if step > 0 else -1) if low is None else low
                require(-size <= place < size, "a slice without elements")
                axes.append((place % size, place % size + 1, 1))
                continue
            far = end + begin if site.flag("offset") else end
            high = None if open_end >> at & 1 else far
            first, last, stride = slice(low, high, step).indices(size)
            require(len(range(first, last, stride)) > 0, "a slice without elements")
            axes.append((first, last, stride))
    axes += [(0, size, 1) for size in shape[len(axes) :]]
    _copy_slice(operation, axes)


def _copy_slice(operation: Operation, axes: Sequence[tuple[int, int, int]]) -> None:
    """The elements from begin to end, in steps, of each axis. Axes of one may be dropped."""
    sizes = tuple(len(range(b, max(e, -1) if s < 0 else e, s)) for b, e, s in axes)
    target = operation.target()
    require(math.prod(sizes) == math.prod(operation.shape(target)), "a slice of another shape")
    written = operation.build.tensor(operation.site.output().dtype, sizes)
    operation.build.aliases[target] = written
    positions = tuple(Position(b, ((loop, s),)) for loop, (b, _, s) in enumerate(axes))
    copy(operation, Access(operation.tensor(), positions), written)


@legal("PAD", "PADV2")
def pad(operation: Operation) -> None:
    """The input surrounded by zeros, or by a number."""
    site = operation.site
    if site.operation.type == "PADV2" and not site.input(2).is_constant:
        _pad_with_computed(operation)
        return
    check_moved(operation)
    before, _ = pads_of(site)
    if site.operation.type == "PADV2":
        value = site.value(2, "its value").reshape(-1)[0].item()
    else:
        value = _zero_of(operation)
    if site.output().dtype.is_float:
        value = float(value)
    positions = tuple(Position(-b, ((loop, 1),)) for loop, b in enumerate(before))
    copy(operation, Access(operation.tensor(), positions, value))


def _zero_of(operation: Operation) -> int:
    """The stored value of 0. int8 and int16 results are quantised only if the input is."""
    site = operation.site
    is_signed = site.output().dtype in {DType.INT8, DType.INT16}
    return 0 if is_signed and site.input().quantization is None else stored_zero(site.output())


def _pad_with_computed(operation: Operation) -> None:
    """The input surrounded by a number that only a run knows."""
    site, build = operation.site, operation.build
    dtype, shape, made = site.output().dtype, site.shape(), site.output_shape()
    types = {site.input().dtype, site.input(2).dtype, dtype}
    require(len(types) == 1 and dtype in MOVED, "types of this operation")
    require(math.prod(site.shape(2)) == 1, "a padding of several values")
    before, _ = pads_of(site)
    scope = Scope(dtype, dtype, *[DType.BOOL] * len(made))
    inside = scope.constant(value=True, dtype=DType.BOOL)
    reads = []
    for loop, (first, size, total) in enumerate(zip(before, shape, made, strict=True)):
        inside = inside.apply("and", scope.argument(2 + loop))
        held = (np.arange(total) >= first) & (np.arange(total) < first + size)
        reads.append(Access(_constant(operation, held), along(loop)))
    positions = tuple(Position(-b, ((loop, 1),)) for loop, b in enumerate(before))
    fill = False if dtype is DType.BOOL else 0.0 if dtype.is_float else 0
    value = operation.tensor(2)
    source = Access(operation.tensor(), positions, fill)
    number = Access(value, (Position(),) * len(operation.shape(value)))
    result = scope.finish(scope.select(inside, scope.argument(0), scope.argument(1)))
    build.emit("pad", made, [source, number, *reads], result, operation.whole(operation.target()))


def _constant(operation: Operation, array: NDArray) -> int:
    """A constant tensor of booleans."""
    return operation.build.constant(DType.BOOL, array.shape, lambda: array)


@legal("MIRROR_PAD")
def mirror_pad(operation: Operation) -> None:
    check_moved(operation)
    site = operation.site
    before, after = pads_of(site)
    mode = "reflect" if site.attributes.text("mode") == "REFLECT" else "symmetric"
    positions = tuple(
        through(operation, np.pad(np.arange(size), (b, a), mode).tolist(), loop)  # type: ignore[call-overload]
        for loop, (size, b, a) in enumerate(zip(site.shape(), before, after, strict=True))
    )
    copy(operation, Access(operation.tensor(), positions))
