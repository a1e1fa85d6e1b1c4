"""Operators on images: Resize, RoiAlign and NonMaxSuppression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.ir.types import DType, NDArray
from penstock.loaders.onnx.calls import Call, operator
from penstock.loaders.onnx.operators.common import (
    arithmetic,
    axis_in,
    cast,
    concatenate,
    expand,
    number,
    reshape,
    slice_axis,
)
from penstock.loaders.onnx.values import Value

MAX_SIZE = 1 << 20


@operator("Upsample")
def upsample(call: Call) -> Value:
    x = call.tensor(0)
    if call.version >= 9:
        scales = [float(s) for s in call.constant(1, "the scales").reshape(-1)]
    else:
        scales = list(call.node.numbers("scales"))
    size = [
        None if d is None else math.floor(d * s) for d, s in zip(x.shape or (), scales, strict=True)
    ]
    return _resized(call, x, scales, size, "asymmetric", "floor", range(len(scales)))


@operator("Resize")
def resize(call: Call) -> Value:
    x = call.tensor(0)
    dims = x.shape or ()
    node = call.node
    mode = node.text(
        "coordinate_transformation_mode", "half_pixel" if call.version > 10 else "asymmetric"
    )
    nearest = node.text("nearest_mode", "round_prefer_floor" if call.version > 10 else "floor")
    if node.integer("antialias", 0):
        raise call.refuse("resizing with antialias")
    axes: Sequence[int] = range(len(dims))
    if node.has("axes"):
        axes = call.axes(node.integers("axes"), len(dims))
    at = 1 if call.version < 11 else 2
    scales: list[float] = [1.0] * len(dims)
    size: list[int | None] = list(dims)
    given = call.array(at)
    if call.has(at) and (given is None or given.size):
        listed = [float(s) for s in call.constant(at, "the scales").reshape(-1)]
        if len(listed) != len(axes):
            raise call.mismatch(f"{len(listed)} scales for {len(axes)} dimensions")
        for axis, scale in zip(axes, listed, strict=True):
            own = dims[axis]
            scales[axis] = scale
            size[axis] = own if scale == 1 else None if own is None else math.floor(own * scale)
    else:
        wanted = call.integers(3, "the sizes")
        if len(wanted) != len(axes):
            raise call.mismatch(f"{len(wanted)} sizes for {len(axes)} dimensions")
        wanted = _kept_aspect(
            call, node.text("keep_aspect_ratio_policy", "stretch"), wanted, [dims[a] for a in axes]
        )
        for axis, target in zip(axes, wanted, strict=True):
            own = dims[axis]
            size[axis] = target
            scales[axis] = 1.0 if own is None or not own else target / own
    return _resized(call, x, scales, size, mode, nearest, axes)


def _kept_aspect(
    call: Call, policy: str, wanted: tuple[int, ...], dims: list[int | None]
) -> tuple[int, ...]:
    if policy == "stretch":
        return wanted
    if None in dims:
        raise call.refuse("the aspect ratio of an input of unknown size")
    ratios = [w / (d or 1) for w, d in zip(wanted, dims, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return tuple(math.floor(scale * (d or 0) + 0.5) for d in dims)


def _resized(
    call: Call,
    x: Value,
    scales: Sequence[float],
    size: Sequence[int | None],
    mode: str,
    nearest: str,
    axes: Sequence[int],
) -> Value:
    rank, dims = x.rank or 0, x.shape or ()
    kind = call.node.text("mode", "nearest")
    layout = call.emitter.layout_of([x], rank)
    operand = call.get(x, layout)
    for axis in axes:
        own, target = dims[axis], size[axis]
        if own == target and (own is not None or scales[axis] == 1):
            continue
        if own is None or target is None:
            raise call.refuse("resizing along a dimension of unknown size")
        if target > MAX_SIZE or own < 1 or target < 1:
            raise call.mismatch(f"a dimension of {own} resized to {target}")
        places = coordinates(call, own, target, scales[axis], mode)
        taps = _taps(call, places, own, kind, nearest)
        operand = _along(call, operand, axis_in(layout, axis), taps, rank)
    return call.wrap(operand, layout)


def coordinates(call: Call, own: int, target: int, scale: float, mode: str) -> NDArray:
    """Where each element of the result stands in the input."""
    x = np.arange(target, dtype=np.float64)
    if mode == "half_pixel":
        return (x + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return (x + 0.5) / scale - 0.5 if target > 1 else np.zeros(1)
    if mode == "align_corners":
        return x * (own - 1) / (target - 1) if target > 1 else np.zeros(1)
    if mode == "asymmetric":
        return x / scale
    if mode == "half_pixel_symmetric":
        offset = own / 2 * (1 - target / (scale * own))
        return offset + (x + 0.5) / scale - 0.5
    if mode == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    raise call.refuse(f"coordinates by {mode!r}")


def _taps(
    call: Call, places: NDArray, own: int, kind: str, nearest: str
) -> list[tuple[NDArray, NDArray | None]]:
    """(indices, weights) of what each element of the result is a sum of."""
    if kind == "nearest":
        rounded = {
            "round_prefer_floor": np.ceil(places - 0.5),
            "round_prefer_ceil": np.floor(places + 0.5),
            "floor": np.floor(places),
            "ceil": np.ceil(places),
        }.get(nearest)
        if rounded is None:
            raise call.node.invalid(f"nearest_mode {nearest!r}")
        return [(np.clip(rounded, 0, own - 1).astype(np.int32), None)]
    low = np.floor(places)
    share = places - low
    if kind in {"linear", "bilinear"}:
        inside = np.clip(places, 0, own - 1)
        low = np.floor(inside)
        share = inside - low
        pairs = [(low, 1 - share), (np.minimum(low + 1, own - 1), share)]
    elif kind == "cubic":
        pairs = _cubic(call, low, share, own)
    else:
        raise call.node.invalid(f"the mode {kind!r}")
    return [(np.clip(i, 0, own - 1).astype(np.int32), w) for i, w in pairs]


def _cubic(call: Call, low: NDArray, share: NDArray, own: int) -> list[tuple[NDArray, NDArray]]:
    a = call.node.number("cubic_coeff_a", -0.75)
    far, near = share + 1, share
    weights = [
        ((a * far - 5 * a) * far + 8 * a) * far - 4 * a,
        ((a + 2) * near - (a + 3)) * near * near + 1,
        ((a + 2) * (1 - near) - (a + 3)) * (1 - near) * (1 - near) + 1,
        ((a * (2 - near) - 5 * a) * (2 - near) + 8 * a) * (2 - near) - 4 * a,
    ]
    indices = [low + i for i in (-1, 0, 1, 2)]
    if call.node.integer("exclude_outside", 0):
        weights = [
            np.where((i >= 0) & (i < own), w, 0) for i, w in zip(indices, weights, strict=True)
        ]
        total = np.sum(weights, axis=0)
        weights = [w / total for w in weights]
    return list(zip(indices, weights, strict=True))


def _along(
    call: Call, operand: int, axis: int, taps: list[tuple[NDArray, NDArray | None]], rank: int
) -> int:
    dtype = call.emitter.dtype(operand)
    total = -1
    for indices, weights in taps:
        part = call.emit("GATHER", [operand, call.emitter.constant(indices)], dtype, {"axis": axis})
        if weights is not None:
            if not dtype.is_float or dtype is DType.BFLOAT16:
                raise call.refuse(f"interpolation of {dtype.value}")
            shape = [-1 if i == axis else 1 for i in range(rank)]
            factors = call.emitter.constant(weights.astype(dtype.numpy).reshape(shape))
            part = arithmetic(call, "MUL", part, factors)
        total = part if total < 0 else arithmetic(call, "ADD", total, part)
    return total


MAX_CLASSES: Final = 256
"""Classes of all images together, each of which takes an operation of its own."""


@operator("NonMaxSuppression")
def suppression(call: Call) -> Value:
    """Rows (image, class, box): for each class the boxes in order of score, less those that overlap
    a better one.
    """
    boxes, scores = call.tensor(0), call.tensor(1)
    images, classes, count = scores.shape or (None,) * 3
    if boxes.rank != 3 or scores.rank != 3:
        raise call.mismatch(f"boxes of shape {boxes.shape} and scores of shape {scores.shape}")
    if images is None or classes is None or images * classes > MAX_CLASSES or count is None:
        raise call.refuse(f"{classes} classes of {images} images of {count} boxes")
    if not call.has(2):
        most = call.scalar(0, DType.INT32)
    else:
        limit = call.array(2)
        if limit is not None:
            # No more than there are boxes: room is made for as many.
            held = min(max(int(limit.reshape(-1)[0]), 0), count)
            most = call.scalar(held, DType.INT32)
        else:
            given = reshape(call, cast(call, call.get(2), DType.INT32), [])
            most = arithmetic(call, "MINIMUM", given, call.scalar(count, DType.INT32))
    overlap = _limit(call, 3, 0.0, above=True)
    least = _limit(call, 4, float(np.finfo(np.float32).min))
    every, levels = call.get(boxes), call.get(scores)
    rows = []
    for image in range(images):
        own = reshape(call, slice_axis(call, every, 0, image, image + 1), [count, 4])
        if call.node.integer("center_point_box", 0):
            own = _corners(call, own)
        for kind in range(classes):
            one = slice_axis(call, slice_axis(call, levels, 0, image, image + 1), 1, kind, kind + 1)
            flat = reshape(call, one, [count])
            found, kept = call.emitter.emit(
                "NON_MAX_SUPPRESSION_V4",
                [own, flat, most, overlap, least],
                [DType.INT32, DType.INT32],
            )
            begin, size = call.emitter.integers([0]), reshape(call, kept, [1])
            places = call.emit("SLICE", [found, begin, size], DType.INT32)
            column = expand(call, cast(call, places, DType.INT64), 1)
            label = call.emitter.constant(np.array([[image, kind]], np.int64))
            times = concatenate(call, [size, call.emitter.integers([1])], 0)
            labels = call.emit("TILE", [label, times], DType.INT64)
            rows.append(concatenate(call, [labels, column], 1))
    return call.wrap(concatenate(call, rows, 0))


def _limit(call: Call, index: int, default: float, *, above: bool = False) -> int:
    """A threshold; *above*: what is equal to it does not reach it (ONNX), where TFLite's kernel
    counts it.
    """
    array = call.array(index)
    if array is not None or not call.has(index):
        value = np.float32(default if array is None else array.reshape(-1)[0])
        return number(
            call, float(np.nextafter(value, np.float32(np.inf)) if above else value), DType.FLOAT32
        )
    given = reshape(call, call.get(index), [])
    if not above:
        return given
    next_to_one = float(np.nextafter(np.float32(1), np.float32(2)))
    return arithmetic(call, "MUL", given, number(call, next_to_one, DType.FLOAT32))


def _corners(call: Call, boxes: int) -> int:
    """(x centre, y centre, width, height) as (y, x, y, x)."""
    x, y, width, height = (slice_axis(call, boxes, 1, i, i + 1) for i in range(4))
    half = number(call, 0.5, DType.FLOAT32)
    across, down = (arithmetic(call, "MUL", s, half) for s in (width, height))
    parts = [
        arithmetic(call, "SUB", y, down),
        arithmetic(call, "SUB", x, across),
        arithmetic(call, "ADD", y, down),
        arithmetic(call, "ADD", x, across),
    ]
    return concatenate(call, parts, 1)
