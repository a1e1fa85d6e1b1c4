"""NNAPI's DETECTION_POSTPROCESSING: the detections of each image."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.compiler.expression import Value, identity
from penstock.compiler.legalise.boxes import overlap_of_ordered
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.detections import Detection, Detector, detect, require_sizes
from penstock.compiler.legalise.routines import F32, I32
from penstock.compiler.legalise.suppression import take
from penstock.driverkit.detections import DetectionAttributes
from penstock.driverkit.site import Refused, require
from penstock.ir import DType

F64: Final = DType.FLOAT64
MOST_IMAGES: Final = 16


class Options(DetectionAttributes, frozen=True):
    """The attributes of the operation."""

    def detector(self, classes: int) -> Detector:
        """The detector for scores of so many *classes*, the first of which is the background."""
        listed = self.max_classes_per_detection
        kept = min(listed, classes - 1)
        regular = self.use_regular_nms
        return Detector(
            1, classes - 1, self.score_threshold, self.iou_threshold, False, regular,
            self.max_detections, self.detections_per_class if regular else listed,
            self.max_detections * (1 if regular else listed), kept, kept,
            int(self.background_in_labels),
        )  # fmt: skip


@legal("DETECTION_POSTPROCESSING")
def detection_postprocessing(operation: Operation) -> None:
    """Scores, boxes (y1, x1, y2, x2) and classes of each image's detections, zero beyond the last
    one, and their number. Class 0 is the background, never detected.
    """
    site = operation.site
    try:
        options = msgspec.convert(dict(site.attributes), Options)
    except msgspec.ValidationError as error:
        raise Refused(f"attributes of this form: {error}") from error
    require({site.input(i).dtype for i in range(3)} == {F32}, "types of the inputs")
    require({site.output(i).dtype for i in range(2)} == {F32}, "types of the outputs")
    scores, boxes, anchors = site.shapes()
    require(len(scores) == len(boxes) == 3 and len(anchors) == 2, "inputs of these ranks")
    images, count, classes = scores
    known = boxes[:2] == (images, count) and boxes[2] >= 4 and anchors == (count, 4)
    require(known and classes >= 2, "inputs of these shapes")
    require(images <= MOST_IMAGES, f"more than {MOST_IMAGES} images")
    require(min(options.scales) > 0, f"scales {options.scales}")
    detector = options.detector(classes)
    require_sizes(detector, count)
    places = detector.places
    wanted = [math.prod(operation.shape(operation.target(i))) for i in range(4)]
    fits = [images * places, 4 * images * places, images * places, images]
    require(wanted == fits, "outputs of these shapes")
    given = [operation.tensor(i) for i in range(3)]
    plain = identity(F32)
    for image in range(images):
        found = detect(
            operation,
            Detection(
                detector, given[0], given[1], given[2], count, boxes[2], image,
                (plain, plain, plain), _decoding(options.scales), overlap_of_ordered,
            ),
        )  # fmt: skip
        take(operation, found.memory, found.scores, operation.target(0), F32, image=image)
        take(operation, found.memory, found.corners, operation.target(1), F32, image=image)
        take(operation, found.memory, found.classes, operation.target(2), I32, image=image)
        take(operation, found.memory, found.total, operation.target(3), I32, image=image)


def _decoding(scales: Sequence[float]) -> Callable[..., Value]:
    """Corners of boxes: in float32, but for the exponential."""

    def decode(
        axis: int, sign: int, centre: Value, size: Value, anchor: Value, extent: Value
    ) -> Value:
        middle = anchor + extent * centre / scales[axis]
        factor = (size / scales[axis + 2]).cast(F64).apply("exp").cast(F32)
        half = extent * factor * 0.5
        return middle - half if sign < 0 else middle + half

    return decode
