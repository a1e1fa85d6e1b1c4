"""Hybrid layers written as float arithmetic over whole numbers: bit for bit what the reference computes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from penstock.drivers.xnnpack.prepared import XnnpackPreparedModel
from penstock.drivers.xnnpack.support import classify
from penstock.hal import AccuracyClass, PrepareConfig
from penstock.ir import Model, ModelBuilder, NDArray, Quantization
from tests.support_xnnpack import F32, device, needs_litert, run_on

pytestmark = needs_litert

WINDOW: Final[dict[str, Any]] = {"stride_w": 1, "stride_h": 2, "padding": "SAME"}
INPUTS: Final = ("drawn", "positive", "negative", "zeros", "halves", "even", "small", "large")


def values(kind: str, shape: tuple[int, ...], seed: int = 0) -> NDArray:
    """Inputs of every sort: of one sign, nothing, on the borders of rounding, ranges that reach equally far, extremes."""
    rng = np.random.default_rng(seed)
    drawn = (rng.standard_normal(shape) * 3).astype(np.float32)
    if kind == "halves":
        whole: NDArray = rng.integers(-254, 255, shape).astype(np.float32) / 2
        whole.reshape(-1)[:2] = 127, -127
        return whole
    if kind == "even":
        drawn = drawn.clip(-1, 1)
        drawn.reshape(-1)[:2] = 1, -1
    factor = {"zeros": 0, "small": 1e-20, "large": 1e20}.get(kind, 1)
    if kind in {"positive", "negative"}:
        drawn, factor = np.abs(drawn), 1 if kind == "positive" else -1
    made: NDArray = (drawn * np.float32(factor)).astype(np.float32)
    return made


def weights(
    shape: tuple[int, ...], *, channel: int | None, seed: int = 1
) -> tuple[NDArray, Quantization]:
    """int8 weights with one scale, or with one for each of *channel*."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(-127, 128, shape).astype(np.int8)
    count = 1 if channel is None else shape[channel]
    scales = tuple(float(s) for s in rng.uniform(0.001, 0.03, count).astype(np.float32))
    return drawn, Quantization(scales, (0,) * count, channel if count > 1 else None)


def layer(
    kind: str,
    *,
    per_channel: bool = True,
    bias: bool = True,
    activation: str = "NONE",
    asymmetric: bool = False,
    relu: bool = False,
) -> Model:
    """One hybrid layer of two rows or pictures; with *relu* behind one."""
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "FULLY_CONNECTED": ((2, 20), (6, 20), (2, 6)),
        "CONV_2D": ((2, 6, 5, 4), (6, 3, 3, 4), (2, 3, 5, 6)),
        "DEPTHWISE_CONV_2D": ((2, 6, 5, 4), (1, 3, 3, 8), (2, 3, 5, 8)),
    }
    given, filters, made = shapes[kind]
    attributes: dict[str, Any] = {"fused_activation_function": activation}
    channel = {"FULLY_CONNECTED": 0, "CONV_2D": 0, "DEPTHWISE_CONV_2D": 3}[kind]
    if kind == "FULLY_CONNECTED":
        attributes["asymmetric_quantize_inputs"] = asymmetric
    else:
        attributes |= WINDOW
    if kind == "DEPTHWISE_CONV_2D":
        attributes["depth_multiplier"] = 2
    builder = ModelBuilder()
    x = builder.input(F32, given, "x")
    if relu:
        (x,) = builder.operation("RELU", [x], [(F32, given)])
    value, quantization = weights(filters, channel=channel if per_channel else None)
    inputs: list[int | None] = [x, builder.constant(value, "weights", quantization)]
    few = np.random.default_rng(2).standard_normal(made[-1]).astype(np.float32)
    inputs.append(builder.constant(few, "bias") if bias else None)
    return builder.build(builder.operation(kind, inputs, [(F32, made)], attributes))


CASES: Final = {
    "matrix": layer("FULLY_CONNECTED", per_channel=False),
    "matrix by channel": layer("FULLY_CONNECTED"),
    "matrix without a bias": layer("FULLY_CONNECTED", bias=False, activation="RELU"),
    "matrix, asymmetric": layer("FULLY_CONNECTED", asymmetric=True, activation="RELU6"),
    "matrix behind RELU": layer("FULLY_CONNECTED", relu=True),
    "convolution": layer("CONV_2D", activation="RELU6"),
    "convolution without a bias": layer("CONV_2D", bias=False, activation="RELU"),
    "convolution behind RELU": layer("CONV_2D", relu=True),
    "depthwise": layer("DEPTHWISE_CONV_2D", activation="RELU"),
    "depthwise without a bias": layer("DEPTHWISE_CONV_2D", bias=False),
    "depthwise behind RELU": layer("DEPTHWISE_CONV_2D", relu=True),
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", CASES)
def test_every_bit_is_the_references(name: str, kind: str) -> None:
    model = CASES[name]
    given = [values(kind, tuple(d or 0 for d in model.inputs[0].shape or ()))]
    (wanted,) = run_on(["reference"], model, given)
    (found,) = run_on([device()], model, given)
    assert np.array_equal(found, wanted), float(np.abs(found - wanted).max())


@pytest.mark.parametrize("name", ["matrix", "convolution", "depthwise"])
def test_drawn_again_and_again(name: str) -> None:
    """Wherever rounding falls: 40 drawn inputs of many sizes."""
    model = CASES[name]
    shape = tuple(d or 0 for d in model.inputs[0].shape or ())
    for seed in range(40):
        scale = np.float32(10.0 ** np.random.default_rng(seed).uniform(-3, 3))
        given = [values("drawn", shape, seed) * scale]
        assert np.array_equal(
            run_on([device()], model, given)[0], run_on(["reference"], model, given)[0]
        ), seed


def operations_of(model: Model, accuracy: AccuracyClass) -> list[str]:
    """The operations of the files that LiteRT is given."""
    prepared = device().prepare_model(model, PrepareConfig(accuracy=accuracy, num_threads=1))
    assert isinstance(prepared, XnnpackPreparedModel)
    return [o.type for f in prepared._files for o in f.segment.model.operations]


def test_only_where_the_class_asks_for_it() -> None:
    model = CASES["matrix"]
    assert operations_of(model, "relaxed") == ["FULLY_CONNECTED"]
    assert operations_of(model, "faithful").count("FULLY_CONNECTED") == 1
    assert {"FLOOR", "SIGN", "REDUCE_MAX"} <= set(operations_of(model, "faithful"))


def test_what_is_never_below_zero_needs_no_signs() -> None:
    for name in ("matrix behind RELU", "convolution behind RELU"):
        found = operations_of(CASES[name], "faithful")
        assert {"SIGN", "ABS", "REDUCE_MIN"}.isdisjoint(found)
        assert "FLOOR" in found


def test_not_where_sums_would_be_rounded() -> None:
    """Up to 2**24 every whole number is a float32."""
    answers: list[object] = []
    for depth in (1040, 1041):
        builder = ModelBuilder()
        x = builder.input(F32, (1, depth), "x")
        full = np.full((1, depth), 127, np.int8)
        matrix = builder.constant(full, "weights", Quantization((0.5,), (0,), None))
        made = builder.operation("FULLY_CONNECTED", [x, matrix, None], [(F32, (1, 1))])
        answers += classify(builder.build(made))
    assert 1040 * 127 * 127 <= 1 << 24 < 1041 * 127 * 127
    assert [getattr(answer, "expanded", "") for answer in answers] == ["faithful", None]
