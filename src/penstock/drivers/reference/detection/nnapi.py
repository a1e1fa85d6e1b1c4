"""NNAPI's selections of boxes: BOX_WITH_NMS_LIMIT and DETECTION_POSTPROCESSING."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from penstock.drivers.reference.detection.boxes import best_first, check_boxes, overlaps, suppress
from penstock.drivers.reference.kernel import Inputs, Kernel, Outputs, Site, kernel, require
from penstock.drivers.reference.numerics.one_operand import FLOATING, reader, writer
from penstock.drivers.reference.structure.shape import checked
from penstock.errors import InputError, ShapeMismatch
from penstock.ir import Attributes, NDArray

Decay = Callable[[NDArray], NDArray]
"""Computes factors that lower scores from overlaps."""


_GONE: Final = np.float32(-np.inf)
"""The score of a box that was already chosen or dropped."""


class KeptBoxes(NamedTuple):
    """Positions of the kept boxes, best first, and their scores after decay."""

    places: NDArray
    scores: NDArray


@kernel("BOX_WITH_NMS_LIMIT")
def box_with_nms_limit(site: Site) -> Kernel:
    """Scores, boxes, classes and batch indices of the kept boxes, by image, then class, then score.

    Class 0 is the background and never chosen. Consecutive boxes with one batch index form an
    image.
    """
    read_scores = reader(site.input(0), "scores")
    read_boxes = reader(site.input(1), "boxes")
    write_scores = writer(site.output(0), "scores")
    chooser = Chooser.of(site.attributes)
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
        rows, labels, kept = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [scores[:0, 0]]
        for start, end in _images(batches):
            part = chooser.image(scores[start:end], corners[start:end])
            rows.append(part.rows + start)
            labels.append(part.classes)
            kept.append(part.scores)
        row, label = np.concatenate(rows), np.concatenate(labels)
        stored = np.asarray(inputs[1]).reshape(count, classes, 4)
        return (
            write_scores(np.concatenate(kept)),
            stored[row, label],
            label.astype(np.int32),
            batches[row].astype(np.int32),
        )

    return run


def _images(batches: NDArray) -> list[tuple[int, int]]:
    """Start and end of each run of one batch index."""
    if not batches.size:
        return []
    starts = [0, *(np.flatnonzero(np.diff(batches)) + 1).tolist(), batches.size]
    return list(pairwise(starts))


class Selection(NamedTuple):
    """Rows, classes and scores of the kept boxes of one image."""

    rows: NDArray
    classes: NDArray
    scores: NDArray


@dataclass(frozen=True, slots=True)
class Chooser:
    """The parameters of a suppression. A negative *limit* means no limit."""

    least: float
    limit: int
    method: str
    iou: float
    sigma: float
    least_after: float

    @classmethod
    def of(cls, attributes: Attributes) -> Chooser:
        method, sigma = attributes.text("nms_kernel"), attributes.number("sigma")
        require(
            method != "GAUSSIAN" or sigma > 0, f"a Gaussian suppression with a sigma of {sigma}"
        )
        return cls(
            attributes.number("score_threshold"),
            attributes.integer("max_boxes"),
            method,
            attributes.number("iou_threshold"),
            sigma,
            attributes.number("nms_score_threshold"),
        )

    def image(self, scores: NDArray, boxes: NDArray) -> Selection:
        """The kept boxes of one image with *scores* [n, classes] and *boxes* [n, classes, 4]."""
        rows: list[NDArray] = [np.empty(0, np.int64)]
        kept: list[NDArray] = [scores[:0, 0]]
        classes: list[NDArray] = [np.empty(0, np.int64)]
        for label in range(1, scores.shape[1]):
            candidates = np.flatnonzero(scores[:, label] > np.float32(self.least))
            part = boxes[candidates, label]
            check_boxes(part, f"box of class {label}, candidate")
            chosen = self._choose(part, scores[candidates, label])
            rows.append(candidates[chosen.places])
            kept.append(chosen.scores)
            classes.append(np.full(len(chosen.places), label))
        row, score, label_of = np.concatenate(rows), np.concatenate(kept), np.concatenate(classes)
        if 0 <= self.limit < len(score):
            best = np.sort(best_first(score)[: self.limit])
            row, score, label_of = row[best], score[best], label_of[best]
        return Selection(row, label_of, score)

    def _choose(self, boxes: NDArray, scores: NDArray) -> KeptBoxes:
        order = best_first(scores)
        if self.method == "HARD" and self.least_after > 0:
            # The score of an overlapping box becomes 0, which is below the threshold.
            low = scores[order] < np.float32(self.least_after)
            low[:1] = False
            order = order[~low]
            places = order[suppress(boxes[order], self.limit, self.iou)]
            return KeptBoxes(places, scores[places])
        return self._decay(boxes[order], scores[order], order)

    def _decay(self, boxes: NDArray, scores: NDArray, order: NDArray) -> KeptBoxes:
        """Repeatedly chooses the best remaining box, which lowers the scores of the others, until
        no box remains.
        """
        factors, least = self._factors(), np.float32(self.least_after)
        room = len(boxes) if self.limit < 0 else min(self.limit, len(boxes))
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
        return KeptBoxes(np.array(places, np.int64), np.array(kept, np.float32))

    def _factors(self) -> Decay:
        iou = np.float32(self.iou)
        match self.method:
            case "HARD":
                return lambda shared: (shared < iou).astype(np.float32)
            case "LINEAR":
                return lambda shared: np.where(shared < iou, np.float32(1), np.float32(1) - shared)
            case _:
                sigma = np.float32(self.sigma)
                return lambda shared: np.exp(-shared * shared / sigma)


class Detections(NamedTuple):
    """Anchors, classes and scores of one image's detections, in order."""

    anchors: NDArray
    classes: NDArray
    scores: NDArray


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
    detector = Detector.of(site.attributes)

    def run(inputs: Inputs) -> Outputs:
        scores, deltas, anchors = (read(value) for read, value in zip(readers, inputs, strict=True))
        images, count, classes = scores.shape
        if (
            deltas.shape[:2] != (images, count)
            or deltas.shape[2] < 4
            or anchors.shape != (count, 4)
            or classes < 2
        ):
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
            corners[image, :total] = boxes[image, found.anchors]
            labels[image, :total] = found.classes
        return write_scores(best), write_boxes(corners), labels, totals

    return run


