"""Fully connected layers and matrix products become kernels that give what the reference device
gives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.compiler.legalise import judge
from penstock.driverkit.site import Refused, make_sites
from penstock.ir import DType, Quantization
from tests.unit.compiler.legalise.legal_models import Given, check, feeds, layer, scales_of, values

F32, F16, U8, I8, I16, I32, I64, I4 = (
    DType.FLOAT32,
    DType.FLOAT16,
    DType.UINT8,
    DType.INT8,
    DType.INT16,
    DType.INT32,
    DType.INT64,
    DType.INT4,
)


def stored(
    rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], *, fed: bool = True
) -> Given:
    """A quantised operand with a random scale and, unless it is int16, zero point."""
    bits = dtype.bits or 0
    least = 0 if dtype is U8 else -(2 ** (bits - 1))
    zero_point = 0 if dtype is I16 else int(rng.integers(least, least + 2**bits))
    return Given(
        values(rng, dtype, shape), scales_of(rng, 1, 0.001, 0.1), zero_point, None, dtype, fed
    )


def quantization(scale: float, zero_point: int) -> Quantization:
    return Quantization((float(np.float32(scale)),), (zero_point,))


@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("activation", ["NONE", "RELU", "RELU6", "RELU_N1_TO_1"])
def test_float_layers(dtype: DType, keep: bool, activation: str) -> None:
    rng = np.random.default_rng(1)
    attributes: dict[str, Any] = {"keep_num_dims": keep, "fused_activation_function": activation}
    for constant in (False, True):
        data = Given(values(rng, dtype, (2, 3, 9)), fed=True)
        weights = Given(values(rng, dtype, (5, 9)), fed=not constant)
        for bias in (Given(values(rng, dtype, (5,)), fed=not constant), None):
            inputs = [data, weights, bias]
            check(layer("FULLY_CONNECTED", inputs, (dtype, None), attributes), feeds(inputs))


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    ("data", "weights", "bias", "made"),
    [
        (I8, I8, I32, I8),
        (I8, I4, I32, I8),
        (U8, U8, I32, U8),
        (I8, I8, I32, I16),
        (I16, I8, I64, I16),
        (I16, I8, I32, I16),
        (I16, I4, None, I16),
    ],
)
def test_quantised_layers(
    per_channel: bool, constant: bool, data: DType, weights: DType, bias: DType | None, made: DType
) -> None:
    constant = constant or weights is I4
    per_channel = per_channel and weights is not U8
    for seed, activation in enumerate(("NONE", "RELU", "RELU6")):
        rng = np.random.default_rng(seed)
        source = stored(rng, data, (4, 11))
        scales = scales_of(rng, 6 if per_channel else 1, 0.0005, 0.05)
        zero_point = int(rng.integers(0, 256)) if weights is U8 else 0
        matrix = Given(
            values(rng, weights, (6, 11)), scales, zero_point, 0 if per_channel else None, weights,
            fed=not constant,
        )  # fmt: skip
        offset = None
        if bias is not None:
            steps = tuple(float(np.float32(source.scales[0] * s)) for s in scales)
            offset = Given(
                rng.integers(-20000, 20000, 6).astype(bias.numpy), steps, 0,
                0 if per_channel else None, fed=not constant,
            )  # fmt: skip
        span = np.iinfo(made.numpy)
        zero = 0 if made is I16 else int(rng.integers(span.min, span.max + 1))
        output = made, quantization(source.scales[0] * float(np.mean(scales)) * 200, zero)
        attributes = {"fused_activation_function": activation}
        inputs = [source, matrix, offset]
        check(layer("FULLY_CONNECTED", inputs, output, attributes), feeds(inputs))


@pytest.mark.parametrize("weights", [I8, U8, I4])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("activation", ["NONE", "RELU6", "TANH", "SIGN_BIT"])
def test_hybrid_layers(
    weights: DType, per_channel: bool, asymmetric: bool, activation: str
) -> None:
    rng = np.random.default_rng(2)
    attributes: dict[str, Any] = {
        "fused_activation_function": activation,
        "asymmetric_quantize_inputs": asymmetric,
    }
    data = Given(values(rng, F32, (5, 13)), fed=True)
    data.array[1], data.array[2] = 0, np.abs(data.array[2])
    data.array[3] *= np.float32(1e-30)
    data.array[4] = 3
    scales = scales_of(rng, 7 if per_channel else 1, 0.001, 0.02)
    matrix = Given(values(rng, weights, (7, 13)), scales, 0, 0 if per_channel else None, weights)
    inputs = [data, matrix, Given(values(rng, F32, (7,)))]
    check(layer("FULLY_CONNECTED", inputs, (F32, None), attributes), feeds(inputs))


SHAPES = [
    ((4, 5), (5, 3), False, False),
    ((2, 4, 5), (2, 5, 3), False, False),
    ((2, 5, 4), (2, 3, 5), True, True),
    ((3, 1, 4, 5), (2, 5, 3), False, False),
    ((4, 5), (2, 3, 5), False, True),
]


@pytest.mark.parametrize(("a", "b", "adj_x", "adj_y"), SHAPES)
def test_products(a: tuple[int, ...], b: tuple[int, ...], adj_x: bool, adj_y: bool) -> None:
    rng = np.random.default_rng(3)
    attributes = {"adj_x": adj_x, "adj_y": adj_y}
    for constant in (False, True):
        for dtype in (F32, F16, I32):
            left = Given(values(rng, dtype, a), fed=True)
            right = Given(values(rng, dtype, b), fed=not constant)
            inputs = [left, right]
            check(layer("BATCH_MATMUL", inputs, (dtype, None), attributes), feeds(inputs))
        for dtype in (I8, I16):
            inputs = [stored(rng, dtype, a), stored(rng, dtype, b, fed=not constant)]
            scale = inputs[0].scales[0] * inputs[1].scales[0] * 300
            output = dtype, quantization(scale, 0 if dtype is I16 else -7)
            check(layer("BATCH_MATMUL", inputs, output, attributes), feeds(inputs))
        inputs = [stored(rng, I8, a), stored(rng, I8, b, fed=not constant)]
        check(layer("BATCH_MATMUL", inputs, (I32, None), attributes), feeds(inputs))


@pytest.mark.parametrize(("a", "b", "adj_x", "adj_y"), SHAPES)
@pytest.mark.parametrize("asymmetric", [False, True])
def test_hybrid_products(
    a: tuple[int, ...], b: tuple[int, ...], adj_x: bool, adj_y: bool, asymmetric: bool
) -> None:
    rng = np.random.default_rng(4)
    attributes = {"adj_x": adj_x, "adj_y": adj_y, "asymmetric_quantize_inputs": asymmetric}
    left = Given(values(rng, F32, a), fed=True)
    for constant in (False, True):
        right = Given(values(rng, I8, b), scales_of(rng, 1, 0.001, 0.02), fed=not constant)
        inputs = [left, right]
        model = layer("BATCH_MATMUL", inputs, (F32, None), attributes)
        if adj_x or (asymmetric and len(b) > 2):
            with pytest.raises(Refused):
                judge(make_sites(model)[0])
            continue
        check(model, feeds(inputs))
