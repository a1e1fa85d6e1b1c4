"""RFFT2D, and the parts of complex numbers.

A Fourier transform is a product with constant cosines and sines. That of real rows comes first, and
then that of the complex columns.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.compiler.expression import Scope, Value
from penstock.compiler.legalise.builder import Operation, elements, legal
from penstock.compiler.legalise.elementwise import F32
from penstock.compiler.legalise.products import product
from penstock.compiler.program import Access, Position, along
from penstock.driverkit.site import require
from penstock.ir import DType, NDArray

COMPLEX: Final = DType.COMPLEX64

MOST_WEIGHTS: Final = 1 << 21
"""Cosines and sines of one transform."""


@legal("RFFT2D")
def rfft_2d(operation: Operation) -> None:
    """The transform of the last two axes, which are cropped to the lengths or filled up with zeros.
    The last axis keeps its frequencies from 0 on.
    """
    site = operation.site
    require(site.input().dtype is F32 and site.output().dtype is COMPLEX, "types of this transform")
    *outer, height, width = site.shape()
    rows, columns = site.integers(1, "lengths of a transform")
    kept = columns // 2 + 1
    require(site.output_shape() == (*outer, rows, kept), "a result of another shape")
    height, width = min(height, rows), min(width, columns)
    require(max(2 * kept * width, 4 * rows * height) <= MOST_WEIGHTS, "a transform of this length")
    images = elements(outer)
    build = operation.build
    given = build.alias((images, *site.shape()[-2:]), operation.tensor())
    target = operation.target()
    flat = build.tensor(F32, (images, rows, kept, 2))
    build.aliases[target] = flat
    is_single = rows == height == 1
    half = flat if is_single else build.tensor(F32, (images, height, kept, 2))
    # Both parts of all frequencies are the channels of one product.
    channels = 2 * kept
    joined = build.tensor(F32, (images, height, channels))
    build.aliases[half] = joined
    waves = build.constant(F32, (channels, width), lambda: _real_waves(columns, width))
    body = product(F32, F32, F32, (None, None))
    build.emit(
        "transform", (images, height, channels), [Access(given, along(0, 1, 3)),
        Access(waves, along(2, 3))], body, Access(joined, along(0, 1, 2)), reduced=(width,),
        combine="sum", sums=F32,
    )  # fmt: skip
    if is_single:
        return
    waves = build.constant(F32, (rows, 2, height, 2), lambda: _complex_waves(rows, height))
    build.emit(
        "transform", (images, rows, kept, 2),
        [Access(half, along(0, 4, 2, 5)), Access(waves, along(1, 3, 4, 5))],
        body, Access(flat, along(0, 1, 2, 3)), reduced=(height, 2), combine="sum", sums=F32,
    )  # fmt: skip


def _angles(length: int, kept: int, count: int) -> NDArray:
    """The angle of frequency i at place j. Whole turns are left out while they are exact."""
    turns = np.outer(np.arange(kept), np.arange(count)) % length
    return np.asarray(-2 * np.pi / length * turns)


def _real_waves(length: int, count: int) -> NDArray:
    """[frequency and part, place]: what a real number adds to the parts of each frequency."""
    angles = _angles(length, length // 2 + 1, count)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _complex_waves(length: int, count: int) -> NDArray:
    """[frequency, part, place, part]: what a part of a number adds to a part of each frequency."""
    angles = _angles(length, length, count)
    cosines, sines = np.cos(angles), np.sin(angles)
    real, imaginary = (np.stack(pair, axis=-1) for pair in ((cosines, -sines), (sines, cosines)))
    return np.stack([real, imaginary], axis=1)


@legal("COMPLEX_ABS", "REAL", "IMAG")
def part(operation: Operation) -> None:
    """Magnitudes, computed in float64 and rounded once; real or imaginary parts."""
    site = operation.site
    require(site.input().dtype is COMPLEX and site.output().dtype is F32, "types of this part")
    source, shape = operation.tensor(), site.shape()
    require(operation.shape(operation.target()) == shape, "a result of another shape")
    loops = along(*range(len(shape)))
    real, imaginary = (Access(source, (*loops, Position(k))) for k in (0, 1))
    kind = site.operation.type
    if kind != "COMPLEX_ABS":
        write = operation.whole(operation.target())
        operation.build.copy(kind.lower(), real if kind == "REAL" else imaginary, write, shape)
        return
    scope = Scope(F32, F32)
    total = _squared(scope.argument(0)) + _squared(scope.argument(1))
    body = scope.finish(total.apply("sqrt").cast(F32))
    write = operation.whole(operation.target())
    operation.build.emit("magnitude", shape, [real, imaginary], body, write)


def _squared(value: Value) -> Value:
    wide = value.cast(DType.FLOAT64)
    return wide * wide
