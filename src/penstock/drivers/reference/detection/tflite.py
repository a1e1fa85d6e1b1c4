"""TFLite's selections of boxes: NON_MAX_SUPPRESSION_V4 and V5 (soft, with a sigma), and
TFLite_Detection_PostProcess.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from penstock.drivers.reference.kernel import (
    Inputs,
    Kernel,
    Outputs,
    Site,
    direct,
    kernel,
)
from penstock.drivers.reference.numerics.one_operand import reader
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray
from penstock.ir.operations.custom_options import DetectionPostProcess, detection_post_process


class Chosen(NamedTuple):
    """Indexes of the chosen boxes, best first, and their scores."""

    indexes: list[int]
    scores: list[float]


def overlaps(box: NDArray, boxes: NDArray) -> NDArray:
    """Intersection over union of *box* [4] with each of *boxes* [n, 4], float32.

    Boxes are two opposite corners (y1, x1, y2, x2) in any order. Without area they overlap none.
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
    return np.where(empty, np.float32(0), shared / np.where(empty, np.float32(1), union))


class _Candidate(NamedTuple):
    """A box in the queue. It was already compared with the first *seen* chosen boxes."""

    score: float
    box: int
    seen: int


def suppress(
    boxes: NDArray, scores: NDArray, limit: int, iou: float, least: float, sigma: float
) -> Chosen:
    """Greedy choice of at most *limit* boxes with scores above *least*.

    A candidate that overlaps a chosen box by *iou* or more is dropped. With *sigma* > 0 a smaller
    overlap lowers its score by exp(-overlap**2 / (2 sigma)), and the candidate returns to the queue
    (Bodla et al., "Soft-NMS", 2017). As in TFLite, a chosen box returns to the queue too, and its
    overlap with itself drops it. A box without area overlaps no box, so it is chosen again until
    *limit* is reached. Equal scores leave the queue as in TFLite's heap (`_pop`).
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
    """The score after these overlaps, latest choice first; None if one is too large."""
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
    """Removes the candidate with the greatest score. The hole sinks to the bottom, always to the
    greater child (the second of two equal ones), and the last item rises from there.
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


@direct(
    "NON_MAX_SUPPRESSION_V4",
    "NON_MAX_SUPPRESSION_V5",
    accepts=lambda s: {s.input(0).dtype, s.input(1).dtype} == {DType.FLOAT32},
)
def non_max_suppression(site: Site, inputs: Inputs) -> Outputs:
    """Indexes of the chosen boxes (V5: also their scores), padded with zeros, and their number."""
    soft = site.operation.type.endswith("V5")
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


class Detections(NamedTuple):
    """Chosen anchors, classes, scores and positions in the outputs; the number of boxes."""

    anchors: NDArray
    classes: NDArray
    scores: NDArray
    places: NDArray
    total: int


@kernel("CUSTOM:TFLite_Detection_PostProcess")
def detection_postprocess(site: Site) -> Kernel:
    """Decodes the boxes of one image [1, n, 4], suppresses overlaps, and returns boxes (ymin, xmin,
    ymax, xmax), classes and scores, padded with zeros, and their number. All are float32.
    """
    options = detection_post_process(site.operation.attributes)
    dtypes = {site.input(i).dtype for i in range(3)}
    site.require_types(dtypes <= {DType.FLOAT32, DType.UINT8, DType.INT8})
    readers = [reader(site.input(i), "an input") for i in range(3)]
    choose = _regular if options.use_regular_nms else _fast

    def run(inputs: Inputs) -> Outputs:
        encodings, predictions, anchors = (
            read(value) for read, value in zip(readers, inputs, strict=True)
        )
        places = encodings.shape[1]
        boxes = np.empty((0, 4), np.float32)
        if places:
            boxes = decode(encodings[0], anchors[:places], options)
        # The first class may be the background.
        first = predictions.shape[2] - options.num_classes
        if first < 0:
            raise ShapeMismatch(f"{options.num_classes} classes of scores {predictions.shape}")
        found = choose(boxes, predictions[0][:, first:], options)
        places = options.max_detections * options.max_classes_per_detection
        return _outputs(boxes, found, places)

    return run


