"""Boxes: regions of interest, proposals, suppression, detections and key points.

Quantised, their corners have 16 bits, the scale 1/8 and the zero point 0.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import InvalidAttribute, ShapeMismatch
from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site

FLOAT: Final = "f32 f16"
QUANT8: Final = "q8 q8s@4"
CORNER_SCALE: Final = 0.125
SUPPRESSIONS: Final = ("HARD", "LINEAR", "GAUSSIAN")

_REGION: Final = (
    "batch_indices:i32 output_height:i output_width:i height_ratio:real width_ratio:real"
)
_POINTS: Final = "height_points:i width_points:i"


def layout(site: Site) -> str:
    """The layout of images that the argument `nchw` says."""
    return "NCHW" if site.flag("nchw") else "NHWC"


def _require_corners(site: Site, *names: str) -> None:
    for name in names:
        site.require_quantization(name, CORNER_SCALE, 0)


def _require_positive(site: Site, *names: str) -> None:
    for name in names:
        if not site.real(name) > 0:
            raise InvalidAttribute(f"{name} of {site.type} must be above 0, not {site.real(name)}")


def _region(site: Site) -> dict[str, int | float | str]:
    """The attributes that both operations on regions have, after their checks."""
    site.require_rank("input", 4)
    site.require_rank("boxes", 2)
    site.require_rank("batch_indices", 1)
    _require_positive(site, "height_ratio", "width_ratio")
    if "F" not in site.types:
        _require_corners(site, "boxes")
    return {
        "output_height": site.positive("output_height"),
        "output_width": site.positive("output_width"),
        "height_ratio": site.real("height_ratio"),
        "width_ratio": site.real("width_ratio"),
        "data_layout": layout(site),
    }


def _tensors(site: Site, *names: str) -> list[int]:
    return [site.tensor(name) for name in names]


@lowers(
    "ROI_ALIGN",
    level=3,
    form=(
        f"input:F boxes:F {_REGION} {_POINTS} nchw:b -> output:F",
        f"input:Q boxes:q16a {_REGION} {_POINTS} nchw:b -> output:Q",
    ),
    F=FLOAT,
    Q=QUANT8,
)
def roi_align(site: Site) -> None:
    attributes = _region(site)
    points = [site.integer(f"{side}_points") for side in ("height", "width")]
    if min(points) < 0:
        raise InvalidAttribute(f"{points} sampling points, which must not be negative")
    site.finish(
        "ROI_ALIGN",
        _tensors(site, "input", "boxes", "batch_indices"),
        sampling_points_height=points[0],
        sampling_points_width=points[1],
        **attributes,
    )


@lowers(
    "ROI_POOLING",
    level=3,
    form=(
        f"input:F boxes:F {_REGION} nchw:b -> output:F",
        f"input:Q boxes:q16a {_REGION} nchw:b -> output:Q",
    ),
    F=FLOAT,
    Q=QUANT8,
)
def roi_pooling(site: Site) -> None:
    site.require_same_quantization("input", "output")
    attributes = _region(site)
    site.finish("ROI_POOLING", _tensors(site, "input", "boxes", "batch_indices"), **attributes)


@lowers(
    "AXIS_ALIGNED_BBOX_TRANSFORM",
    level=3,
    form=(
        "boxes:F deltas:F batch_indices:i32 image_sizes:F -> output:F",
        "boxes:q16a deltas:Q batch_indices:i32 image_sizes:q16a -> output:q16a",
    ),
    F=FLOAT,
    Q=QUANT8,
)
def axis_aligned_bbox_transform(site: Site) -> None:
    for name, rank in (("boxes", 2), ("deltas", 2), ("batch_indices", 1), ("image_sizes", 2)):
        site.require_rank(name, rank)
    _require_corners(site, "boxes", "image_sizes", "output")
    deltas = site.shape(site.tensor("deltas"))
    columns = None if deltas is None else deltas[1]
    if columns is not None and (columns == 0 or columns % 4):
        raise ShapeMismatch(f"{columns} deltas a box, which are not 4 for each of some classes")
    inputs = _tensors(site, "boxes", "deltas", "batch_indices", "image_sizes")
    site.finish("AXIS_ALIGNED_BBOX_TRANSFORM", inputs)


_LIMIT: Final = (
    "batch_indices:i32 score_threshold:real max_boxes:i kernel:i iou_threshold:real sigma:real"
    " nms_score_threshold:real"
)
_PLACES: Final = "classes:i32 best_batch_indices:i32"


@lowers(
    "BOX_WITH_NMS_LIMIT",
    level=3,
    form=(
        f"scores:F boxes:F {_LIMIT} -> best_scores:F best_boxes:F {_PLACES}",
        f"scores:Q boxes:q16a {_LIMIT} -> best_scores:Q best_boxes:q16a {_PLACES}",
    ),
    F=FLOAT,
    Q=QUANT8,
)
def box_with_nms_limit(site: Site) -> None:
    for name, rank in (("scores", 2), ("boxes", 2), ("batch_indices", 1)):
        site.require_rank(name, rank)
    site.require_same_quantization("scores", "best_scores")
    _require_corners(site, "boxes", "best_boxes")
    _require_classes(site, 1)
    kernel = site.integer("kernel")
    if not 0 <= kernel < len(SUPPRESSIONS):
        raise InvalidAttribute(f"suppression kernel {kernel} is not in [0, 2]")
    site.finish(
        "BOX_WITH_NMS_LIMIT",
        _tensors(site, "scores", "boxes", "batch_indices"),
        score_threshold=site.real("score_threshold"),
        max_boxes=site.integer("max_boxes"),
        nms_kernel=SUPPRESSIONS[kernel],
        iou_threshold=site.real("iou_threshold"),
        sigma=site.real("sigma"),
        nms_score_threshold=site.real("nms_score_threshold"),
    )


def _require_classes(site: Site, axis: int) -> None:
    """There is one class at least beside the background."""
    scores = site.shape(site.tensor("scores"))
    classes = None if scores is None else scores[axis]
    if classes is not None and classes < 2:
        raise ShapeMismatch(f"scores of {classes} classes, the first of which is the background")


@lowers(
    "DETECTION_POSTPROCESSING",
    level=3,
    form="scores:T boxes:T anchors:T scale_y:real scale_x:real scale_h:real scale_w:real"
    " regular:b max_detections:i max_classes:i max_each:i score_threshold:real iou_threshold:real"
    " background:b -> best_scores:T best_boxes:T classes:i32 count:i32",
    T=FLOAT,
)
def detection_postprocessing(site: Site) -> None:
    for name, rank in (("scores", 3), ("boxes", 3), ("anchors", 2)):
        site.require_rank(name, rank)
    _require_positive(site, "scale_y", "scale_x", "scale_h", "scale_w")
    for name in ("score_threshold", "iou_threshold"):
        if not site.real(name) >= 0:
            raise InvalidAttribute(f"{name} is {site.real(name)}, and must not be below 0")
    _require_classes(site, 2)
    boxes, regular = site.shape(site.tensor("boxes")), site.flag("regular")
    if boxes is not None and boxes[2] is not None and boxes[2] < 4:
        raise ShapeMismatch(f"boxes of {boxes[2]} numbers, where 4 are needed")
    site.positive("max_each" if regular else "max_classes")
    site.finish(
        "DETECTION_POSTPROCESSING",
        _tensors(site, "scores", "boxes", "anchors"),
        scale_y=site.real("scale_y"),
        scale_x=site.real("scale_x"),
        scale_h=site.real("scale_h"),
        scale_w=site.real("scale_w"),
        use_regular_nms=regular,
        max_detections=site.positive("max_detections"),
        max_classes_per_detection=site.integer("max_classes"),
        detections_per_class=site.integer("max_each"),
        score_threshold=site.real("score_threshold"),
        iou_threshold=site.real("iou_threshold"),
        background_in_labels=site.flag("background"),
    )


_PROPOSAL: Final = (
    "height_stride:real width_stride:real most_before:i most_after:i iou_threshold:real"
    " least_size:real nchw:b"
)
_BEST: Final = "best_scores"
_BATCHES: Final = "batch_indices:i32"


@lowers(
    "GENERATE_PROPOSALS",
    level=3,
    form=(
        f"scores:F deltas:F anchors:F image_sizes:F {_PROPOSAL} -> {_BEST}:F boxes:F {_BATCHES}",
        f"scores:Q deltas:Q anchors:q16y image_sizes:q16a {_PROPOSAL} -> {_BEST}:Q boxes:q16a {_BATCHES}",
    ),
    F=FLOAT,
    Q=QUANT8,
)
def generate_proposals(site: Site) -> None:
    for name, rank in (("scores", 4), ("deltas", 4), ("anchors", 2), ("image_sizes", 2)):
        site.require_rank(name, rank)
    site.require_same_quantization("scores", "best_scores")
    _require_corners(site, "anchors", "image_sizes", "boxes")
    site.finish(
        "GENERATE_PROPOSALS",
        _tensors(site, "scores", "deltas", "anchors", "image_sizes"),
        height_stride=site.real("height_stride"),
        width_stride=site.real("width_stride"),
        pre_nms_max=site.integer("most_before"),
        post_nms_max=site.integer("most_after"),
        iou_threshold=site.real("iou_threshold"),
        min_size=site.real("least_size"),
        data_layout=layout(site),
    )


@lowers(
    "HEATMAP_MAX_KEYPOINT",
    level=3,
    form=(
        "maps:F boxes:F nchw:b -> scores:F keypoints:F",
        "maps:Q boxes:q16a nchw:b -> scores:Q keypoints:q16a",
    ),
    F=FLOAT,
    Q=QUANT8,
)
def heatmap_max_keypoint(site: Site) -> None:
    site.require_rank("maps", 4)
    site.require_rank("boxes", 2)
    _require_corners(site, "boxes", "keypoints")
    maps = site.shape(site.tensor("maps"))
    size = None if maps is None else maps[2]
    if size is not None and size < 2:
        raise ShapeMismatch(f"heat maps of {size} pixels a side, where 2 are needed")
    site.finish("HEATMAP_MAX_KEYPOINT", _tensors(site, "maps", "boxes"), data_layout=layout(site))
