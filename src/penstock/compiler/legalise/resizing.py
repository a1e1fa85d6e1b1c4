"""Resizes of images: the nearest pixel, or a mean of the four nearest."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.compiler.expression import Expression, Scope, Value
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.elementwise import F32, I32, I64
from penstock.compiler.legalise.moving import check_moved, copy, through
from penstock.compiler.legalise.quantised import NARROW
from penstock.compiler.program import Access, along
from penstock.driverkit.checks import nearest_positions
from penstock.driverkit.site import require
from penstock.ir import DType, NDArray

FRACTION_BITS: Final = 10
"""The bits behind the point of positions in images of int8 and int16."""

ONE: Final = 1 << FRACTION_BITS

MOST_BITS: Final = 8
"""The bits of both weights of a pixel of 8 bits with which sums fit 16 bits."""

WIDER: Final = 4
"""How many times wider an image becomes at least, for its rows to be mixed first."""


@legal("RESIZE_NEAREST_NEIGHBOR")
def resize_nearest(operation: Operation) -> None:
    """Each pixel is the one at its position in the input."""
    check_moved(operation)
    require(len(operation.site.shape()) == 4, "an image of another rank")
    found = nearest_positions(operation.site)
    rows, columns = (through(operation, p.tolist(), a) for a, p in enumerate(found, 1))
    copy(operation, Access(operation.tensor(), (*along(0), rows, columns, *along(3))))


class Side(Struct, frozen=True):
    """For each output position along an axis: the two input positions beside it, and the distance
    from the lower one.
    """

    lower: NDArray
    upper: NDArray
    weight: NDArray


def float_side(size: int, out: int, *, align: bool, half: bool) -> Side:
    """Positions in float32."""
    scale = np.float32(size) / np.float32(out)
    if align and out > 1:
        scale = np.float32(size - 1) / np.float32(out - 1)
    offset = np.float32(0.5 if half else 0)
    at = (np.arange(out, dtype=np.float32) + offset) * scale - offset
    lower = np.maximum(np.floor(at).astype(np.int64), 0)
    upper = np.minimum(np.ceil(at).astype(np.int64), size - 1)
    return Side(lower, upper, at - lower.astype(np.float32))


def fixed_side(size: int, out: int, *, align: bool, half: bool) -> Side:
    """Positions with `FRACTION_BITS` bits behind the point."""
    scale = (ONE * size + out // 2) // out
    if align and out > 1:
        scale = (ONE * (size - 1) + (out - 1) // 2) // (out - 1)
    at = np.arange(out, dtype=np.int64) * scale
    if half:
        at += scale // 2 - ONE // 2
    lower = np.maximum(at >> FRACTION_BITS, 0)
    upper = np.minimum((at + ONE - 1) >> FRACTION_BITS, size - 1)
    return Side(lower, upper, at - lower * ONE)


@legal("RESIZE_BILINEAR")
def resize_bilinear(operation: Operation) -> None:
    """The mean of the four nearest pixels by distance. uint8 is computed in float32 and rounded
    half up, int8 and int16 in whole numbers.
    """
    site = operation.site
    dtype, made = site.input().dtype, site.output_shape()
    align, half = (site.attributes.flag(f) for f in ("align_corners", "half_pixel_centers"))
    require(not (align and half), "corners aligned and pixel centres halved at once")
    fixed = dtype in {DType.INT8, DType.INT16}
    require(fixed or dtype in {F32, DType.UINT8}, f"images of {dtype.value}")
    require(site.output().dtype is dtype, "a result of another type")
    require(len(site.shape()) == 4, "an image of another rank")
    sizes = tuple(site.integers(1, "its size"))
    require(sizes == made[1:3], "a result of another size")
    side = fixed_side if fixed else float_side
    rows, columns = (
        side(size, out, align=align, half=half)
        for size, out in zip(site.shape()[1:3], sizes, strict=True)
    )
    if dtype in NARROW and _resize_short(operation, (rows, columns)):
        return
    weights = I32 if dtype is DType.INT8 else I64 if fixed else F32
    build = operation.build
    shares = [
        build.constant(weights, each.weight.shape, partial(np.asarray, each.weight))
        for each in (rows, columns)
    ]
    reads = [*_corners(operation, (rows, columns), (True, True))]
    reads += [Access(shares[0], along(1)), Access(shares[1], along(2))]
    scope = Scope(dtype, dtype, dtype, dtype, weights, weights)
    values = [scope.argument(i) for i in range(6)]
    mixed = _fixed_mean(values) if fixed else _float_mean(values, whole=dtype is DType.UINT8)
    result = scope.finish(mixed.cast(dtype))
    build.emit("resize", made, reads, result, operation.whole(operation.target()))


def _corners(
    operation: Operation, sides: tuple[Side, Side], mixed: tuple[bool, bool]
) -> list[Access]:
    """The pixels around each position: the lower and the upper one of the axes that are *mixed*,
    rows first, otherwise the lower one.
    """
    places = [
        [through(operation, p.tolist(), axis) for p in (side.lower, side.upper)[: 1 + both]]
        for axis, (side, both) in enumerate(zip(sides, mixed, strict=True), 1)
    ]
    source = operation.tensor()
    return [
        Access(source, (*along(0), row, column, *along(3)))
        for column in places[1]
        for row in places[0]
    ]


def _resize_short(operation: Operation, sides: tuple[Side, Side]) -> bool:
    """Resizes an image of 8 bits in numbers of 16 bits, if weights are so short that this is exact:
    those of images that become a power of two larger are.
    """
    dtype, made = operation.site.input().dtype, operation.site.output_shape()
    fixed = dtype is DType.INT8
    bits = [_bits_of(side.weight / ONE if fixed else side.weight) for side in sides]
    if sum(bits) > MOST_BITS:
        return False
    mixed = bits[0] > 0, bits[1] > 0
    corners = _corners(operation, sides, mixed)
    if not any(mixed):
        copy(operation, corners[0])
        return True
    wide, build = DType.INT16 if fixed else DType.UINT16, operation.build
    shares: list[Access | None] = [None, None]
    for axis, (side, count) in enumerate(zip(sides, bits, strict=True)):
        if count:
            # Weights below 0 wrap, and so do the products of which they are part.
            whole = np.rint(side.weight * (2.0**count / (ONE if fixed else 1))).astype(np.int64)
            constant = build.constant(wide, whole.shape, partial(whole.astype, wide.numpy))
            shares[axis] = Access(constant, along(axis + 1))
    images, height, width, channels = made
    columns = operation.shape(operation.tensor())[2]
    if all(mixed) and width >= WIDER * columns:
        # Rows are mixed once, for all columns of the result between two of the image.
        target, given = build.tensor(wide, (images, height, columns, channels)), corners[:2]
        given = [Access(a.tensor, (*a.axes[:2], *along(2, 3))) for a in given]
        mean = _Mean(given, dtype, wide)
        mean.mix(shares[0], bits[0])
        loops = images, height, columns, channels
        build.emit("resize", loops, mean.reads, mean.finish(), operation.whole(target))
        corners = [Access(target, (*along(0, 1), a.axes[2], *along(3))) for a in corners[::2]]
        shares[0] = None
    mean = _Mean(corners, dtype if corners[0].tensor == operation.tensor() else wide, wide)
    for each, count in zip(shares, bits, strict=True):
        mean.mix(each, count)
    body = mean.finish(sum(bits), dtype)
    build.emit("resize", made, mean.reads, body, operation.whole(operation.target()))
    return True


class _Mean:
    """Writes the mean of *pixels* of type *dtype*, in numbers of type *wide*: every mixing halves
    their number.
    """

    def __init__(self, pixels: list[Access], dtype: DType, wide: DType) -> None:
        self.reads, self._wide = list(pixels), wide
        self._scope = Scope(*[dtype] * len(pixels), *[wide] * (len(pixels) // 2))
        self._pixels = [self._scope.argument(i).cast(wide) for i in range(len(pixels))]

    def mix(self, share: Access | None, bits: int) -> None:
        """Mixes each two pixels: *share* is that of the second, with so many *bits*."""
        if share is None:
            return
        second, scope = self._scope.argument(len(self.reads)), self._scope
        self.reads.append(share)
        first = scope.constant(1 << bits, self._wide) - second
        pairs = zip(self._pixels[::2], self._pixels[1::2], strict=True)
        self._pixels = [low * first + high * second for low, high in pairs]

    def finish(self, bits: int = 0, dtype: DType | None = None) -> Expression:
        """The mean, or without its *bits* behind the point as *dtype*."""
        (total,) = self._pixels
        if dtype is not None:
            if dtype is DType.INT8:
                # Halves are rounded away from zero.
                total = total + total.apply("shift_right", 15)
            total = (total + (1 << (bits - 1))).apply("shift_right", bits).cast(dtype)
        return self._scope.finish(total)


def _bits_of(weights: NDArray) -> int:
    """The bits behind the point of *weights*; more than `MOST_BITS` if they are many."""
    scaled = weights.astype(np.float64)
    return next((k for k in range(MOST_BITS + 1) if (scaled * 2**k % 1 == 0).all()), MOST_BITS + 1)


def _float_mean(values: list[Value], *, whole: bool) -> Value:
    """In the order of TFLite's kernel: rows weighted first, from the upper left pixel on."""
    down, right = values[4:]
    one = down.scope.constant(1.0, F32)
    up, left = one - down, one - right
    pixels = [value.cast(F32) for value in values[:4]]
    total = pixels[0] * up * left
    for pixel, row, column in (
        (pixels[1], down, left),
        (pixels[2], up, right),
        (pixels[3], down, right),
    ):
        total = total + pixel * row * column
    return total + 0.5 if whole else total


def _fixed_mean(values: list[Value]) -> Value:
    """Halves are rounded away from zero: half the divisor with the sign, then toward zero."""
    down, right = values[4:]
    wide = down.dtype
    one = down.scope.constant(ONE, wide)
    up, left = one - down, one - right
    pixels = [value.cast(wide) for value in values[:4]]
    total = (pixels[0] * up + pixels[1] * down) * left
    total = total + (pixels[2] * up + pixels[3] * down) * right
    sign = total.apply("shift_right", (wide.bits or 0) - 1)
    moved = total + sign + (1 << (2 * FRACTION_BITS - 1))
    return moved.apply("shift_right", 2 * FRACTION_BITS)
