"""NNAPI's selections of boxes: BOX_WITH_NMS_LIMIT and DETECTION_POSTPROCESSING."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from penstock.driverkit.detections import DetectionAttributes
from penstock.drivers.reference.detection.boxes import best_first, check_boxes, overlaps, suppress
from penstock.drivers.reference.kernel import (
    Inputs,
    Kernel,
    Outputs,
    Site,
    kernel,
    options_of,
    require,
)
from penstock.drivers.reference.numerics.one_operand import FLOATING, reader, writer
from penstock.drivers.reference.structure.shape import checked
from penstock.errors import InputError, ShapeMismatch
from penstock.ir import NDArray

Decay = Callable[[NDArray], NDArray]
"""Computes factors that lower scores from overlaps."""

_GONE: Final = np.float32(-np.inf)
"""The score of a box that was already chosen or dropped."""


class Selection(NamedTuple):
    """Rows (boxes or anchors), classes and scores of the kept boxes of one image."""

    rows: NDArray
    classes: NDArray
    scores: NDArray


NONE_KEPT: Final = Selection(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))


def joined(parts: Sequence[Selection]) -> Selection:
    """One selection after another."""
    return Selection(*(np.concatenate(arrays) for arrays in zip(NONE_KEPT, *parts, strict=True)))


@kernel("BOX_WITH_NMS_LIMIT")
def box_with_nms_limit(site: Site) -> Kernel:
    """Scores, boxes, classes and batch indices of the kept boxes, by image, then class, then score.

    Class 0, the background, is never chosen. Consecutive boxes with one batch index form an image.
    """
    read_scores = reader(site.input(0), "scores")
    read_boxes = reader(site.input(1), "boxes")
    write_scores = writer(site.output(0), "scores")
    chooser = options_of(site, Chooser)
    soft = chooser.nms_kernel != "GAUSSIAN" or chooser.sigma > 0
    require(soft, f"a Gaussian suppression with a sigma of {chooser.sigma}")
    site.require_types(site.output(1).dtype is site.input(1).dtype)

    def run(inputs: Inputs) -> Outputs:
        scores, boxes = read_scores(inputs[0]), read_boxes(inputs[1])
        batches = np.asarray(inputs[2])
        count, classes = scores.shape
        if boxes.shape != (count, 4 * classes) or batches.shape != (count,):
            raise ShapeMismatch(
                f"scores {scores.shape}, boxes {boxes.shape} and batch indices {batches.shape}"
            )
        if count and batches.min() < 0:
            raise InputError(f"batch index {int(batches.min())}")
        corners = boxes.reshape(count, classes, 4)
        starts = np.flatnonzero(np.diff(batches, prepend=batches[:1] - 1)).tolist()
        found = []
        for start, end in pairwise([*starts, count]):
            part = chooser.image(scores[start:end], corners[start:end])
            found.append(part._replace(rows=part.rows + start))
        row, label, kept = joined(found)
        stored = np.asarray(inputs[1]).reshape(count, classes, 4)
        return (
            write_scores(kept),
            stored[row, label],
            label.astype(np.int32),
            batches[row].astype(np.int32),
        )

    return run


class Chooser(Struct, frozen=True):
    """The parameters of a suppression. A negative `max_boxes` means no limit."""

    score_threshold: float
    max_boxes: int
    nms_kernel: str
    iou_threshold: float
    sigma: float
    nms_score_threshold: float

    def image(self, scores: NDArray, boxes: NDArray) -> Selection:
        """The kept boxes of one image with *scores* [n, classes] and *boxes* [n, classes, 4]."""
        found = []
        for label in range(1, scores.shape[1]):
            candidates = np.flatnonzero(scores[:, label] > np.float32(self.score_threshold))
            part = boxes[candidates, label]
            check_boxes(part, f"box of class {label}, candidate")
            places, kept = self._choose(part, scores[candidates, label])
            found.append(Selection(candidates[places], np.full(len(places), label), kept))
        every = joined(found)
        if 0 <= self.max_boxes < len(every.scores):
            best = np.sort(best_first(every.scores)[: self.max_boxes])
            return Selection(*(part[best] for part in every))
        return every

    def _choose(self, boxes: NDArray, scores: NDArray) -> tuple[NDArray, NDArray]:
        """Positions of the kept boxes, best first, and their scores after decay."""
        order = best_first(scores)
        if self.nms_kernel == "HARD" and self.nms_score_threshold > 0:
            # The score of an overlapping box becomes 0, which is below the threshold.
            low = scores[order] < np.float32(self.nms_score_threshold)
            low[:1] = False
            order = order[~low]
            places = order[suppress(boxes[order], self.max_boxes, self.iou_threshold)]
            return places, scores[places]
        return self._decay(boxes[order], scores[order], order)

    def _decay(self, boxes: NDArray, scores: NDArray, order: NDArray) -> tuple[NDArray, NDArray]:
        """Chooses the best remaining box, and lowers the others' scores, until none remains."""
        factors, least = self._factors(), np.float32(self.nms_score_threshold)
        room = len(boxes) if self.max_boxes < 0 else min(self.max_boxes, len(boxes))
        places: list[int] = []
        kept: list[np.float32] = []
        while order.size and len(places) < room:
            best = int(np.argmax(scores))
            if scores[best] == _GONE:
                break
            places.append(int(order[best]))
            kept.append(scores[best])
            scores = scores * factors(overlaps(boxes[best : best + 1], boxes)[0])
            gone = ~(scores >= least)
            gone[best] = True
            scores[gone] = _GONE
            if 2 * np.count_nonzero(gone) > len(order):
                boxes, scores, order = boxes[~gone], scores[~gone], order[~gone]
        return np.array(places, np.int64), np.array(kept, np.float32)

    def _factors(self) -> Decay:
        iou = np.float32(self.iou_threshold)
        match self.nms_kernel:
            case "HARD":
                return lambda shared: (shared < iou).astype(np.float32)
            case "LINEAR":
                return lambda shared: np.where(shared < iou, np.float32(1), np.float32(1) - shared)
            case _:
                sigma = np.float32(self.sigma)
                return lambda shared: np.exp(-shared * shared / sigma)


