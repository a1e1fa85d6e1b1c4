"""What drivers over an engine answer about operations: a class, and how far off where that is the
lowest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import penstock
from penstock.driverkit import support
from penstock.driverkit.checks import numbers
from penstock.driverkit.site import Refused, make_sites
from penstock.driverkit.unrolling import flattened
from penstock.drivers.onnxruntime.rules import examine as by_onnxruntime
from penstock.drivers.openvino.rules import examine as by_openvino
from penstock.hal import AccuracyClass, Support
from penstock.ir import DType, Model, ModelBuilder, Operand, Quantization

F32, I8, I16, I64 = DType.FLOAT32, DType.INT8, DType.INT16, DType.INT64
GRID: Final = Quantization((0.5,), (0,))
Examine = Callable[..., Sequence[Support]]


def sums(dtype: DType) -> Model:
    """x + x, on a grid where it is quantised."""
    grid = GRID if dtype is I8 else None
    b = ModelBuilder()
    x = b.input(dtype, (4,), "x", grid)
    return b.build(b.operation("ADD", [x, x], [Operand(dtype, (4,), quantization=grid)]))


def added(types: Sequence[DType], output: DType) -> Model:
    """x + y, of any types."""
    b = ModelBuilder()
    inputs = [b.input(dtype, (4,), f"x{k}") for k, dtype in enumerate(types)]
    return b.build(b.operation("CUSTOM", inputs, [(output, (4,))], {"custom_code": "Add"}))


def hybrid() -> Model:
    """Floats times int8 weights."""
    b = ModelBuilder()
    x = b.input(F32, (1, 4), "x")
    w = b.constant(np.ones((2, 4), np.int8), "w", GRID)
    return b.build(b.operation("FULLY_CONNECTED", [x, w], [(F32, (1, 2))]))


def moved(dtype: DType) -> Model:
    b = ModelBuilder()
    x = b.input(dtype, (4,), "x", GRID)
    return b.build(b.operation("RESHAPE", [x], [Operand(dtype, (2, 2), quantization=GRID)]))


def curved() -> Model:
    b = ModelBuilder()
    out = Operand(I8, (4,), quantization=GRID)
    return b.build(b.operation("HARD_SWISH", [b.input(I8, (4,), "x", GRID)], [out]))


def placed() -> Model:
    """RELU, then where the largest of each window lies."""
    b = ModelBuilder()
    shape = (1, 4, 4, 2)
    (x,) = b.operation("RELU", [b.input(F32, shape, "x")], [(F32, shape)])
    attributes: dict[str, Any] = {
        "custom_code": "MaxPoolingWithArgmax2D",
        "custom_options": struct.pack("<5i", 1, 2, 2, 2, 2),
    }
    pooled = (F32, (1, 2, 2, 2))
    return b.build(b.operation("CUSTOM", [x], [pooled, pooled], attributes))


def largest() -> Model:
    b = ModelBuilder()
    x, axis = b.input(I8, (1, 4), "x", GRID), b.constant(np.array(1, np.int32), "axis")
    return b.build(b.operation("ARG_MAX", [x, axis], [(DType.INT32, (1,))]))


CASES: Final[dict[str, tuple[Model, Examine, AccuracyClass, str]]] = {
    "float32, ONNX Runtime": (sums(F32), by_onnxruntime, "faithful", ""),
    "float32, OpenVINO": (sums(F32), by_openvino, "faithful", ""),
    "8 bits, ONNX Runtime": (sums(I8), by_onnxruntime, "stepwise", support.STEPS),
    "8 bits, OpenVINO": (sums(I8), by_openvino, "stepwise", support.STEPS),
    "8 bits by a curve, OpenVINO": (curved(), by_openvino, "stepwise", support.STEPS),
    "float32 by int8, ONNX Runtime": (hybrid(), by_onnxruntime, "relaxed", support.HYBRID),
    "float32 by int8, OpenVINO": (hybrid(), by_openvino, "relaxed", support.HYBRID),
    "16 bits, OpenVINO": (moved(I16), by_openvino, "relaxed", support.WIDE),
    "positions, ONNX Runtime": (placed(), by_onnxruntime, "relaxed", support.POSITIONS),
    "the largest of 8 bits, OpenVINO": (largest(), by_openvino, "relaxed", support.ANOTHER),
    "positions, OpenVINO": (placed(), by_openvino, "relaxed", support.POSITIONS),
}


@pytest.mark.parametrize("name", CASES)
def test_a_lesser_yes_says_how_far_off_it_was_measured_to_be(name: str) -> None:
    model, examine, accuracy, distance = CASES[name]
    answer = examine(model)[0]
    assert (answer.supported, answer.reason) == (True, "")
    assert (answer.accuracy, answer.distance) == (accuracy, distance)


@pytest.mark.parametrize("examine", [by_onnxruntime, by_openvino])
def test_answer_on_unmeasured_hardware_has_a_note(examine: Examine) -> None:
    (answer,) = examine(sums(F32), "relaxed")
    assert answer == Support(True, "", "relaxed", support.NEVER_MEASURED)


@pytest.mark.parametrize("best", ["exact", "relaxed"])
def test_an_accuracy_that_is_no_class_is_passed_on(best: AccuracyClass) -> None:
    wrong: Any = "ADD is reserved"
    model = sums(F32)
    answers = support.answered(make_sites(model), lambda _: wrong, best)
    assert answers == [Support(True, "", wrong)]
    assert support.joined(model, flattened(model), answers) == answers


@pytest.mark.parametrize(
    ("types", "output", "wanted", "reason"),
    [
        ((F32, I8), F32, {F32}, "input 1 is int8, not float32"),
        ((F32, F32), I8, {F32}, "output 0 is int8, not float32"),
        ((I8, F32), I8, {I8, DType.UINT8}, "input 1 is float32, not int8 or uint8"),
        ((F32, I8), F32, (), "float32, int8 to float32 is not computed here"),
    ],
)
def test_a_refusal_of_types_names_the_operand_that_does_not_fit(
    types: Sequence[DType], output: DType, wanted: Collection[DType], reason: str
) -> None:
    (site,) = make_sites(added(types, output))
    with pytest.raises(Refused) as found:
        site.refuse_types(wanted)
    assert str(found.value) == reason


@pytest.mark.parametrize(
    ("types", "output", "reason"),
    [
        ((F32, I8), F32, "input 1 is int8, not float32"),
        ((I8, F32), I8, "input 1 is float32, not int8 or uint8"),
        ((F32, F32), I16, "output 0 is int16, not float32 or int8 or uint8"),
        ((DType.INT32, I64), DType.INT32, "input 1 is int64, not int32"),
    ],
)
def test_mixed_types_are_refused_with_the_operand_that_does_not_fit(
    types: Sequence[DType], output: DType, reason: str
) -> None:
    (site,) = make_sites(added(types, output))
    with pytest.raises(Refused) as found:
        numbers(site, {DType.INT32, I64})
    assert str(found.value) == reason


@pytest.mark.parametrize("examine", [by_onnxruntime, by_openvino])
def test_a_window_over_an_image_of_a_lesser_rank_is_refused_in_words(examine: Examine) -> None:
    b = ModelBuilder()
    attributes: dict[str, Any] = {
        "stride_h": 1,
        "stride_w": 1,
        "filter_height": 1,
        "filter_width": 1,
        "padding": "VALID",
    }
    x = b.input(F32, (1, 2), "x")
    (answer,) = examine(b.build(b.operation("MAX_POOL_2D", [x], [(F32, (1, 2))], attributes)))
    assert not answer.supported
    assert "lacks an axis that the window slides along" in answer.reason


@pytest.mark.parametrize("name", ["mobilenet_v1_0.25_128_uint8", "yunet_dynamic_range"])
def test_every_lesser_yes_about_a_network_does(corpus: Path, name: str) -> None:
    model = penstock.load(corpus / "models" / "networks" / f"{name}.tflite")
    for examine in (by_onnxruntime, by_openvino):
        found = [a for a in examine(model) if a.supported and a.accuracy in {"stepwise", "relaxed"}]
        assert found
        assert all(a.distance for a in found)
