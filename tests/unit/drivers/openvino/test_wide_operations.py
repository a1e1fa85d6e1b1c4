"""Numbers that OpenVINO computes otherwise than TFLite, and only under `relaxed`: int16 values, and
int8 weights beside float32 values.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from penstock.ir import DType, Model, ModelBuilder, NDArray, Quantization
from tests.support_openvino import cpu, needs_openvino
from tests.support_operations import F32, run_on

pytestmark = needs_openvino

I16: Final = DType.INT16
IN: Final = Quantization((2.0**-15,), (0,))
OUT: Final = Quantization((2.0**-11,), (0,))
SHARE: Final = 0.01
"""Of the results' own root mean square: what bfloat16 is off by."""


def spread(axis: int, channels: int) -> Quantization:
    scales = tuple(float(np.float32(0.002 + 0.0005 * k)) for k in range(channels))
    return Quantization(scales, (0,) * channels, axis)


def whole(rng: np.random.Generator, *shape: int) -> NDArray:
    return rng.integers(-127, 128, shape).astype(np.int8)


def product(*, turned: bool) -> Model:
    """Int16 rows, moved to a matrix, times int8 weights of one scale."""
    b, rng = ModelBuilder(), np.random.default_rng(1)
    x = b.input(I16, (2, 3, 20), "x", IN)
    shape = b.constant(np.array([6, 20], np.int32), "shape")
    (rows,) = b.operation("RESHAPE", [x, shape], [(I16, (6, 20), IN)])
    weights = whole(rng, 20, 7)
    w = b.constant(weights.T.copy() if turned else weights, "w", Quantization((0.003,), (0,)))
    return b.build(b.operation("BATCH_MATMUL", [rows, w], [(I16, (6, 7), OUT)], {"adj_y": turned}))


def steps(kind: str, source: Quantization | None, target: Quantization | None, to: DType) -> Model:
    b = ModelBuilder()
    x = b.input(F32 if source is None else I16, (5, 40), "x", source)
    return b.build(b.operation(kind, [x], [(to, (5, 40), target)]))


def off_by(model: Model, inputs: list[NDArray]) -> float:
    """The error of OpenVINO beside the reference: root mean square, as a share of the result's."""
    assert {a.accuracy for a in cpu().supported_operations(model) if a.supported} == {"relaxed"}
    ((got,),), ((wanted,),) = (
        run_on([cpu()], model, [inputs], "relaxed"),
        run_on(["reference"], model, [inputs]),
    )
    assert got.dtype == wanted.dtype
    error = got.astype(np.float64) - wanted.astype(np.float64)
    return float(np.sqrt(np.mean(error**2) / np.mean(wanted.astype(np.float64) ** 2)))


@pytest.mark.parametrize("turned", [False, True])
def test_int16_rows_times_int8_weights(turned: bool) -> None:
    given = np.random.default_rng(0).integers(-(1 << 15), 1 << 15, (2, 3, 20)).astype(np.int16)
    assert off_by(product(turned=turned), [given]) <= SHARE


def test_int16_rows_times_weights_of_many_scales_are_refused() -> None:
    """TFLite's kernel takes all those scales for 0, which no engine does."""
    b = ModelBuilder()
    x = b.input(I16, (6, 20), "x", IN)
    w = b.constant(whole(np.random.default_rng(1), 20, 7), "w", spread(1, 7))
    model = b.build(b.operation("BATCH_MATMUL", [x, w], [(I16, (6, 7), OUT)]))
    (answer,) = cpu().supported_operations(model)
    assert answer.reason == "TFLite takes the scale of a matrix with one a channel for 0"


def test_int16_results_stop_at_their_limits() -> None:
    """The nearest bfloat16 to 32767 is one step too many."""
    given = np.where(np.arange(120) % 2, 32767, -32768).astype(np.int16).reshape(2, 3, 20)
    narrow = Quantization((2.0**-18,), (0,))
    b = ModelBuilder()
    x = b.input(I16, (2, 3, 20), "x", IN)
    model = b.build(b.operation("QUANTIZE", [x], [(I16, (2, 3, 20), narrow)]))
    ((got,),) = run_on([cpu()], model, [[given]], "relaxed")
    assert np.abs(got.astype(int) - given.astype(int)).max() <= 128


@pytest.mark.parametrize(
    "model",
    [
        steps("QUANTIZE", None, IN, I16),
        steps("QUANTIZE", IN, Quantization((2.0**-7,), (3,)), DType.INT8),
        steps("DEQUANTIZE", IN, None, F32),
    ],
)
def test_conversions_of_int16(model: Model) -> None:
    rng = np.random.default_rng(0)
    given = (
        rng.uniform(-1, 1, (5, 40)).astype(np.float32)
        if model.inputs[0].dtype is F32
        else rng.integers(-(1 << 15), 1 << 15, (5, 40)).astype(np.int16)
    )
    assert off_by(model, [given]) <= SHARE


def hybrid(kind: str) -> tuple[Model, Model]:
    """A layer of int8 weights over float32 values, and the same over the real weights."""
    rng = np.random.default_rng(3)
    image, out, filters, axis = {
        "CONV_2D": ((1, 7, 6, 8), (1, 7, 6, 5), (5, 3, 3, 8), 0),
        "DEPTHWISE_CONV_2D": ((1, 7, 6, 8), (1, 7, 6, 8), (1, 3, 3, 8), 3),
        "FULLY_CONNECTED": ((3, 16), (3, 5), (5, 16), 0),
    }[kind]
    attributes = (
        {} if kind == "FULLY_CONNECTED" else {"stride_h": 1, "stride_w": 1, "padding": "SAME"}
    )
    weights, channels = whole(rng, *filters), filters[axis]
    quantization = spread(axis, channels)
    bias = rng.standard_normal(channels).astype(np.float32)
    places = [1] * len(filters)
    places[axis] = -1
    real = weights * np.array(quantization.scales, np.float32).reshape(places)
    made = []
    for value, given in ((weights, quantization), (real.astype(np.float32), None)):
        b = ModelBuilder()
        x = b.input(F32, image, "x")
        w, k = b.constant(value, "w", given), b.constant(bias, "b")
        made.append(b.build(b.operation(kind, [x, w, k], [(F32, out)], attributes)))  # type: ignore[arg-type]  # any attributes
    return made[0], made[1]


@pytest.mark.parametrize("kind", ["CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"])
def test_hybrid_layers_with_int8_weights_are_relaxed(kind: str) -> None:
    model, plain = hybrid(kind)
    (answer,) = cpu().supported_operations(model)
    assert (answer.supported, answer.accuracy) == (True, "relaxed"), answer.reason
    shape = tuple(d or 0 for d in model.inputs[0].shape or ())
    given = [np.random.default_rng(0).standard_normal(shape).astype(np.float32)]
    ((got,),), ((wanted,),) = (
        run_on([cpu()], model, [given], "relaxed"),
        run_on(["reference"], plain, [given]),
    )
    assert np.sqrt(np.mean((got - wanted) ** 2)) <= SHARE * np.sqrt(np.mean(wanted**2))
