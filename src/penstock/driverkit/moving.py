"""Checks of operations that move values: axes, permutations, padding, bounds of slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from penstock.driverkit import checks
from penstock.driverkit.site import Site, require
from penstock.ir import Operand

MAX_PIECES: Final = 1024
"""Greatest number of inputs of a join, and of outputs of a split."""


def order_of(site: Site) -> list[int]:
    """The constant permutation of a TRANSPOSE."""
    order = site.integers(1, "its permutation")
    require(sorted(order) == list(range(len(site.shape()))), f"permutation {order}")
    return order


def join_axis(site: Site) -> int:
    """The axis of the result along which a join puts its inputs."""
    return checks.axis_of(site.attributes.integer("axis"), len(site.output_shape()))


def split_of(site: Site) -> tuple[int, int]:
    """The position of the input that a SPLIT, SPLIT_V or UNPACK divides, and the axis."""
    require(len(site.outputs) <= MAX_PIECES, f"more than {MAX_PIECES} outputs")
    if site.operation.type == "UNPACK":
        return 0, checks.axis_of(site.attributes.integer("axis"), len(site.shape()))
    position, data = (0, 1) if site.operation.type == "SPLIT" else (2, 0)
    if site.operation.type == "SPLIT_V":
        site.integers(1, "its sizes")
    return data, checks.one_axis(site, position, data)


def reversed_axes(site: Site) -> set[int]:
    """The axes of a REVERSE_V2."""
    return {checks.axis_of(a, len(site.shape())) for a in site.integers(1, "its axes")}


def moved_operands(site: Site) -> list[Operand]:
    """The operands that an operation copies to its outputs. The outputs have known shapes. Raises
    `Refused` unless the axes, bounds and padding are known and fit.
    """
    kind, data = site.operation.type, 0
    if kind in {"CONCATENATION", "PACK"}:
        if kind == "CONCATENATION":
            checks.activation(site, ["NONE"])
        require(len(site.inputs) <= MAX_PIECES, f"more than {MAX_PIECES} inputs")
        site.shapes(), join_axis(site)
        return [site.input(p) for p in range(len(site.inputs))]
    if kind in {"SPLIT", "SPLIT_V", "UNPACK"}:
        data, _ = split_of(site)
    site.shape(data)
    if (check := ARGUMENTS.get(kind)) is not None:
        check(site)
    if kind == "PADV2":
        require(site.value(2, "its value").size == 1, "a padding of several values")
        return [site.input(0), site.input(2)]
    return [site.input(data)]


def pads_of(site: Site) -> tuple[list[int], list[int]]:
    """The constant padding before and after each dimension, at least 0."""
    pads = site.integers(1, "its padding")
    require(len(pads) == 2 * len(site.shape()), "a padding of another rank")
    require(min(pads, default=0) >= 0, "a negative padding")
    return pads[::2], pads[1::2]


def require_mirrored(site: Site) -> None:
    """Refuses a MIRROR_PAD with more padding than there are elements to mirror."""
    before, after = pads_of(site)
    reflect = site.attributes.text("mode") == "REFLECT"
    for size, b, a in zip(site.shape(), before, after, strict=True):
        require(max(a, b) <= size - reflect, "a padding longer than what it mirrors")


def gather_axis(site: Site) -> int:
    """The axis of a GATHER."""
    return checks.axis_of(site.attributes.integer("axis"), len(site.shape()))


def require_inside(site: Site) -> None:
    """Refuses a GATHER by batches, and constant indexes outside its axis."""
    require(site.attributes.integer("batch_dims") == 0, "a gather by batches")
    size = site.shape()[gather_axis(site)]
    if site.input(1).is_constant:
        inside = all(0 <= i < size for i in site.integers(1, "its indexes"))
        require(inside, f"an index outside the {size} there are")


class Bounds(msgspec.Struct, frozen=True):
    """Start, stop and step of each dimension. A stop before the first element is below -size."""

    begin: list[int]
    end: list[int]
    step: list[int]


def bounds_of(site: Site) -> Bounds:
    """The constant bounds of a SLICE or STRIDED_SLICE. Refuses an empty slice."""
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
    attributes, shape = site.attributes, site.shape()
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
    """Start, stop and step along one axis."""
    masks = site.attributes
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


def _second_input(site: Site) -> list[int]:
    return site.integers(1, "its second input")


def _require_image(site: Site) -> None:
    require(len(site.shape()) == 4, "an image of another rank")


ARGUMENTS: Final[dict[str, Callable[[Site], object]]] = {
    "TRANSPOSE": order_of,
    "MIRROR_PAD": require_mirrored,
    "REVERSE_V2": reversed_axes,
    "RESIZE_NEAREST_NEIGHBOR": checks.require_resizable,
    **dict.fromkeys(("PAD", "PADV2"), pads_of),
    **dict.fromkeys(("SLICE", "STRIDED_SLICE"), bounds_of),
    **dict.fromkeys(("TILE", "BROADCAST_TO"), _second_input),
    **dict.fromkeys(("SPACE_TO_DEPTH", "DEPTH_TO_SPACE"), _require_image),
}
"""The check of what an operation moves, by operation type."""
