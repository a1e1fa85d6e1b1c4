"""Axis-aligned boxes: checks, transforms by deltas, and greedy suppression of those that overlap.

A box is two opposite corners, each of two coordinates: (x1, y1, x2, y2) in NNAPI's regions of
interest. All arithmetic is float32.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.errors import InputError
from penstock.interrupts import watched
from penstock.ir import NDArray

BLOCK: Final = 128
"""Candidates that are held against each other, and against the boxes chosen before, at a time."""


PART: Final = 2048
"""Boxes chosen before that candidates are held against at a time: their overlaps stay in
the cache.
"""


def check_boxes(boxes: NDArray, what: str) -> None:
    """`InputError` unless x1 <= x2 and y1 <= y2 in each of *boxes* [..., 4], which a NaN never
    fulfils.
    """
    good = (boxes[..., :2] <= boxes[..., 2:]).all(axis=-1)
    if not good.all():
        place = tuple(int(i) for i in np.argwhere(~good)[0])
        raise InputError(
            f"{what} {', '.join(map(str, place))} is {boxes[place].tolist()}: "
            "its second corner must not be less than its first"
        )


def check_batches(indexes: NDArray, count: int) -> None:
    """`InputError` unless each of *indexes* names one of *count* images."""
    wrong = (indexes < 0) | (indexes >= count)
    if wrong.any():
        raise InputError(f"batch index {int(indexes[wrong][0])} of a batch of {count}")


def overlaps(a: NDArray, b: NDArray) -> NDArray:
    """Intersection over union of each of *a* [n, 4] with each of *b* [m, 4]: [n, m].

    It is 0 where the union has no area.
    """
    shared = _shared(a, b, 0)
    shared *= _shared(a, b, 1)
    union = (_areas(a)[:, None] + _areas(b)) - shared
    np.divide(shared, union, out=shared, where=union != 0)
    return shared


def _shared(a: NDArray, b: NDArray, axis: int) -> NDArray:
    """What each of *a* has in common with each of *b* along an axis."""
    low = np.maximum(a[:, axis, None], b[:, axis])
    high = np.minimum(a[:, 2 + axis, None], b[:, 2 + axis])
    high -= low
    return np.maximum(high, np.float32(0), out=high)


def _areas(boxes: NDArray) -> NDArray:
    sides = boxes[:, 2:] - boxes[:, :2]
    result: NDArray = sides[:, 0] * sides[:, 1]
    return result


def transform(boxes: NDArray, deltas: NDArray, sizes: NDArray) -> NDArray:
    """*boxes* [n, 4] moved and scaled by *deltas* [n, classes, 4], and clipped to images of *sizes*
    [n, 2].

    Deltas are (dx, dy) in units of a box's width and height and the logarithms of the factors for
    width and height; sizes are (height, width). Returns [n, classes, 4] (Ren et al., "Faster
    R-CNN", 2015, with corners).
    """
    two = np.float32(2)
    extent = (boxes[:, 2:] - boxes[:, :2])[:, None]
    centre = ((boxes[:, :2] + boxes[:, 2:]) / two)[:, None] + deltas[..., :2] * extent
    half = np.exp(deltas[..., 2:].astype(np.float64)).astype(np.float32) * extent / two
    corners = np.concatenate([centre - half, centre + half], axis=-1)
    np.maximum(corners, np.float32(0), out=corners)
    limits = np.tile(sizes[:, None, ::-1], (1, 1, 2))
    return np.asarray(np.minimum(corners, limits, out=corners))


def best_first(scores: NDArray) -> NDArray:
    """Indexes of *scores* from the greatest down; equal ones in their order, NaN last."""
    return np.argsort(-scores, kind="stable")


def suppress(boxes: NDArray, limit: int, iou: float) -> NDArray:
    """Indexes of the *boxes* [n, 4], given best first, that stay: one that overlaps an earlier one
    that stays by *iou* or more goes. *limit* is the greatest number of them, negative for no limit.
    """
    room = len(boxes) if limit < 0 else min(limit, len(boxes))
    threshold = np.float32(iou)
    chosen = np.empty(0, np.int64)
    for start in watched(range(0, len(boxes), BLOCK)):
        if len(chosen) >= room:
            break
        block = np.arange(start, min(start + BLOCK, len(boxes)))
        for part in range(0, len(chosen), PART):
            rivals = boxes[chosen[part : part + PART]]
            block = block[~(overlaps(rivals, boxes[block]) >= threshold).any(axis=0)]
        shared = overlaps(boxes[block], boxes[block]) >= threshold
        alive = np.ones(len(block), bool)
        for at in range(len(block)):
            if alive[at]:
                alive[at + 1 :] &= ~shared[at, at + 1 :]
        chosen = np.concatenate([chosen, block[alive]])
    return chosen[:room]