@dataclass(frozen=True, slots=True)
class Detector:
    """The parameters of the operation; *first_label* is the number of the first class after the
    background.
    """

    scales: tuple[float, float, float, float]
    regular: bool
    limit: int
    classes_each: int
    limit_each: int
    least: float
    iou: float
    first_label: int

    @classmethod
    def of(cls, attributes: Attributes) -> Detector:
        y, x, h, w = (attributes.number(f"scale_{side}") for side in "yxhw")
        require(min(y, x, h, w) > 0, f"scales {(y, x, h, w)}")
        detector = cls(
            (y, x, h, w),
            attributes.flag("use_regular_nms"),
            attributes.integer("max_detections"),
            attributes.integer("max_classes_per_detection"),
            attributes.integer("detections_per_class"),
            attributes.number("score_threshold"),
            attributes.number("iou_threshold"),
            0 if not attributes.flag("background_in_labels") else 1,
        )
        limits = detector.limit, detector.limit_each if detector.regular else detector.classes_each
        require(min(limits) > 0, f"at most {limits} detections")
        return detector

    @property
    def places(self) -> int:
        """The greatest number of detections that fit in the outputs."""
        return self.limit if self.regular else self.limit * self.classes_each

    def decode(self, deltas: NDArray, anchors: NDArray) -> NDArray:
        """Corners [images, n, 4] of boxes (y, x, h, w) relative to *anchors* (y, x, h, w): centres
        are scaled by the anchor's size, sizes are logarithms (Liu et al., "SSD", 2016).
        """
        scales = np.array(self.scales, np.float32)
        centres = anchors[:, :2] + anchors[:, 2:] * deltas[..., :2] / scales[:2]
        factors = np.exp((deltas[..., 2:4] / scales[2:]).astype(np.float64)).astype(np.float32)
        halves = anchors[:, 2:] * factors * np.float32(0.5)
        return np.concatenate([centres - halves, centres + halves], axis=-1)

    def detect(self, boxes: NDArray, scores: NDArray) -> Detections:
        """The detections of one image with *boxes* [n, 4] and *scores* [n, classes]."""
        foreground = np.where(np.isnan(scores[:, 1:]), np.float32(-np.inf), scores[:, 1:])
        return (self._each_class if self.regular else self._each_anchor)(boxes, foreground)

    def _each_class(self, boxes: NDArray, scores: NDArray) -> Detections:
        """Suppresses each class separately, then keeps the best of all classes."""
        anchors, classes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for label in range(scores.shape[1]):
            chosen = self._suppress(boxes, scores[:, label], self.limit_each)
            anchors.append(chosen)
            classes.append(np.full(len(chosen), label))
        anchor, label_of = np.concatenate(anchors), np.concatenate(classes)
        kept = best_first(scores[anchor, label_of])[: self.limit]
        anchor, label_of = anchor[kept], label_of[kept]
        return Detections(anchor, label_of + self.first_label, scores[anchor, label_of])

    def _each_anchor(self, boxes: NDArray, scores: NDArray) -> Detections:
        """Suppresses by each anchor's best score; a chosen anchor keeps its best classes."""
        chosen = self._suppress(boxes, scores.max(axis=1), self.limit)
        kept = min(self.classes_each, scores.shape[1])
        order = np.argsort(-scores[chosen], axis=1, kind="stable")[:, :kept]
        anchor, label_of = np.repeat(chosen, kept), order.reshape(-1)
        return Detections(anchor, label_of + self.first_label, scores[anchor, label_of])

    def _suppress(self, boxes: NDArray, scores: NDArray, limit: int) -> NDArray:
        candidates = np.flatnonzero(scores > np.float32(self.least))
        order = candidates[best_first(scores[candidates])]
        return np.asarray(order[suppress(boxes[order], limit, self.iou)])
