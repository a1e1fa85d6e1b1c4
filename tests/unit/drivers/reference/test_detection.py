"""Suppression and post-processing of detections, TFLite's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.drivers.reference.detection.tflite import overlaps
from penstock.drivers.reference.kernel import Site, build
from penstock.errors import ShapeMismatch
from penstock.ir import Attributes, DType, NDArray, Operand, Operation
from tests.support_litert import (
    Given,
    Recorded,
    Wanted,
    assert_agrees,
    q,
    refusal,
    run_alone,
    uniform,
)
from tests.support_selections import detection_options

MADE = [Wanted(DType.FLOAT32)] * 4


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("background", [0, 1])
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"max_classes_per_detection": 3},
        {"max_classes_per_detection": 7},
        {"use_regular_nms": True},
        {"nms_score_threshold": 0.99},
        {"max_detections": 200},
    ],
)
def test_float_detection_postprocess_agrees_with_litert(
    seed: int, background: int, changed: dict[str, Any]
) -> None:
    rng = np.random.default_rng(seed)
    encodings = rng.normal(0, 1, (1, 50, 4)).astype(np.float32)
    predictions = rng.random((1, 50, 5 + background)).astype(np.float32)
    anchors = np.concatenate([rng.random((50, 2)), rng.random((50, 2)) * 0.3 + 0.05], axis=1)
    given = [Given(encodings), Given(predictions), Given(anchors.astype(np.float32), constant=True)]
    recorded = run_alone(
        "CUSTOM:TFLite_Detection_PostProcess", given, MADE, detection_options(**changed)
    )
    if changed.get("use_regular_nms"):
        assert_agrees(recorded)
    else:
        _assert_written_places_agree(recorded, **changed)


def _assert_written_places_agree(recorded: Recorded, **changed: Any) -> None:
    """TFLite's fast suppression leaves the places that it does not need as they were; here they are
    0.
    """
    found, wanted = recorded.run(), recorded.wanted
    count, classes = int(wanted[3][0]), changed.get("max_classes_per_detection", 1)
    assert found[3] == count
    written = np.zeros((changed.get("max_detections", 10), classes), bool)
    written[:count, : min(classes, 5)] = True
    for got, expected in zip(found[:3], wanted[:3], strict=True):
        assert got.shape == expected.shape
        np.testing.assert_allclose(got[0, written.reshape(-1)], expected[0, written.reshape(-1)])
        assert not got[0, ~written.reshape(-1)].any()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("regular", [False, True])
def test_quantised_detection_postprocess_with_equal_scores_agrees_with_litert(
    seed: int, regular: bool
) -> None:
    rng = np.random.default_rng(seed)
    given = [
        Given(uniform(rng, DType.UINT8, (1, 50, 4)), q(0.05, 128)),
        Given(uniform(rng, DType.UINT8, (1, 50, 6)) // 32 * 32, q(1 / 256)),
        Given(uniform(rng, DType.UINT8, (50, 4)), q(0.004), constant=True),
    ]
    options = detection_options(use_regular_nms=regular)
    recorded = run_alone("CUSTOM:TFLite_Detection_PostProcess", given, MADE, options)
    if regular:
        assert_agrees(recorded)
    else:
        _assert_written_places_agree(recorded)


@pytest.mark.parametrize("regular", [False, True])
def test_detection_postprocess_of_more_classes_than_scores_fails(regular: bool) -> None:
    arrays = [np.ones(shape, np.float32) for shape in [(1, 1, 4), (1, 1, 1), (1, 4)]]
    inputs = tuple(Operand(DType.FLOAT32, array.shape) for array in arrays)
    options = detection_options(num_classes=2, max_classes_per_detection=2, use_regular_nms=regular)
    code = "TFLite_Detection_PostProcess"
    attributes = Attributes(custom_code=code, custom_options=options)
    operation = Operation("CUSTOM", (0, 1, 2), (3, 4, 5, 6), attributes)
    outputs = (Operand(DType.FLOAT32, None),) * 4
    run = build(Site(operation, inputs, outputs, lambda _: None))
    with pytest.raises(ShapeMismatch, match="2 classes"):
        run(arrays)


INDEXES, SCORES = Wanted(DType.INT32), Wanted(DType.FLOAT32)


def _boxes(rng: np.random.Generator, count: int, degenerate: float) -> NDArray:
    """Corners of boxes in any order; a share of them without area."""
    centres, sizes = rng.random((count, 2)), rng.random((count, 2)) * 0.3
    boxes = np.concatenate([centres - sizes, centres + sizes], axis=1)
    flat = rng.random(count) < degenerate
    boxes[flat, 2:] = boxes[flat, :2]
    turned = rng.random(count) < 0.3
    boxes[turned] = boxes[turned][:, [2, 3, 0, 1]]
    return boxes.astype(np.float32)


def _scalar(value: float, dtype: type = np.float32) -> Given:
    return Given(np.array(value, dtype), constant=True)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("digits", [1, 7])
@pytest.mark.parametrize("degenerate", [0.0, 0.2])
def test_suppression_hard_and_soft(seed: int, digits: int, degenerate: float) -> None:
    """With one digit most scores are equal: then TFLite's heap decides whose turn it is."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 60))
    boxes = Given(_boxes(rng, count, degenerate))
    scores = Given(np.round(rng.random(count), digits).astype(np.float32))
    limits = [_scalar(int(rng.integers(0, 20)), np.int32), _scalar(0.4), _scalar(0.2)]
    assert_agrees(run_alone("NON_MAX_SUPPRESSION_V4", [boxes, scores, *limits], [INDEXES] * 2))
    soft = [boxes, scores, *limits, _scalar(0.5 if seed % 5 else 0.0)]
    assert_agrees(run_alone("NON_MAX_SUPPRESSION_V5", soft, [INDEXES, SCORES, INDEXES]))


def test_overlap_is_intersection_over_union() -> None:
    box = np.array([0, 0, 2, 2], np.float32)
    others = np.array(
        [[0, 0, 2, 2], [2, 2, 0, 0], [1, 0, 3, 2], [5, 5, 6, 6], [1, 1, 1, 1]], np.float32
    )
    np.testing.assert_allclose(overlaps(box, others), [1, 1, 1 / 3, 0, 0])


def test_boxes_that_are_not_float_are_refused() -> None:
    whole, real = Operand(DType.INT32, (4, 4)), Operand(DType.FLOAT32, (4,))
    given = [whole, real, *[Operand(DType.FLOAT32, ())] * 3]
    assert "of (int32, " in refusal("NON_MAX_SUPPRESSION_V4", given, [whole, whole])
