"""Rows of object detection, TFLite's and NNAPI's: boxes, regions of interest and suppression.

NNAPI's boxes are (x1, y1, x2, y2). Operations that select have outputs of unknown length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations import rules
from penstock.ir.operations.nnapi import DATA_LAYOUT, image_axes, image_shape, required
from penstock.ir.operations.signature import choice, row
from penstock.ir.operations.spec import AttributeSpec, ShapeContext
from penstock.ir.types import Shape


def _selected(context: ShapeContext) -> Shape:
    """Boxes [n, 4], scores [n]; outputs have the greatest number of selected boxes, padded with
    zeros.
    """
    boxes, scores = rules.ranked(context, 0, 2), rules.ranked(context, 1, 1)
    rules.agree(rules.dimension(boxes, 1), 4, "numbers a box")
    rules.agree(rules.dimension(boxes, 0), rules.dimension(scores, 0), "boxes and scores")
    for index in range(2, context.input_count):
        rules.ranked(context, index, 0)
    limit = rules.constant_integer(context, 2)
    if limit is not None and limit < 0:
        raise ShapeMismatch(f"at most {limit} boxes selected")
    return (limit,)


def _hard(context: ShapeContext) -> Sequence[Shape]:
    return rules.fill(context, _selected(context), ())


def _soft(context: ShapeContext) -> Sequence[Shape]:
    chosen = _selected(context)
    return rules.fill(context, chosen, chosen, ())


def _times_four(size: rules.Dimension) -> rules.Dimension:
    return None if size is None else 4 * size


def _regions(context: ShapeContext, index: int) -> rules.Dimension:
    """The number of boxes of a [n, 4] input."""
    boxes = rules.ranked(context, index, 2)
    rules.agree(rules.dimension(boxes, 1), 4, "numbers a box")
    return rules.dimension(boxes, 0)


def _roi(context: ShapeContext) -> Sequence[Shape]:
    image = rules.ranked(context, 0, 4)
    count = rules.agree(
        _regions(context, 1),
        rules.dimension(rules.ranked(context, 2, 1), 0),
        "boxes and batch indices",
    )
    height, width = (
        rules.positive(context, "output_height"),
        rules.positive(context, "output_width"),
    )
    return (
        image_shape(context, count, height, width, rules.dimension(image, image_axes(context)[2])),
    )


def _transform(context: ShapeContext) -> Sequence[Shape]:
    count, deltas = _regions(context, 0), rules.ranked(context, 1, 2)
    count = rules.agree(count, rules.dimension(deltas, 0), "boxes and deltas")
    rules.agree(count, rules.dimension(rules.ranked(context, 2, 1), 0), "boxes and batch indices")
    rules.agree(rules.dimension(rules.ranked(context, 3, 2), 1), 2, "numbers of an image's size")
    return ((count, rules.dimension(deltas, 1)),)


def _nms_limit(context: ShapeContext) -> Sequence[Shape]:
    scores, boxes = rules.ranked(context, 0, 2), rules.ranked(context, 1, 2)
    count = rules.agree(rules.dimension(scores, 0), rules.dimension(boxes, 0), "scores and boxes")
    rules.agree(
        rules.dimension(boxes, 1),
        _times_four(rules.dimension(scores, 1)),
        "box columns and four times the classes",
    )
    rules.agree(count, rules.dimension(rules.ranked(context, 2, 1), 0), "boxes and batch indices")
    return ((None,), (None, 4), (None,), (None,))


def _postprocessing(context: ShapeContext) -> Sequence[Shape]:
    scores, boxes = rules.ranked(context, 0, 3), rules.ranked(context, 1, 3)
    batch = rules.agree(
        rules.dimension(scores, 0), rules.dimension(boxes, 0), "batches of scores and boxes"
    )
    anchors = rules.agree(rules.dimension(scores, 1), rules.dimension(boxes, 1), "scores and boxes")
    rules.agree(anchors, _regions(context, 2), "boxes and anchors")
    limit = rules.positive(context, "max_detections")
    if not context.attributes.flag("use_regular_nms"):
        limit = rules.bounded(limit * rules.positive(context, "max_classes_per_detection"))
    return ((batch, limit), (batch, limit, 4), (batch, limit), (batch,))


def _proposals(context: ShapeContext) -> Sequence[Shape]:
    scores, deltas = rules.ranked(context, 0, 4), rules.ranked(context, 1, 4)
    *spatial, channels = image_axes(context)
    for axis in (0, *spatial):
        rules.agree(
            rules.dimension(scores, axis), rules.dimension(deltas, axis), "scores and box deltas"
        )
    anchors = rules.agree(
        rules.dimension(scores, channels), _regions(context, 2), "scores and anchors"
    )
    rules.agree(
        rules.dimension(deltas, channels),
        _times_four(anchors),
        "delta channels and four times the anchors",
    )
    rules.agree(rules.dimension(rules.ranked(context, 3, 2), 1), 2, "numbers of an image's size")
    return ((None,), (None, 4), (None,))


def _keypoints(context: ShapeContext) -> Sequence[Shape]:
    maps = rules.ranked(context, 0, 4)
    height, width, channels = image_axes(context)
    rules.agree(
        rules.dimension(maps, height),
        rules.dimension(maps, width),
        "height and width of a heat map",
    )
    count = rules.agree(rules.dimension(maps, 0), _regions(context, 1), "heat maps and boxes")
    points = rules.dimension(maps, channels)
    return ((count, points), (count, points, 2))


ROI_SIZE: Final = (
    *required("int", "output_height", "output_width"),
    *required("float", "height_ratio", "width_ratio"),
)


ROWS: Final = (
    row(
        "NON_MAX_SUPPRESSION_V4",
        "boxes: float32, scores: float32, max_output_size: int32, iou_threshold: float32, "
        "score_threshold: float32 -> indices: int32, count: int32",
        _hard,
        doc="Boxes in order of score, without those that overlap a better one; their indices and "
        "number.",
    ),
    row(
        "NON_MAX_SUPPRESSION_V5",
        "boxes: float32, scores: float32, max_output_size: int32, iou_threshold: float32, "
        "score_threshold: float32, sigma: float32 -> indices: int32, scores: float32, count: "
        "int32",
        _soft,
        doc="As version 4, but overlapping boxes lose score by a Gaussian of sigma; also their "
        "scores.",
    ),
    row(
        "ROI_ALIGN",
        "image: activation, boxes: activation, batch_indices: int32 -> output: activation",
        _roi,
        (
            *ROI_SIZE,
            *required("int", "sampling_points_height", "sampling_points_width"),
            DATA_LAYOUT,
        ),
        vocabulary="nnapi",
        level=3,
        doc="Each box of an image resampled bilinearly to one size, the mean of its sampling "
        "points a pixel.",
    ),
    row(
        "ROI_POOLING",
        "image: activation, boxes: activation, batch_indices: int32 -> output: activation",
        _roi,
        (*ROI_SIZE, DATA_LAYOUT),
        vocabulary="nnapi",
        level=3,
        doc="Each box of an image reduced to one size by maxima over its cells.",
    ),
    row(
        "AXIS_ALIGNED_BBOX_TRANSFORM",
        "boxes: activation, deltas: activation, batch_indices: int32, image_info: activation "
        "-> output: activation",
        _transform,
        vocabulary="nnapi",
        level=3,
        doc="Boxes moved and scaled by deltas for each class, clipped to their image.",
    ),
    row(
        "BOX_WITH_NMS_LIMIT",
        "scores: activation, boxes: activation, batch_indices: int32 -> selected_scores: "
        "activation, selected_boxes: activation, classes: int32, selected_batch_indices: "
        "int32",
        _nms_limit,
        (
            *required("float", "score_threshold"),
            *required("int", "max_boxes"),
            choice("nms_kernel", "HARD", "LINEAR", "GAUSSIAN"),
            *required("float", "iou_threshold", "sigma", "nms_score_threshold"),
        ),
        vocabulary="nnapi",
        level=3,
        doc="The best boxes of each class and image, by hard or soft non-maximum suppression.",
    ),
    row(
        "DETECTION_POSTPROCESSING",
        "scores: activation, boxes: activation, anchors: activation -> detection_scores: "
        "activation, detection_boxes: activation, detection_classes: int32, detection_count: "
        "int32",
        _postprocessing,
        (
            *required("float", "scale_y", "scale_x", "scale_h", "scale_w"),
            AttributeSpec("use_regular_nms", "bool"),
            *required("int", "max_detections", "max_classes_per_detection", "detections_per_class"),
            *required("float", "score_threshold", "iou_threshold"),
            AttributeSpec("background_in_labels", "bool"),
        ),
        vocabulary="nnapi",
        level=3,
        doc="Anchor boxes decoded and suppressed to the best detections of each image.",
    ),
    row(
        "GENERATE_PROPOSALS",
        "scores: activation, deltas: activation, anchors: activation, image_info: activation "
        "-> selected_scores: activation, boxes: activation, batch_indices: int32",
        _proposals,
        (
            *required("float", "height_stride", "width_stride"),
            *required("int", "pre_nms_max", "post_nms_max"),
            *required("float", "iou_threshold", "min_size"),
            DATA_LAYOUT,
        ),
        vocabulary="nnapi",
        level=3,
        doc="Region proposals: anchors at every place, moved by deltas, the best left after "
        "suppression.",
    ),
    row(
        "HEATMAP_MAX_KEYPOINT",
        "heatmaps: activation, boxes: activation -> scores: activation, keypoints: activation",
        _keypoints,
        (DATA_LAYOUT,),
        vocabulary="nnapi",
        level=3,
        doc="The place and score of each heat map's maximum, refined below a pixel, in its box.",
    ),
)
