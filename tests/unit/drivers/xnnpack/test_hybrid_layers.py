"""Hybrid layers written as float arithmetic over whole numbers: bit for bit what the reference
computes.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import pytest

from penstock import load
from penstock.drivers.xnnpack.prepared import XnnpackPreparedModel
from penstock.drivers.xnnpack.support import classify
from penstock.hal import AccuracyClass, PrepareConfig
from penstock.ir import Model, ModelBuilder, NDArray, Quantization
from tests.support_xnnpack import F32, device, needs_litert, run_on

pytestmark = needs_litert

WINDOW: Final[dict[str, Any]] = {"stride_w": 1, "stride_h": 2, "padding": "SAME"}
INPUTS: Final = ("drawn", "positive", "negative", "zeros", "halves", "even", "small", "large")


def values(kind: str, shape: tuple[int, ...], seed: int = 0) -> NDArray:
    """Inputs of every sort: of one sign, nothing, on the borders of rounding, ranges that reach
    equally far, extremes.
    """
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
def test_expanded_hybrid_layers_equal_the_reference(name: str, kind: str) -> None:
    model = CASES[name]
    given = [values(kind, tuple(d or 0 for d in model.inputs[0].shape or ()))]
    (wanted,) = run_on(["reference"], model, given)
    (found,) = run_on([device()], model, given)
    assert np.array_equal(found, wanted), float(np.abs(found - wanted).max())


@pytest.mark.parametrize("name", ["matrix", "convolution", "depthwise"])
def test_expanded_hybrid_layers_equal_the_reference_for_random_values(name: str) -> None:
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
    return [o.type for f in prepared._files for o in load(f.content).operations]


def test_hybrid_layers_are_expanded_only_for_accuracy() -> None:
    model = CASES["matrix"]
    assert operations_of(model, "relaxed") == ["FULLY_CONNECTED"]
    assert operations_of(model, "faithful").count("FULLY_CONNECTED") == 1
    assert {"FLOOR", "SIGN", "REDUCE_MAX"} <= set(operations_of(model, "faithful"))


def test_hybrid_depthwise_layers_are_expanded_in_every_class() -> None:
    found = operations_of(CASES["depthwise"], "faithful")
    assert "FLOOR" in found
    assert found == operations_of(CASES["depthwise"], "relaxed")


def test_hybrid_layer_of_non_negative_values_has_no_sign_operations() -> None:
    for name in ("matrix behind RELU", "convolution behind RELU"):
        found = operations_of(CASES[name], "faithful")
        assert {"SIGN", "ABS", "REDUCE_MIN"}.isdisjoint(found)
        assert "FLOOR" in found


def deep(kind: str, depth: int) -> Model:
    """One result of *depth* inputs, whose weights are all 127."""
    builder = ModelBuilder()
    given, filters = (
        ((1, depth), (1, depth)) if kind == "FULLY_CONNECTED" else ((1, 1, 1, depth),) * 2
    )
    x = builder.input(F32, given, "x")
    full = np.full(filters, 127, np.int8)
    matrix = builder.constant(full, "weights", Quantization((0.5,), (0,), None))
    made = builder.operation(kind, [x, matrix, None], [(F32, (*given[:-1], 1))])
    return builder.build(made)


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        # Up to 2**24 every whole number is a float32.
        ("CONV_2D", (1 << 24) // (127 * 127)),
        # In 32 bits, with the offsets that XNNPACK adds.
        ("FULLY_CONNECTED", ((1 << 31) - 1) // (127 * 510)),
    ],
)
def test_hybrid_layers_with_inexact_sums_are_not_expanded(kind: str, most: int) -> None:
    answers = [classify(deep(kind, depth))[0] for depth in (most, most + 1)]
    assert [getattr(answer, "expanded", "") for answer in answers] == ["faithful", None]


def test_hybrid_layers_with_sums_beyond_24_bits_are_not_expanded() -> None:
    """Which the int8 weights of a matrix allow: 5000 x 127 x 127 is more than 2**26."""
    model = deep("FULLY_CONNECTED", 5000)
    for seed in range(5):
        given = [np.abs(values("drawn", (1, 5000), seed)).clip(2.5, 3)]
        assert np.array_equal(run_on([device()], model, given), run_on(["reference"], model, given))


@pytest.mark.parametrize("keeps", [True, False], ids=["keep_num_dims", "flattened"])
@pytest.mark.parametrize("given", [(20,), (2, 3, 20), (2, 1, 3, 20), (3, None, 20)])
def test_expanded_fully_connected_supports_any_rank(
    given: tuple[int | None, ...], keeps: bool
) -> None:
    builder = ModelBuilder()
    x = builder.input(F32, given, "x")
    value, quantization = weights((6, 20), channel=0)
    inputs: list[int | None] = [x, builder.constant(value, "weights", quantization), None]
    attributes = {"keep_num_dims": keeps}
    *leading, _ = given
    rows = None if None in leading else math.prod(d or 0 for d in leading)
    made = (*leading, 6) if keeps else (rows, 6)
    model = builder.build(builder.operation("FULLY_CONNECTED", inputs, [(F32, made)], attributes))
    assert "FLOOR" in operations_of(model, "faithful")
    drawn = [values("drawn", tuple(d or 4 for d in given))]
    (found,), (wanted,) = run_on([device()], model, drawn), run_on(["reference"], model, drawn)
    assert np.array_equal(found, wanted)


def test_expanded_fully_connected_keeps_int8_weights() -> None:
    """Where its rows can be widened: as many as they are, which is known."""
    builder = ModelBuilder()
    x = builder.input(F32, (None, 20), "x")
    value, quantization = weights((6, 20), channel=None)
    matrix = builder.constant(value, "weights", quantization)
    of_any = builder.build(builder.operation("FULLY_CONNECTED", [x, matrix], [(F32, (None, 6))]))
    for model, kept in ((CASES["matrix"], "int8"), (of_any, "float32")):
        prepared = device().prepare_model(model, PrepareConfig(num_threads=1))
        assert isinstance(prepared, XnnpackPreparedModel)
        (file,) = prepared._files
        inner = load(file.content)
        layers = [o for o in inner.operations if o.type == "FULLY_CONNECTED"]
        assert [inner.operands[o.inputs[1]].dtype.value for o in layers] == [kept]
