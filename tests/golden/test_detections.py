"""Detections are judged by their boxes and scores, and by being what follows from these."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from flatbuffers import flexbuffers

from penstock.ir import DType, Model, ModelBuilder, NDArray, Quantization
from penstock.runtime.operations import run_alone
from tests.golden.comparison import Rule
from tests.golden.detections import Detecting, detecting

pytest.importorskip("ai_edge_litert", reason="LiteRT is needed as judge")

U8: Final = DType.UINT8
RULE: Final = Rule(disagreement=None, steps={}, dynamic_range=False, detection=True)
OPTIONS: Final = {
    "max_detections": 3, "max_classes_per_detection": 1, "nms_score_threshold": 0.1,
    "nms_iou_threshold": 0.5, "num_classes": 2, "use_regular_nms": False,
    "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0,
}  # fmt: skip


def network() -> Model:
    """Three boxes apart from each other, whose corrections and scores the network is given in a
    row.
    """
    builder = ModelBuilder()
    corrections, shares = Quantization((1 / 64,), (128,)), Quantization((1 / 256,), (0,))
    rows = [
        builder.input(U8, (1, 12), "corrections", corrections),
        builder.input(U8, (1, 9), "shares", shares),
    ]
    (boxes,) = builder.operation(
        "RESHAPE",
        [rows[0], builder.constant(np.array([1, 3, 4], np.int32))],
        [(U8, (1, 3, 4), corrections)],
    )
    (scores,) = builder.operation(
        "RESHAPE",
        [rows[1], builder.constant(np.array([1, 3, 3], np.int32))],
        [(U8, (1, 3, 3), shares)],
    )
    anchors = np.array([[20, 20, 30, 30], [80, 80, 30, 30], [200, 200, 30, 30]], np.uint8)
    f32 = DType.FLOAT32
    made = [(f32, (1, 3, 4)), (f32, (1, 3)), (f32, (1, 3)), (f32, (1,))]
    attributes: dict[str, str | bytes] = {
        "custom_code": "TFLite_Detection_PostProcess",
        "custom_options": bytes(flexbuffers.Dumps(OPTIONS)),
    }
    places = builder.constant(anchors, "anchors", Quantization((1 / 128,), (0,)))
    return builder.build(builder.operation("CUSTOM", [boxes, scores, places], made, attributes))


GIVEN: Final = [
    np.full((1, 12), 128, np.uint8),
    np.array([[0, 90, 10, 0, 20, 91, 0, 60, 30]], np.uint8),
]


@pytest.fixture(scope="module")
def lists() -> Detecting:
    found = detecting(network())
    assert found is not None
    return found


def outputs(lists: Detecting, *, more: int = 0) -> list[NDArray]:
    """What a network gives whose scores are *more* steps higher."""
    boxes, scores = GIVEN[0].reshape(1, 3, 4), GIVEN[1].reshape(1, 3, 3) + np.uint8(more)
    return [*run_alone(lists.last, [boxes, scores], "reference", accuracy="exact"), boxes, scores]


@pytest.mark.parametrize("more", [0, 1])
def test_a_step_is_allowed(lists: Detecting, more: int) -> None:
    lists.check(outputs(lists, more=more), RULE, GIVEN, [GIVEN])


def test_detections_two_steps_from_exact_litert_are_refused(lists: Detecting) -> None:
    with pytest.raises(AssertionError, match="2 from the reference kernels, 1 allowed"):
        lists.check(outputs(lists, more=2), RULE, GIVEN, [GIVEN])


def test_detections_must_follow_from_boxes_and_scores(lists: Detecting) -> None:
    found = outputs(lists)
    found[1] = found[1][:, ::-1]
    with pytest.raises(AssertionError, match="has no match"):
        lists.check(found, RULE, GIVEN, [GIVEN])


def test_network_without_detections_has_no_rule() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2,), "x")
    assert detecting(builder.build(builder.operation("RELU", [x], [(DType.FLOAT32, (2,))]))) is None
