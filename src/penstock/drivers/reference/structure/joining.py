"""Operands joined, split and sliced; CHANNEL_SHUFFLE (NNAPI; Zhang et al., "ShuffleNet", 2018)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from penstock.driverkit.tables_16 import round_half_away
from penstock.drivers.reference.kernel import Inputs, Kernel, Outputs, Site, direct, kernel, require
from penstock.drivers.reference.numerics import one_operand
from penstock.drivers.reference.numerics.requantize import saturated
from penstock.drivers.reference.numerics.weights import given
from penstock.drivers.reference.structure.shape import dimensions, normal_axis
from penstock.errors import ShapeMismatch
from penstock.ir import Attributes, DType, NDArray


@kernel("CONCATENATION")
def concatenation(site: Site) -> Kernel:
    """Concatenates the inputs along an axis. As in TFLite, uint8 inputs are rescaled to the output,
    int16 inputs keep their stored values.
    """
    axis = site.attributes.integer("axis")
    activation = site.attributes.text("fused_activation_function")
    require(activation == "NONE", f"CONCATENATION with {activation}")
    dtype = site.output().dtype
    require(all(o is None or o.dtype is dtype for o in site.inputs), "CONCATENATION of two types")
    rescalers = [_rescaler(site, at) for at in range(len(site.inputs))]

    def run(inputs: Inputs) -> Outputs:
        pairs = zip(map(np.asarray, inputs), rescalers, strict=True)
        parts = [x if rescale is None else rescale(x) for x, rescale in pairs]
        return (np.concatenate(parts, axis),)

    return run


def _rescaler(site: Site, index: int) -> Callable[[NDArray], NDArray] | None:
    """Rescales an input to the output's scale and zero point; None if they are equal."""
    given, made = site.input(index).quantization, site.output().quantization
    dtype = site.output().dtype
    if dtype not in {DType.UINT8, DType.INT8} or given == made:
        return None
    given = site.quantization(index)
    made = site.output_quantization()
    if (given.scale, given.zero_point) == (made.scale, made.zero_point):
        return None
    require(dtype is DType.UINT8, f"CONCATENATION of {dtype.value} of another scale or zero point")
    scale = np.float32(given.scale) * (np.float32(1) / np.float32(made.scale))
    bias = np.float32(-given.zero_point) * scale
    reals = one_operand.stored_values(dtype).astype(np.float32) * scale + bias
    stored = saturated(round_half_away(reals) + made.zero_point, dtype)
    table = one_operand.by_bits(stored, dtype)
    return lambda x: one_operand.look_up(table, x)


@direct("PACK")
def pack(site: Site, inputs: Inputs) -> Outputs:
    """Stacks inputs of one shape along a new axis."""
    return (np.stack([np.asarray(x) for x in inputs], site.attributes.integer("axis")),)


@direct("UNPACK")
def unpack(site: Site, inputs: Inputs) -> Outputs:
    """The slices along an axis, which is removed."""
    axis, count = site.attributes.integer("axis"), len(site.outputs)
    x = np.moveaxis(np.asarray(inputs[0]), axis, 0)
    if len(x) != count:
        raise ShapeMismatch(f"UNPACK of a dimension of {len(x)} into {count}")
    return [np.asarray(part, order="C") for part in x]


@direct("SPLIT")
def split(site: Site, inputs: Inputs) -> Outputs:
    """Equal parts along an axis, the first input."""
    count = len(site.outputs)
    (axis,), x = dimensions(inputs[0]), np.asarray(inputs[1])
    axis = normal_axis(axis, x.ndim)
    if x.shape[axis] % count:
        raise ShapeMismatch(f"SPLIT of a dimension of {x.shape[axis]} into {count}")
    return [np.asarray(part, order="C") for part in np.split(x, count, axis)]


@direct("SPLIT_V")
def split_v(site: Site, inputs: Inputs) -> Outputs:
    """Parts of given sizes along an axis; one size may be -1 for the remainder."""
    count = len(site.outputs)
    x, sizes, (axis,) = np.asarray(inputs[0]), dimensions(inputs[1]), dimensions(inputs[2])
    axis = normal_axis(axis, x.ndim)
    rest = x.shape[axis] - sum(s for s in sizes if s != -1)
    fits = rest >= 0 if -1 in sizes else rest == 0
    if not fits or len(sizes) != count or sizes.count(-1) > 1 or min(sizes) < -1:
        raise ShapeMismatch(f"SPLIT_V of a dimension of {x.shape[axis]} into {sizes}")
    ends = np.cumsum([rest if s == -1 else s for s in sizes])[:-1]
    return [np.asarray(part, order="C") for part in np.split(x, ends, axis)]


Index = int | slice | None

MASKS: Final = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


@direct("SLICE", inputs=3)
def slice_block(_: Site, inputs: Inputs) -> Outputs:
    """The block that begins at `begin` with the given size. A size of -1 extends to the end."""
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


@direct("STRIDED_SLICE", inputs=4)
def strided_slice(site: Site, inputs: Inputs) -> Outputs:
    """Every stride-th element from begin to end in each dimension.

    Masks are bits by position. They stand for open bounds, one ellipsis, new dimensions, and
    dimensions that are reduced to one element and removed.
    """
    attributes = site.attributes
    x = np.asarray(inputs[0])
    begins, ends, strides = (dimensions(value) for value in inputs[1:])
    if not len(begins) == len(ends) == len(strides):
        raise ShapeMismatch("begin, end and strides differ in length")
    index = _strided_index(x, begins, ends, strides, attributes)
    return (np.asarray(x[tuple(index)], order="C"),)


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
    """Bounds counted from the end if negative, and clamped, as in TensorFlow."""
    start, stop, step = slice(begin, end, stride).indices(size)
    return slice(start, stop if stop >= 0 else None, step)


@direct("DYNAMIC_UPDATE_SLICE", inputs=3)
def dynamic_update_slice(_: Site, inputs: Inputs) -> Outputs:
    """The operand with a block replaced, at a start that is clamped so that the block fits."""
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


def _check_shuffle(site: Site) -> None:
    groups = site.attributes.integer("groups")
    require(groups > 0, f"{groups} groups of channels")
    require(site.input(0).quantization == site.output().quantization, "shuffling that rescales")


@direct("CHANNEL_SHUFFLE", check=_check_shuffle)
def channel_shuffle(site: Site, inputs: Inputs) -> Outputs:
    """Channel g * n + i, of n in each group, moves to position i * groups + g."""
    groups, axis = site.attributes.integer("groups"), site.attributes.integer("axis")
    x = given(inputs[0])
    along = normal_axis(axis, x.ndim)
    before, size, after = x.shape[:along], x.shape[along], x.shape[along + 1 :]
    if size % groups:
        raise ShapeMismatch(f"{size} channels are not a multiple of {groups} groups")
    split = x.reshape(*before, groups, size // groups, *after)
    return (split.swapaxes(along, along + 1).reshape(x.shape),)
