"""What rules ask of operations that move values, whichever engine they translate them for."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.engines.site import Site, require
from penstock.ir import Operand

MAX_PIECES: Final = 1024
"""Inputs or outputs of one join or split."""


def axis_of(axis: int, rank: int) -> int:
    """*axis* of *rank* dimensions, counted from the front."""
    require(-rank <= axis < rank, f"axis {axis} of {rank} dimensions")
    return axis % rank


def order_of(site: Site) -> list[int]:
    """The constant permutation of a TRANSPOSE."""
    order = site.integers(1, "its permutation")
    require(sorted(order) == list(range(len(site.shape()))), f"permutation {order}")
    return order


def joined(site: Site) -> list[Operand]:
    """The inputs of a join along an axis of its result, all of known shape."""
    require(len(site.inputs) <= MAX_PIECES, f"more than {MAX_PIECES} inputs")
    given = [site.input(p) for p in range(len(site.inputs))]
    for position in range(len(given)):
        site.shape(position)
    axis_of(site.operation.attributes.integer("axis"), len(site.output_shape()))
    return given


def split_axis(site: Site, position: int, data: int) -> int:
    """The axis that a split of input *data* has as its constant input *position*."""
    axes = site.integers(position, "its axis")
    require(len(axes) == 1, f"{len(axes)} axes")
    require(len(site.outputs) <= MAX_PIECES, f"more than {MAX_PIECES} outputs")
    return axis_of(axes[0], len(site.shape(data)))


def pads_of(site: Site) -> tuple[list[int], list[int]]:
    """The constant padding before and after each dimension, none of it negative."""
    pads = site.integers(1, "its padding")
    require(len(pads) == 2 * len(site.shape()), "a padding of another rank")
    require(min(pads, default=0) >= 0, "a negative padding")
    return pads[::2], pads[1::2]


def require_mirrored(site: Site) -> None:
    """A MIRROR_PAD mirrors no more than there is."""
    before, after = pads_of(site)
    reflect = site.operation.attributes.text("mode") == "REFLECT"
    for size, b, a in zip(site.shape(), before, after, strict=True):
        require(max(a, b) <= size - reflect, "a padding longer than what it mirrors")


def gather_axis(site: Site) -> int:
    """The axis of a GATHER."""
    return axis_of(site.operation.attributes.integer("axis"), len(site.shape()))


class Bounds(msgspec.Struct, frozen=True):
    """For each dimension the first position, where to stop, and the step, which may be negative:
    the stop before the first element is then below any size.
    """

    begin: list[int]
    end: list[int]
    step: list[int]


def bounds_of(site: Site) -> Bounds:
    """The constant bounds of a SLICE or STRIDED_SLICE, which has elements."""
    return _slice(site) if site.operation.type == "SLICE" else _strided(site)


def _slice(site: Site) -> Bounds:
    shape = site.shape()
    begin, sizes = site.integers(1, "its begin"), site.integers(2, "its size")
    require(len(begin) == len(sizes) == len(shape), "bounds of another rank")
    end = [d if n == -1 else b + n for d, b, n in zip(shape, begin, sizes, strict=True)]
    inside = all(0 <= b < e <= d for b, e, d in zip(begin, end, shape, strict=True))
    require(inside, f"[{begin}, {end}) of {shape}")
    return Bounds(begin, end, [1] * len(shape))


def _strided(site: Site) -> Bounds:
    attributes, shape = site.operation.attributes, site.shape()
    for mask in ("ellipsis_mask", "new_axis_mask"):
        require(attributes.integer(mask) == 0, f"a slice with {mask}")
    require(not attributes.flag("offset"), "a slice whose end is an offset")
    given = [site.integers(p, w) for p, w in ((1, "its begin"), (2, "its end"), (3, "its strides"))]
    require(all(len(g) == len(given[0]) <= len(shape) for g in given), "bounds of another rank")
    bounds = Bounds([], [], [])
    for axis, size in enumerate(shape):
        first, last, stride = 0, size, 1
        if axis < len(given[0]):
            first, last, stride = _along(site, axis, size, *(g[axis] for g in given))
        bounds.begin.append(first)
        bounds.end.append(last)
        bounds.step.append(stride)
    return bounds


def _along(
    site: Site, axis: int, size: int, begin: int, end: int, stride: int
) -> tuple[int, int, int]:
    """First position, stop and step along one axis."""
    masks = site.operation.attributes
    require(stride != 0, "a slice in steps of nothing")
    open_begin = masks.integer("begin_mask") >> axis & 1
    if masks.integer("shrink_axis_mask") >> axis & 1:
        at = 0 if open_begin else begin + size if begin < 0 else begin
        require(0 <= at < size, "a slice without elements")
        return at, at + 1, 1
    stop = None if masks.integer("end_mask") >> axis & 1 else end
    first, last, step = slice(None if open_begin else begin, stop, stride).indices(size)
    require(len(range(first, last, step)) > 0, "a slice without elements")
    return first, last if last >= 0 else -size - 1, step
