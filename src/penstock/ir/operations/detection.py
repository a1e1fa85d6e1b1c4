"""Rows of object detection, TFLite's and NNAPI's: boxes, regions of interest and suppression.

NNAPI's boxes are (x1, y1, x2, y2). Operations that select have outputs of unknown length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations import rules
from penstock.ir.operations.nnapi import image_axes, image_shape
from penstock.ir.operations.signature import row
from penstock.ir.operations.spec import ShapeContext
from penstock.ir.types import Shape


def _boxes(context: ShapeContext, index: int) -> rules.Dimension:
    """The number of boxes of a [n, 4] input."""
    count, numbers = rules.dimensions(context, index, 2)
    rules.agree(numbers, 4, "numbers a box")
    return count


def _check_image_size(context: ShapeContext, index: int) -> None:
    _, numbers = rules.dimensions(context, index, 2)
    rules.agree(numbers, 2, "numbers of an image's size")


def _selected(context: ShapeContext) -> Shape:
    """Boxes [n, 4], scores [n]; outputs have the greatest number of selected boxes, padded with
    zeros.
    """
    rules.agree(_boxes(context, 0), rules.vector(context, 1), "boxes and scores")
    for index in range(2, context.input_count):
        rules.ranked(context, index, 0)
    limit = rules.constant_integer(context, 2)
    if limit is not None and limit < 0:
        raise ShapeMismatch(f"at most {limit} boxes selected")
    return (limit,)


def _soft(context: ShapeContext) -> Sequence[Shape]:
    return (*[_selected(context)] * 2, ())


def _times_four(size: rules.Dimension) -> rules.Dimension:
    return None if size is None else 4 * size


def _roi(context: ShapeContext) -> Sequence[Shape]:
    image = rules.dimensions(context, 0, 4)
    count = rules.agree(_boxes(context, 1), rules.vector(context, 2), "boxes and batch indices")
    height = rules.positive(context, "output_height")
    width = rules.positive(context, "output_width")
    return (image_shape(context, count, height, width, image[image_axes(context)[2]]),)


def _transform(context: ShapeContext) -> Sequence[Shape]:
    count, deltas = rules.dimensions(context, 1, 2)
    count = rules.agree(_boxes(context, 0), count, "boxes and deltas")
    rules.agree(count, rules.vector(context, 2), "boxes and batch indices")
    _check_image_size(context, 3)
    return ((count, deltas),)


def _nms_limit(context: ShapeContext) -> Sequence[Shape]:
    (count, classes), (boxes, columns) = (rules.dimensions(context, i, 2) for i in (0, 1))
    count = rules.agree(count, boxes, "scores and boxes")
    rules.agree(columns, _times_four(classes), "box columns and four times the classes")
    rules.agree(count, rules.vector(context, 2), "boxes and batch indices")
    return ((None,), (None, 4), (None,), (None,))


def _postprocessing(context: ShapeContext) -> Sequence[Shape]:
    (batch, scores, _), (batches, boxes, _) = (rules.dimensions(context, i, 3) for i in (0, 1))
    batch = rules.agree(batch, batches, "batches of scores and boxes")
    anchors = rules.agree(scores, boxes, "scores and boxes")
    rules.agree(anchors, _boxes(context, 2), "boxes and anchors")
    limit = rules.positive(context, "max_detections")
    if not context.attributes.flag("use_regular_nms"):
        limit = rules.bounded(limit * rules.positive(context, "max_classes_per_detection"))
    return ((batch, limit), (batch, limit, 4), (batch, limit), (batch,))


def _proposals(context: ShapeContext) -> Sequence[Shape]:
    scores, deltas = (rules.dimensions(context, i, 4) for i in (0, 1))
    *spatial, channels = image_axes(context)
    for axis in (0, *spatial):
        rules.agree(scores[axis], deltas[axis], "scores and box deltas")
    anchors = rules.agree(scores[channels], _boxes(context, 2), "scores and anchors")
    numbers = _times_four(anchors)
    rules.agree(deltas[channels], numbers, "delta channels and four times the anchors")
    _check_image_size(context, 3)
    return ((None,), (None, 4), (None,))


def _keypoints(context: ShapeContext) -> Sequence[Shape]:
    maps = rules.dimensions(context, 0, 4)
    height, width, channels = image_axes(context)
    rules.agree(maps[height], maps[width], "height and width of a heat map")
    count = rules.agree(maps[0], _boxes(context, 1), "heat maps and boxes")
    return ((count, maps[channels]), (count, maps[channels], 2))


ROWS: Final = (
    row("""NON_MAX_SUPPRESSION_V4(boxes: float32, scores: float32, max_output_size: int32,
        iou_threshold: float32, score_threshold: float32) -> indices: int32, count: int32
        # Boxes in order of score, without those that overlap a better one; their indices and
        number.""")(lambda context: (_selected(context), ())),
    row("""NON_MAX_SUPPRESSION_V5(boxes: float32, scores: float32, max_output_size: int32,
        iou_threshold: float32, score_threshold: float32, sigma: float32) -> indices: int32,
        scores: float32, count: int32
        # As version 4, but overlapping boxes lose score by a Gaussian of sigma; also their scores.
        """)(_soft),
    row("""ROI_ALIGN(image: activation, boxes: activation, batch_indices: int32;
        output_height: int!, output_width: int!, height_ratio: float!, width_ratio: float!,
        sampling_points_height: int!, sampling_points_width: int!, data_layout)
        -> output: activation; only NNAPI 3
        # Each box of an image resampled bilinearly to one size, the mean of its sampling points a
        pixel.""")(_roi),
    row("""ROI_POOLING(image: activation, boxes: activation, batch_indices: int32;
        output_height: int!, output_width: int!, height_ratio: float!, width_ratio: float!,
        data_layout) -> output: activation; only NNAPI 3
        # Each box of an image reduced to one size by maxima over its cells.""")(_roi),
    row("""AXIS_ALIGNED_BBOX_TRANSFORM(boxes: activation, deltas: activation, batch_indices: int32,
        image_info: activation) -> output: activation; only NNAPI 3
        # Boxes moved and scaled by deltas for each class, clipped to their image.""")(_transform),
    row("""BOX_WITH_NMS_LIMIT(scores: activation, boxes: activation, batch_indices: int32;
        score_threshold: float!, max_boxes: int!, nms_kernel: HARD|LINEAR|GAUSSIAN,
        iou_threshold: float!, sigma: float!, nms_score_threshold: float!)
        -> selected_scores: activation, selected_boxes: activation, classes: int32,
        selected_batch_indices: int32; only NNAPI 3
        # The best boxes of each class and image, by hard or soft non-maximum suppression.
        """)(_nms_limit),
    row("""DETECTION_POSTPROCESSING(scores: activation, boxes: activation, anchors: activation;
        scale_y: float!, scale_x: float!, scale_h: float!, scale_w: float!, use_regular_nms: bool!,
        max_detections: int!, max_classes_per_detection: int!, detections_per_class: int!,
        score_threshold: float!, iou_threshold: float!, background_in_labels: bool!)
        -> detection_scores: activation, detection_boxes: activation, detection_classes: int32,
        detection_count: int32; only NNAPI 3
        # Anchor boxes decoded and suppressed to the best detections of each image.
        """)(_postprocessing),
    row("""GENERATE_PROPOSALS(scores: activation, deltas: activation, anchors: activation,
        image_info: activation; height_stride: float!, width_stride: float!, pre_nms_max: int!,
        post_nms_max: int!, iou_threshold: float!, min_size: float!, data_layout)
        -> selected_scores: activation, boxes: activation, batch_indices: int32; only NNAPI 3
        # Region proposals: anchors at every place, moved by deltas, the best left after
        suppression.""")(_proposals),
    row("""HEATMAP_MAX_KEYPOINT(heatmaps: activation, boxes: activation; data_layout)
        -> scores: activation, keypoints: activation; only NNAPI 3
        # The place and score of each heat map's maximum, refined below a pixel, in its box.
        """)(_keypoints),
)
