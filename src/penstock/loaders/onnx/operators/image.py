"""Operators on images: Resize, RoiAlign and NonMaxSuppression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Final

import numpy as np

from penstock.ir.types import DType, NDArray
from penstock.loaders.onnx.calls import Call, Tensor
from penstock.loaders.onnx.operators import operator
from penstock.loaders.onnx.values import Value

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
    old = call.version < 11
    mode = node.text("coordinate_transformation_mode", "asymmetric" if old else "half_pixel")
    nearest = node.text("nearest_mode", "floor" if old else "round_prefer_floor")
    if node.integer("antialias", 0):
        raise call.refuse("resizing with antialias")
    axes: Sequence[int] = range(len(dims))
    if node.has("axes"):
        axes = call.axes(node.integers("axes"), len(dims))
    at = 1 if old else 2
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
        policy = node.text("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            if any(dims[a] is None for a in axes):
                raise call.refuse("the aspect ratio of an input of unknown size")
            ratios = [w / (dims[a] or 1) for w, a in zip(wanted, axes, strict=True)]
            ratio = min(ratios) if policy == "not_larger" else max(ratios)
            wanted = tuple(math.floor(ratio * (dims[a] or 0) + 0.5) for a in axes)
        for axis, target in zip(axes, wanted, strict=True):
            own = dims[axis]
            size[axis] = target
            scales[axis] = 1.0 if own is None or not own else target / own
    return _resized(call, x, scales, size, mode, nearest, axes)


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
        operand = _along(operand, layout.index(axis), _taps(call, places, own, kind, nearest))
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
    """(indices, weights) of the input elements that make up each element of the result."""
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
    if kind in {"linear", "bilinear"}:
        inside = np.clip(places, 0, own - 1)
        low = np.floor(inside)
        weights = np.array([1 - (inside - low), inside - low])
    elif kind == "cubic":
        low = np.floor(places) - 1
        a, near = call.node.number("cubic_coeff_a", -0.75), places - np.floor(places)
        outer = np.array([near + 1, 2 - near])
        inner = np.array([near, 1 - near])
        outer = ((a * outer - 5 * a) * outer + 8 * a) * outer - 4 * a
        inner = ((a + 2) * inner - (a + 3)) * inner * inner + 1
        weights = np.array([outer[0], *inner, outer[1]])
        if call.node.integer("exclude_outside", 0):
            taps = low + np.arange(4)[:, None]
            weights = np.where((taps >= 0) & (taps < own), weights, 0)
            weights /= weights.sum(axis=0)
    else:
        raise call.node.invalid(f"the mode {kind!r}")
    return [(np.clip(low + i, 0, own - 1).astype(np.int32), w) for i, w in enumerate(weights)]


def _along(operand: Tensor, axis: int, taps: list[tuple[NDArray, NDArray | None]]) -> Tensor:
    call, dtype, parts = operand.call, operand.dtype, []
    for indices, weights in taps:
        parts.append(operand.gather(call.literal(indices), axis))
        if weights is not None:
            if not dtype.is_float or dtype is DType.BFLOAT16:
                raise call.refuse(f"interpolation of {dtype.value}")
            shape = [-1 if i == axis else 1 for i in range(len(operand.dims))]
            parts[-1] *= call.literal(weights.astype(dtype.numpy).reshape(shape))
    return reduce(lambda a, b: a + b, parts)


MAX_CLASSES: Final = 256
"""The classes of all images together. Each of them takes one operation."""


@operator("NonMaxSuppression")
def suppression(call: Call) -> Value:
    """Rows (image, class, box): each class by score, without boxes that overlap a better one."""
    boxes, scores = call.tensor(0), call.tensor(1)
    images, classes, count = scores.shape or (None,) * 3
    if boxes.rank != 3 or scores.rank != 3:
        raise call.mismatch(f"boxes of shape {boxes.shape} and scores of shape {scores.shape}")
    if images is None or classes is None or images * classes > MAX_CLASSES or count is None:
        raise call.refuse(f"{classes} classes of {images} images of {count} boxes")
    limit = call.array(2) if call.has(2) else np.zeros(1, np.int64)
    if limit is None:
        most = call.get(2).cast(DType.INT32).reshape([]).minimum(count)
    else:  # at most all boxes, because memory is allocated for them
        most = call.scalar(min(max(int(limit.reshape(-1)[0]), 0), count), DType.INT32)
    # The next greater threshold: at the threshold ONNX keeps a box and TFLite drops it.
    bound = call.array(3) if call.has(3) else np.zeros(1, np.float32)
    if bound is None:
        overlap = call.get(3).reshape([]) * float(np.nextafter(np.float32(1), np.float32(2)))
    else:
        above = np.nextafter(np.float32(bound.reshape(-1)[0]), np.float32(np.inf))
        overlap = call.scalar(float(above), DType.FLOAT32)
    floor = call.array(4) if call.has(4) else np.array(np.finfo(np.float32).min)
    if floor is None:
        least = call.get(4).reshape([])
    else:
        least = call.scalar(float(floor.reshape(-1)[0]), DType.FLOAT32)
    every, levels = call.get(boxes), call.get(scores)
    rows = []
    for image in range(images):
        own = every.slice(0, image, image + 1).reshape([count, 4])
        if call.node.integer("center_point_box", 0):  # (x centre, y centre, width, height)
            x, y, width, height = (own.slice(1, i, i + 1) for i in range(4))
            across, down = width * 0.5, height * 0.5
            own = call.concatenate([y - down, x - across, y + down, x + across], 1)
        for kind in range(classes):
            flat = levels.slice(0, image, image + 1).slice(1, kind, kind + 1).reshape([count])
            inputs, types = [own, flat, most, overlap, least], [DType.INT32] * 2
            found, kept = call.emit_all("NON_MAX_SUPPRESSION_V4", inputs, types)
            size = kept.reshape([1])
            places = call.emit("SLICE", [found, call.vector([0]), size])
            column = places.cast(DType.INT64).expand(1)
            label = call.literal(np.array([[image, kind]], np.int64))
            times = call.concatenate([size, call.vector([1])], 0)
            labels = call.emit("TILE", [label, times])
            rows.append(call.concatenate([labels, column], 1))
    return call.concatenate(rows, 0).value()
