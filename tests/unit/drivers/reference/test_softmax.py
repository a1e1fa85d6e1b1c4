import numpy as np
import pytest

from penstock.ir import DType, Operand
from tests.support_litert import (
    Given,
    Wanted,
    any_quantization,
    assert_agrees,
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
