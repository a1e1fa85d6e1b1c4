"""Blocks taken out of an operand, or put into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel, require
from penstock.drivers.reference.ops.structure.shape import dimensions
from penstock.errors import ShapeMismatch
from penstock.ir import Attributes, NDArray

Index = int | slice | None

MASKS: Final = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


@kernel("SLICE")
def slice_block(site: Site) -> Kernel:
    """A block from begin, of a size; -1 reaches to the end."""
    require(len(site.inputs) == 3, "SLICE without begin and size")

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        x, begins, sizes = np.asarray(inputs[0]), dimensions(inputs[1]), dimensions(inputs[2])
        if not len(begins) == len(sizes) == x.ndim:
            raise ShapeMismatch(f"SLICE by {len(begins)} begins of a shape {x.shape}")
        index = []
        for whole, begin, size in zip(x.shape, begins, sizes, strict=True):
            end = whole if size == -1 else begin + size
            if not 0 <= begin <= end <= whole or size < -1:
                raise ShapeMismatch(f"SLICE from {begins} of size {sizes} of a shape {x.shape}")
            index.append(slice(begin, end))
        return (np.asarray(x[tuple(index)], order="C"),)

    return run


@kernel("STRIDED_SLICE")
def strided_slice(site: Site) -> Kernel:
    """Every stride-th element from begin to end in each dimension, with masks by position: bounds
    left open, one ellipsis, new dimensions, and dimensions that keep one element and go.
    """
    attributes = site.attributes
    require(len(site.inputs) == 4, "STRIDED_SLICE without begin, end and strides")

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        x = np.asarray(inputs[0])
        begins, ends, strides = (dimensions(value) for value in inputs[1:])
        if not len(begins) == len(ends) == len(strides):
            raise ShapeMismatch("begin, end and strides differ in length")
        index = _strided_index(x, begins, ends, strides, attributes)
        return (np.asarray(x[tuple(index)], order="C"),)

    return run


def _strided_index(
    x: NDArray,
    begins: tuple[int, ...],
    ends: tuple[int, ...],
    strides: tuple[int, ...],
    attributes: Attributes,
) -> list[Index]:
    open_begin, open_end, ellipsis, new_axis, shrink = (attributes.integer(m) for m in MASKS)
    offset = attributes.flag("offset")
    taken = sum(not (ellipsis | new_axis) >> at & 1 for at in range(len(begins)))
    index: list[Index] = []
    axis = 0
    for at, (begin, end, stride) in enumerate(zip(begins, ends, strides, strict=True)):
        if ellipsis >> at & 1:
            skipped = max(x.ndim - taken, 0)
            index += [slice(None)] * skipped
            axis += skipped
            continue
        if new_axis >> at & 1:
            index.append(None)
            continue
        if axis >= x.ndim or stride == 0:
            raise ShapeMismatch(f"STRIDED_SLICE in steps of {strides} of a shape {x.shape}")
        low = None if open_begin >> at & 1 else begin
        if shrink >> at & 1:
            index.append(low if low is not None else 0 if stride > 0 else -1)
        else:
            high = None if open_end >> at & 1 else end + (begin if offset else 0)
            index.append(_clamped(low, high, stride, x.shape[axis]))
        axis += 1
    return index


def _clamped(begin: int | None, end: int | None, stride: int, size: int) -> slice:
    """Bounds counted from the end where negative, and clamped, as TensorFlow has it."""
    start, stop, step = slice(begin, end, stride).indices(size)
    return slice(start, stop if stop >= 0 else None, step)


@kernel("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(site: Site) -> Kernel:
    """The operand with a block replaced, at a start that is clamped so that the block fits."""
    require(len(site.inputs) == 3, "DYNAMIC_UPDATE_SLICE without update and start")

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        x, update, starts = np.array(inputs[0]), np.asarray(inputs[1]), dimensions(inputs[2])
        if not x.ndim == update.ndim == len(starts):
            raise ShapeMismatch(f"an update of shape {update.shape} at {starts} to {x.shape}")
        places = []
        for whole, size, start in zip(x.shape, update.shape, starts, strict=True):
            if size > whole:
                raise ShapeMismatch(f"an update of shape {update.shape} exceeds {x.shape}")
            begin = min(max(start, 0), whole - size)
            places.append(slice(begin, begin + size))
        x[tuple(places)] = update
        return (x,)

    return run
