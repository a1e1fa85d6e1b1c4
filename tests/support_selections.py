"""Random models that select boxes: routines of the compiler. Scores are often equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flatbuffers import flexbuffers

from penstock.ir import DType, Quantization

if TYPE_CHECKING:
    from tests.support_layers import Layers

F32, I8, U8, I32 = DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT32
COUNTS = 1, 2, 3, 7, 16, 33, 60


def detection_options(**changed: Any) -> bytes:
    """The options of TFLite_Detection_PostProcess."""
    values: dict[str, Any] = {
        "max_detections": 10,
        "max_classes_per_detection": 1,
        "detections_per_class": 8,
        "use_regular_nms": False,
        "nms_score_threshold": 0.3,
        "nms_iou_threshold": 0.5,
        "num_classes": 5,
        "y_scale": 10.0,
        "x_scale": 10.0,
        "h_scale": 5.0,
        "w_scale": 5.0,
    } | changed
    builder = flexbuffers.Builder()
    with builder.Map():
        for key, value in sorted(values.items()):
            builder.Key(key)
            add = {bool: builder.Bool, int: builder.Int, float: builder.Float}[type(value)]
            add(value)
    return bytes(builder.Finish())


def _reals(d: Layers, shape: tuple[int, ...], name: str, scale: float, zero: int = 0) -> int:
    """Real values that take few levels: those of an input of 8 bits."""
    quantization = Quantization((scale,), (zero,))
    stored = d.build.input(U8, shape, name, quantization=quantization)
    return d.build.operation("DEQUANTIZE", [stored], [(F32, shape, None)])[0]


def suppression(d: Layers) -> list[int]:
    """NON_MAX_SUPPRESSION_V4 or V5."""
    count, soft = d.pick(COUNTS), d.chance(0.5)
    most = d.integer(1, count + 3)
    boxes = _reals(d, (count, 4), "boxes", d.pick((0.01, 0.1)), d.pick((0, 128)))
    scores = _reals(d, (count,), "scores", d.pick((1 / 256, 0.1)), d.pick((0, 100)))
    numbers = [d.pick((0.0, 0.3, 0.5, 1.0)), d.pick((-5.0, 0.0, 0.2))]
    if soft:
        numbers.append(d.pick((0.0, 0.1, 0.5, 2.0)))
    given = [d.constant(np.array(most, np.int32))]
    given += [d.constant(np.array(number, np.float32)) for number in numbers]
    made: list[Any] = [(I32, (most,), None)]
    if soft:
        made.append((F32, (most,), None))
    kind = "NON_MAX_SUPPRESSION_V5" if soft else "NON_MAX_SUPPRESSION_V4"
    return list(d.build.operation(kind, [boxes, scores, *given], [*made, (I32, (), None)]))


def detections(d: Layers) -> list[int]:
    """TFLite's operation on detections, or NNAPI's."""
    return _tflite(d) if d.chance(0.6) else _nnapi(d)


def _anchors(d: Layers, count: int) -> int:
    corners = d.rng.uniform(0.1, 0.9, (count, 4))
    corners[:, 2:] *= 0.5
    return d.constant(corners.astype(np.float32))


def _tflite(d: Layers) -> list[int]:
    count, classes, first = d.pick(COUNTS), d.pick((1, 2, 5, 17)), d.integer(0, 1)
    regular, most = d.chance(0.5), d.integer(1, 12)
    listed = d.pick((1, 1, 2, 3))
    options = detection_options(
        max_detections=most, max_classes_per_detection=listed,
        detections_per_class=d.integer(1, 9), use_regular_nms=regular, num_classes=classes,
        nms_score_threshold=d.pick((0.0, 0.3, 0.5)), nms_iou_threshold=d.pick((0.1, 0.5, 0.9)),
    )  # fmt: skip
    shapes = (1, count, 4), (1, count, classes + first)
    if d.chance(0.5):
        quantizations = Quantization((0.1,), (128,)), Quantization((1 / 32,), (0,))
        given = [
            d.build.input(U8, s, f"x{k}", quantization=q)
            for k, (s, q) in enumerate(zip(shapes, quantizations, strict=True))
        ]
    else:
        given = [_reals(d, shapes[0], "x0", 0.1, 128), _reals(d, shapes[1], "x1", 1 / 32)]
    places = most * listed
    made = [(1, places, 4), (1, places), (1, places), (1,)]
    return list(
        d.build.operation(
            "CUSTOM", [*given, _anchors(d, count)], [(F32, shape, None) for shape in made],
            {"custom_code": "TFLite_Detection_PostProcess", "custom_options": options},
        )
    )  # fmt: skip


def _nnapi(d: Layers) -> list[int]:
    images, count, classes = d.integer(1, 3), d.pick(COUNTS), d.pick((2, 3, 8))
    regular, most, listed = d.chance(0.5), d.integer(1, 12), d.pick((1, 1, 2, 3))
    places = most * (1 if regular else listed)
    attributes: dict[str, Any] = {
        "scale_y": 10.0, "scale_x": 10.0, "scale_h": 5.0, "scale_w": 5.0,
        "use_regular_nms": regular, "max_detections": most, "max_classes_per_detection": listed,
        "detections_per_class": d.integer(1, 9), "score_threshold": d.pick((0.0, 0.3)),
        "iou_threshold": d.pick((0.1, 0.5, 0.9)), "background_in_labels": d.chance(0.5),
    }  # fmt: skip
    scores = _reals(d, (images, count, classes), "scores", 1 / 32)
    boxes = _reals(d, (images, count, d.pick((4, 5))), "boxes", 0.1, 128)
    made = [
        (F32, (images, places), None), (F32, (images, places, 4), None),
        (I32, (images, places), None), (I32, (images,), None),
    ]  # fmt: skip
    given = [scores, boxes, _anchors(d, count)]
    return list(d.build.operation("DETECTION_POSTPROCESSING", given, made, attributes))
