"""Arrays made from scalars and shapes, and elements converted to other types."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel
from penstock.drivers.reference.ops.numerics.activation_range import integer_range
from penstock.drivers.reference.ops.numerics.parts import by_parts
from penstock.drivers.reference.ops.structure.shape import (
    MOST_ELEMENTS,
    checked,
    dimensions,
    scalar,
)
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray
from penstock.ir.types import PACKED

OPAQUE: Final = frozenset({DType.STRING, DType.RESOURCE, DType.VARIANT})


@kernel("CAST")
def cast(site: Site) -> Kernel:
    """Values converted to the output's type: fractions cut off, the imaginary part left out.

    Floats beyond an integer type become its least or greatest value; not-a-number, the greatest.
    """
    given, made = site.input(0).dtype, site.output().dtype
    if {given, made} & OPAQUE:
        raise site.unsupported_types()
    real = given.value.startswith("complex") and not made.value.startswith("complex")
    saturates = (given.is_float or real) and made.is_integer

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        x = np.asarray(inputs[0])
        x = x.real if real else x
        with np.errstate(all="ignore"):
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
    """The same bytes read as the output's type; a change of width adds or takes a last dimension."""
    given, made = site.input(0).dtype, site.output().dtype
    if {given, made} & OPAQUE:
        raise site.unsupported_types()
    if {given, made} & PACKED:
        return _bitcast_packed(given, made)
    target, narrower = made.numpy, (made.bits or 0) < (given.bits or 0)

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
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


def _bitcast_packed(given: DType, made: DType) -> Kernel:
    """BITCAST from or to elements of less than a byte: the first one has the lowest bits."""
    source, target = given.bits or 8, made.bits or 8

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
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
        return (
            ((whole[..., 0] ^ np.uint8(sign)).astype(np.int8) - np.int8(sign)).astype(made.numpy),
        )

    return run


@kernel("FILL")
def fill(site: Site) -> Kernel:
    """An array of a given shape, every element one scalar."""
    dtype = site.output().dtype.numpy

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        target = checked(dimensions(inputs[0]), "FILL")
        return (np.full(target, scalar(inputs[1], "a value to fill with"), dtype),)

    return run


@kernel("ZEROS_LIKE")
def zeros_like(site: Site) -> Kernel:
    """Zeros in the shape of the input."""
    if site.output().dtype in OPAQUE:
        raise site.unsupported_types()
    return lambda inputs: (np.zeros_like(np.asarray(inputs[0])),)


@kernel("RANGE")
def arange(site: Site) -> Kernel:
    """start, start + delta, ... up to the limit, which is left out; floats add delta again and
    again.
    """
    dtype = site.output().dtype
    if dtype not in {DType.FLOAT32, DType.INT32, DType.INT64}:
        raise site.unsupported_types()

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        start, limit, delta = (scalar(x, "a bound of a range") for x in inputs)
        count = _count(start, limit, delta)
        terms = np.full(count + 1, delta, dtype.numpy)
        terms[0] = start
        return (np.add.accumulate(terms, dtype=dtype.numpy)[:count],)

    return run


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
