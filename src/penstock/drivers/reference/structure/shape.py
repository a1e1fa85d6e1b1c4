"""Operations on shapes, arrays made from scalars and shapes, and conversions of element types."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np

from penstock.drivers.reference.kernel import (
    Inputs,
    Kernel,
    Outputs,
    Site,
    direct,
    kernel,
    require,
    types,
)
from penstock.drivers.reference.numerics.one_operand import by_parts
from penstock.drivers.reference.numerics.requantize import integer_range
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray
from penstock.ir.types import PACKED
from penstock.memory.limits import check_bytes

MOST_ELEMENTS: Final = 2**31 - 1
"""The greatest number that TFLite's 32-bit sizes can represent."""


def dimensions(value: NDArray | None) -> tuple[int, ...]:
    """The elements of a small integer input: a shape, axes, sizes."""
    return tuple(int(d) for d in np.asarray(value).reshape(-1))


def scalar(value: NDArray | None, what: str) -> NDArray:
    """The single element of an input, without dimensions. Raises `ShapeMismatch` otherwise."""
    array = np.asarray(value)
    if array.size != 1:
        raise ShapeMismatch(f"{what} of shape {array.shape}, where one element is needed")
    return array.reshape(())


def normal_axis(axis: int, rank: int) -> int:
    """*axis*, counted from the end if negative. Raises `ShapeMismatch` outside [-rank, rank)."""
    if not -rank <= axis < rank:
        raise ShapeMismatch(f"axis {axis} of an operand of rank {rank}")
    return axis % rank


def checked(shape: Sequence[int], what: str) -> tuple[int, ...]:
    """*shape* for a new output. Raises `ShapeMismatch` if it is negative or has more than
    `MOST_ELEMENTS`, and `LimitExceeded` if elements of one byte would take too much memory.
    """
    if min(shape, default=0) < 0 or math.prod(shape) > MOST_ELEMENTS:
        raise ShapeMismatch(f"{what} to the shape {tuple(shape)}")
    check_bytes(math.prod(shape), what)
    return tuple(shape)


@direct("RESHAPE")
def reshape(site: Site, inputs: Inputs) -> Outputs:
    """The same elements in another shape. A shape vector overrides the attribute."""
    attribute = site.attributes.integers("new_shape")
    fixed = () if attribute == (0,) else attribute
    given = inputs[1] if len(inputs) > 1 else None
    target = fixed if given is None or given.ndim != 1 else dimensions(given)
    return (_reshaped(np.asarray(inputs[0]), target),)


