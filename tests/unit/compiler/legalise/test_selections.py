"""Selections of boxes are routines that choose what the reference device chooses, bit for bit: with
equal scores, boxes without area and NaN too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.compiler import interpreter
from penstock.compiler.legalise import judge, legalise
from penstock.driverkit.site import Refused, make_sites
from penstock.ir import DType, Model, ModelBuilder, NDArray
from tests.support_selections import detection_options
from tests.unit.compiler.legalise.legal_models import Given, check, feeds, layer

F32, I32 = DType.FLOAT32, DType.INT32
INDEXES, SCORES = (I32, None), (F32, None)


def boxes_and_scores(seed: int, count: int = 40) -> tuple[NDArray, NDArray]:
    rng = np.random.default_rng(seed)
    boxes = rng.integers(0, 6, (count, 4)).astype(np.float32)
    scores = rng.integers(0, 9, count).astype(np.float32) / 8
    if seed % 2:
        boxes[rng.integers(0, count, 3), rng.integers(0, 4, 3)] = np.nan
        scores[rng.integers(0, count, 2)] = np.nan
    return boxes, scores


def suppression(
    seed: int, most: int, iou: float, least: float, sigma: float | None
) -> tuple[Model, list[NDArray]]:
    boxes, scores = boxes_and_scores(seed)
    numbers = [iou, least] if sigma is None else [iou, least, sigma]
    given = [Given(boxes, fed=True), Given(scores, fed=True), Given(np.array(most, np.int32))]
    given += [Given(np.array(n, np.float32), fed=k == 0) for k, n in enumerate(numbers)]
    kind = "NON_MAX_SUPPRESSION_V4" if sigma is None else "NON_MAX_SUPPRESSION_V5"
    more = [INDEXES] if sigma is None else [SCORES, INDEXES]
    return layer(kind, given, INDEXES, {}, more), feeds(given)


def same_bits(model: Model, arrays: list[NDArray]) -> list[NDArray]:
    """The outputs, those of the reference device bit for bit."""
    wanted = check(model, arrays, ["tabulate"])
    got = interpreter.run(legalise(model), arrays)
    for one, other in zip(got, wanted, strict=True):
        assert one.tobytes() == other.tobytes()
    return wanted


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sigma", [None, 0.0, 0.4])
def test_suppression_chooses_as_tflite(seed: int, sigma: float | None) -> None:
    *_, count = same_bits(*suppression(seed, 30, 0.4, 0.1, sigma))
    assert count > 0


def test_suppression_of_more_boxes_than_there_are_pads_with_zeros() -> None:
    indexes, count = same_bits(*suppression(0, 60, 0.3, 0.2, None))
    assert count < 40
    assert not indexes[int(count) :].any()


def refusal(model: Model) -> str:
    (site,) = make_sites(model)
    with pytest.raises(Refused) as refused:
        judge(site)
    return str(refused.value)


def test_suppression_of_a_number_that_only_a_run_knows_is_refused() -> None:
    boxes, scores = boxes_and_scores(0)
    given = [Given(a, fed=True) for a in (boxes, scores, np.array(3, np.int32))]
    given += [Given(np.array(0.5, np.float32))] * 2
    model = layer("NON_MAX_SUPPRESSION_V4", given, INDEXES, {}, [INDEXES])
    assert "known only when it runs" in refusal(model)


def detection(
    seed: int, dtype: DType, background: int, **changed: Any
) -> tuple[Model, list[NDArray]]:
    rng = np.random.default_rng(seed)
    count, classes = 30, 5
    if dtype is F32:
        encoded = rng.integers(-8, 8, (1, count, 5)).astype(np.float32)
        scores = rng.integers(0, 9, (1, count, classes + background)).astype(np.float32) / 8
        if seed % 2:
            scores[0, rng.integers(0, count, 4), rng.integers(0, classes, 4)] = np.nan
        scales: list[tuple[float, ...]] = [(), ()]
    else:
        encoded = rng.integers(0, 256, (1, count, 4)).astype(dtype.numpy)
        scores = rng.integers(0, 32, (1, count, classes + background)).astype(dtype.numpy)
        scales = [(0.1,), (1 / 32,)]
    anchors = rng.uniform(0.1, 0.5, (count + 2, 4)).astype(np.float32)
    given = [Given(encoded, scales[0], fed=True), Given(scores, scales[1], fed=True)]
    given.append(Given(anchors))
    options: dict[str, Any] = {
        "custom_code": "TFLite_Detection_PostProcess",
        "custom_options": detection_options(**changed),
    }
    return layer("CUSTOM", given, SCORES, options, [SCORES] * 3), feeds(given)


@pytest.mark.parametrize("dtype", [F32, DType.UINT8])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"max_classes_per_detection": 3},
        {"max_classes_per_detection": 7},
        {"use_regular_nms": True, "max_detections": 4},
        {"use_regular_nms": True, "max_classes_per_detection": 2, "detections_per_class": 2},
    ],
)
def test_tflites_detections_are_those_of_the_reference(
    seed: int, dtype: DType, changed: dict[str, Any]
) -> None:
    *_, total = same_bits(*detection(seed, dtype, seed, **changed))
    assert total > 1


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"max_classes_per_detection": 3, "background_in_labels": True},
        {"use_regular_nms": True, "max_detections": 4},
    ],
)
def test_nnapis_detections_are_those_of_the_reference(images: int, changed: dict[str, Any]) -> None:
    rng = np.random.default_rng(images)
    scores = rng.integers(0, 9, (images, 30, 5)).astype(np.float32) / 8
    scores[:, 3, 2] = np.nan
    boxes = rng.integers(-8, 8, (images, 30, 4)).astype(np.float32)
    anchors = rng.uniform(0.1, 0.5, (30, 4)).astype(np.float32)
    given = [Given(scores, fed=True), Given(boxes, fed=True), Given(anchors)]
    attributes: dict[str, Any] = {
        "scale_y": 10.0, "scale_x": 10.0, "scale_h": 5.0, "scale_w": 5.0,
        "use_regular_nms": False, "max_detections": 6, "max_classes_per_detection": 1,
        "detections_per_class": 5, "score_threshold": 0.2, "iou_threshold": 0.4,
        "background_in_labels": False,
    } | changed  # fmt: skip
    more = [SCORES, INDEXES, INDEXES]
    model = layer("DETECTION_POSTPROCESSING", given, SCORES, attributes, more)
    *_, totals = same_bits(model, feeds(given))
    assert (totals > 1).all()


def test_detections_of_a_shape_that_only_a_run_knows_are_refused() -> None:
    builder = ModelBuilder()
    x = builder.input(F32, (1, None, 4), "x")
    s = builder.input(F32, (1, None, 5), "s")
    a = builder.constant(np.ones((3, 4), np.float32))
    options: dict[str, Any] = {
        "custom_code": "TFLite_Detection_PostProcess", "custom_options": detection_options(),
    }  # fmt: skip
    made = builder.operation("CUSTOM", [x, s, a], [(F32, None, None)] * 4, options)
    assert "known only when it runs" in refusal(builder.build(list(made)))
