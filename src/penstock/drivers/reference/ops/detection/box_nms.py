"""BOX_WITH_NMS_LIMIT: the best boxes of each class and image, by hard or soft suppression (NNAPI)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from penstock.drivers.reference.ops.detection.boxes import (
    best_first,
    check_boxes,
    overlaps,
    suppress,
)
from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel, require
from penstock.drivers.reference.ops.numerics.real_values import reader, writer
from penstock.errors import InputError, ShapeMismatch
from penstock.ir import Attributes, NDArray

Decay = Callable[[NDArray], NDArray]
"""Overlaps to the factors by which they lower scores."""


_GONE: Final = np.float32(-np.inf)
"""The score of a box that takes part no more."""


class Chosen(NamedTuple):
    """Places of the boxes that stay, best first, and their scores after decay."""

    places: NDArray
    scores: NDArray


@kernel("BOX_WITH_NMS_LIMIT")
def box_with_nms_limit(site: Site) -> Kernel:
    """Scores, boxes, classes and batch indices of what stays, image by image, by class, best first.

    Class 0 is the background and never chosen. Neighbouring boxes with one batch index are an
    image.
    """
    read_scores = reader(site.input(0), "scores")
    read_boxes = reader(site.input(1), "boxes")
    write_scores = writer(site.output(0), "scores")
    chooser = Chooser.of(site.attributes)
    if site.output(1).dtype is not site.input(1).dtype:
        raise site.unsupported_types()

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
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
    """Rows, classes and scores of one image's boxes that stay."""

    rows: NDArray
    classes: NDArray
    scores: NDArray


@dataclass(frozen=True, slots=True)
class Chooser:
    """The parameters of a suppression; *limit* is negative where there is none."""

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
        """What stays of one image's *scores* [n, classes] and *boxes* [n, classes, 4]."""
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

    def _choose(self, boxes: NDArray, scores: NDArray) -> Chosen:
        order = best_first(scores)
        if self.method == "HARD" and self.least_after > 0:
            # What overlaps falls to 0, below the threshold, and takes no part again.
            low = scores[order] < np.float32(self.least_after)
            low[:1] = False
            order = order[~low]
            places = order[suppress(boxes[order], self.limit, self.iou)]
            return Chosen(places, scores[places])
        return self._decay(boxes[order], scores[order], order)

    def _decay(self, boxes: NDArray, scores: NDArray, order: NDArray) -> Chosen:
        """Box after box: the best of those that wait is chosen, and lowers the scores of the
        others.
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
        return Chosen(np.array(places, np.int64), np.array(kept, np.float32))

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
