"""Answers drawn into pictures: captions side by side, legends, and what no picture can show."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st
from PIL import Image
from rich.console import Console

from penstock.cli.answers import answer
from penstock.cli.answers.base import COLOURS
from penstock.cli.answers.drawing import Corners, draw_boxes, draw_mask, free_place
from penstock.cli.output import Output
from tests.unit.cli.test_answers import results

WIDTH, HEIGHT = 200, 100


def overlap(a: Corners, b: Corners) -> bool:
    return a[0] <= b[2] and b[0] <= a[2] and a[1] <= b[3] and b[1] <= a[3]


@given(
    st.lists(
        st.tuples(st.integers(-50, 250), st.integers(-50, 150), st.integers(1, 60)), max_size=4
    )
)
def test_captions_of_a_few_boxes_stay_inside_and_apart(wanted: list[tuple[int, int, int]]) -> None:
    taken: list[Corners] = []
    for left, top, width in wanted:
        taken.append(free_place((left, top, left + width, top + 10), taken, (WIDTH, HEIGHT)))
    assert not any(overlap(a, b) for a, b in itertools.combinations(taken, 2))
    assert all(p[0] >= 0 and p[2] < WIDTH and p[1] >= 0 and p[3] < HEIGHT for p in taken)


def test_a_caption_that_finds_no_place_is_drawn_where_it_was_wanted() -> None:
    taken: list[Corners] = [(0.0, 0.0, 199.0, 99.0)]
    assert free_place((10, 20, 30, 30), taken, (WIDTH, HEIGHT)) == (10, 20, 30, 30)


def test_two_boxes_in_one_place_show_both_colours_of_their_captions() -> None:
    boxes = [
        {"index": i, "label": f"box {i}", "score": 0.9, "box": [0.1, 0.1, 0.9, 0.9]}
        for i in range(2)
    ]
    drawn = np.asarray(draw_boxes(Image.new("RGB", (300, 200)), boxes)).reshape(-1, 3)
    for colour in COLOURS[:2]:
        assert (drawn == colour.rgb).all(axis=1).sum() > 200


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_a_box_that_is_nowhere_is_drawn_somewhere(value: float) -> None:
    box = {"index": 0, "label": None, "score": 0.9, "box": [value] * 4}
    assert draw_boxes(Image.new("RGB", (40, 30)), [box]).size == (40, 30)


@pytest.mark.parametrize("strange", [np.nan, np.inf, -1.0])
def test_a_count_or_class_that_is_no_number_is_no_crash(strange: float) -> None:
    found = answer(
        results(
            np.zeros((1, 2, 4), np.float32),
            np.full((1, 2), np.nan, np.float32),
            np.ones((1, 2), np.float32),
            np.array([strange], np.float32),
        )
    )
    assert len(found.data["boxes"]) == (2 if strange == np.inf else 0)


def test_the_classes_of_a_mask_have_a_legend_in_print_and_in_the_picture() -> None:
    classes = np.zeros((1, 8, 8), np.int64)
    classes[0, :, 4:] = 2
    found = answer(results(classes, labels=["nothing", "cat", "dog"]))
    stream = io.StringIO()
    found.show(Output(console=Console(file=stream, width=100)))
    lines = stream.getvalue().splitlines()
    assert lines[0].split() == [
        "class",
        "label",
        "share",
        "of",
        "pixels",
        "colour",
        "when",
        "drawn",
    ]
    assert next(line for line in lines if "dog" in line).rstrip().endswith("blue")
    drawn = found.draw(Image.new("RGB", (320, 160), (100, 100, 100)))
    assert drawn is not None
    assert drawn.getpixel((1, 1)) == COLOURS[2].rgb
    assert drawn.getpixel((1, 150)) == (100, 100, 100)


def test_every_class_but_0_is_tinted_whatever_its_number() -> None:
    numbers = np.array([[0, 11, 256, 1 << 40]], np.int64).repeat(2, axis=0)
    drawn = draw_mask(Image.new("RGB", (4, 2), (100, 100, 100)), numbers)
    assert [drawn.getpixel((x, 0)) == (100, 100, 100) for x in range(4)] == [True] + [False] * 3


def test_class_numbers_of_any_size_are_counted() -> None:
    classes = np.full((1, 8, 8), 1 << 50, np.int64)
    assert answer(results(classes)).data["mask"]["classes"][0]["index"] == 1 << 50


def test_key_points_under_the_least_score_are_listed_in_a_note() -> None:
    rows = np.full((1, 1, 17, 3), 0.9, np.float32)
    rows[0, 0, 3, 2] = rows[0, 0, 16, 2] = 0.1
    rows[0, 0, 5, 0] = np.nan
    found = answer(results(rows))
    assert found.notes == [
        "not drawn, for want of a score of 0.3 (--min-score): left ear, right ankle",
        "not drawn, for want of a position: left shoulder",
    ]
    assert found.draw(Image.new("RGB", (50, 50))) is not None
