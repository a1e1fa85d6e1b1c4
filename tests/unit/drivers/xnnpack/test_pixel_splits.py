"""Hybrid convolutions behind layers of floats: XNNPACK quantises their pictures as TFLite does."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from penstock.hal import AccuracyClass
from penstock.ir import Model, ModelBuilder, NDArray, Quantization
from tests.support_xnnpack import F32, device, needs_litert, run_on
from tests.unit.drivers.xnnpack.test_hybrid_layers import operations_of, values, weights

pytestmark = needs_litert

WINDOW: Final[dict[str, Any]] = {"stride_w": 1, "stride_h": 1, "padding": "SAME"}
ROUNDED_ALIKE: Final = 1e-6
"""Of the largest result. One value that is rounded otherwise shows as 1e-4 and more."""


def behind(
    kind: str = "CONV_2D",
    *,
    kernel: int = 1,
    channels: int = 6,
    scales: int = 5,
    bias: bool = True,
    through: str = "",
    stride: int = 1,
) -> Model:
    """A layer of floats, *through* another operation, and a hybrid layer of *channels*; two
    pictures.
    """
    builder = ModelBuilder()
    rng = np.random.default_rng(3)
    x = builder.input(F32, (2, 6, 5, 3), "x")
    floats = builder.constant(rng.standard_normal((channels, 3, 3, 3)).astype(np.float32))
    none = builder.constant(np.zeros(channels, np.float32))
    shape = (2, 6, 5, channels)
    (y,) = builder.operation("CONV_2D", [x, floats, none], [(F32, shape)], WINDOW)
    if through:
        (y,) = builder.operation(through, [y], [(F32, shape)])
    if kind == "DEPTHWISE_CONV_2D":
        filters, made = (1, kernel, kernel, channels), channels
    else:
        filters, made = (5, kernel, kernel, channels), 5
    channel = {"DEPTHWISE_CONV_2D": 3}.get(kind, 0)
    value, quantization = weights(filters, channel=channel)
    if scales == 1:
        quantization = Quantization((0.01,) * made, (0,) * made, channel)
    inputs: list[int | None] = [y, builder.constant(value, "weights", quantization)]
    if bias:
        inputs.append(builder.constant(rng.standard_normal(made).astype(np.float32)))
    extent = (2, -(-6 // stride), -(-5 // stride), made)
    attributes = {
        **WINDOW,
        "stride_w": stride,
        "stride_h": stride,
        "fused_activation_function": "RELU6",
    }
    if kind == "DEPTHWISE_CONV_2D":
        attributes["depth_multiplier"] = 1
    return builder.build(builder.operation(kind, inputs, [(F32, extent)], attributes))


def off(model: Model, given: NDArray, accuracy: AccuracyClass = "faithful") -> float:
    """How far the results lie from the reference's, of the largest."""
    (wanted,) = run_on(["reference"], model, [given])
    (found,) = run_on([device()], model, [given], accuracy)
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


CASES: Final = {
    "pixels": behind(),
    "pixels behind RELU": behind(through="RELU"),
    "pixels without a bias": behind(bias=False),
    "pixels, every other": behind(stride=2),
    "windows": behind(kernel=3, channels=3),
    "windows behind RELU": behind(kernel=3, through="RELU"),
}


@pytest.mark.parametrize("name", CASES)
def test_split_pixel_convolution_rounds_as_the_reference(name: str) -> None:
    for seed in range(6):
        scale = np.float32(10.0 ** np.random.default_rng(seed).uniform(-3, 3))
        assert off(CASES[name], values("drawn", (2, 6, 5, 3), seed) * scale) <= ROUNDED_ALIKE, seed


@pytest.mark.parametrize("name", CASES)
def test_convolution_that_xnnpack_rounds_as_tflite_is_not_expanded(name: str) -> None:
    found = operations_of(CASES[name], "faithful")
    assert "FLOOR" not in found
    assert ("RESHAPE" in found) == (name.startswith("pixels") and "every other" not in name)


def test_1x1_hybrid_convolution_splits_pixels_in_every_class() -> None:
    """XNNPACK would quantise each by itself, and take longer."""
    assert operations_of(CASES["pixels"], "relaxed") == ["CONV_2D", "RESHAPE", "CONV_2D"]
    given = values("drawn", (2, 6, 5, 3))
    assert off(CASES["pixels"], given, "relaxed") <= ROUNDED_ALIKE


@pytest.mark.parametrize(
    "model",
    [
        behind(channels=5),
        behind(scales=1),
        behind("DEPTHWISE_CONV_2D", kernel=3),
        behind(through="CEIL"),
    ],
    ids=["an odd number of channels", "one scale", "depthwise", "whole numbers"],
)
def test_convolution_that_xnnpack_rounds_differently_is_expanded(model: Model) -> None:
    assert "FLOOR" in operations_of(model, "faithful")
    given = values("drawn", (2, 6, 5, 3))
    assert off(model, given) <= ROUNDED_ALIKE


def test_fully_connected_behind_a_layer_is_expanded() -> None:
    """Its rows are quantised without an offset, whatever scales its weights have."""
    builder = ModelBuilder()
    x = builder.input(F32, (2, 8), "x")
    floats = np.random.default_rng(4).standard_normal((8, 8)).astype(np.float32)
    (y,) = builder.operation("FULLY_CONNECTED", [x, builder.constant(floats)], [(F32, (2, 8))])
    value, quantization = weights((6, 8), channel=0)
    matrix = builder.constant(value, "weights", quantization)
    model = builder.build(builder.operation("FULLY_CONNECTED", [y, matrix], [(F32, (2, 6))]))
    assert "FLOOR" in operations_of(model, "faithful")
    assert off(model, values("drawn", (2, 8))) <= ROUNDED_ALIKE


def test_convolution_of_network_inputs_is_expanded() -> None:
    """In [-1, 1] all 256 values are: written out, each is rounded as the reference does."""
    builder = ModelBuilder()
    x = builder.input(F32, (1, 8, 8, 4), "x")
    value, quantization = weights((5, 1, 1, 4), channel=0)
    matrix = builder.constant(value, "weights", quantization)
    made = builder.operation("CONV_2D", [x, matrix], [(F32, (1, 8, 8, 5))], WINDOW)
    model = builder.build(made)
    grid = np.random.default_rng(5).integers(0, 256, (1, 8, 8, 4)).astype(np.float32)
    grid.reshape(-1)[:2] = 0, 255
    given = grid / np.float32(127.5) - 1
    assert np.array_equal(run_on([device()], model, [given]), run_on(["reference"], model, [given]))
