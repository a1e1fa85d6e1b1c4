"""Non-maximum suppression: NON_MAX_SUPPRESSION_V4 and V5 (soft, with a sigma)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

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


class _Candidate(NamedTuple):
    """A box that waits for its turn; the first *seen* chosen boxes have been held against it
    already.
    """

    score: float
    box: int
    seen: int


def suppress(
    boxes: NDArray, scores: NDArray, limit: int, iou: float, least: float, sigma: float
) -> Chosen:
    """Greedy choice of at most *limit* boxes with scores above *least*.

    A candidate that overlaps a chosen box by *iou* or more goes; with *sigma* > 0 a lesser overlap
    lowers its score by exp(-overlap**2 / (2 sigma)), and it waits for its new turn (Bodla et al.,
    "Soft-NMS", 2017). A chosen box waits again too and is dropped by its overlap with itself, as
    TFLite has it: so a box without area, which overlaps nothing, is chosen as often as there is
    room. Equal scores take turns in the order of a binary heap (`_pop`), TFLite's own.
    """
    decay = np.float32(-0.5) / np.float32(sigma) if sigma > 0 else np.float32(0)
    queue: list[_Candidate] = []
    for index in np.flatnonzero(scores > np.float32(least)).tolist():
        _push(queue, _Candidate(float(scores[index]), index, 0))
    room = min(len(queue), limit)
    indexes: list[int] = []
    kept: list[float] = []
    while queue and len(indexes) < room:
        candidate = _pop(queue)
        rivals = indexes[candidate.seen :]
        shared = overlaps(boxes[candidate.box], boxes[rivals])[::-1] if rivals else _NOTHING
        score = _lowered(candidate.score, shared, np.float32(iou), np.float32(least), decay)
        if score is None:
            continue
        chosen = len(indexes)
        if score == candidate.score:
            indexes.append(candidate.box)
            kept.append(score)
        if score > np.float32(least):
            _push(queue, _Candidate(score, candidate.box, chosen))
    return Chosen(indexes, kept)


_NOTHING: Final = np.empty(0, np.float32)


def _lowered(
    score: float, shared: NDArray, iou: np.float32, least: np.float32, decay: np.float32
) -> float | None:
    """The score after these overlaps, latest choice first; None where one of them is too large.
    What has fallen to *least* is compared no further.
    """
    value = np.float32(score)
    for overlap in shared:
        if overlap >= iou:
            return None
        if decay:
            value *= np.float32(np.exp(np.float64(decay * overlap * overlap)))
        if value <= least:
            break
    return float(value)


def _push(heap: list[_Candidate], item: _Candidate) -> None:
    heap.append(item)
    _rise(heap, len(heap) - 1, item)


def _rise(heap: list[_Candidate], at: int, item: _Candidate) -> None:
    while at > 0 and heap[(at - 1) // 2].score < item.score:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = item


def _pop(heap: list[_Candidate]) -> _Candidate:
    """The candidate of the greatest score. The hole it leaves sinks to the bottom, always to the
    side of the greater child (the second of equal ones), and the last item rises from there.
    """
    best, last = heap[0], heap.pop()
    size = len(heap)
    if size == 0:
        return best
    at = 0
    while (child := 2 * at + 2) < size:
        if heap[child].score < heap[child - 1].score:
            child -= 1
        heap[at], at = heap[child], child
    if child == size:
        heap[at], at = heap[child - 1], child - 1
    _rise(heap, at, last)
    return best


@kernel("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def non_max_suppression(site: Site) -> Kernel:
    """Indexes of the chosen boxes, padded with zeros to the greatest number (V5: also their scores,
    after decay), and how many there are.
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
