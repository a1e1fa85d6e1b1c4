"""Non-maximum suppression: NON_MAX_SUPPRESSION_V4 and V5 (soft, with a sigma)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel, require
from penstock.ir import DType, NDArray


class Chosen(NamedTuple):
    """Indexes of the boxes that stay, best first, and their scores."""

    indexes: list[int]
    scores: list[float]


def overlaps(box: NDArray, boxes: NDArray) -> NDArray:
    """Intersection over union of *box* [4] with each of *boxes* [n, 4], float32.

    Boxes are two opposite corners (y1, x1, y2, x2) in any order; one without area overlaps nothing.
    """
    y = np.sort(boxes[:, 0::2], axis=1)
    x = np.sort(boxes[:, 1::2], axis=1)
    top, bottom = np.sort(box[0::2])
    left, right = np.sort(box[1::2])
    areas = (y[:, 1] - y[:, 0]) * (x[:, 1] - x[:, 0])
    area = (bottom - top) * (right - left)
    height = np.maximum(np.minimum(y[:, 1], bottom) - np.maximum(y[:, 0], top), np.float32(0))
    width = np.maximum(np.minimum(x[:, 1], right) - np.maximum(x[:, 0], left), np.float32(0))
    shared = height * width
    union = areas + area - shared
    empty = (areas <= 0) | (area <= 0)
    result: NDArray = np.where(empty, np.float32(0), shared / np.where(empty, np.float32(1), union))
    return result


def suppress(
    boxes: NDArray, scores: NDArray, limit: int, iou: float, least: float, sigma: float
) -> Chosen:
    """Greedy choice of at most *limit* boxes with scores above *least*.

    A candidate that overlaps a chosen box by *iou* or more goes; with *sigma* > 0 a lesser overlap
    lowers its score by exp(-overlap**2 / (2 sigma)), and it waits for its new turn (Bodla et al.,
    "Soft-NMS", 2017).
    """
    decay = np.float32(-0.5 / sigma) if sigma > 0 else np.float32(0)
    queue = [(-float(scores[i]), int(i), 0) for i in np.flatnonzero(scores > np.float32(least))]
    heapq.heapify(queue)
    indexes: list[int] = []
    kept: list[float] = []
    while queue and len(indexes) < limit:
        negative, index, seen = heapq.heappop(queue)
        score = original = np.float32(-negative)
        gone = False
        rivals = indexes[seen:]
        for overlap in reversed(overlaps(boxes[index], boxes[rivals]).tolist() if rivals else []):
            if overlap >= iou:
                gone = True
                break
            score *= np.exp(decay * np.float32(overlap) * np.float32(overlap))
            if score <= np.float32(least):
                break
        if gone:
            continue
        if score == original:
            indexes.append(index)
            kept.append(float(score))
        elif score > np.float32(least):
            heapq.heappush(queue, (-float(score), index, len(indexes)))
    return Chosen(indexes, kept)


@kernel("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def non_max_suppression(site: Site) -> Kernel:
    """Indexes of the chosen boxes, padded with zeros to the greatest number (V5: also their scores, after
    decay), and how many there are.
    """
    soft = site.operation.type.endswith("V5")
    require(site.input(0).dtype is DType.FLOAT32, "boxes that are not float32")
    require(site.input(1).dtype is DType.FLOAT32, "scores that are not float32")

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        boxes, scores, limit, iou, least, *rest = [a for a in inputs if a is not None]
        places = max(int(limit), 0)
        sigma = float(rest[0]) if soft else 0.0
        chosen = suppress(boxes, scores, places, float(iou), float(least), sigma)
        indexes = np.zeros(places, np.int32)
        indexes[: len(chosen.indexes)] = chosen.indexes
        count = np.array(len(chosen.indexes), np.int32)
        if not soft:
            return [indexes, count]
        kept = np.zeros(places, np.float32)
        kept[: len(chosen.scores)] = chosen.scores
        return [indexes, kept, count]

    return run