@kernel("DETECTION_POSTPROCESSING")
def detection_postprocessing(site: Site) -> Kernel:
    """Scores, boxes (y1, x1, y2, x2) and classes of each image's detections, zero beyond the last
    one, and their number. Class 0 is the background, never detected.
    """
    for index in range(3):
        site.require_types(site.input(index).dtype in FLOATING)
    roles = ("scores", "boxes", "anchors")
    readers = [reader(site.input(i), role) for i, role in enumerate(roles)]
    write_scores, write_boxes = writer(site.output(0), "scores"), writer(site.output(1), "boxes")
    detector = options_of(site, Detector)
    require(min(detector.scales) > 0, f"scales {detector.scales}")
    require(min(detector.limits) > 0, f"at most {detector.limits} detections")

    def run(inputs: Inputs) -> Outputs:
        scores, deltas, anchors = (read(value) for read, value in zip(readers, inputs, strict=True))
        images, count, classes = scores.shape
        fits = deltas.shape[:2] == (images, count) and anchors.shape == (count, 4)
        if not fits or deltas.shape[2] < 4 or classes < 2:
            raise ShapeMismatch(
                f"scores {scores.shape}, boxes {deltas.shape} and anchors {anchors.shape}"
            )
        boxes = detector.decode(deltas, anchors)
        shape = checked((images, detector.places), "DETECTION_POSTPROCESSING")
        best, corners = np.zeros(shape, np.float32), np.zeros((*shape, 4), np.float32)
        labels, totals = np.zeros(shape, np.int32), np.zeros(images, np.int32)
        for image in range(images):
            found = detector.detect(boxes[image], scores[image])
            total = totals[image] = len(found.scores)
            best[image, :total] = found.scores
            corners[image, :total] = boxes[image, found.rows]
            labels[image, :total] = found.classes
        return write_scores(best), write_boxes(corners), labels, totals

    return run


class Detector(DetectionAttributes, frozen=True):
    """The parameters of the operation."""

    @property
    def limits(self) -> tuple[int, int]:
        """The greatest numbers of detections, and of classes each or detections a class."""
        regular = self.use_regular_nms
        more = self.detections_per_class if regular else self.max_classes_per_detection
        return self.max_detections, more

    @property
    def places(self) -> int:
        """The greatest number of detections that fit in the outputs."""
        most, classes = self.limits
        return most if self.use_regular_nms else most * classes

    def decode(self, deltas: NDArray, anchors: NDArray) -> NDArray:
        """Corners [images, n, 4] of boxes (y, x, h, w) relative to *anchors* (y, x, h, w): centres
        are scaled by the anchor's size, sizes are logarithms (Liu et al., "SSD", 2016).
        """
        scales = np.array(self.scales, np.float32)
        centres = anchors[:, :2] + anchors[:, 2:] * deltas[..., :2] / scales[:2]
        factors = np.exp((deltas[..., 2:4] / scales[2:]).astype(np.float64)).astype(np.float32)
        halves = anchors[:, 2:] * factors * np.float32(0.5)
        return np.concatenate([centres - halves, centres + halves], axis=-1)

    def detect(self, boxes: NDArray, scores: NDArray) -> Selection:
        """The detections of one image with *boxes* [n, 4] and *scores* [n, classes]."""
        foreground = np.where(np.isnan(scores[:, 1:]), np.float32(-np.inf), scores[:, 1:])
        anchor, label = (self._each_class if self.use_regular_nms else self._each_anchor)(
            boxes, foreground
        )
        return Selection(anchor, label + self.background_in_labels, foreground[anchor, label])

    def _each_class(self, boxes: NDArray, scores: NDArray) -> tuple[NDArray, NDArray]:
        """Suppresses each class separately, then keeps the best of all classes."""
        limit = self.detections_per_class
        chosen = [self._suppress(boxes, column, limit) for column in scores.T]
        anchor = np.concatenate(chosen)
        label = np.repeat(np.arange(len(chosen)), [len(part) for part in chosen])
        kept = best_first(scores[anchor, label])[: self.max_detections]
        return anchor[kept], label[kept]

    def _each_anchor(self, boxes: NDArray, scores: NDArray) -> tuple[NDArray, NDArray]:
        """Suppresses by each anchor's best score; a chosen anchor keeps its best classes."""
        chosen = self._suppress(boxes, scores.max(axis=1), self.max_detections)
        kept = min(self.max_classes_per_detection, scores.shape[1])
        order = np.argsort(-scores[chosen], axis=1, kind="stable")[:, :kept]
        return np.repeat(chosen, kept), order.reshape(-1)

    def _suppress(self, boxes: NDArray, scores: NDArray, limit: int) -> NDArray:
        candidates = np.flatnonzero(scores > np.float32(self.score_threshold))
        order = candidates[best_first(scores[candidates])]
        return np.asarray(order[suppress(boxes[order], limit, self.iou_threshold)])
