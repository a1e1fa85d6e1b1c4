"""CUSTOM:TFLite_Detection_PostProcess: boxes relative to anchors, and class scores, to detections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from penstock.drivers.reference.ops.detection.suppression import overlaps
from penstock.drivers.reference.ops.kernel import (
    Kernel,
    Site,
    kernel,
    require,
    tensor_quantization,
)
from penstock.errors import GeneralFailure
from penstock.ir import DType, NDArray, Operand
from penstock.ir.operations.custom_options import DetectionPostProcess, detection_post_process


class Detections(NamedTuple):
    """The chosen (anchor, class, score) triples, and the places of the outputs they stand in."""

    anchors: list[int]
    classes: list[int]
    scores: list[float]
    places: list[int]
    total: int


@kernel("CUSTOM:TFLite_Detection_PostProcess")
def detection_postprocess(site: Site) -> Kernel:
    """Decodes the boxes of one image [1, n, 4], suppresses overlaps, and returns boxes (ymin, xmin,
    ymax, xmax), classes and scores, zero beyond the last, and how many there are; all float32.
    """
    options = detection_post_process(site.operation.attributes)
    readers = [_reader(site.input(i)) for i in range(3)]
    choose = _regular if options.use_regular_nms else _fast

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        encodings, predictions, anchors = (
            read(value) for read, value in zip(readers, inputs, strict=True)
        )
        places = encodings.shape[1]
        boxes = np.empty((0, 4), np.float32)
        if places:
            boxes = decode(encodings[0], anchors[:places], options)
        found = choose(boxes, predictions[0], options)
        places = options.max_detections * options.max_classes_per_detection
        return _outputs(boxes, found, places)

    return run


def _reader(operand: Operand) -> Callable[[NDArray | None], NDArray]:
    """Real values of an input that may be quantised."""
    if operand.dtype is DType.FLOAT32:
        return _given
    require(operand.dtype in (DType.UINT8, DType.INT8), f"{operand.dtype.value} boxes or scores")
    quantization = tensor_quantization(operand, "input")
    scale, zero_point = np.float32(quantization.scale), quantization.zero_point

    def read(value: NDArray | None) -> NDArray:
        real: NDArray = (_given(value).astype(np.int32) - zero_point).astype(np.float32) * scale
        return real

    return read


def _given(value: NDArray | None) -> NDArray:
    if value is None:
        raise GeneralFailure("an input that detection needs is omitted")
    return value


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
    boxes: NDArray, scores: NDArray, limit: int, least: float, iou: float
) -> list[int]:
    """At most *limit* boxes with scores of *least* or more, best first; each drops those after it
    that overlap it by more than *iou*. Equal scores keep their order.
    """
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] >= np.float32(least)]
    chosen: list[int] = []
    while order.size and len(chosen) < limit:
        best, order = int(order[0]), order[1:]
        chosen.append(best)
        order = order[overlaps(boxes[best], boxes[order]) <= np.float32(iou)]
    return chosen


def _fast(boxes: NDArray, predictions: NDArray, options: DetectionPostProcess) -> Detections:
    """One suppression over each anchor's best score; the chosen anchors keep their best classes."""
    scores = predictions[:, predictions.shape[1] - options.num_classes :]
    kept = min(options.max_classes_per_detection, options.num_classes)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :kept]
    chosen = suppress_sorted(
        boxes,
        np.take_along_axis(scores, best[:, :1], axis=1)[:, 0],
        options.max_detections,
        options.nms_score_threshold,
        options.nms_iou_threshold,
    )
    anchors = [a for a in chosen for _ in range(kept)]
    classes = [int(c) for a in chosen for c in best[a]]
    return Detections(
        anchors,
        classes,
        [float(scores[a, c]) for a, c in zip(anchors, classes, strict=True)],
        [
            at * options.max_classes_per_detection + column
            for at in range(len(chosen))
            for column in range(kept)
        ],
        len(chosen),
    )


def _regular(boxes: NDArray, predictions: NDArray, options: DetectionPostProcess) -> Detections:
    """A suppression for each class; the best of all classes together stay."""
    offset = predictions.shape[1] - options.num_classes
    found: list[tuple[float, int, int]] = []
    for label in range(options.num_classes):
        scores = predictions[:, offset + label]
        chosen = suppress_sorted(
            boxes,
            scores,
            options.detections_per_class,
            options.nms_score_threshold,
            options.nms_iou_threshold,
        )
        found += [(float(scores[a]), a, label) for a in chosen]
        found.sort(key=lambda item: -item[0])
        del found[options.max_detections :]
    return Detections(
        [a for _, a, _ in found],
        [c for _, _, c in found],
        [s for s, _, _ in found],
        list(range(len(found))),
        len(found),
    )


def _outputs(boxes: NDArray, found: Detections, places: int) -> list[NDArray]:
    corners = np.zeros((1, places, 4), np.float32)
    classes, scores = np.zeros((1, places), np.float32), np.zeros((1, places), np.float32)
    corners[0, found.places] = boxes[found.anchors]
    classes[0, found.places] = found.classes
    scores[0, found.places] = found.scores
    return [corners, classes, scores, np.array([found.total], np.float32)]
