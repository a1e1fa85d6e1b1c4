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