def decode(encodings: NDArray, anchors: NDArray, options: DetectionPostProcess) -> NDArray:
    """Corners [n, 4] of boxes given as (y, x, h, w) relative to anchors (y, x, h, w): centres are
    scaled by the anchor's size, sizes are logarithms (Liu et al., "SSD", 2016).
    """
    scales = np.array([options.y_scale, options.x_scale, options.h_scale, options.w_scale])
    y, x, h, w = (encodings[:, :4].astype(np.float64) / scales).T
    anchor_y, anchor_x, anchor_h, anchor_w = anchors[:, :4].astype(np.float64).T
    centre_y = (y * anchor_h + anchor_y).astype(np.float32)
    centre_x = (x * anchor_w + anchor_x).astype(np.float32)
    half_h = (0.5 * np.exp(h) * anchor_h).astype(np.float32)
    half_w = (0.5 * np.exp(w) * anchor_w).astype(np.float32)
    corners = [centre_y - half_h, centre_x - half_w, centre_y + half_h, centre_x + half_w]
    return np.stack(corners, axis=1)


def suppress_sorted(
    boxes: NDArray, scores: NDArray, limit: int, options: DetectionPostProcess
) -> NDArray:
    """At most *limit* boxes with scores of the threshold or more, best first. Each box drops later
    boxes that overlap it by more than the other threshold. Equal scores keep their order.
    """
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] >= np.float32(options.nms_score_threshold)]
    chosen: list[int] = []
    while order.size and len(chosen) < limit:
        best, order = int(order[0]), order[1:]
        chosen.append(best)
        shared = overlaps(boxes[best], boxes[order])
        order = order[shared <= np.float32(options.nms_iou_threshold)]
    return np.array(chosen, np.int64)


def _fast(boxes: NDArray, scores: NDArray, options: DetectionPostProcess) -> Detections:
    """Suppresses by each anchor's best score; a chosen anchor keeps its best classes."""
    each = options.max_classes_per_detection
    kept = min(each, options.num_classes)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :kept]
    highest = np.take_along_axis(scores, best[:, :1], axis=1)[:, 0]
    chosen = suppress_sorted(boxes, highest, options.max_detections, options)
    anchors, classes = np.repeat(chosen, kept), best[chosen].reshape(-1)
    places = (np.arange(len(chosen))[:, None] * each + np.arange(kept)).reshape(-1)
    return Detections(anchors, classes, scores[anchors, classes], places, len(chosen))


def _regular(boxes: NDArray, scores: NDArray, options: DetectionPostProcess) -> Detections:
    """Suppresses each class separately, then keeps the best of all classes."""
    anchors, classes = np.empty(0, np.int64), np.empty(0, np.int64)
    for label in range(options.num_classes):
        limit = options.detections_per_class
        chosen = suppress_sorted(boxes, scores[:, label], limit, options)
        anchors = np.append(anchors, chosen)
        classes = np.append(classes, np.full(len(chosen), label))
        order = np.argsort(-scores[anchors, classes], kind="stable")[: options.max_detections]
        anchors, classes = anchors[order], classes[order]
    count = len(anchors)
    return Detections(anchors, classes, scores[anchors, classes], np.arange(count), count)


def _outputs(boxes: NDArray, found: Detections, places: int) -> list[NDArray]:
    corners = np.zeros((1, places, 4), np.float32)
    classes, scores = np.zeros((1, places), np.float32), np.zeros((1, places), np.float32)
    corners[0, found.places] = boxes[found.anchors]
    classes[0, found.places] = found.classes
    scores[0, found.places] = found.scores
    return [corners, classes, scores, np.array([found.total], np.float32)]
