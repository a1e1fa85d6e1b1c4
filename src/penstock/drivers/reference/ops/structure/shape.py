"""Shapes described, changed and made: the elements stay as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel, require
from penstock.errors import ShapeMismatch
from penstock.ir import NDArray
from penstock.memory.limits import check_bytes

MOST_ELEMENTS: Final = 2**31 - 1
"""What TFLite's 32-bit sizes can count."""


def dimensions(value: NDArray | None) -> tuple[int, ...]:
    """The elements of a small integer input: a shape, axes, sizes."""
    return tuple(int(d) for d in np.asarray(value).reshape(-1))


def scalar(value: NDArray | None, what: str) -> NDArray:
    """The one element of an input, with no dimensions; `ShapeMismatch` where it has none or
    several.
    """
    array = np.asarray(value)
    if array.size != 1:
        raise ShapeMismatch(f"{what} of shape {array.shape}, where one element is needed")
    return array.reshape(())


def normal_axis(axis: int, rank: int) -> int:
    """A negative axis counted from the end; `ShapeMismatch` outside [-rank, rank)."""
    if not -rank <= axis < rank:
        raise ShapeMismatch(f"axis {axis} of an operand of rank {rank}")
    return axis % rank


def checked(shape: Sequence[int], what: str) -> tuple[int, ...]:
    """*shape* as that of an output to be made; `ShapeMismatch` where it is negative or beyond
    `MOST_ELEMENTS`, `LimitExceeded` where elements of a byte would take too much memory.
    """
    if min(shape, default=0) < 0 or math.prod(shape) > MOST_ELEMENTS:
        raise ShapeMismatch(f"{what} to the shape {tuple(shape)}")
    check_bytes(math.prod(shape), what)
    return tuple(shape)


@kernel("RESHAPE")
def reshape(site: Site) -> Kernel:
    """The same elements in another shape; a vector of dimensions counts before the attribute."""
    attribute = site.attributes.integers("new_shape")
    fixed = () if attribute == (0,) else attribute

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        given = inputs[1] if len(inputs) > 1 else None
        target = fixed if given is None or given.ndim != 1 else dimensions(given)
        return (_reshaped(np.asarray(inputs[0]), target),)

    return run


def _reshaped(x: NDArray, target: tuple[int, ...]) -> NDArray:
    """One dimension may be -1, whatever remains: where there is a 0, of the dimensions that are
    none (LiteRT).
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


@kernel("SQUEEZE")
def squeeze(site: Site) -> Kernel:
    """Without the named dimensions of size 1, or without all of them."""
    axes = site.attributes.integers("squeeze_dims")

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        x = np.asarray(inputs[0])
        chosen = {normal_axis(axis, x.ndim) for axis in axes}
        return (np.squeeze(x, tuple(chosen) if chosen else None),)

    return run


@kernel("EXPAND_DIMS")
def expand_dims(site: Site) -> Kernel:
    """A dimension of size 1 inserted at an axis."""
    require(len(site.inputs) == 2, "EXPAND_DIMS without an axis")

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        x, (axis,) = np.asarray(inputs[0]), dimensions(inputs[1])
        return (np.expand_dims(x, normal_axis(axis, x.ndim + 1)),)

    return run


@kernel("SHAPE")
def shape_of(site: Site) -> Kernel:
    """The dimensions as a vector."""
    dtype = site.output().dtype.numpy
    return lambda inputs: (np.array(np.asarray(inputs[0]).shape, dtype),)


@kernel("RANK")
def rank_of(site: Site) -> Kernel:
    """The number of dimensions."""
    dtype = site.output().dtype.numpy
    return lambda inputs: (np.array(np.asarray(inputs[0]).ndim, dtype),)


@kernel("BROADCAST_TO")
def broadcast_to(site: Site) -> Kernel:
    """Repeated along dimensions of size 1, and along new leading ones."""
    require(len(site.inputs) == 2, "BROADCAST_TO without a shape")

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        target = checked(dimensions(inputs[1]), "BROADCAST_TO")
        return (np.broadcast_to(np.asarray(inputs[0]), target).copy(),)

    return run


@kernel("BROADCAST_ARGS")
def broadcast_args(site: Site) -> Kernel:
    """The shape that two shapes broadcast to."""
    dtype = site.output().dtype.numpy
    return lambda inputs: (
        np.array(np.broadcast_shapes(*(dimensions(shape) for shape in inputs)), dtype),
    )


@kernel("DENSIFY")
def densify(site: Site) -> Kernel:
    """Constants arrive densified already: the input itself."""
    require(site.input(0).dtype is site.output().dtype, "DENSIFY to another type")
    return lambda inputs: (np.asarray(inputs[0]),)
