"""Boxes of NNAPI's detection operations: suppression, proposals, transforms and key points."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.drivers.reference.detection import boxes as box_operations
from penstock.drivers.reference.detection.boxes import overlaps, suppress
from penstock.drivers.reference.kernel import Unsupported
from penstock.errors import InputError, ShapeMismatch
from penstock.ir import DType, NDArray
from tests.unit.drivers.reference.alone import BOX, alone, q

F32, F16, I32, U8, I8, U16 = (
    DType.FLOAT32,
    DType.FLOAT16,
    DType.INT32,
    DType.UINT8,
    DType.INT8,
    DType.UINT16,
)
NAN = math.nan


def boxes_of(rng: np.random.Generator, count: int, size: float = 20.0) -> NDArray:
    corners = rng.random((count, 2)) * size
    sides = rng.random((count, 2)) * size / 2
    return np.concatenate([corners, corners + sides], axis=1).astype(np.float32)


def floats(*rows: Any) -> NDArray:
    return np.array(rows, np.float32)


def overlap(a: NDArray, b: NDArray) -> float:
    """Intersection over union, from its definition."""
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    both = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    union = both - width * height
    return float(width * height / union) if union else 0.0


def test_overlaps_are_intersection_over_union() -> None:
    rng = np.random.default_rng(1)
    a, b = boxes_of(rng, 9), boxes_of(rng, 11)
    expected = [[overlap(x, y) for y in b] for x in a]
    np.testing.assert_allclose(overlaps(a, b), expected, rtol=1e-4, atol=1e-6)


def test_boxes_without_area_overlap_nothing() -> None:
    point = floats([3, 3, 3, 3], [3, 3, 3, 3], [0, 0, 9, 9])
    np.testing.assert_array_equal(overlaps(point, point), np.diag([0, 0, 1]))
    np.testing.assert_array_equal(suppress(point, -1, 0.5), [0, 1, 2])


@given(st.integers(0, 2**32), st.integers(0, 300), st.integers(-1, 40), st.floats(0.05, 0.95))
def test_suppression_is_greedy(seed: int, count: int, limit: int, iou: float) -> None:
    boxes = boxes_of(np.random.default_rng(seed), count, 60.0)
    table = overlaps(boxes, boxes)
    chosen: list[int] = []
    for index in range(count):
        if len(chosen) == limit:
            break
        if not any(table[index, c] >= np.float32(iou) for c in chosen):
            chosen.append(index)
    np.testing.assert_array_equal(suppress(boxes, limit, iou), chosen)


def test_suppression_gives_the_same_boxes_in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = boxes_of(np.random.default_rng(7), 400, 60.0)
    whole = suppress(boxes, -1, 0.3)
    assert 20 < len(whole) < 300
    monkeypatch.setattr(box_operations, "BLOCK", 8)
    monkeypatch.setattr(box_operations, "PART", 5)
    np.testing.assert_array_equal(suppress(boxes, -1, 0.3), whole)


LIMIT: dict[str, Any] = {
    "score_threshold": 0.2,
    "max_boxes": -1,
    "nms_kernel": "HARD",
    "iou_threshold": 0.4,
    "sigma": 0.6,
    "nms_score_threshold": 0.25,
}


def limited(
    scores: NDArray, boxes: NDArray, batches: NDArray, **changed: Any
) -> list[tuple[float, tuple[float, ...], int, int]]:
    """(score, box, class, batch) of what stays, in order."""
    made = alone(
        "BOX_WITH_NMS_LIMIT", [scores, boxes, batches], [F32, F32, I32, I32], **LIMIT | changed
    )
    return [(float(s), tuple(b.tolist()), int(c), int(i)) for s, b, c, i in zip(*made, strict=True)]


def decay(kind: str, shared: float) -> float:
    if kind == "GAUSSIAN":
        return math.exp(-shared * shared / LIMIT["sigma"])
    if shared < LIMIT["iou_threshold"]:
        return 1.0
    return 0.0 if kind == "HARD" else 1.0 - shared


@pytest.mark.parametrize("kind", ["HARD", "LINEAR", "GAUSSIAN"])
@pytest.mark.parametrize("most", [-1, 5, 0])
@pytest.mark.parametrize("seed", range(4))
def test_box_with_nms_limit_selects_by_class_and_image(kind: str, most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, classes = 40, 4
    scores = rng.permutation(count * classes).reshape(count, classes) / (count * classes)
    boxes = np.stack([boxes_of(rng, count) for _ in range(classes)], axis=1)
    batches = np.repeat([4, 1, 7], [20, 1, 19]).astype(np.int32)
    expected: list[tuple[float, int, int]] = []
    for batch in (4, 1, 7):
        found: list[tuple[float, int, int]] = []
        for label in range(1, classes):
            waiting = {
                int(i): float(scores[i, label])
                for i in np.flatnonzero((batches == batch) & (scores[:, label] > 0.2))
            }
            chosen: list[tuple[float, int, int]] = []
            while waiting and len(chosen) != most:
                best = max(waiting, key=lambda i: waiting[i])
                chosen.append((waiting.pop(best), best, label))
                for i in list(waiting):
                    waiting[i] *= decay(kind, overlap(boxes[i, label], boxes[best, label]))
                    if waiting[i] < LIMIT["nms_score_threshold"]:
                        del waiting[i]
            found += chosen
        kept = sorted(found, reverse=True)[: most if most >= 0 else None]
        expected += sorted(kept, key=lambda f: (f[2], -f[0]))
    got = limited(
        scores.astype(np.float32),
        boxes.reshape(count, -1),
        batches,
        nms_kernel=kind,
        max_boxes=most,
    )
    assert len(got) == len(expected)
    for (score, box, label, batch), (wanted, row, wanted_label) in zip(got, expected, strict=True):
        assert score == pytest.approx(wanted, rel=1e-5)
        assert (box, label) == (tuple(boxes[row, wanted_label].tolist()), wanted_label)
        assert batch == batches[row]


def test_hard_suppression_without_a_threshold_keeps_scores_of_zero() -> None:
    boxes = np.tile(floats(0, 0, 2, 2), (2, 2))
    got = limited(floats([0, 0.9], [0, 0.8]), boxes, np.zeros(2, np.int32), nms_score_threshold=0.0)
    assert [score for score, *_ in got] == [pytest.approx(0.9), 0.0]


@pytest.mark.parametrize("dtype", [U8, I8])
def test_box_suppression_keeps_quantised_boxes_unchanged(dtype: DType) -> None:
    zero = 0 if dtype is U8 else -128
    scores = (np.array([[10, 90], [10, 80], [10, 70]]) + zero).astype(dtype.numpy)
    boxes = np.array(
        [[0] * 4 + [0, 0, 80, 80], [0] * 4 + [1, 0, 80, 80], [0] * 4 + [800, 0, 8000, 65535]],
        np.uint16,
    )
    made = alone(
        "BOX_WITH_NMS_LIMIT",
        [(scores, q(0.01, zero)), (boxes, BOX), np.zeros(3, np.int32)],
        [(dtype, q(0.02, zero)), (U16, BOX), I32, I32],
        **LIMIT,
    )
    np.testing.assert_array_equal(made[0], np.array([45, 35]) + zero)
    np.testing.assert_array_equal(made[1], [[0, 0, 80, 80], [800, 0, 8000, 65535]])
    np.testing.assert_array_equal(made[2:], [[1, 1], [0, 0]])


def test_box_suppression_of_no_boxes_returns_none() -> None:
    assert (
        limited(np.empty((0, 2), np.float32), np.empty((0, 8), np.float32), np.empty(0, np.int32))
        == []
    )
    assert limited(floats([0.9, 0.1]), np.ones((1, 8), np.float32), np.zeros(1, np.int32)) == []
    assert limited(floats([0.9, NAN]), np.ones((1, 8), np.float32), np.zeros(1, np.int32)) == []


def test_repeated_batch_index_starts_a_new_image() -> None:
    boxes = np.tile(floats(0, 0, 2, 2), (3, 2))
    got = limited(floats([0, 0.9], [0, 0.8], [0, 0.7]), boxes, np.array([2, 1, 2], np.int32))
    assert [(round(s, 1), b) for s, _, _, b in got] == [(0.9, 2), (0.8, 1), (0.7, 2)]


@pytest.mark.parametrize("box", [[2, 2, 1, 3], [0, 3, 1, 2], [NAN, 0, 1, 1], [0, 0, 1, NAN]])
def test_inverted_boxes_are_refused(box: list[float]) -> None:
    good = [0.0, 0.0, 1.0, 1.0]
    with pytest.raises(InputError, match="box of class 1, candidate 0"):
        limited(floats([0, 0.9]), floats([*good, *box]), np.zeros(1, np.int32))
    with pytest.raises(InputError, match="box 0"):
        alone(
            "AXIS_ALIGNED_BBOX_TRANSFORM",
            [floats(box), floats(good), np.zeros(1, np.int32), floats([9, 9])],
            [F32],
        )
    with pytest.raises(InputError, match="box 0"):
        alone("HEATMAP_MAX_KEYPOINT", [np.zeros((1, 4, 4, 1), np.float32), floats(box)], [F32, F32])
    with pytest.raises(InputError, match="anchor 0"):
        proposed(np.ones((1, 1, 1, 1)), np.zeros((1, 1, 1, 4)), floats(box), floats([9, 9]))


def test_suppression_of_infinite_boxes_ends() -> None:
    boxes = np.tile(floats(-np.inf, -np.inf, np.inf, np.inf), (3, 2))
    scores = floats([0, np.inf], [0, 0.8], [0, 0.7])
    for kind in ("HARD", "LINEAR", "GAUSSIAN"):
        assert len(limited(scores, boxes, np.zeros(3, np.int32), nms_kernel=kind)) >= 1


def test_box_suppression_refuses_inputs_of_wrong_shape() -> None:
    scores, boxes = floats([0, 0.9]), np.zeros((1, 8), np.float32)
    with pytest.raises(ShapeMismatch, match=r"batch indices \(2,\)"):
        limited(scores, boxes, np.zeros(2, np.int32))
    with pytest.raises(ShapeMismatch, match=r"boxes \(1, 7\)"):
        limited(scores, boxes[:, :7], np.zeros(1, np.int32))
    with pytest.raises(InputError, match="batch index -1"):
        limited(scores, boxes, np.full(1, -1, np.int32))
    with pytest.raises(Unsupported, match="sigma"):
        limited(scores, boxes, np.zeros(1, np.int32), nms_kernel="GAUSSIAN", sigma=0.0)


@pytest.mark.parametrize("kind", ["HARD", "LINEAR", "GAUSSIAN"])
def test_suppression_of_thousands_of_boxes_is_fast(kind: str) -> None:
    rng = np.random.default_rng(0)
    boxes = np.tile(boxes_of(rng, 4000, 900.0), (1, 2))
    scores = rng.random((4000, 2)).astype(np.float32)
    began = time.process_time()
    limited(scores, boxes, np.zeros(4000, np.int32), nms_kernel=kind)
    assert time.process_time() - began < 5.0


def test_boxes_are_moved_scaled_and_clipped() -> None:
    boxes = floats([10, 20, 30, 60], [0, 0, 4, 4])
    deltas = floats(
        [0.5, -0.25, math.log(0.5), math.log(2), 0, 0, 0, 0],
        [-1, 0, 0, 0, 0, 0, math.log(100), math.log(100)],
    )
    sizes = floats([1000, 1000], [50, 40])
    (got,) = alone(
        "AXIS_ALIGNED_BBOX_TRANSFORM", [boxes, deltas, np.array([0, 1], np.int32), sizes], [F32]
    )
    expected = [[25, 0, 35, 70, 10, 20, 30, 60], [0, 0, 0, 4, 0, 0, 40, 50]]
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-5)


def test_box_transform_of_no_boxes_is_empty() -> None:
    none = np.empty((0, 4), np.float32)
    (got,) = alone(
        "AXIS_ALIGNED_BBOX_TRANSFORM",
        [none, np.empty((0, 8), np.float32), np.empty(0, np.int32), floats([9, 9])],
        [F32],
    )
    assert got.shape == (0, 8)


@pytest.mark.parametrize("batch", [-1, 2, 2**31 - 1, -(2**31)])
def test_box_transform_refuses_a_batch_index_without_an_image(batch: int) -> None:
    with pytest.raises(InputError, match=f"batch index {batch} of a batch of 2"):
        alone(
            "AXIS_ALIGNED_BBOX_TRANSFORM",
            [
                np.ones((1, 4), np.float32),
                np.ones((1, 4), np.float32),
                np.array([batch], np.int32),
                np.ones((2, 2), np.float32),
            ],
            [F32],
        )


def test_an_overflowing_delta_of_a_box_without_width_is_zero_when_quantised() -> None:
    (got,) = alone(
        "AXIS_ALIGNED_BBOX_TRANSFORM",
        [
            (np.array([[8, 8, 8, 16]], np.uint16), BOX),
            (np.array([[0, 0, 127, 0]], np.int8), q(1.0)),
            np.zeros(1, np.int32),
            (np.array([[800, 800]], np.uint16), BOX),
        ],
        [(U16, BOX)],
    )
    assert got.tolist() == [[0, 8, 0, 16]]


PROPOSALS: dict[str, Any] = {
    "height_stride": 4.0,
    "width_stride": 8.0,
    "pre_nms_max": 0,
    "post_nms_max": 0,
    "iou_threshold": 0.5,
    "min_size": 1.0,
}


def proposed(
    scores: NDArray, deltas: NDArray, anchors: NDArray, sizes: NDArray, **changed: Any
) -> list[NDArray]:
    inputs = [np.asarray(x, np.float32) for x in (scores, deltas, anchors, sizes)]
    return alone("GENERATE_PROPOSALS", inputs, [F32, F32, I32], **PROPOSALS | changed)


def test_proposals_are_generated_at_every_position() -> None:
    scores = np.array([[[[0.1], [0.2], [0.3]], [[0.4], [0.5], [0.6]]]])
    got = proposed(scores, np.zeros((1, 2, 3, 4)), floats([0, 0, 3, 3]), floats([100, 100]))
    np.testing.assert_allclose(got[0], [0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    places = [(16, 4), (8, 4), (0, 4), (16, 0), (8, 0), (0, 0)]
    np.testing.assert_array_equal(got[1], [[x, y, x + 3, y + 3] for x, y in places])
    np.testing.assert_array_equal(got[2], np.zeros(6))


def test_proposals_are_limited_before_and_after_suppression() -> None:
    scores = np.arange(6).reshape(1, 1, 6, 1)
    anchors = floats([0, 0, 3, 3])
    deltas = np.zeros((1, 1, 6, 4))
    deltas[0, 0, 5, 0] = -8 / 3
    before = proposed(scores, deltas, anchors, floats([100, 100]), pre_nms_max=3)
    assert before[0].tolist() == [5, 3]
    after = proposed(scores, deltas, anchors, floats([100, 100]), post_nms_max=3)
    assert after[0].tolist() == [5, 3, 2]


def test_proposals_that_are_small_or_outside_the_image_are_dropped() -> None:
    scores = np.ones((2, 1, 3, 1))
    got = proposed(scores, np.zeros((2, 1, 3, 4)), floats([0, 0, 3, 3]), floats([9, 9], [9, 17]))
    np.testing.assert_array_equal(got[1], [[0, 0, 3, 3], [0, 0, 3, 3], [8, 0, 11, 3]])
    np.testing.assert_array_equal(got[2], [0, 1, 1])
    none = proposed(
        scores, np.zeros((2, 1, 3, 4)), floats([0, 0, 3, 3]), floats([9, 9], [9, 9]), min_size=3.0
    )
    assert [x.shape for x in none] == [(0,), (0, 4), (0,)]


def test_proposals_support_channels_first() -> None:
    rng = np.random.default_rng(3)
    scores, deltas = rng.random((2, 5, 4, 3)), rng.normal(size=(2, 5, 4, 12)) * 0.2
    anchors, sizes = boxes_of(rng, 3, 8.0), floats([30, 40], [20, 20])
    last = proposed(scores, deltas, anchors, sizes)
    first = proposed(
        np.moveaxis(scores, 3, 1), np.moveaxis(deltas, 3, 1), anchors, sizes, data_layout="NCHW"
    )
    for a, b in zip(last, first, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(last[0]) > 2


DETECTION: dict[str, Any] = {
    "scale_y": 10.0,
    "scale_x": 10.0,
    "scale_h": 5.0,
    "scale_w": 5.0,
    "use_regular_nms": False,
    "max_detections": 3,
    "max_classes_per_detection": 2,
    "detections_per_class": 2,
    "score_threshold": 0.1,
    "iou_threshold": 0.5,
    "background_in_labels": False,
}
ANCHORS = floats([0, 0, 2, 2], [0, 0, 2, 2], [9, 9, 2, 2])
SCORES = np.array([[[0.9, 0.5, 0.4, 0.3], [0.9, 0.6, 0.7, 0.2], [0.9, 0.1, 0.3, 0.2]]], np.float32)


def detected(scores: NDArray, deltas: NDArray, anchors: NDArray, **changed: Any) -> list[NDArray]:
    outputs = [F32, F32, I32, I32]
    return alone(
        "DETECTION_POSTPROCESSING", [scores, deltas, anchors], outputs, **DETECTION | changed
    )


def test_detection_postprocessing_keeps_the_best_classes_of_anchors() -> None:
    got = detected(SCORES, np.zeros((1, 3, 4), np.float32), ANCHORS)
    np.testing.assert_allclose(got[0], [[0.7, 0.6, 0.3, 0.2, 0, 0]])
    np.testing.assert_array_equal(got[2], [[1, 0, 1, 2, 0, 0]])
    near, far, none = [-1, -1, 1, 1], [8, 8, 10, 10], [0, 0, 0, 0]
    np.testing.assert_array_equal(got[1], [[near, near, far, far, none, none]])
    np.testing.assert_array_equal(got[3], [4])
    labelled = detected(SCORES, np.zeros((1, 3, 4), np.float32), ANCHORS, background_in_labels=True)
    np.testing.assert_array_equal(labelled[2], [[2, 1, 2, 3, 0, 0]])


def test_detection_postprocessing_suppresses_class_by_class() -> None:
    got = detected(SCORES, np.zeros((1, 3, 4), np.float32), ANCHORS, use_regular_nms=True)
    np.testing.assert_allclose(got[0], [[0.7, 0.6, 0.3]])
    np.testing.assert_array_equal(got[2], [[1, 0, 1]])
    np.testing.assert_array_equal(got[3], [3])


def test_encoded_boxes_are_scaled_by_their_anchors() -> None:
    deltas = floats([[5, -10, 5 * math.log(2), 0, 77]])
    got = detected(SCORES[:, 2:], deltas, floats([9, 9, 2, 4]))
    np.testing.assert_allclose(got[1][0, 0], [8, 3, 12, 7], rtol=1e-6)


def test_detection_postprocessing_ignores_nan_scores() -> None:
    scores = SCORES.copy()
    scores[0, :2, 1:] = NAN
    for regular in (False, True):
        got = detected(scores, np.zeros((1, 3, 4), np.float32), ANCHORS, use_regular_nms=regular)
        assert got[0][0, 0] == np.float32(0.3)
        assert not np.isnan(got[0]).any()


def test_detection_postprocessing_of_no_anchors_is_empty() -> None:
    got = detected(SCORES[:, :0], np.zeros((1, 0, 4), np.float32), ANCHORS[:0])
    assert [x.any() for x in got] == [False] * 4


def test_detection_postprocessing_refuses_wrong_shapes() -> None:
    deltas = np.zeros((1, 3, 4), np.float32)
    with pytest.raises(ShapeMismatch, match="anchors"):
        detected(SCORES, deltas, ANCHORS[:2])
    with pytest.raises(ShapeMismatch, match="boxes"):
        detected(SCORES, deltas[..., :3], ANCHORS)
    with pytest.raises(ShapeMismatch, match="DETECTION_POSTPROCESSING to the shape"):
        detected(SCORES, deltas, ANCHORS, max_detections=2**31 - 1)
    with pytest.raises(Unsupported, match="scales"):
        detected(SCORES, deltas, ANCHORS, scale_h=0.0)
    with pytest.raises(Unsupported, match="at most"):
        detected(SCORES, deltas, ANCHORS, max_classes_per_detection=0)


def pointed(maps: NDArray, boxes: NDArray, **changed: Any) -> tuple[NDArray, NDArray]:
    scores, places = alone("HEATMAP_MAX_KEYPOINT", [maps, boxes], [F32, F32], **changed)
    return scores, places


def test_the_maximum_of_a_quadratic_is_found_between_pixels() -> None:
    y, x = np.mgrid[0:6, 0:6].astype(np.float32)
    heat = 5 - (x - 2.3) ** 2 - 2 * (y - 3.8) ** 2 + 0.5 * (x - 2.3) * (y - 3.8)
    scores, places = pointed(heat[None, :, :, None], floats([10, 20, 16, 32]))
    np.testing.assert_allclose(scores, [[5]], rtol=1e-5)
    np.testing.assert_allclose(places, [[[10 + 2.8, 20 + 2 * 4.3]]], rtol=1e-5)


def test_flat_heatmap_has_its_keypoint_at_the_first_pixel() -> None:
    scores, places = pointed(np.full((1, 2, 2, 1), 3, np.float32), floats([0, 0, 4, 8]))
    assert (scores.item(), places.tolist()) == (3.0, [[[1.0, 2.0]]])


def test_key_points_of_several_maps_and_layouts() -> None:
    rng = np.random.default_rng(4)
    maps, boxes = rng.random((3, 5, 5, 7)).astype(np.float32), boxes_of(rng, 3)
    scores, places = pointed(maps, boxes)
    assert (scores.shape, places.shape) == ((3, 7), (3, 7, 2))
    for index in range(3):
        for point in range(7):
            one = pointed(maps[index : index + 1, ..., point : point + 1], boxes[index : index + 1])
            assert (one[0].item(), one[1].tolist()) == (
                scores[index, point],
                [[places[index, point].tolist()]],
            )
    first = pointed(np.ascontiguousarray(np.moveaxis(maps, 3, 1)), boxes, data_layout="NCHW")
    np.testing.assert_array_equal(first[1], places)


def test_heatmap_accepts_nan() -> None:
    maps = np.full((1, 3, 3, 2), NAN, np.float32)
    maps[0, 2, 1, 1] = 4
    scores, _ = pointed(maps, floats([0, 0, 3, 3]))
    assert scores.shape == (1, 2)


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (1, 3, 4, 2), (2, 3, 3, 2)])
def test_heatmap_refuses_wrong_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeMismatch, match="heat maps"):
        pointed(np.zeros(shape, np.float32), floats([0, 0, 3, 3]))


def test_heatmap_of_no_maps_is_empty() -> None:
    scores, places = pointed(np.zeros((0, 4, 4, 3), np.float32), np.zeros((0, 4), np.float32))
    assert (scores.shape, places.shape) == ((0, 3), (0, 3, 2))
