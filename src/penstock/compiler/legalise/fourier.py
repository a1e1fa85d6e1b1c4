"""RFFT2D, and the parts of complex numbers.

A Fourier transform is a product with constant cosines and sines. That of real rows comes first, and
then that of the complex columns. Long rows are folded first: numbers that waves treat alike are
added, which leaves a quarter of the products.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.compiler.expression import Scope, Value
from penstock.compiler.legalise.builder import Operation, elements, legal
from penstock.compiler.legalise.elementwise import F32
from penstock.compiler.legalise.moving import through
from penstock.compiler.legalise.products import product
from penstock.compiler.program import Access, Position, along
from penstock.driverkit.site import require
from penstock.ir import DType, NDArray

COMPLEX: Final = DType.COMPLEX64

MOST_WEIGHTS: Final = 1 << 21
"""Cosines and sines of one transform."""

LEAST_FOLDED: Final = 64
"""The length from which on rows are folded before they are multiplied."""


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
    body = product(F32, F32, F32, (None, None))
    if width == columns >= LEAST_FOLDED and columns % 4 == 0:
        _folded(operation, given, joined)
    else:
        waves = build.constant(F32, (channels, width), lambda: _real_waves(columns, width))
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


class Fold(Struct, frozen=True):
    """One part, cosines or sines, of the even or the odd frequencies of a row x of 4 h numbers.

    Its waves are the same, but for their sign, at places n and n + 2 h, and at n and 2 h - n. So
    the numbers there are first added, or subtracted where *half* and *fold* are -1; those at the
    places *alone*, in units of h, have no other at 2 h - n.
    """

    first: int
    is_sine: bool
    half: int
    fold: int
    alone: tuple[int, ...]


FOLDS: Final = (
    Fold(0, False, 1, 1, (0, 1)),
    Fold(0, True, 1, -1, ()),
    Fold(1, False, -1, -1, (0,)),
    Fold(1, True, -1, 1, (1,)),
)


def _folded(operation: Operation, given: int, joined: int) -> None:
    """The transform of rows by four products of a quarter of the numbers each."""
    build = operation.build
    images, height, columns = operation.shape(given)
    half, quarter = columns // 2, columns // 4
    apart = build.tensor(F32, operation.shape(joined))
    places: dict[int, int] = {}
    body, offset = product(F32, F32, F32, (None, None)), 0
    for each in FOLDS:
        count = len(each.alone) + quarter - 1
        numbers = build.tensor(F32, (images, height, count))
        if each.alone:
            at = Position(quarter * each.alone[0], ((2, quarter),))
            reads = [at, moved(at, half)]
            _sums(operation, given, reads, (each.half,), numbers, range(len(each.alone)))
        up, down = Position(1, ((2, 1),)), Position(half - 1, ((2, -1),))
        reads = [up, moved(up, half), down, moved(down, half)]
        signs = each.half, each.fold
        _sums(operation, given, reads, signs, numbers, range(len(each.alone), count))
        frequencies = list(range(each.first, half + 1, 2))
        waves = build.constant(
            F32, (len(frequencies), count), partial(_waves, columns, frequencies, each)
        )
        build.emit(
            "transform", (images, height, len(frequencies)),
            [Access(numbers, along(0, 1, 3)), Access(waves, along(2, 3))], body,
            Access(apart, (*along(0, 1), Position(offset, ((2, 1),)))), reduced=(count,),
            combine="sum", sums=F32,
        )  # fmt: skip
        for k, frequency in enumerate(frequencies):
            places[2 * frequency + each.is_sine] = offset + k
        offset += len(frequencies)
    order = through(operation, [places[c] for c in sorted(places)], 2)
    source, whole = Access(apart, (*along(0, 1), order)), operation.whole(joined)
    build.copy("transform", source, whole, operation.shape(joined))


def moved(position: Position, by: int) -> Position:
    """*position* so many elements on."""
    return Position(position.offset + by, position.steps)


def _sums(
    operation: Operation, given: int, reads: list[Position], signs: tuple[int, ...], target: int,
    written: range,
) -> None:  # fmt: skip
    """Adds, or subtracts, each two of what is read, and each two of these: the elements *written*
    of *target*.
    """
    images, height, _ = operation.shape(target)
    scope = Scope(*[F32] * len(reads))
    values = [scope.argument(i) for i in range(len(reads))]
    for sign in signs:
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [a + b if sign > 0 else a - b for a, b in pairs]
    accesses = [Access(given, (*along(0, 1), p)) for p in reads]
    write = Access(target, (*along(0, 1), Position(written.start, ((2, 1),))))
    loops = images, height, len(written)
    operation.build.emit("sums", loops, accesses, scope.finish(values[0]), write)


def _waves(length: int, frequencies: list[int], fold: Fold) -> NDArray:
    """[frequency, number]: what a number adds to the part of each frequency."""
    quarter = length // 4
    places = [*(quarter * n for n in fold.alone), *range(1, quarter)]
    turns = np.outer(frequencies, places) % length
    angles = -2 * np.pi / length * turns
    return np.asarray(np.sin(angles) if fold.is_sine else np.cos(angles))


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
