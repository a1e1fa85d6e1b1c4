"""Matrix products of small integers through floating-point BLAS, if that is exact.

A sum of integer products is exact in any order if every partial sum is exact. The bound is the sum
of the weights' magnitudes times the greatest input: below 2**24 in float32, below 2**53 in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from penstock.drivers.reference.kernel import Site, Unsupported
from penstock.drivers.reference.numerics.requantize import integer_range
from penstock.interrupts import watched
from penstock.ir import DType, NDArray

TILE_BYTES: Final = 1 << 22
"""Work memory, in bytes, for the left side of a product. A single row may exceed it."""

Finish: TypeAlias = Callable[[NDArray, NDArray], None]
"""Converts sums [rows, columns] to results in the second argument. May overwrite the sums."""


Multiply: TypeAlias = Callable[[NDArray, NDArray], NDArray]
"""[rows, depth] times [columns, depth] to fresh sums [rows, columns]."""

ORDERED_TILE_ROWS: Final = 256
"""Divisor of the work memory of ordered sums: their blocks must stay in the cache."""


def exact_dtype(bound: float) -> np.dtype[Any]:
    """The narrowest float type in which integers up to *bound* are exact."""
    if bound < 2.0**24:
        return np.dtype(np.float32)
    if bound < 2.0**53:
        return np.dtype(np.float64)
    raise Unsupported(f"sums of products that reach {bound:.0f}")


class SignedInput:
    """Converts stored inputs to signed integers of the same width, whose magnitude is half the
    range.

    *zero_point* is the zero point of the converted values, *magnitude* their greatest magnitude.
    """

    def __init__(self, dtype: DType, zero_point: int) -> None:
        least, _ = integer_range(dtype)
        self._flip = dtype is DType.UINT8
        self.magnitude = 128 if self._flip else -least
        self.zero_point = zero_point - 128 if self._flip else zero_point

    def signed(self, values: NDArray) -> NDArray:
        """uint8 values minus 128, as int8; other types unchanged."""
        return (values ^ np.uint8(0x80)).view(np.int8) if self._flip else values


class Columns:
    """The right side of products with integers of at most *magnitude*: [columns, depth], centred.

    *bound* is the greatest magnitude of a sum in each column, and *sums* is the sum of each
    column's weights. *values* are the weights in a type in which all sums are exact.
    """

    def __init__(self, weights: NDArray, magnitude: int) -> None:
        self.sums: NDArray = weights.sum(axis=1, dtype=np.int64)
        reach = np.abs(weights).sum(axis=1, dtype=np.int64)
        self.bound: NDArray = reach.astype(np.float64) * magnitude
        dtype = exact_dtype(float(self.bound.max(initial=0.0)))
        self.values: NDArray = np.ascontiguousarray(weights, dtype)


def multiply_fast(left: NDArray, columns: NDArray) -> NDArray:
    """Sums [rows, columns] through BLAS, in any order."""
    return np.asarray(np.matmul(left, columns.T))


def multiply_wide(left: NDArray, columns: NDArray) -> NDArray:
    """Sums [rows, columns] of float32, computed in float64 and rounded once.

    BLAS adds in an order that depends on the processor and on the positions of rows and columns. It
    changes a float32 result only if the float64 sum is closer to the middle of two float32 numbers
    than its own rounding error.
    """
    wide = left.astype(np.float64)
    sums = np.empty((len(left), len(columns)), np.float32)
    with np.errstate(over="ignore"):
        for part in tiles(len(columns), columns.shape[1] * wide.itemsize):
            sums[:, part] = np.matmul(wide, columns[part].astype(np.float64).T)
    return sums


def multiply_in_order(left: NDArray, columns: NDArray) -> NDArray:
    """The same sums in float32. Each sum begins at zero, and products are added in order, each
    rounded: bit for bit as TFLite's reference kernels.
    """
    return _step_by_step(left, columns, None, _add_rounded)


def multiply_fused(left: NDArray, columns: NDArray, bias: NDArray | None) -> NDArray:
    """The same sums, but each begins at its column's bias, and each product is added before it is
    rounded (IEEE 754 fusedMultiplyAdd). In float64: only sums within 2**-29 of a tie may differ.
    """
    return _step_by_step(left, columns, bias, add_fused)


def _step_by_step(
    left: NDArray,
    columns: NDArray,
    bias: NDArray | None,
    add: Callable[[NDArray, NDArray, NDArray], None],
) -> NDArray:
    rows, depth = left.shape
    across = rows >= len(columns)
    inner, outer = (left, columns) if across else (columns, left)
    inner_steps, outer_steps = np.ascontiguousarray(inner.T), np.ascontiguousarray(outer.T)
    sums = np.zeros((len(outer), len(inner)), np.float32)
    if bias is not None:
        sums += bias.astype(np.float32)[:, None] if across else bias.astype(np.float32)
    for part in tiles(len(inner), ORDERED_TILE_ROWS * max(1, len(outer))):
        block = sums[:, part].copy()
        for step in watched(range(depth)):
            add(block, outer_steps[step][:, None], inner_steps[step, part])
        sums[:, part] = block
    result: NDArray = sums.T if across else sums
    return np.ascontiguousarray(result)


def _add_rounded(sums: NDArray, a: NDArray, b: NDArray) -> None:
    sums += a * b


def add_fused(sums: NDArray, a: NDArray, b: NDArray) -> None:
    """Adds products to float32 *sums* before they are rounded."""
    np.copyto(sums, np.multiply(a, b, dtype=np.float64) + sums, casting="same_kind")


def float_product(site: Site, bias: NDArray | None) -> tuple[Multiply, NDArray | None]:
    """How a float layer multiplies, and the bias that must be added afterwards, if any."""
    if site.sums == "fused":
        return partial(multiply_fused, bias=None if bias is None else bias.reshape(-1)), None
    return (multiply_in_order if site.sums == "ordered" else multiply_wide), bias


def multiply_rows(
    left: NDArray,
    columns: NDArray,
    out: NDArray,
    finish: Finish,
    multiply: Multiply = multiply_fast,
) -> None:
    """*left* [rows, depth] times *columns* [columns, depth] into *out*, through *finish*.

    *left* is converted to the type of *columns* tile by tile.
    """
    for rows in tiles(len(left), max(columns.shape) * columns.itemsize):
        part = left[rows]
        if part.dtype != columns.dtype:
            part = part.astype(columns.dtype)
        finish(multiply(part, columns), out[rows])


def tiles(count: int, nbytes: int) -> Iterator[slice]:
    """Slices of *count* items of *nbytes*: at most `TILE_BYTES`, at least one item each."""
    step = max(1, TILE_BYTES // max(1, nbytes))
    for start in watched(range(0, count, step)):
        yield slice(start, min(start + step, count))
