"""DETECTION_POSTPROCESSING: boxes relative to anchors, and class scores, to detections (NNAPI)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.drivers.reference.ops.detection.boxes import best_first, suppress
from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel, require
from penstock.drivers.reference.ops.numerics.real_values import FLOATING, reader, writer
from penstock.drivers.reference.ops.structure.shape import checked
from penstock.errors import ShapeMismatch
from penstock.ir import Attributes, NDArray


class Detections(NamedTuple):
    """Anchors, classes and scores of one image's detections, in order."""

    anchors: NDArray
    classes: NDArray
    scores: NDArray


@kernel("DETECTION_POSTPROCESSING")
def detection_postprocessing(site: Site) -> Kernel:
    """Scores, boxes (y1, x1, y2, x2) and classes of each image's detections, zero beyond the last,
    and how many there are. Class 0 is the background, never detected.
    """
    for index in range(3):
        if site.input(index).dtype not in FLOATING:
            raise site.unsupported_types()
    roles = ("scores", "boxes", "anchors")
    readers = [reader(site.input(i), role) for i, role in enumerate(roles)]
    write_scores, write_boxes = writer(site.output(0), "scores"), writer(site.output(1), "boxes")
    detector = Detector.of(site.attributes)

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
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
    """The parameters of the operation; *first_label* is what the class after the background is
    called.
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
        """Detections that the outputs have room for."""
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
        """A suppression for each class; the best of all classes together stay."""
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
        """One suppression over each anchor's best score; the chosen anchors keep their best
        classes.
        """
        chosen = self._suppress(boxes, scores.max(axis=1), self.limit)
        kept = min(self.classes_each, scores.shape[1])
        order = np.argsort(-scores[chosen], axis=1, kind="stable")[:, :kept]
        anchor, label_of = np.repeat(chosen, kept), order.reshape(-1)
        return Detections(anchor, label_of + self.first_label, scores[anchor, label_of])

    def _suppress(self, boxes: NDArray, scores: NDArray, limit: int) -> NDArray:
        candidates = np.flatnonzero(scores > np.float32(self.least))
        order = candidates[best_first(scores[candidates])]
        return np.asarray(order[suppress(boxes[order], limit, self.iou)])
