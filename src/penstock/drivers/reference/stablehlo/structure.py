"""StableHLO operations that move elements or make them from their positions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from penstock.drivers.reference.kernel import Inputs, Kernel, Outputs, Site, direct, kernel, require
from penstock.drivers.reference.layers.padding import check_padded
from penstock.drivers.reference.structure.shape import MOST_ELEMENTS, checked, scalar
from penstock.errors import ShapeMismatch
from penstock.ir import NDArray
from penstock.ir.types import static_shape


@kernel("STABLEHLO_RESHAPE")
def reshape(site: Site) -> Kernel:
    """The same elements in the shape of the result, one dimension of which may be unknown."""
    shape = site.output().shape
    require(shape is not None and shape.count(None) <= 1, f"a result of shape {shape}")
    target = [-1 if d is None else d for d in shape or ()]
    known = math.prod(d for d in target if d != -1)

    def run(inputs: Inputs) -> Outputs:
        x = np.asarray(inputs[0])
        if known == 0 and -1 in target:
            raise ShapeMismatch(
                f"{x.shape} to {shape}: the size of the unknown dimension is not determined"
            )
        return (x.reshape(target),)

    return run


@kernel("STABLEHLO_BROADCAST_IN_DIM")
def broadcast_in_dim(site: Site) -> Kernel:
    """Dimension i of the operand becomes dimension broadcast_dimensions[i], repeated if its size is
    1.

    An unknown dimension of the result is the operand's.
    """
    places = site.attributes.integers("broadcast_dimensions")
    shape = site.output().shape
    require(shape is not None, "a result of unknown rank")
    target = shape or ()
    unplaced = [at for at, size in enumerate(target) if size is None and at not in places]
    require(not unplaced, f"a result of shape {shape}, where nothing gives dimensions {unplaced}")
    require(
        len(set(places)) == len(places) and all(0 <= p < len(target) for p in places),
        f"broadcast_dimensions {places} of a result of rank {len(target)}",
    )
    order = np.argsort(places).tolist()

    def run(inputs: Inputs) -> Outputs:
        x = np.asarray(inputs[0])
        if x.ndim != len(places):
            raise ShapeMismatch(f"broadcast_dimensions {places} of an operand of shape {x.shape}")
        sizes = dict(zip(places, x.shape, strict=True))
        full = [sizes[at] if d is None else d for at, d in enumerate(target)]
        spread = x.transpose(order).reshape([sizes.get(at, 1) for at in range(len(full))])
        return (np.broadcast_to(spread, checked(full, "broadcast")).copy(),)

    return run


@kernel("STABLEHLO_CONCATENATE")
def concatenate(site: Site) -> Kernel:
    """Concatenates the operands along a dimension."""
    axis = site.attributes.integer("dimension")
    require(axis >= 0, f"dimension {axis}")
    return lambda inputs: (np.concatenate([np.asarray(x) for x in inputs], axis),)


@kernel("STABLEHLO_SLICE")
def static_slice(site: Site) -> Kernel:
    """Every stride-th element from a start to a limit in each dimension."""
    starts, limits, strides = (
        site.attributes.integers(name) for name in ("start_indices", "limit_indices", "strides")
    )
    cut = tuple(slice(*part) for part in zip(starts, limits, strides, strict=True))

    def run(inputs: Inputs) -> Outputs:
        x = np.asarray(inputs[0])
        if x.ndim != len(cut) or any(n > size for n, size in zip(limits, x.shape, strict=True)):
            raise ShapeMismatch(f"a slice up to {limits} of an operand of shape {x.shape}")
        return (np.asarray(x[cut], order="C"),)

    return run


@direct("STABLEHLO_DYNAMIC_SLICE")
def dynamic_slice(site: Site, inputs: Inputs) -> Outputs:
    """A block of given sizes from start indices, clamped so that it fits."""
    sizes = site.attributes.integers("slice_sizes")
    x = np.asarray(inputs[0])
    return (np.asarray(x[_block(x, sizes, inputs[1:])], order="C"),)


@direct("STABLEHLO_DYNAMIC_UPDATE_SLICE", inputs=2)
def dynamic_update_slice(_: Site, inputs: Inputs) -> Outputs:
    """The operand with a block replaced at start indices, clamped so that it fits."""
    result, update = np.array(inputs[0]), np.asarray(inputs[1])
    result[_block(result, update.shape, inputs[2:])] = update
    return (result,)


def _block(x: NDArray, sizes: Sequence[int], starts: Sequence[NDArray | None]) -> tuple[slice, ...]:
    if not len(starts) == len(sizes) == x.ndim or any(
        size > whole for size, whole in zip(sizes, x.shape, strict=True)
    ):
        raise ShapeMismatch(
            f"a block of {tuple(sizes)} at {len(starts)} indices of an operand of shape {x.shape}"
        )
    first = [
        min(max(int(scalar(start, "a start index")), 0), whole - size)
        for start, size, whole in zip(starts, sizes, x.shape, strict=True)
    ]
    return tuple(slice(at, at + size) for at, size in zip(first, sizes, strict=True))


@direct("STABLEHLO_PAD")
def pad(site: Site, inputs: Inputs) -> Outputs:
    """Inserts a scalar between adjacent elements, then at the edges; negative paddings crop."""
    low, high, interior = (
        site.attributes.integers(name)
        for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    return (padded(np.asarray(inputs[0]), np.asarray(inputs[1]), low, high, interior),)


def padded(
    x: NDArray,
    value: NDArray,
    low: Sequence[int],
    high: Sequence[int],
    interior: Sequence[int],
    *,
    bounded: bool = False,
) -> NDArray:
    """*x* with *interior* copies of *value* between adjacent elements along each dimension, and
    *low* and *high* copies at its ends. Negative numbers crop.

    Raises `ShapeMismatch` if more elements would be cropped than exist, or more than
    `MOST_ELEMENTS` created; with *bounded*, as `check_padded` too.
    """
    if not len(low) == len(high) == len(interior) == x.ndim or min(interior, default=0) < 0:
        raise ShapeMismatch(
            f"paddings {tuple(low)}, {tuple(high)}, {tuple(interior)} of a shape {x.shape}"
        )
    target: list[slice] = []
    source: list[slice] = []
    shape: list[int] = []
    for size, before, after, holes in zip(x.shape, low, high, interior, strict=True):
        shape.append(size + max(size - 1, 0) * holes + before + after)
        step = holes + 1
        first = max(0, -(before // step))  # the first element that is not cut off
        last = min(size, (shape[-1] - 1 - before) // step + 1)
        source.append(slice(first, max(first, last)))
        start = before + first * step
        target.append(slice(start, max(start, start + (last - first) * step), step))
    if bounded:
        check_padded(math.prod(max(0, size) for size in shape), x.size)
    result = np.full(checked(shape, "padding"), scalar(value, "a padding value"), x.dtype)
    part = x[tuple(source)]
    if part.size:
        result[tuple(target)] = part
    return result


@kernel("STABLEHLO_TRANSPOSE")
def transpose(site: Site) -> Kernel:
    order = site.attributes.integers("permutation")
    require(sorted(order) == list(range(len(order))), f"{order} is not a permutation")
    return lambda inputs: (np.asarray(np.transpose(np.asarray(inputs[0]), order), order="C"),)


@kernel("STABLEHLO_IOTA")
def iota(site: Site) -> Kernel:
    """0, 1, 2, ... along one dimension of the result."""
    made, axis = site.output(), site.attributes.integer("iota_dimension")
    shape = static_shape(made.shape)
    if shape is None or math.prod(shape) > MOST_ELEMENTS:
        raise site.unsupported_types()
    require(0 <= axis < len(shape), f"iota_dimension {axis} of a result of shape {shape}")
    along = [size if at == axis else 1 for at, size in enumerate(shape)]
    full, dtype = shape, made.dtype.numpy

    def run(_: Inputs) -> Outputs:
        steps = np.arange(full[axis]).astype(dtype).reshape(along)
        return (np.broadcast_to(steps, full).copy(),)

    return run
