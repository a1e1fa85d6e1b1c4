"""Boxes: regions of interest, proposals, suppression, detections and key points."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.nnapi.lowering.operation import OperationLowering
from penstock.nnapi.lowering.registry import lowers, maps

FLOAT: Final = "f32 f16"
BOTH: Final = {"F": FLOAT, "Q": "q8 q8s@4"}
SUPPRESSIONS: Final = ("HARD", "LINEAR", "GAUSSIAN")


def _forms(text: str) -> tuple[str, str]:
    """*text* as a form for real numbers, and as a form for quantised ones.

    In *text* F is a value, C a corner of a box. Quantised corners have 16 bits, the scale 1/8 and
    the zero point 0.
    """
    corners = re.sub(r":C(/2)?", r":q16a\1=1/8,0", text)
    return text.replace(":C", ":F"), corners.replace(":F", ":Q")


_REGION: Final = (
    "input:F/4 boxes:C/2 batch_indices:i32/1 output_height:i>0 output_width:i>0"
    " height_ratio:real>0 width_ratio:real>0"
)

maps(
    "ROI_ALIGN",
    *_forms(f"{_REGION} sampling_points_height:i>=0 sampling_points_width:i>=0 nchw:b -> output:F"),
    **BOTH,
)
maps("ROI_POOLING", *_forms(f"{_REGION} nchw:b -> output:F"), same="input output", **BOTH)


@lowers(
    "AXIS_ALIGNED_BBOX_TRANSFORM",
    *_forms("boxes:C/2 deltas:F/2 batch_indices:i32/1 image_sizes:C/2 -> output:C"),
    **BOTH,
)
def axis_aligned_bbox_transform(op: OperationLowering) -> None:
    columns = op.dimension("deltas", 1)
    if columns is not None and (columns == 0 or columns % 4):
        raise ShapeMismatch(f"{columns} deltas a box, which are not 4 for each of some classes")
    op.pass_through()


def _require(op: OperationLowering, name: str, axis: int, least: int, what: str) -> None:
    """Checks that the input *name* has at least *least* elements along *axis*, if it is known."""
    size = op.dimension(name, axis)
    if size is not None and size < least:
        raise ShapeMismatch(what.format(size))


BACKGROUND: Final = "scores of {} classes, the first of which is the background"


@lowers(
    "BOX_WITH_NMS_LIMIT",
    *_forms(
        "scores:F/2 boxes:C/2 batch_indices:i32/1 score_threshold:real max_boxes:i nms_kernel:i"
        " iou_threshold:real sigma:real nms_score_threshold:real"
        " -> best_scores:F best_boxes:C classes:i32 best_batch_indices:i32"
    ),
    same="scores best_scores",
    **BOTH,
)
def box_with_nms_limit(op: OperationLowering) -> None:
    _require(op, "scores", 1, 2, BACKGROUND)
    op.pass_through(nms_kernel=op.choice("nms_kernel", dict(enumerate(SUPPRESSIONS))))


@lowers(
    "DETECTION_POSTPROCESSING",
    "scores:T/3 boxes:T/3 anchors:T/2"
    " scale_y:real>0 scale_x:real>0 scale_h:real>0 scale_w:real>0 use_regular_nms:b"
    " max_detections:i>0 max_classes_per_detection:i detections_per_class:i"
    " score_threshold:real>=0 iou_threshold:real>=0 background_in_labels:b"
    " -> best_scores:T best_boxes:T classes:i32 count:i32",
    T=FLOAT,
)
def detection_postprocessing(op: OperationLowering) -> None:
    _require(op, "scores", 2, 2, BACKGROUND)
    _require(op, "boxes", 2, 4, "boxes of {} numbers, where 4 are needed")
    regular = op.flag("use_regular_nms")
    op.require_bound("detections_per_class" if regular else "max_classes_per_detection")
    op.pass_through()


maps(
    "GENERATE_PROPOSALS",
    *(
        form.replace("anchors:q16a", "anchors:q16y")
        for form in _forms(
            "scores:F/4 deltas:F/4 anchors:C/2 image_sizes:C/2 height_stride:real"
            " width_stride:real pre_nms_max:i post_nms_max:i iou_threshold:real min_size:real"
            " nchw:b -> best_scores:F boxes:C batch_indices:i32"
        )
    ),
    same="scores best_scores",
    **BOTH,
)


@lowers(
    "HEATMAP_MAX_KEYPOINT",
    *_forms("maps:F/4 boxes:C/2 nchw:b -> scores:F keypoints:C"),
    **BOTH,
)
def heatmap_max_keypoint(op: OperationLowering) -> None:
    _require(op, "maps", 2, 2, "heat maps of {} pixels a side, where 2 are needed")
    op.pass_through()
