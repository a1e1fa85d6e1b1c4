"""Outputs that decide nothing, task by task."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.cli.answers import why_undecided
from penstock.ir import NDArray
from tests.unit.cli.test_answers import results

NAN = float("nan")


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        ([0.1, 0.7, 0.2], ""),
        (
            [0.1, 0.45, 0.45],
            "no class stands out: 2 of 3 classes share the best score, 45.0 % (1, 2)",
        ),
        ([0.1, 0.1, 0.8], ""),
        ([NAN, 0.6, 0.4], "the result holds no numbers: 1 of 3 values of output 'y0' are NaN"),
        ([NAN, NAN, NAN], "the result holds no numbers: all 3 values of output 'y0' are NaN"),
        ([np.inf, 0, 1], "the best scores are infinite"),
    ],
)
def test_scores_decide_a_class_unless_they_tie_or_are_no_numbers(
    scores: list[float], reason: str
) -> None:
    found = why_undecided(results(np.array([scores], np.float32)), "classification")
    assert reason in found
    assert bool(found) == bool(reason)


def test_classes_that_tie_are_named_up_to_five() -> None:
    two = results(np.array([[0.4, 0.2, 0.4]], np.float32), labels=["cat", "dog", "fox"])
    assert why_undecided(two, "classification").endswith("(0 cat, 2 fox)")
    seven = results(np.full((1, 7), 0.1, np.float32))
    assert why_undecided(seven, "classification").endswith("(0, 1, 2, 3, 4, ...)")


@pytest.mark.parametrize("task", ["segmentation", "pose", "detection"])
def test_no_task_is_answered_by_nan_alone(task: str) -> None:
    assert "NaN" in why_undecided(results(np.full((1, 8, 8, 4), NAN, np.float32)), task)


def test_one_pixel_of_nan_makes_a_mask_arbitrary() -> None:
    scores: NDArray = np.zeros((1, 8, 8, 4), np.float32)
    assert why_undecided(results(scores), "segmentation") == ""
    scores[0, 3, 3, 1] = NAN
    assert "1 of 256 values" in why_undecided(results(scores), "segmentation")


def test_outputs_of_no_task_are_shown_whatever_they_hold() -> None:
    assert why_undecided(results(np.full((1, 3), NAN, np.float32)), "outputs") == ""
