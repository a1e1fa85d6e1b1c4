import numpy as np
import pytest

from penstock.drivers.reference.detection.tflite import overlaps
from penstock.ir import DType, NDArray, Operand
from tests.support_litert import Given, Wanted, assert_agrees, refusal, run_alone

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
    assert "boxes" in refusal("NON_MAX_SUPPRESSION_V4", given, [whole, whole])
