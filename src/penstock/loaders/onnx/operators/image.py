"""Operators on images: Resize, RoiAlign and NonMaxSuppression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.ir.types import DType, NDArray
from penstock.loaders.onnx.calls import Call, Tensor
from penstock.loaders.onnx.operators import operator
from penstock.loaders.onnx.values import Value, axis_in

MAX_SIZE: Final = 1 << 20


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
    dims, kind = x.shape or (), call.node.text("mode", "nearest")
    operand, layout = call.stored(x)
    for axis in axes:
        own, target = dims[axis], size[axis]
        if own == target and (own is not None or scales[axis] == 1):
            continue
        if own is None or target is None:
            raise call.refuse("resizing along a dimension of unknown size")
        if target > MAX_SIZE or own < 1 or target < 1:
            raise call.mismatch(f"a dimension of {own} resized to {target}")
        places = coordinates(call, own, target, scales[axis], mode)
        operand = _along(operand, axis_in(layout, axis), _taps(call, places, own, kind, nearest))
    return operand.value(layout)


def coordinates(call: Call, own: int, target: int, scale: float, mode: str) -> NDArray:
    """The input coordinate of each element of the result."""
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
    """The input elements that each element of the result is a weighted sum of: (indices,
    weights).
    """
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


def _along(operand: Tensor, axis: int, taps: list[tuple[NDArray, NDArray | None]]) -> Tensor:
    call, dtype = operand.call, operand.dtype
    total: Tensor | None = None
    for indices, weights in taps:
        part = operand.gather(call.literal(indices), axis)
        if weights is not None:
            if not dtype.is_float or dtype is DType.BFLOAT16:
                raise call.refuse(f"interpolation of {dtype.value}")
            shape = [-1 if i == axis else 1 for i in range(len(operand.dims))]
            part *= call.literal(weights.astype(dtype.numpy).reshape(shape))
        total = part if total is None else total + part
    return operand if total is None else total


MAX_CLASSES: Final = 256
"""The classes of all images together. Each of them takes one operation."""


@operator("NonMaxSuppression")
def suppression(call: Call) -> Value:
    """Rows (image, class, box): the boxes of each class in order of score, without boxes that
    overlap a better one.
    """
    boxes, scores = call.tensor(0), call.tensor(1)
    images, classes, count = scores.shape or (None,) * 3
    if boxes.rank != 3 or scores.rank != 3:
        raise call.mismatch(f"boxes of shape {boxes.shape} and scores of shape {scores.shape}")
    if images is None or classes is None or images * classes > MAX_CLASSES or count is None:
        raise call.refuse(f"{classes} classes of {images} images of {count} boxes")
    most = _most(call, count)
    overlap, least = _threshold(call, 3, 0.0), _least(call)
    every, levels = call.get(boxes), call.get(scores)
    rows = []
    for image in range(images):
        own = every.slice(0, image, image + 1).reshape([count, 4])
        if call.node.integer("center_point_box", 0):
            own = _corners(own)
        for kind in range(classes):
            flat = levels.slice(0, image, image + 1).slice(1, kind, kind + 1).reshape([count])
            found, kept = call.emit_all(
                "NON_MAX_SUPPRESSION_V4",
                [own, flat, most, overlap, least],
                [DType.INT32, DType.INT32],
            )
            size = kept.reshape([1])
            places = call.emit("SLICE", [found, call.vector([0]), size])
            column = places.cast(DType.INT64).expand(1)
            label = call.literal(np.array([[image, kind]], np.int64))
            times = call.concatenate([size, call.vector([1])], 0)
            labels = call.emit("TILE", [label, times])
            rows.append(call.concatenate([labels, column], 1))
    return call.concatenate(rows, 0).value()


def _most(call: Call, count: int) -> Tensor:
    """The greatest number of boxes kept of a class. It is limited to the number of boxes, because
    memory is allocated for it.
    """
    if not call.has(2):
        return call.scalar(0, DType.INT32)
    limit = call.array(2)
    if limit is not None:
        return call.scalar(min(max(int(limit.reshape(-1)[0]), 0), count), DType.INT32)
    return call.get(2).cast(DType.INT32).reshape([]).minimum(count)


def _threshold(call: Call, index: int, default: float) -> Tensor:
    """The next greater float: ONNX keeps a box whose overlap equals the threshold, TFLite drops
    it.
    """
    array = call.array(index)
    if array is not None or not call.has(index):
        value = np.float32(default if array is None else array.reshape(-1)[0])
        return call.scalar(float(np.nextafter(value, np.float32(np.inf))), DType.FLOAT32)
    return call.get(index).reshape([]) * float(np.nextafter(np.float32(1), np.float32(2)))


def _least(call: Call) -> Tensor:
    """The least score of a box that can be kept."""
    array = call.array(4)
    if array is None and call.has(4):
        return call.get(4).reshape([])
    value = np.finfo(np.float32).min if array is None else array.reshape(-1)[0]
    return call.scalar(float(value), DType.FLOAT32)


def _corners(boxes: Tensor) -> Tensor:
    """Boxes (x centre, y centre, width, height) in the order (y, x, y, x)."""
    x, y, width, height = (boxes.slice(1, i, i + 1) for i in range(4))
    half = boxes.like(0.5)
    across, down = (s * half for s in (width, height))
    return boxes.call.concatenate([y - down, x - across, y + down, x + across], 1)
