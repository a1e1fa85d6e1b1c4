from typing import Any

import numpy as np
import pytest

from penstock.ir import DType, Operand
from tests.support_litert import (
    Given,
    Wanted,
    any_quantization,
    assert_agrees,
    every,
    q,
    refusal,
    run_alone,
    uniform,
)

CLAMPS = ("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1")
QUANTIZED = (DType.INT8, DType.UINT8, DType.INT16)
CASES = [
    (kind, dtype)
    for dtype in QUANTIZED
    for kind in (CLAMPS if dtype is not DType.INT16 else CLAMPS[:2])
]


@pytest.mark.parametrize(("kind", "dtype"), CASES)
@pytest.mark.parametrize("seed", range(5))
def test_quantised_clamps_of_every_value(kind: str, dtype: DType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    given, made = any_quantization(rng, dtype), any_quantization(rng, dtype)
    assert_agrees(run_alone(kind, [Given(every(dtype), given)], [Wanted(dtype, made)]))


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("alpha", [-0.7, 0.0, 0.01, 0.3, 1.8])
def test_quantised_leaky_relu_of_every_value(dtype: DType, alpha: float) -> None:
    rng = np.random.default_rng(1)
    given, made = any_quantization(rng, dtype), any_quantization(rng, dtype)
    x = Given(every(dtype), given)
    assert_agrees(run_alone("LEAKY_RELU", [x], [Wanted(dtype, made)], alpha=alpha))


@pytest.mark.parametrize("dtype", QUANTIZED[:2])
@pytest.mark.parametrize("seed", range(10))
def test_quantised_hard_swish_of_every_value(dtype: DType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    given = any_quantization(rng, dtype, 1e-3, 0.5)
    made = any_quantization(rng, dtype, given.scale / 3, given.scale * 3)
    assert_agrees(run_alone("HARD_SWISH", [Given(every(dtype), given)], [Wanted(dtype, made)]))


@pytest.mark.parametrize("dtype", QUANTIZED[:2])
@pytest.mark.parametrize("shape", [(3, 5, 8), (3, 1, 8), (8,), (1,)])
def test_quantised_prelu_broadcasts_its_slopes(dtype: DType, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    x = Given(uniform(rng, dtype, (3, 5, 8)), any_quantization(rng, dtype))
    alpha = Given(uniform(rng, dtype, shape), any_quantization(rng, dtype), constant=True)
    assert_agrees(run_alone("PRELU", [x, alpha], [Wanted(dtype, any_quantization(rng, dtype))]))


@pytest.mark.parametrize("kind", [*CLAMPS, "LEAKY_RELU", "HARD_SWISH"])
def test_float_relu_variants_agree_with_litert(kind: str) -> None:
    x = np.random.default_rng(3).normal(0, 4, (3, 50)).astype(np.float32)
    more: dict[str, Any] = {"alpha": 0.3} if kind == "LEAKY_RELU" else {}
    assert_agrees(run_alone(kind, [Given(x)], [Wanted(DType.FLOAT32)], **more))


def test_float_prelu_agrees_with_litert() -> None:
    rng = np.random.default_rng(4)
    x, alpha = (rng.normal(0, 4, s).astype(np.float32) for s in ((3, 5, 8), (5, 1)))
    assert_agrees(run_alone("PRELU", [Given(x), Given(alpha)], [Wanted(DType.FLOAT32)]))


@pytest.mark.parametrize("kind", [*CLAMPS, "LEAKY_RELU", "HARD_SWISH"])
def test_activations_refuse_8_bit_values_without_a_scale(kind: str) -> None:
    x = Operand(DType.INT8, (4,))
    assert "without one scale" in refusal(kind, [x], [x])


def test_activations_refuse_int16_with_a_zero_point() -> None:
    x = Operand(DType.INT16, (4,), quantization=q(0.1, 3))
    assert "zero point" in refusal("RELU", [x], [x])


def test_activations_name_an_unsupported_type() -> None:
    x = Operand(DType.INT64, (4,))
    assert refusal("RELU6", [x], [x]) == "RELU6 of (int64) -> (int64)"
    assert "int16" in refusal(
        "HARD_SWISH", *[[Operand(DType.INT16, (4,), quantization=q(0.1))]] * 2
    )
