"""Boxes: regions of interest, proposals, suppression, detections and key points.

Corners of quantised boxes have 16 bits, the scale 1/8 and the zero point 0.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import InvalidAttribute, ShapeMismatch
from penstock.nnapi.lowering.operation import OperationLowering
from penstock.nnapi.lowering.registry import lowers

FLOAT: Final = "f32 f16"
QUANT8: Final = "q8 q8s@4"
CORNER_SCALE: Final = 0.125
SUPPRESSIONS: Final = ("HARD", "LINEAR", "GAUSSIAN")


def _forms(text: str) -> tuple[str, str]:
    """*text* as a form for real numbers, and as a form for quantised ones.

    In *text* F is a value, C a corner of a box.
    """
    real = text.replace(":C", ":F")
    return real, text.replace(":F", ":Q").replace(":C", ":q16a")


def _require_corners(op: OperationLowering, *names: str) -> None:
    for name in names:
        op.require_quantization(name, CORNER_SCALE, 0)


_REGION: Final = (
    "input:F/4 boxes:C/2 batch_indices:i32/1 output_height:i>0 output_width:i>0"
    " height_ratio:real>0 width_ratio:real>0"
)
_POINTS: Final = ("sampling_points_height", "sampling_points_width")


@lowers(
    "ROI_ALIGN",
    level=3,
    form=_forms(f"{_REGION} {_POINTS[0]}:i {_POINTS[1]}:i nchw:b -> output:F"),
    F=FLOAT,
    Q=QUANT8,
)
def roi_align(op: OperationLowering) -> None:
    _require_corners(op, "boxes")
    points = [op.integer(name) for name in _POINTS]
    if min(points) < 0:
        raise InvalidAttribute(f"{points} sampling points, which must not be negative")
    op.pass_through()


@lowers(
    "ROI_POOLING",
    level=3,
    form=_forms(f"{_REGION} nchw:b -> output:F"),
    same="input output",
    F=FLOAT,
    Q=QUANT8,
)
def roi_pooling(op: OperationLowering) -> None:
    _require_corners(op, "boxes")
    op.pass_through()


@lowers(
    "AXIS_ALIGNED_BBOX_TRANSFORM",
    level=3,
    form=_forms("boxes:C/2 deltas:F/2 batch_indices:i32/1 image_sizes:C/2 -> output:C"),
    F=FLOAT,
    Q=QUANT8,
)
def axis_aligned_bbox_transform(op: OperationLowering) -> None:
    _require_corners(op, "boxes", "image_sizes", "output")
    columns = op.dimension(op.tensor("deltas"), 1)
    if columns is not None and (columns == 0 or columns % 4):
        raise ShapeMismatch(f"{columns} deltas a box, which are not 4 for each of some classes")
    op.pass_through()


@lowers(
    "BOX_WITH_NMS_LIMIT",
    level=3,
    form=_forms(
        "scores:F/2 boxes:C/2 batch_indices:i32/1 score_threshold:real max_boxes:i nms_kernel:i"
        " iou_threshold:real sigma:real nms_score_threshold:real"
        " -> best_scores:F best_boxes:C classes:i32 best_batch_indices:i32"
    ),
    same="scores best_scores",
    F=FLOAT,
    Q=QUANT8,
)
def box_with_nms_limit(op: OperationLowering) -> None:
    _require_corners(op, "boxes", "best_boxes")
    _require_classes(op, 1)
    kernel = op.integer("nms_kernel")
    if not 0 <= kernel < len(SUPPRESSIONS):
        raise InvalidAttribute(f"suppression kernel {kernel} is not in [0, 2]")
    op.pass_through(nms_kernel=SUPPRESSIONS[kernel])


def _require_classes(op: OperationLowering, axis: int) -> None:
    """Checks that there is at least one class in addition to the background."""
    classes = op.dimension(op.tensor("scores"), axis)
    if classes is not None and classes < 2:
        raise ShapeMismatch(f"scores of {classes} classes, the first of which is the background")


@lowers(
    "DETECTION_POSTPROCESSING",
    level=3,
    form="scores:T/3 boxes:T/3 anchors:T/2"
    " scale_y:real>0 scale_x:real>0 scale_h:real>0 scale_w:real>0 use_regular_nms:b "
    "max_detections:i>0 max_classes_per_detection:i detections_per_class:i score_threshold:real "
    "iou_threshold:real background_in_labels:b -> best_scores:T best_boxes:T classes:i32 count:i32",
    T=FLOAT,
)
def detection_postprocessing(op: OperationLowering) -> None:
    op.not_negative("score_threshold")
    op.not_negative("iou_threshold")
    _require_classes(op, 2)
    numbers = op.dimension(op.tensor("boxes"), 2)
    if numbers is not None and numbers < 4:
        raise ShapeMismatch(f"boxes of {numbers} numbers, where 4 are needed")
    regular = op.flag("use_regular_nms")
    op.positive("detections_per_class" if regular else "max_classes_per_detection")
    op.pass_through()


@lowers(
    "GENERATE_PROPOSALS",
    level=3,
    form=tuple(
        form.replace("anchors:q16a", "anchors:q16y")
        for form in _forms(
            "scores:F/4 deltas:F/4 anchors:C/2 image_sizes:C/2 height_stride:real "
            "width_stride:real pre_nms_max:i post_nms_max:i iou_threshold:real min_size:real "
            "nchw:b -> best_scores:F boxes:C batch_indices:i32"
        )
    ),
    same="scores best_scores",
    F=FLOAT,
    Q=QUANT8,
)
def generate_proposals(op: OperationLowering) -> None:
    _require_corners(op, "anchors", "image_sizes", "boxes")
    op.pass_through()


@lowers(
    "HEATMAP_MAX_KEYPOINT",
    level=3,
    form=_forms("maps:F/4 boxes:C/2 nchw:b -> scores:F keypoints:C"),
    F=FLOAT,
    Q=QUANT8,
)
def heatmap_max_keypoint(op: OperationLowering) -> None:
    _require_corners(op, "boxes", "keypoints")
    size = op.dimension(op.tensor("maps"), 2)
    if size is not None and size < 2:
        raise ShapeMismatch(f"heat maps of {size} pixels a side, where 2 are needed")
    op.pass_through()
