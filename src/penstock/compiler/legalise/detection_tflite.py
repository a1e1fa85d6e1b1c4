"""TFLite_Detection_PostProcess: the detections of one image."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from penstock.compiler.expression import Expression, Scope, Value
from penstock.compiler.legalise.boxes import overlap_of_any
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.detections import Detection, Detector, detect, require_sizes
from penstock.compiler.legalise.quantised import scale_of
from penstock.compiler.legalise.routines import F32, I32
from penstock.compiler.legalise.suppression import take
from penstock.driverkit.site import Refused, require
from penstock.errors import InvalidAttribute
from penstock.ir import DType
from penstock.ir.operations.custom_options import DetectionPostProcess, detection_post_process

F64: Final = DType.FLOAT64
REALS: Final = frozenset({F32, DType.UINT8, DType.INT8})


@legal("CUSTOM:TFLite_Detection_PostProcess")
def detection_postprocess(operation: Operation) -> None:
    """Boxes (ymin, xmin, ymax, xmax), classes and scores, padded with zeros, and the number of
    boxes. All are float32.
    """
    site = operation.site
    try:
        options = detection_post_process(site.operation.attributes)
    except InvalidAttribute as error:
        raise Refused(str(error)) from error
    require({site.input(i).dtype for i in range(3)} <= REALS, "types of the inputs")
    boxes, scores, anchors = site.shapes()
    require(len(boxes) == len(scores) == 3 and len(anchors) == 2, "inputs of these ranks")
    _, count, row = boxes
    require(boxes[0] == 1 and row >= 4 and scores[:2] == (1, count), "inputs of these shapes")
    require(anchors[0] >= count and anchors[1] == 4, "anchors of this shape")
    detector = _detector(options, scores[2])
    require_sizes(detector, count)
    scales = [options.y_scale, options.x_scale, options.h_scale, options.w_scale]
    encodings, predictions, placed = (operation.tensor(i) for i in range(3))
    read = (_reading(operation, 1), _reading(operation, 0), _reading(operation, 2))
    found = detect(
        operation,
        Detection(
            detector, predictions, encodings, placed, count, row, 0, read, _decoding(scales),
            overlap_of_any,
        ),
    )  # fmt: skip
    wanted = [math.prod(operation.shape(operation.target(i))) for i in range(4)]
    places = detector.places
    require(wanted == [4 * places, places, places, 1], "outputs of these shapes")
    take(operation, found.memory, found.corners, operation.target(0), F32)
    take(operation, found.memory, found.classes, operation.target(1), I32, F32)
    take(operation, found.memory, found.scores, operation.target(2), F32)
    take(operation, found.memory, found.total, operation.target(3), I32, F32)


def _detector(options: DetectionPostProcess, columns: int) -> Detector:
    """The detector for scores of so many *columns*: the first class may be the background."""
    first = columns - options.num_classes
    require(first >= 0 and options.num_classes > 0, f"{options.num_classes} classes")
    regular = options.use_regular_nms
    most, listed = options.max_detections, options.max_classes_per_detection
    return Detector(
        first, options.num_classes, options.nms_score_threshold, options.nms_iou_threshold, True,
        regular, most, options.detections_per_class if regular else listed, most * listed, listed,
    )  # fmt: skip


def _decoding(scales: Sequence[float]) -> Callable[..., Value]:
    """Corners of boxes: computed in float64, where centres and half sizes are rounded."""

    def decode(
        axis: int, sign: int, centre: Value, size: Value, anchor: Value, extent: Value
    ) -> Value:
        y, h, anchor_y, anchor_h = (v.cast(F64) for v in (centre, size, anchor, extent))
        middle = ((y / scales[axis]) * anchor_h + anchor_y).cast(F32)
        half = ((h / scales[axis + 2]).apply("exp") * 0.5 * anchor_h).cast(F32)
        return middle - half if sign < 0 else middle + half

    return decode


def _reading(operation: Operation, position: int) -> Expression:
    """How the real value of an element of an input is computed."""
    operand = operation.site.input(position)
    scope = Scope(operand.dtype)
    value = scope.argument(0)
    if operand.dtype is not F32:
        given = scale_of(operand, f"input {position}")
        value = (value.cast(I32) - given.zero_point).cast(F32) * given.scale
    return scope.finish(value)
