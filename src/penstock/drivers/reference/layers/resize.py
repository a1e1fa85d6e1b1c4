"""RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR over [batch, height, width, channels]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.drivers.reference.kernel import Inputs, Kernel, Outputs, Site, direct, kernel, require
from penstock.errors import InvalidArgument
from penstock.ir import DType, NDArray

FRACTION_BITS: Final = 10
"""Fixed-point bits of a position when int8 and int16 images are interpolated."""

ONE: Final = 1 << FRACTION_BITS


class Axis(NamedTuple):
    """For output positions: the adjacent input positions, and the distance from the lower."""

    lower: NDArray
    upper: NDArray
    weight: NDArray


@kernel("RESIZE_BILINEAR")
def resize_bilinear(site: Site) -> Kernel:
    """Interpolates the four nearest pixels. uint8 is computed in float32 and rounded half up; int8
    and int16 with positions of 10 fraction bits.
    """
    dtype = site.input(0).dtype
    align, half = site.attributes.flag("align_corners"), site.attributes.flag("half_pixel_centers")
    require(not (align and half), "corners aligned and pixel centres halved at once")
    require(
        dtype in (DType.FLOAT32, DType.UINT8, DType.INT8, DType.INT16), f"pictures of {dtype.value}"
    )
    require(site.output().dtype is dtype, "a resize that changes the type")
    fixed = dtype in (DType.INT8, DType.INT16)

    def run(inputs: Inputs) -> Outputs:
        picture, (height, width) = _arguments(inputs)
        make = _fixed_axis if fixed else _float_axis
        rows = make(picture.shape[1], height, align=align, half=half)
        columns = make(picture.shape[2], width, align=align, half=half)
        mixed = _mix_fixed(picture, rows, columns) if fixed else _mix_float(picture, rows, columns)
        return [mixed]

    return run


@direct("RESIZE_NEAREST_NEIGHBOR", accepts=lambda s: s.output().dtype is s.input(0).dtype)
def resize_nearest_neighbor(site: Site, inputs: Inputs) -> Outputs:
    """Each output pixel is the input pixel at its position."""
    align, half = site.attributes.flag("align_corners"), site.attributes.flag("half_pixel_centers")
    picture, (height, width) = _arguments(inputs)
    rows = _nearest(picture.shape[1], height, align=align, half=half)
    columns = _nearest(picture.shape[2], width, align=align, half=half)
    return [picture[:, rows][:, :, columns]]


def _arguments(inputs: Inputs) -> tuple[NDArray, tuple[int, int]]:
    picture, size = inputs
    if picture is None or size is None or picture.ndim != 4 or size.size != 2:
        raise InvalidArgument("a resize needs a picture of four dimensions and two sizes")
    height, width = (int(n) for n in size.reshape(-1))
    if height < 1 or width < 1:
        raise InvalidArgument(f"a picture cannot have {height} rows of {width} pixels")
    return picture, (height, width)


def _scale(size: int, out: int, *, align: bool) -> np.float32:
    if align and out > 1:
        return np.float32(size - 1) / np.float32(out - 1)
    return np.float32(size) / np.float32(out)


def _float_axis(size: int, out: int, *, align: bool, half: bool) -> Axis:
    positions = np.arange(out, dtype=np.float32)
    scale = _scale(size, out, align=align)
    offset = np.float32(0.5 if half else 0)
    at = (positions + offset) * scale - offset
    lower = np.maximum(np.floor(at).astype(np.int64), 0)
    upper = np.minimum(np.ceil(at).astype(np.int64), size - 1)
    return Axis(lower, upper, at - lower.astype(np.float32))


def _fixed_axis(size: int, out: int, *, align: bool, half: bool) -> Axis:
    if align and out > 1:
        scale = (ONE * (size - 1) + (out - 1) // 2) // (out - 1)
    else:
        scale = (ONE * size + out // 2) // out
    at = np.arange(out, dtype=np.int64) * scale
    if half:
        at += scale // 2 - ONE // 2
    lower = np.maximum(at >> FRACTION_BITS, 0)
    upper = np.minimum((at + ONE - 1) >> FRACTION_BITS, size - 1)
    return Axis(lower, upper, at - lower * ONE)


def _mix_float(picture: NDArray, rows: Axis, columns: Axis) -> NDArray:
    one = np.float32(1)
    wide = len(columns.lower), picture.shape[3]
    right = np.ascontiguousarray(np.broadcast_to(columns.weight[:, None], wide))
    left = one - right
    work, sums = np.empty(wide, np.float32), np.empty(wide, np.float32)
    half = np.float32(0.5 if picture.dtype == np.uint8 else 0)

    def mix(top: NDArray, bottom: NDArray, down: np.float32, out: NDArray) -> None:
        above, below = top * (one - down), bottom * down
        target = sums if half else out
        above.take(columns.lower, axis=0, out=target, mode="clip")
        np.multiply(target, left, out=target)
        for row, places, share in (
            (below, columns.lower, left),
            (above, columns.upper, right),
            (below, columns.upper, right),
        ):
            row.take(places, axis=0, out=work, mode="clip")
            np.multiply(work, share, out=work)
            np.add(target, work, out=target)
        if half:
            np.add(sums, half, out=sums)
            np.copyto(out, sums, casting="unsafe")

    return _mixed(picture, rows, columns, picture.dtype, mix)


def _mix_fixed(picture: NDArray, rows: Axis, columns: Axis) -> NDArray:
    wide: Any = np.int32 if picture.dtype.itemsize == 1 else np.int64
    right = columns.weight[:, None].astype(wide)
    shares = wide(ONE) - right, right
    bits = 2 * FRACTION_BITS
    sign = 8 * np.dtype(wide).itemsize - 1

    def mix(top: NDArray, bottom: NDArray, down: np.int64, out: NDArray) -> None:
        above = top.astype(wide) * wide(ONE - down)
        below = bottom.astype(wide) * wide(down)
        total = (above + below)[columns.lower] * shares[0]
        total += (above + below)[columns.upper] * shares[1]
        # Half away from zero: adds half the divisor with the sign, then truncates as C's division.
        total += (total >> sign) + wide(1 << (bits - 1))
        total >>= bits
        np.copyto(out, total, casting="unsafe")

    return _mixed(picture, rows, columns, picture.dtype, mix)


def _mixed(
    picture: NDArray,
    rows: Axis,
    columns: Axis,
    dtype: Any,
    mix: Callable[[NDArray, NDArray, Any, NDArray], None],
) -> NDArray:
    """Images whose rows *mix* interpolates from two rows and the distance from the first."""
    batch, _, _, channels = picture.shape
    out = np.empty((batch, len(rows.lower), len(columns.lower), channels), dtype)
    for image, made in zip(picture, out, strict=True):
        for y, down in enumerate(rows.weight):
            mix(image[rows.lower[y]], image[rows.upper[y]], down, made[y])
    return out


def _nearest(size: int, out: int, *, align: bool, half: bool) -> NDArray:
    offset = np.float32(0.5 if half else 0)
    at = (np.arange(out, dtype=np.float32) + offset) * _scale(size, out, align=align)
    index = np.floor(at + np.float32(0.5)) if align else np.floor(at)
    return np.asarray(np.clip(index.astype(np.int64), 0, size - 1))
