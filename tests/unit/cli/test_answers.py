"""From outputs to answers, task by task."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from flatbuffers import flexbuffers
from PIL import Image

from penstock.cli.answers import TASKS, Results, answer, may_be_classes, recognise
from penstock.cli.answers.classification import probabilities
from penstock.cli.answers.localization import KEY_POINTS, detection_order
from penstock.cli.failures import UsageError
from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand, Quantization
from penstock.ir.types import dtype_of

DETECTION_OPTIONS = bytes(
    flexbuffers.Dumps(
        {
            "max_detections": 2,
            "max_classes_per_detection": 1,
            "detections_per_class": 1,
            "use_regular_nms": False,
            "nms_score_threshold": 0.1,
            "nms_iou_threshold": 0.5,
            "num_classes": 2,
            "y_scale": 10.0,
            "x_scale": 10.0,
            "h_scale": 5.0,
            "w_scale": 5.0,
        }
    )
)


def results(
    *arrays: NDArray,
    quantization: Quantization | None = None,
    labels: Sequence[str] | None = None,
    last: str = "RELU",
    top: int = 5,
    minimum: float = 0.3,
) -> Results:
    """Results of a model whose outputs each come from an operation *last*."""
    model, operands = model_of(arrays, quantization, last)
    indexes = model.entry.ordinary_outputs
    return Results(
        model, operands, indexes, arrays, None if labels is None else tuple(labels), top, minimum
    )


def model_of(
    arrays: Sequence[NDArray], quantization: Quantization | None, last: str
) -> tuple[Model, tuple[Operand, ...]]:
    builder = ModelBuilder()
    outputs = []
    image = builder.input(DType.FLOAT32, (1, 257, 257, 3), "image")
    for position, array in enumerate(arrays):
        x = builder.input(DType.FLOAT32, array.shape, f"x{position}")
        attributes = {"beta": 1.0} if last == "SOFTMAX" else {}
        outputs += builder.operation(last, [x], [(DType.FLOAT32, array.shape)], attributes)
    model = builder.build(outputs)
    assert model.inputs[0].name == "image"
    assert image == 0
    operands = tuple(
        Operand(
            dtype_of(a.dtype) or DType.FLOAT32, a.shape, name=f"y{i}", quantization=quantization
        )
        for i, a in enumerate(arrays)
    )
    return model, operands


def test_values_in_0_to_1_are_probabilities_as_they_are() -> None:
    values, note = probabilities(np.array([0.2, 0.7, 0.1]))
    assert values.tolist() == [0.2, 0.7, 0.1]
    assert not note


def test_independent_probabilities_need_not_add_up_to_one() -> None:
    assert not probabilities(np.array([0.9, 0.8, 0.0]))[1]


def test_values_outside_0_to_1_get_softmax_with_a_note() -> None:
    values, note = probabilities(np.array([0.0, np.log(3.0), -1000.0]))
    np.testing.assert_allclose(values, [0.25, 0.75, 0.0])
    assert "softmax applied" in note


def test_softmax_does_not_overflow() -> None:
    np.testing.assert_allclose(probabilities(np.array([1e4, 1e4]))[0], [0.5, 0.5])


def test_classification_lists_the_best_first_with_labels() -> None:
    found = answer(
        results(np.array([[0.1, 0.7, 0.2]], np.float32), labels=["cat", "dog", "fox"], top=2)
    )
    assert found.task == "classification"
    assert found.data == {
        "top": [
            {"index": 1, "label": "dog", "score": pytest.approx(0.7)},
            {"index": 2, "label": "fox", "score": pytest.approx(0.2)},
        ]
    }


def test_equal_scores_keep_the_order_of_the_classes() -> None:
    found = answer(results(np.full((1, 4), 0.25, np.float32), last="SOFTMAX"))
    assert [row["index"] for row in found.data["top"]] == [0, 1, 2, 3]


def test_quantised_scores_are_dequantised() -> None:
    scores = np.array([[0, 128, 64]], np.uint8)
    found = answer(results(scores, quantization=Quantization((1 / 256,), (0,)), labels="abc"))
    assert [row["score"] for row in found.data["top"]] == [0.5, 0.25, 0.0]


def test_not_a_number_never_wins() -> None:
    scores = np.array([[np.nan, 0.6, 0.4]], np.float32)
    assert [r["index"] for r in answer(results(scores, labels="abc")).data["top"]] == [1, 2, 0]


@pytest.mark.parametrize("labels", [["only"], ["a", "b", "c"]])
def test_labels_of_another_number_than_the_classes_name_none(labels: list[str]) -> None:
    found = answer(results(np.array([[0.9, 0.1]], np.float32), labels=labels))
    assert [row["label"] for row in found.data["top"]] == [None, None]
    assert "for 2 classes" in found.notes[0]


@pytest.mark.parametrize("last", ["SOFTMAX", "LOGISTIC"])
def test_one_score_a_class_from_softmax_or_logistic_is_classification(last: str) -> None:
    assert recognise(results(np.zeros((1, 5), np.float32), last=last)) == "classification"


@pytest.mark.parametrize(
    ("shape", "task"),
    [((1, 5, 1, 1), "classification"), ((1, 1, 5, 1), "outputs"), ((5, 1), "outputs")],
)
def test_scores_that_keep_the_place_they_were_convolved_to_are_classification(
    shape: tuple[int, ...], task: str
) -> None:
    assert recognise(results(np.zeros(shape, np.float32), last="SOFTMAX")) == task


def test_scores_whose_dimensions_changed_places_are_classification() -> None:
    given, shape = (1, 1, 1, 5), (1, 5, 1, 1)
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, given, "x")
    (y,) = builder.operation("SOFTMAX", [x], [(DType.FLOAT32, given)], {"beta": 1.0})
    order = builder.constant(np.array([0, 3, 1, 2], np.int32))
    model = builder.build(builder.operation("TRANSPOSE", [y, order], [(DType.FLOAT32, shape)]))
    indexes, arrays = model.entry.ordinary_outputs, (np.zeros(shape, np.float32),)
    found = Results(model, (model.outputs[0],), indexes, arrays, None, 5, 0.3)
    assert recognise(found) == "classification"


def test_a_vector_of_nothing_in_particular_is_no_classification() -> None:
    assert recognise(results(np.zeros((1, 1280), np.float32))) == "outputs"


@pytest.mark.parametrize(
    ("array", "may_be"),
    [
        (np.zeros((1, 10), np.float32), True),
        (np.zeros((1, 10), np.int32), False),
        (np.zeros((1, 1), np.float32), False),
        (np.zeros((2, 10), np.float32), False),
        (np.zeros((1, 10, 1), np.float32), False),
        (np.zeros((1, 100_001), np.float32), False),
    ],
)
def test_a_row_of_real_values_may_be_scores_of_classes(array: NDArray, may_be: bool) -> None:
    assert may_be_classes(results(array)) == may_be


def test_quantised_rows_may_be_scores_and_two_outputs_are_none() -> None:
    scores, quantization = np.zeros((1, 4), np.int8), Quantization((1.0,), (0,))
    assert may_be_classes(results(scores, quantization=quantization))
    assert not may_be_classes(results(np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32)))


def test_detections_are_sorted_cut_and_labelled() -> None:
    boxes = np.array([[[0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1], [0.5, 0.5, 0.6, 0.6]]], np.float32)
    outputs = (
        boxes,
        np.array([[1, 0, 2]], np.float32),
        np.array([[0.5, 0.9, 0.1]], np.float32),
        np.array([3], np.float32),
    )
    found = answer(results(*outputs, labels=["person", "cat", "dog"]))
    assert found.task == "detection"
    assert [(b["index"], b["label"], b["score"]) for b in found.data["boxes"]] == [
        (0, "person", pytest.approx(0.9)),
        (1, "cat", pytest.approx(0.5)),
    ]
    assert found.data["boxes"][1]["box"] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert "1 more box not shown" in found.notes[0]


def test_the_count_bounds_the_detections() -> None:
    outputs = (
        np.zeros((1, 3, 4), np.float32),
        np.zeros((1, 3), np.float32),
        np.ones((1, 3), np.float32),
        np.array([1], np.float32),
    )
    assert len(answer(results(*outputs)).data["boxes"]) == 1


def test_the_detection_operation_says_which_output_is_which() -> None:
    builder = ModelBuilder()
    inputs = [
        builder.input(DType.FLOAT32, (1, 6, 4), "boxes"),
        builder.input(DType.FLOAT32, (1, 6, 3), "scores"),
        builder.constant(np.zeros((6, 4), np.float32), "anchors"),
    ]
    made = builder.operation(
        "CUSTOM",
        inputs,
        [
            (DType.FLOAT32, (1, 2, 4)),
            (DType.FLOAT32, (1, 2)),
            (DType.FLOAT32, (1, 2)),
            (DType.FLOAT32, (1,)),
        ],
        {"custom_code": "TFLite_Detection_PostProcess", "custom_options": DETECTION_OPTIONS},
    )
    boxes, classes, scores, count = made
    model = builder.build([scores, boxes, count, classes])
    arrays = tuple(np.zeros([d or 0 for d in o.shape or ()], np.float32) for o in model.outputs)
    found = Results(model, model.outputs, model.entry.ordinary_outputs, arrays)
    assert detection_order(found) == (1, 3, 0, 2)


def test_class_scores_a_pixel_become_a_mask() -> None:
    scores = np.zeros((1, 8, 8, 4), np.float32)
    scores[..., 0] = 0.5
    scores[0, :2, :, 2] = 1.0
    found = answer(results(scores, labels=["background", "cat", "dog", "fox"]))
    assert found.data == {
        "mask": {
            "shape": [8, 8],
            "classes": [
                {"index": 0, "label": "background", "fraction": 0.75, "colour": None},
                {"index": 2, "label": "dog", "fraction": 0.25, "colour": "blue"},
            ],
        }
    }


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 8, 8, 1)])
def test_class_numbers_a_pixel_are_a_mask(shape: tuple[int, ...]) -> None:
    classes = np.zeros(shape, np.int64)
    classes[0, 0] = 15
    found = answer(results(classes))
    assert [(c["index"], c["fraction"]) for c in found.data["mask"]["classes"]] == [
        (0, 0.875),
        (15, 0.125),
    ]


def test_three_channels_are_a_picture_unless_there_are_three_labels() -> None:
    image = np.zeros((1, 16, 16, 3), np.float32)
    assert recognise(results(image)) == "outputs"
    assert recognise(results(image, labels=["a", "b", "c"])) == "segmentation"


def test_movenet_rows_are_key_points() -> None:
    rows = np.zeros((1, 1, 17, 3), np.float32)
    rows[0, 0, 0] = (0.25, 0.5, 0.875)
    found = answer(results(rows))
    assert found.task == "pose"
    assert found.data["keypoints"][0] == {
        "index": 0,
        "name": "nose",
        "y": 0.25,
        "x": 0.5,
        "score": 0.875,
    }
    assert [p["name"] for p in found.data["keypoints"]] == list(KEY_POINTS)


def test_posenet_heat_maps_and_offsets_are_decoded() -> None:
    heat = np.full((1, 17, 17, 17), -4.0, np.float32)
    offsets = np.zeros((1, 17, 17, 34), np.float32)
    heat[0, 4, 9, 3] = 2.0
    offsets[0, 4, 9, 3], offsets[0, 4, 9, 3 + 17] = 5.0, -7.0
    displacement = np.zeros((1, 17, 17, 32), np.float32)
    found = answer(results(displacement, heat, offsets))
    point = found.data["keypoints"][3]
    assert found.task == "pose"
    assert point["y"] == pytest.approx((4 * 16 + 5) / 257)
    assert point["x"] == pytest.approx((9 * 16 - 7) / 257)
    assert point["score"] == pytest.approx(1 / (1 + np.exp(-2.0)))


def test_other_outputs_are_summarised() -> None:
    found = answer(results(np.array([[-1.0, 0.0, 4.0]], np.float32), np.zeros((2, 0), np.float32)))
    assert found.task == "outputs"
    first, second = found.data["values"]
    assert (first["min"], first["mean"], first["max"]) == (-1.0, 1.0, 4.0)
    assert (second["shape"], second["min"]) == ([2, 0], None)


def test_a_task_can_be_named() -> None:
    found = answer(results(np.array([[3.0, 1.0]], np.float32)), "classification")
    assert found.data["top"][0]["index"] == 0


@pytest.mark.parametrize("task", sorted(set(TASKS) - {"outputs", "classification"}))
@pytest.mark.parametrize("shape", [(5,), (1, 10), (1, 1, 1, 1001), (), (0,), (2, 3, 4, 5, 6)])
def test_a_task_that_does_not_fit_is_a_usage_error(task: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="do not fit --task") as raised:
        answer(results(np.zeros(shape, np.float32)), task)
    assert "and this model gives float32" in str(raised.value)


@pytest.mark.parametrize("shape", [(1, 8, 8, 3), (2, 10), (), (0,)])
def test_classification_needs_one_value_a_class(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="one value a class"):
        answer(results(np.zeros(shape, np.float32)), "classification")


def test_words_answer_no_task_but_outputs() -> None:
    words = np.array([[b"a", b"b"]], object)
    for task in set(TASKS) - {"outputs"}:
        with pytest.raises(UsageError, match="do not fit"):
            answer(results_of_words(words), task)
    assert answer(results_of_words(words), "outputs").data["values"][0]["dtype"] == "string"


def results_of_words(words: NDArray) -> Results:
    model, _ = model_of([np.zeros(words.shape, np.float32)], None, "RELU")
    operands = (Operand(DType.STRING, words.shape, name="words"),)
    return Results(model, operands, model.entry.ordinary_outputs, (words,))


def test_boxes_are_drawn_into_a_copy() -> None:
    outputs = (
        np.array([[[0.25, 0.25, 0.75, 0.75]]], np.float32),
        np.zeros((1, 1), np.float32),
        np.ones((1, 1), np.float32),
        np.ones(1, np.float32),
    )
    picture = Image.new("RGB", (100, 100))
    drawn = answer(results(*outputs)).draw(picture)
    assert drawn is not None
    assert picture.getpixel((25, 50)) == (0, 0, 0)
    assert drawn.getpixel((25, 60)) != (0, 0, 0)
    assert drawn.getpixel((50, 60)) == (0, 0, 0)


def test_a_mask_tints_all_but_class_0() -> None:
    classes = np.zeros((1, 8, 8), np.int64)
    classes[0, :, :4] = 1
    drawn = answer(results(classes)).draw(Image.new("RGB", (16, 16), (100, 100, 100)))
    assert drawn is not None
    assert drawn.getpixel((0, 0)) != (100, 100, 100)
    assert drawn.getpixel((15, 0)) == (100, 100, 100)


def test_key_points_above_the_least_score_are_drawn() -> None:
    rows = np.zeros((1, 1, 17, 3), np.float32)
    rows[0, 0, 0] = (0.5, 0.5, 0.9)
    rows[0, 0, 9] = (0.1, 0.1, 0.1)
    drawn = answer(results(rows)).draw(Image.new("RGB", (100, 100)))
    assert drawn is not None
    assert drawn.getpixel((50, 50)) == (255, 255, 255)
    assert drawn.getpixel((10, 10)) == (0, 0, 0)
