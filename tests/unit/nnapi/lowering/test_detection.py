"""NNAPI's rules for operations on boxes: what is refused, and with which words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.errors import GeneralFailure, ModelError
from penstock.nnapi.description import NnapiOperand
from tests.unit.nnapi.lowering.one import Arguments, b, constant, f, h, i, lowered, run, t

BOX: dict[str, Any] = {"scale": 0.125}
Outputs = list[NnapiOperand]


def align(kind: str = "f32") -> tuple[dict[str, NnapiOperand], Outputs]:
    real = h if kind == "f16" else f
    boxes = t("q16a", 6, 4, **BOX) if kind.startswith("q") else t(kind, 6, 4)
    return {
        "input": t(kind, 2, 8, 8, 3),
        "boxes": boxes,
        "batch_indices": t("i32", 6),
        "output_height": i(7),
        "output_width": i(5),
        "height_ratio": real(2.0),
        "width_ratio": real(2.0),
        "sampling_points_height": i(0),
        "sampling_points_width": i(2),
        "nchw": b(False),
    }, [t(kind, 6, 7, 5, 3, scale=0.25 if kind.startswith("q") else 0.0)]


def pooling(kind: str = "f32") -> tuple[dict[str, NnapiOperand], Outputs]:
    arguments, _ = align(kind)
    del arguments["sampling_points_height"], arguments["sampling_points_width"]
    return arguments, [t(kind, 6, 7, 5, 3)]


def transform(kind: str = "f32") -> tuple[dict[str, NnapiOperand], Outputs]:
    quantised = kind.startswith("q")
    corner = t("q16a", 5, 4, **BOX) if quantised else t(kind, 5, 4)
    sizes = t("q16a", 2, 2, **BOX) if quantised else t(kind, 2, 2)
    made = t("q16a", 5, 8, **BOX) if quantised else t(kind, 5, 8)
    return {
        "boxes": corner,
        "deltas": t(kind, 5, 8),
        "batch_indices": t("i32", 5),
        "image_sizes": sizes,
    }, [made]


def limit(kind: str = "f32") -> tuple[dict[str, NnapiOperand], Outputs]:
    real, quantised = h if kind == "f16" else f, kind.startswith("q")
    return {
        "scores": t(kind, 5, 3),
        "boxes": t("q16a", 5, 12, **BOX) if quantised else t(kind, 5, 12),
        "batch_indices": t("i32", 5),
        "score_threshold": real(0.5),
        "max_boxes": i(-1),
        "nms_kernel": i(2),
        "iou_threshold": real(0.5),
        "sigma": real(0.5),
        "nms_score_threshold": real(0.5),
    }, [
        t(kind, None),
        t("q16a", None, 4, **BOX) if quantised else t(kind, None, 4),
        t("i32", None),
        t("i32", None),
    ]


def detections(kind: str = "f32") -> tuple[dict[str, NnapiOperand], Outputs]:
    real = h if kind == "f16" else f
    return {
        "scores": t(kind, 2, 9, 3),
        "boxes": t(kind, 2, 9, 7),
        "anchors": t(kind, 9, 4),
        "scale_y": real(10.0),
        "scale_x": real(10.0),
        "scale_h": real(5.0),
        "scale_w": real(5.0),
        "use_regular_nms": b(False),
        "max_detections": i(3),
        "max_classes_per_detection": i(2),
        "detections_per_class": i(1),
        "score_threshold": real(0.0),
        "iou_threshold": real(0.5),
        "background_in_labels": b(True),
    }, [t(kind, 2, 6), t(kind, 2, 6, 4), t("i32", 2, 6), t("i32", 2)]


def proposals(kind: str = "f32") -> tuple[dict[str, NnapiOperand], Outputs]:
    real, quantised = h if kind == "f16" else f, kind.startswith("q")
    return {
        "scores": t(kind, 2, 6, 7, 3),
        "deltas": t(kind, 2, 6, 7, 12),
        "anchors": t("q16y", 3, 4, **BOX) if quantised else t(kind, 3, 4),
        "image_sizes": t("q16a", 2, 2, **BOX) if quantised else t(kind, 2, 2),
        "height_stride": real(4.0),
        "width_stride": real(4.0),
        "pre_nms_max": i(0),
        "post_nms_max": i(0),
        "iou_threshold": real(0.5),
        "min_size": real(1.0),
        "nchw": b(False),
    }, [t(kind, None), t("q16a", None, 4, **BOX) if quantised else t(kind, None, 4), t("i32", None)]


def heatmaps(kind: str = "f32") -> tuple[dict[str, NnapiOperand], Outputs]:
    quantised = kind.startswith("q")
    return {
        "maps": t(kind, 3, 5, 5, 2),
        "boxes": t("q16a", 3, 4, **BOX) if quantised else t(kind, 3, 4),
        "nchw": b(False),
    }, [
        t(kind, 3, 2, scale=0.25 if quantised else 0.0),
        t("q16a", 3, 2, 2, **BOX) if quantised else t(kind, 3, 2, 2),
    ]


MAKERS: dict[str, Any] = {
    "ROI_ALIGN": align,
    "ROI_POOLING": pooling,
    "AXIS_ALIGNED_BBOX_TRANSFORM": transform,
    "BOX_WITH_NMS_LIMIT": limit,
    "DETECTION_POSTPROCESSING": detections,
    "GENERATE_PROPOSALS": proposals,
    "HEATMAP_MAX_KEYPOINT": heatmaps,
}
KINDS = ("f32", "f16", "q8", "q8s")


def of(name: str, kind: str = "f32") -> tuple[dict[str, NnapiOperand], Outputs]:
    arguments, outputs = MAKERS[name](kind)
    return arguments, outputs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_each_type_has_its_level(name: str, kind: str) -> None:
    arguments, outputs = of(name, kind)
    if name == "DETECTION_POSTPROCESSING" and kind.startswith("q"):
        with pytest.raises(ModelError, match="cannot be a TENSOR_QUANT8"):
            lowered(name, arguments, outputs)
        return
    least = 4 if kind == "q8s" else 3
    assert lowered(name, arguments, outputs, least).operations[0].type == name
    with pytest.raises(ModelError, match="needs feature level"):
        lowered(name, arguments, outputs, least - 1)


@pytest.mark.parametrize("name", ["ROI_ALIGN", "ROI_POOLING", "GENERATE_PROPOSALS"])
def test_the_layout_is_an_attribute(name: str) -> None:
    arguments, outputs = of(name)
    model = lowered(name, arguments, outputs)
    assert model.operations[0].attributes["data_layout"] == "NHWC"
    moved: Arguments = {
        n: t("f32", *(o.dimensions[j] for j in (0, 3, 1, 2)))  # type: ignore[index]  # known here
        if n in {"input", "scores", "deltas"}
        else o
        for n, o in arguments.items()
    } | {"nchw": b(True)}
    made = [t("f32", 6, 3, 7, 5)] if name.startswith("ROI") else outputs
    assert lowered(name, moved, made).operations[0].attributes["data_layout"] == "NCHW"


BAD: list[tuple[str, str, dict[str, Any], str]] = [
    ("ROI_ALIGN", "f32", {"output_height": i(0)}, "output_height of ROI_ALIGN must be above 0"),
    ("ROI_ALIGN", "f32", {"width_ratio": f(0)}, "width_ratio of ROI_ALIGN must be above 0"),
    ("ROI_ALIGN", "f32", {"width_ratio": f(float("nan"))}, "width_ratio"),
    ("ROI_ALIGN", "f32", {"sampling_points_height": i(-1)}, "sampling_points_height"),
    ("ROI_ALIGN", "f32", {"width_ratio": h(2)}, "where a FLOAT32 is needed"),
    ("ROI_ALIGN", "f32", {"input": t("f32", 8, 8, 3)}, "has rank 3"),
    ("ROI_ALIGN", "f32", {"boxes": t("f32", 6, 5)}, "numbers a box"),
    ("ROI_ALIGN", "f32", {"boxes": t("q16a", 6, 4, **BOX)}, "cannot be a TENSOR_QUANT16_ASYMM"),
    ("ROI_ALIGN", "f32", {"batch_indices": t("i32", 5)}, "boxes and batch indices"),
    ("ROI_ALIGN", "q8", {"boxes": t("q16a", 6, 4, scale=0.25)}, "has scale 0.125"),
    ("ROI_ALIGN", "q8", {"boxes": t("q16a", 6, 4, scale=0.125, zero=1)}, "zero point 0"),
    ("ROI_ALIGN", "q8", {"boxes": t("f32", 6, 4)}, "where a TENSOR_QUANT16_ASYMM is needed"),
    ("ROI_POOLING", "q8", {"input": t("q8", 2, 8, 8, 3, zero=3)}, "needs one scale"),
    ("ROI_POOLING", "f32", {"nchw": i(0)}, "where a BOOL is needed"),
    ("AXIS_ALIGNED_BBOX_TRANSFORM", "f32", {"deltas": t("f32", 5, 7)}, "7 deltas a box"),
    ("AXIS_ALIGNED_BBOX_TRANSFORM", "f32", {"deltas": t("f32", 4, 8)}, "boxes and deltas"),
    ("AXIS_ALIGNED_BBOX_TRANSFORM", "f32", {"image_sizes": t("f32", 2, 3)}, "image's size"),
    ("AXIS_ALIGNED_BBOX_TRANSFORM", "q8", {"image_sizes": t("q16a", 2, 2)}, "has scale 0.125"),
    (
        "BOX_WITH_NMS_LIMIT",
        "f32",
        {"nms_kernel": i(3)},
        "nms_kernel 3 of BOX_WITH_NMS_LIMIT is none of 0 ",
    ),
    ("BOX_WITH_NMS_LIMIT", "f32", {"scores": t("f32", 5, 1)}, "first of which is the background"),
    ("BOX_WITH_NMS_LIMIT", "f32", {"boxes": t("f32", 5, 11)}, "four times the classes"),
    ("BOX_WITH_NMS_LIMIT", "q8", {"scores": t("q8", 5, 3, scale=0.3)}, "needs one scale"),
    ("DETECTION_POSTPROCESSING", "f32", {"scale_h": f(0)}, "scale_h"),
    ("DETECTION_POSTPROCESSING", "f32", {"iou_threshold": f(-0.1)}, "iou_threshold"),
    ("DETECTION_POSTPROCESSING", "f32", {"max_detections": i(0)}, "max_detections"),
    (
        "DETECTION_POSTPROCESSING",
        "f32",
        {"max_classes_per_detection": i(0)},
        "max_classes_per_detection",
    ),
    (
        "DETECTION_POSTPROCESSING",
        "f32",
        {"use_regular_nms": b(True), "detections_per_class": i(0)},
        "detections_per_class",
    ),
    ("DETECTION_POSTPROCESSING", "f32", {"boxes": t("f32", 2, 9, 3)}, "3 numbers"),
    ("DETECTION_POSTPROCESSING", "f32", {"scores": t("f32", 2, 9, 1)}, "background"),
    ("DETECTION_POSTPROCESSING", "f32", {"use_regular_nms": b(True)}, "an output is declared"),
    ("GENERATE_PROPOSALS", "f32", {"deltas": t("f32", 2, 6, 7, 11)}, "four times the anchors"),
    ("GENERATE_PROPOSALS", "q8", {"anchors": t("q16y", 3, 4)}, "has scale 0.125"),
    ("GENERATE_PROPOSALS", "q8", {"anchors": t("q16a", 3, 4, **BOX)}, "TENSOR_QUANT16_SYMM"),
    ("HEATMAP_MAX_KEYPOINT", "f32", {"maps": t("f32", 3, 1, 1, 2)}, "1 pixels a side"),
    ("HEATMAP_MAX_KEYPOINT", "f32", {"maps": t("f32", 3, 4, 5, 2)}, "height and width"),
    ("HEATMAP_MAX_KEYPOINT", "f32", {"boxes": t("f32", 4, 4)}, "heat maps and boxes"),
]


@pytest.mark.parametrize(("name", "kind", "changed", "message"), BAD)
def test_broken_rules_are_named(
    name: str, kind: str, changed: dict[str, Any], message: str
) -> None:
    arguments, outputs = of(name, kind)
    with pytest.raises(ModelError, match=message):
        lowered(name, arguments | changed, outputs)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_operands_too_many_or_too_few(name: str) -> None:
    arguments, outputs = of(name)
    given = list(arguments.values())
    for inputs, made in (
        (given[:-1], outputs),
        ([*given, i(0)], outputs),
        (given, outputs[:-1]),
        (given, [*outputs, outputs[-1]]),
    ):
        with pytest.raises(ModelError):
            lowered(name, inputs, made)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_unknown_ranks_and_dimensions_are_taken(name: str) -> None:
    arguments, outputs = of(name)
    for shape in (None, "unknown"):
        changed = {
            n: t("f32", *[None] * len(o.dimensions or ())) if shape else t("f32")
            for n, o in arguments.items()
            if o.type.name == "TENSOR_FLOAT32"
        }
        if shape is None:
            changed = {n: _without_rank(o) for n, o in changed.items()}
        made = [_without_rank(o) for o in outputs]
        assert lowered(name, arguments | changed, made).operations[0].type == name


def _without_rank(operand: NnapiOperand) -> NnapiOperand:
    return NnapiOperand(operand.type, None, scale=operand.scale, zero_point=operand.zero_point)


def test_malformed_values_fail_the_execution_with_the_place() -> None:
    arguments, outputs = of("ROI_ALIGN")
    model = lowered("ROI_ALIGN", arguments, outputs)
    image, boxes = np.zeros((2, 8, 8, 3), np.float32), np.zeros((6, 4), np.float32)
    indices = np.zeros(6, np.int32)
    assert run(model, [image, boxes, indices])[0].shape == (6, 7, 5, 3)
    with pytest.raises(GeneralFailure, match=r"operation 0 \(ROI_ALIGN.*batch index 7"):
        run(model, [image, boxes, indices + 7])
    with pytest.raises(GeneralFailure, match=r"operation 0 \(ROI_ALIGN.*box 0 is \[nan"):
        run(model, [image, boxes * np.nan, indices])


def test_regions_that_a_suppression_leaves_none_of() -> None:
    arguments, outputs = of("BOX_WITH_NMS_LIMIT")
    arguments["scores"] = constant("f32", np.zeros((5, 3)))
    model = lowered("BOX_WITH_NMS_LIMIT", arguments, outputs)
    got = run(model, [np.ones((5, 12), np.float32), np.zeros(5, np.int32)])
    assert [x.shape for x in got] == [(0,), (0, 4), (0,), (0,)]
