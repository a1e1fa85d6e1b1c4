"""Shape rules of the operations that only NNAPI has, of resources, and of MediaPipe's operators."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from penstock.errors import ModelError
from penstock.ir import DType, Shape
from tests.unit.ir.operations.single import (
    FLOAT,
    INT,
    Given,
    Output,
    Wanted,
    ints,
    shapes,
    x,
    zeros,
)

INT8, INT16, STRING = DType.INT8, DType.INT16, DType.STRING
ROI = {"output_height": 7, "output_width": 5, "height_ratio": 2.0, "width_ratio": 2.0}
SAMPLED = {**ROI, "sampling_points_height": 0, "sampling_points_width": 0}
GROUPED = {"stride_w": 2, "stride_h": 1, "groups": 2}
LIMIT: dict[str, Any] = {
    "score_threshold": 0.1,
    "max_boxes": 5,
    "iou_threshold": 0.5,
    "sigma": 0.5,
    "nms_score_threshold": 0.1,
}
DETECTION: dict[str, Any] = {
    **dict.fromkeys(("scale_y", "scale_x", "scale_h", "scale_w"), 1.0),
    "use_regular_nms": False,
    "max_detections": 3,
    "max_classes_per_detection": 1,
    "detections_per_class": 1,
    "score_threshold": 0.1,
    "iou_threshold": 0.5,
    "background_in_labels": False,
}
PROPOSALS: dict[str, Any] = {
    "height_stride": 4.0,
    "width_stride": 4.0,
    "pre_nms_max": -1,
    "post_nms_max": -1,
    "iou_threshold": 0.3,
    "min_size": 1.0,
}


def n(count: int) -> Given:
    return x(count, dtype=INT)


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "attributes", "expected"),
    [
        ("CHANNEL_SHUFFLE", [x(2, 6)], [FLOAT], {"groups": 3, "axis": -1}, [(2, 6)]),
        ("CHANNEL_SHUFFLE", [x(2, 7)], [FLOAT], {"groups": 3, "axis": -1}, None),
        (
            "GROUPED_CONV_2D",
            [x(1, 8, 8, 4), zeros(6, 3, 3, 2), zeros(6)],
            [FLOAT],
            GROUPED,
            [(1, 8, 4, 6)],
        ),
        (
            "GROUPED_CONV_2D",
            [x(1, 4, 8, 8), zeros(6, 3, 3, 2), zeros(6)],
            [FLOAT],
            {
                **GROUPED,
                "padding": "EXPLICIT",
                "explicit_padding": (1, 0, 2, 0),
                "data_layout": "NCHW",
            },
            [(1, 6, 8, 4)],
        ),
        ("GROUPED_CONV_2D", [x(1, 8, 8, 5), zeros(6, 3, 3, 2), zeros(6)], [FLOAT], GROUPED, None),
        (
            "GROUPED_CONV_2D",
            [x(1, 8, 8, 4), zeros(6, 3, 3, 2), zeros(6)],
            [FLOAT],
            {**GROUPED, "padding": "EXPLICIT"},
            None,
        ),
        (
            "INSTANCE_NORMALIZATION",
            [x(1, 8, 8, 4)],
            [FLOAT],
            {"gamma": 1.0, "beta": 0.0, "epsilon": 1e-5},
            [(1, 8, 8, 4)],
        ),
        ("RANDOM_MULTINOMIAL", [x(2, 5), n(2)], [INT], {"samples": 9}, [(2, 9)]),
        ("RANDOM_MULTINOMIAL", [x(2, 5), n(3)], [INT], {"samples": 9}, None),
        ("ROI_ALIGN", [x(2, 8, 8, 3), x(6, 4), n(6)], [FLOAT], SAMPLED, [(6, 7, 5, 3)]),
        ("ROI_POOLING", [x(2, 8, 8, 3), x(6, 4), n(6)], [FLOAT], ROI, [(6, 7, 5, 3)]),
        (
            "ROI_POOLING",
            [x(2, 3, 8, 8), x(0, 4), n(0)],
            [FLOAT],
            {**ROI, "data_layout": "NCHW"},
            [(0, 3, 7, 5)],
        ),
        ("ROI_POOLING", [x(2, 8, 8, 3), x(6, 5), n(6)], [FLOAT], ROI, None),
        ("ROI_POOLING", [x(2, 8, 8, 3), x(6, 4), n(5)], [FLOAT], ROI, None),
        ("AXIS_ALIGNED_BBOX_TRANSFORM", [x(5, 4), x(5, 8), n(5), x(2, 2)], [FLOAT], {}, [(5, 8)]),
        ("AXIS_ALIGNED_BBOX_TRANSFORM", [x(5, 4), x(4, 8), n(5), x(2, 2)], [FLOAT], {}, None),
        (
            "BOX_WITH_NMS_LIMIT",
            [x(5, 2), x(5, 8), n(5)],
            [FLOAT, FLOAT, INT, INT],
            LIMIT,
            [(None,), (None, 4), (None,), (None,)],
        ),
        ("BOX_WITH_NMS_LIMIT", [x(5, 2), x(5, 9), n(5)], [FLOAT, FLOAT, INT, INT], LIMIT, None),
        (
            "DETECTION_POSTPROCESSING",
            [x(2, 9, 3), x(2, 9, 4), x(9, 4)],
            [FLOAT, FLOAT, INT, INT],
            DETECTION,
            [(2, 3), (2, 3, 4), (2, 3), (2,)],
        ),
        (
            "DETECTION_POSTPROCESSING",
            [x(2, 9, 3), x(2, 9, 7), x(9, 4)],
            [FLOAT, FLOAT, INT, INT],
            {**DETECTION, "max_classes_per_detection": 2},
            [(2, 6), (2, 6, 4), (2, 6), (2,)],
        ),
        (
            "DETECTION_POSTPROCESSING",
            [x(2, 9, 3), x(2, 9, 4), x(9, 4)],
            [FLOAT, FLOAT, INT, INT],
            {**DETECTION, "max_classes_per_detection": 2, "use_regular_nms": True},
            [(2, 3), (2, 3, 4), (2, 3), (2,)],
        ),
        (
            "DETECTION_POSTPROCESSING",
            [x(2, 9, 3), x(2, 8, 4), x(9, 4)],
            [FLOAT, FLOAT, INT, INT],
            DETECTION,
            None,
        ),
        (
            "GENERATE_PROPOSALS",
            [x(2, 6, 7, 3), x(2, 6, 7, 12), x(3, 4), x(2, 2)],
            [FLOAT, FLOAT, INT],
            PROPOSALS,
            [(None,), (None, 4), (None,)],
        ),
        (
            "GENERATE_PROPOSALS",
            [x(2, 6, 7, 3), x(2, 6, 7, 11), x(3, 4), x(2, 2)],
            [FLOAT, FLOAT, INT],
            PROPOSALS,
            None,
        ),
        ("HEATMAP_MAX_KEYPOINT", [x(5, 9, 9, 17), x(5, 4)], [FLOAT] * 2, {}, [(5, 17), (5, 17, 2)]),
        ("HEATMAP_MAX_KEYPOINT", [x(5, 9, 8, 17), x(5, 4)], [FLOAT] * 2, {}, None),
    ],
)
def test_shapes_of_nnapi_operations_are_inferred(
    kind: str,
    inputs: Sequence[Given],
    outputs: Sequence[Wanted],
    attributes: dict[str, Any],
    expected: Any,
) -> None:
    check(kind, inputs, outputs, attributes, expected)


def check(
    kind: str,
    inputs: Sequence[Given],
    outputs: Sequence[Wanted],
    attributes: dict[str, Any],
    expected: list[Shape] | None,
) -> None:
    if expected is None:
        with pytest.raises(ModelError):
            shapes(kind, inputs, outputs, attributes)
    else:
        assert shapes(kind, inputs, outputs, attributes) == expected


def test_shapes_of_quantized_lstms_are_inferred() -> None:
    byte, word = np.uint8, np.int32
    cells: list[Given] = [
        x(2, 3, dtype=DType.UINT8),
        *[zeros(4, 3, dtype=byte)] * 4,
        *[zeros(4, 4, dtype=byte)] * 4,
        *[zeros(4, dtype=word)] * 4,
    ]
    states: list[Given] = [x(2, 4, dtype=INT16), x(2, 4, dtype=DType.UINT8)]
    check("QUANTIZED_16BIT_LSTM", [*cells, *states], [INT16, DType.UINT8], {}, [(2, 4), (2, 4)])
    broken: list[Given] = [*cells[:5], zeros(4, 5, dtype=byte), *cells[6:], *states]
    check("QUANTIZED_16BIT_LSTM", broken, [INT16, DType.UINT8], {}, None)

    signed, half = np.int8, np.int16
    inputs: list[Given] = [
        x(2, 3, dtype=INT8),
        *[zeros(5, 3, dtype=signed)] * 4,
        *[zeros(5, 4, dtype=signed)] * 4,
        *[None] * 3,
        *[zeros(5, dtype=word)] * 4,
        zeros(4, 5, dtype=signed),
        None,
        x(2, 4, dtype=INT8),
        x(2, 5, dtype=INT16),
        *[zeros(5, dtype=half)] * 4,
    ]
    attributes: dict[str, Any] = {
        **dict.fromkeys(("cell_clip", "proj_clip", "hidden_state_scale"), 0.0),
        **{f"{gate}_intermediate_scale": 0.1 for gate in ("input", "forget", "cell", "output")},
        "hidden_state_zero_point": 0,
    }
    outputs = [INT8, INT16, INT8]
    check("QUANTIZED_LSTM", inputs, outputs, attributes, [(2, 4), (2, 5), (2, 4)])


def test_shapes_of_tables_and_variables_are_inferred() -> None:
    words = np.array([b"a", b"b", b"c"], object)
    find: list[Given] = [words, ints(1, 2, 3), x(2, None, dtype=STRING), ints(-1)]
    check("HASHTABLE_FIND", find, [INT], {}, [(2, None)])
    check("HASHTABLE_FIND", [words, ints(1, 2), *find[2:]], [INT], {}, None)
    check("HASHTABLE_SIZE", [words], [DType.INT64], {}, [(1,)])
    resource = x(dtype=DType.RESOURCE)
    check("VAR_HANDLE", [], [Output(DType.RESOURCE, ())], {"shared_name": "v"}, [()])
    check("READ_VARIABLE", [resource], [Output(FLOAT, (2, 3))], {}, [(2, 3)])
    check("ASSIGN_VARIABLE", [resource, x(2)], [], {}, [])
    check("HASHTABLE", [], [Output(DType.RESOURCE, ())], {"table_id": 1}, [()])
    check("HASHTABLE_IMPORT", [resource, words, ints(1, 2, 3)], [], {}, [])
    check("HASHTABLE_IMPORT", [resource, words, ints(1, 2)], [], {}, None)


def mediapipe(code: str, *numbers: int) -> dict[str, Any]:
    return {"custom_code": code, "custom_options": struct.pack(f"<{len(numbers)}i", *numbers)}


def test_shapes_of_mediapipe_operators_are_inferred() -> None:
    """The shapes of MediaPipe's kernels, as its hair segmentation network has them."""
    pool = mediapipe("MaxPoolingWithArgmax2D", 1, 2, 2, 2, 2, 0)
    check("CUSTOM", [x(1, 128, 128, 32)], [FLOAT] * 2, pool, [(1, 64, 64, 32)] * 2)
    back = mediapipe("MaxUnpooling2D", 2, 2, 2, 2, 2, 0, -1, -1)
    check("CUSTOM", [x(1, 16, 16, 9), x(1, 16, 16, 9)], [FLOAT], back, [(1, 32, 32, 9)])
    check("CUSTOM", [x(1, 16, 16, 9), x(1, 16, 15, 9)], [FLOAT], back, None)
    same = mediapipe("Convolution2DTransposeBias", 1, 2, 2)
    check("CUSTOM", [x(1, 16, 15, 8), zeros(7, 3, 3, 8), zeros(7)], [FLOAT], same, [(1, 32, 29, 7)])
    check("CUSTOM", [x(1, 16, 15, 8), zeros(7, 2, 2, 8), zeros(7)], [FLOAT], same, [(1, 32, 29, 7)])
    valid = mediapipe("Convolution2DTransposeBias", 2, 2, 2)
    check(
        "CUSTOM", [x(1, 16, 15, 8), zeros(7, 3, 3, 8), zeros(7)], [FLOAT], valid, [(1, 33, 31, 7)]
    )
    check("CUSTOM", [x(1, 16, 15, 8), zeros(7, 3, 3, 8), zeros(6)], [FLOAT], valid, None)


def test_an_unknown_custom_operator_has_the_shapes_that_the_model_declares() -> None:
    check("CUSTOM", [x(2)], [Output(FLOAT, (None, 3))], {"custom_code": "Mine"}, [(None, 3)])
