"""Non-maximum suppression, class by class."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir.types import DType
from penstock.loaders.onnx.calls import Call, operator
from penstock.loaders.onnx.operators.common import (
    arithmetic,
    cast,
    concatenate,
    expand,
    number,
    reshape,
    slice_axis,
)
from penstock.loaders.onnx.values import Value

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