def _reshaped(x: NDArray, target: tuple[int, ...]) -> NDArray:
    """*x* in the shape *target*. One dimension may be -1, for the remainder. As in LiteRT,
    dimensions of 0 are left out when the remainder is computed.
    """
    if target.count(-1) > 1 or any(d < -1 for d in target):
        raise ShapeMismatch(f"{target} is not a target shape: at most one dimension may be -1")
    known = math.prod(d for d in target if d != -1)
    if x.size % known if known and -1 in target else x.size != known:
        raise ShapeMismatch(f"an input of shape {x.shape} does not have the elements of {target}")
    if known == 0:
        whole, others = (math.prod(d for d in s if d > 0) for s in (x.shape, target))
        target = tuple(whole // others if d == -1 else d for d in target)
    return x.reshape(target)


@direct("SQUEEZE")
def squeeze(site: Site, inputs: Inputs) -> Outputs:
    """Without the named dimensions of size 1, or without all of them."""
    axes = site.attributes.integers("squeeze_dims")
    x = np.asarray(inputs[0])
    chosen = {normal_axis(axis, x.ndim) for axis in axes}
    return (np.squeeze(x, tuple(chosen) if chosen else None),)


@direct("EXPAND_DIMS", inputs=2)
def expand_dims(_: Site, inputs: Inputs) -> Outputs:
    """A dimension of size 1 inserted at an axis."""
    x, (axis,) = np.asarray(inputs[0]), dimensions(inputs[1])
    return (np.expand_dims(x, normal_axis(axis, x.ndim + 1)),)


@direct("SHAPE", "RANK")
def shape_of(site: Site, inputs: Inputs) -> Outputs:
    x = np.asarray(inputs[0])
    found = x.shape if site.operation.type == "SHAPE" else x.ndim
    return (np.array(found, site.output().dtype.numpy),)


@direct("BROADCAST_TO", inputs=2)
def broadcast_to(_: Site, inputs: Inputs) -> Outputs:
    """Repeated along dimensions of size 1, and along new leading ones."""
    target = checked(dimensions(inputs[1]), "BROADCAST_TO")
    return (np.broadcast_to(np.asarray(inputs[0]), target).copy(),)


@direct("BROADCAST_ARGS")
def broadcast_args(site: Site, inputs: Inputs) -> Outputs:
    """The shape that two shapes broadcast to."""
    found = np.broadcast_shapes(*map(dimensions, inputs))
    return (np.array(found, site.output().dtype.numpy),)


@kernel("DENSIFY")
def densify(site: Site) -> Kernel:
    """Returns the input. The loader has already expanded sparse constants."""
    require(site.input(0).dtype is site.output().dtype, "DENSIFY to another type")
    return lambda inputs: (np.asarray(inputs[0]),)


OPAQUE: Final = types("string resource variant")


@kernel("CAST")
def cast(site: Site) -> Kernel:
    """Converts values to the output's type: fractions are truncated, the imaginary part is dropped.

    Floats beyond an integer type become its least or greatest value; NaN becomes the greatest.
    """
    given, made = site.input(0).dtype, site.output().dtype
    site.require_types(not {given, made} & OPAQUE)
    real = given.value.startswith("complex") and not made.value.startswith("complex")
    saturates = (given.is_float or real) and made.is_integer

    def run(inputs: Inputs) -> Outputs:
        x = np.asarray(inputs[0])
        x = x.real if real else x
        if saturates:
            return (by_parts(partial(_saturated, made=made), x),)
        return (x.astype(made.numpy),)

    return run


def _saturated(values: NDArray, made: DType) -> NDArray:
    low, high = integer_range(made)
    if values.size and low <= values.min() and values.max() < high:
        return values.astype(made.numpy)
    x = values.astype(np.float64, copy=False)
    below = x < float(high + 1)
    inside = np.where(below, np.maximum(x, low), 0)
    return np.where(below, inside.astype(made.numpy), np.array(high, made.numpy))


@kernel("BITCAST")
def bitcast(site: Site) -> Kernel:
    """The same bytes read as the output's type; another width adds or removes a last dimension."""
    given, made = site.input(0).dtype, site.output().dtype
    site.require_types(not {given, made} & OPAQUE)
    if {given, made} & PACKED:
        return partial(_bitcast_packed, given, made)
    target, narrower = made.numpy, (made.bits or 0) < (given.bits or 0)

    def run(inputs: Inputs) -> Outputs:
        x = np.array(inputs[0], order="C")
        if narrower:
            return (x[..., np.newaxis].view(target),)
        if target.itemsize == x.itemsize:
            return (x.view(target),)
        wide = x.view(target)
        if wide.shape[-1] != 1:
            raise ShapeMismatch(f"elements of shape {x.shape} do not make elements of {made.value}")
        return (wide[..., 0],)

    return run


def _bitcast_packed(given: DType, made: DType, inputs: Inputs) -> Outputs:
    """BITCAST from or to elements of less than a byte: the first element has the lowest bits."""
    source, target = given.bits or 8, made.bits or 8
    x = np.asarray(inputs[0])
    if given in PACKED:
        stored = x.astype(np.int8).view(np.uint8)[..., np.newaxis]
    else:
        stored = np.ascontiguousarray(x)[..., np.newaxis].view(np.uint8)
    bits = np.unpackbits(stored, axis=-1, bitorder="little")[..., :source]
    if target > source:
        if not x.ndim or x.shape[-1] * source != target:
            raise ShapeMismatch(f"elements of shape {x.shape} do not make {made.value}")
        groups = bits.reshape(*x.shape[:-1], target)
    else:
        groups = bits.reshape(*x.shape, source // target, target)
        groups = groups if source > target else groups[..., 0, :]
    whole = np.packbits(groups, axis=-1, bitorder="little")
    if made not in PACKED:
        return (whole.view(made.numpy)[..., 0],)
    if made is DType.UINT4:
        return (whole[..., 0].astype(made.numpy),)
    sign = 1 << (target - 1)
    return (((whole[..., 0] ^ np.uint8(sign)).astype(np.int8) - np.int8(sign)).astype(made.numpy),)


@direct("FILL")
def fill(site: Site, inputs: Inputs) -> Outputs:
    """An array of a given shape, every element one scalar."""
    dtype = site.output().dtype.numpy
    target = checked(dimensions(inputs[0]), "FILL")
    return (np.full(target, scalar(inputs[1], "a value to fill with"), dtype),)


@kernel("ZEROS_LIKE")
def zeros_like(site: Site) -> Kernel:
    site.require_types(site.output().dtype not in OPAQUE)
    return lambda inputs: (np.zeros_like(np.asarray(inputs[0])),)


@direct("RANGE", accepts=lambda s: s.output().dtype in types("float32 int32 int64"))
def arange(site: Site, inputs: Inputs) -> Outputs:
    """start, start + delta, ... up to the limit, which is excluded; floats add delta repeatedly."""
    dtype = site.output().dtype
    start, limit, delta = (scalar(x, "a bound of a range") for x in inputs)
    count = _count(start, limit, delta)
    terms = np.full(count + 1, delta, dtype.numpy)
    terms[0] = start
    return (np.add.accumulate(terms, dtype=dtype.numpy)[:count],)


def _count(start: NDArray, limit: NDArray, delta: NDArray) -> int:
    step = delta.item()
    if step == 0 or (limit > start) if step <= 0 else (limit < start):
        raise ShapeMismatch(f"RANGE from {start} to {limit} in steps of {delta}")
    if start.dtype.kind == "f":
        count = math.ceil(abs((limit - start) / delta))
    else:
        count = -(-abs(limit.item() - start.item()) // abs(step))
    if count > MOST_ELEMENTS:
        raise ShapeMismatch(f"RANGE of {count} elements")
    return count
