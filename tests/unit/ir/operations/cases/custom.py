"""Cases of custom operations."""

from __future__ import annotations

from typing import Final

from flatbuffers import flexbuffers

from penstock.ir import DType
from tests.unit.ir.operations.cases.case import agreed, refused
from tests.unit.ir.operations.single import FLOAT, ints, q, x, zeros


def options(**values: float) -> bytes:
    return bytes(flexbuffers.Dumps(values))


DETECTION: Final = options(
    max_detections=5,
    max_classes_per_detection=2,
    nms_score_threshold=0.1,
    nms_iou_threshold=0.5,
    num_classes=2,
    y_scale=1.0,
    x_scale=1.0,
    h_scale=1.0,
    w_scale=1.0,
)
MFCC: Final = options(
    upper_frequency_limit=4000,
    lower_frequency_limit=20,
    filterbank_channel_count=40,
    dct_coefficient_count=13,
)

CASES: Final = (
    agreed(
        "CUSTOM",
        [x(1, 7, 4), x(1, 7, 3), zeros(7, 4)],
        [(1, 10, 4), (1, 10), (1, 10), (1,)],
        outputs=[FLOAT, FLOAT, FLOAT, FLOAT],
        custom_code="TFLite_Detection_PostProcess",
        custom_options=DETECTION,
    ),
    agreed(
        "CUSTOM",
        [x(1000, 2)],
        (2, 31, 65),
        custom_code="AudioSpectrogram",
        custom_options=options(window_size=100, stride=30, magnitude_squared=True),
    ),
    agreed(
        "CUSTOM",
        [x(50, 2)],
        (2, 0, 65),
        custom_code="AudioSpectrogram",
        custom_options=options(window_size=100, stride=30, magnitude_squared=True),
    ),
    refused(
        "CUSTOM",
        [x(1000, 2)],
        custom_code="AudioSpectrogram",
        custom_options=options(window_size=1, stride=30, magnitude_squared=True),
    ),
    agreed(
        "CUSTOM", [x(2, 7, 65), ints(16000)], (2, 7, 13), custom_code="Mfcc", custom_options=MFCC
    ),
    agreed(
        "CUSTOM",
        [x(2, 7, dtype=DType.INT8, q=q(0.5)), x(2, 7)],
        (2, 7),
        custom_code="NumericVerify",
        custom_options=options(tolerance=0.1, log_if_failed=False),
    ),
)
