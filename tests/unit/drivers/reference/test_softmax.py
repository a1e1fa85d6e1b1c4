"""Softmax and normalisations."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.ir import DType, NDArray, Operand
from tests.support_litert import (
    Given,
    Wanted,
    any_quantization,
    assert_agrees,
    kernel_of,
    q,
    refusal,
    run_alone,
    uniform,
)

EIGHT = (DType.INT8, DType.UINT8)
LEAST = {DType.INT8: -128, DType.UINT8: 0}


@pytest.mark.parametrize("dtype", EIGHT)
@pytest.mark.parametrize("seed", range(15))
def test_8_bit_softmax_agrees_with_litert(dtype: DType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (2, 3, int(rng.integers(1, 300)))
    x = Given(uniform(rng, dtype, shape), any_quantization(rng, dtype, 1e-4, 2.0))
    same, wide = Wanted(dtype, q(1 / 256, LEAST[dtype])), Wanted(DType.INT16, q(2.0**-16, -32768))
    for beta in (1.0, 0.37):
        assert_agrees(run_alone("SOFTMAX", [x], [same], beta=beta))
        assert_agrees(run_alone("SOFTMAX", [x], [wide], beta=beta))


@pytest.mark.parametrize("dtype", EIGHT)
@pytest.mark.parametrize("seed", range(15))
def test_8_bit_log_softmax_agrees_with_litert(dtype: DType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (2, 3, int(rng.integers(1, 300)))
    x = Given(uniform(rng, dtype, shape), any_quantization(rng, dtype, 1e-4, 2.0))
    made = Wanted(dtype, q(1 / 16, LEAST[dtype] + 255))
    assert_agrees(run_alone("LOG_SOFTMAX", [x], [made]))


@pytest.mark.parametrize("seed", range(15))
def test_int16_softmax_agrees_with_litert(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = uniform(rng, DType.INT16, (2, 3, int(rng.integers(1, 200)))) // int(rng.choice([1, 16]))
    given = Given(x, any_quantization(rng, DType.INT16, 1e-5, 0.1))
    assert_agrees(run_alone("SOFTMAX", [given], [Wanted(DType.INT16, q(2.0**-15))], beta=1.0))


@pytest.mark.parametrize("shape", [(7,), (3, 40), (2, 3, 4, 5)])
def test_float_softmax_and_log_softmax_agree_with_litert(shape: tuple[int, ...]) -> None:
    x = Given(np.random.default_rng(0).normal(0, 5, shape).astype(np.float32))
    assert_agrees(run_alone("SOFTMAX", [x], [Wanted(DType.FLOAT32)], beta=0.5))
    assert_agrees(run_alone("LOG_SOFTMAX", [x], [Wanted(DType.FLOAT32)]))


def test_softmax_refuses_output_scales_that_tflite_does_not_have() -> None:
    x = Operand(DType.INT8, (2, 4), quantization=q(0.1))
    y = Operand(DType.INT8, (2, 4), quantization=q(1 / 100, -128))
    assert "another scale" in refusal("SOFTMAX", [x], [y], beta=1.0)
    assert "another scale" in refusal("LOG_SOFTMAX", [x], [y])
    shifted = Operand(DType.INT8, (2, 4), quantization=q(1 / 256, 0))
    assert "zero point" in refusal("SOFTMAX", [x], [shifted], beta=1.0)
    assert refusal("SOFTMAX", [x], [Operand(DType.UINT8, (2, 4))]) == "SOFTMAX of (int8) -> (uint8)"


MIDDLE = {DType.INT8: 0, DType.UINT8: 128}


@pytest.mark.parametrize("dtype", MIDDLE)
@pytest.mark.parametrize("seed", range(15))
def test_quantised_l2_normalization_agrees_with_litert(dtype: DType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    given = any_quantization(rng, dtype)
    x = uniform(rng, dtype, (3, 2, int(rng.integers(1, 60))))
    x[0, 0] = given.zero_point
    recorded = run_alone(
        "L2_NORMALIZATION", [Given(x, given)], [Wanted(dtype, q(1 / 128, MIDDLE[dtype]))]
    )
    assert_agrees(recorded)


def test_float_l2_normalization_agrees_with_litert() -> None:
    x = np.random.default_rng(0).normal(0, 1, (3, 4, 20)).astype(np.float32)
    x[0] = 0
    assert_agrees(run_alone("L2_NORMALIZATION", [Given(x)], [Wanted(DType.FLOAT32)]))


@pytest.mark.parametrize("radius", [0, 1, 2, 5, 20, 1000])
def test_local_response_normalization_agrees_with_litert(radius: int) -> None:
    x = np.random.default_rng(1).normal(0, 3, (2, 3, 4, 20)).astype(np.float32)
    operand = Operand(DType.FLOAT32, x.shape)
    kernel = kernel_of(
        "LOCAL_RESPONSE_NORMALIZATION",
        [operand],
        [operand],
        radius=radius,
        bias=1.0,
        alpha=0.5,
        beta=0.75,
    )
    np.testing.assert_allclose(kernel([x])[0], _by_definition(x, radius), 1e-5)


def _by_definition(x: NDArray, radius: int) -> NDArray:
    depth = x.shape[-1]
    total = np.stack(
        [
            np.square(x[..., max(d - radius, 0) : d + radius + 1].astype(np.float64)).sum(axis=-1)
            for d in range(depth)
        ],
        axis=-1,
    )
    result: NDArray = x / (1.0 + 0.5 * total) ** 0.75
    return result


def test_normalization_refusals_name_the_reason() -> None:
    x = Operand(DType.INT8, (4,), quantization=q(0.1))
    y = Operand(DType.INT8, (4,), quantization=q(0.1))
    assert "1/128" in refusal("L2_NORMALIZATION", [x], [y])
    assert "RELU" in refusal("L2_NORMALIZATION", [x], [y], fused_activation_function="RELU")
    assert "int8" in refusal("LOCAL_RESPONSE_NORMALIZATION", [x], [y])
