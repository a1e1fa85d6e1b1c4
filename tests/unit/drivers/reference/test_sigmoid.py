"""LOGISTIC, TANH, ELU, GELU, and the complementary error function."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.drivers.reference.elements.sigmoid import complementary_error_function
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
)


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("seed", range(10))
def test_8_bit_logistic_and_tanh_of_every_value(dtype: DType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = Given(every(dtype), any_quantization(rng, dtype))
    zero = -128 if dtype is DType.INT8 else 0
    assert_agrees(run_alone("LOGISTIC", [x], [Wanted(dtype, q(1 / 256, zero))]))
    assert_agrees(run_alone("TANH", [x], [Wanted(dtype, q(1 / 128, zero + 128))]))


@pytest.mark.parametrize("kind", ["LOGISTIC", "TANH"])
@pytest.mark.parametrize(
    "scale", [2.0**-13, 2.0**-12, 2.0**-11, 2.0**-6, 1e-5, 0.000123, 0.0031, 0.9]
)
def test_int16_logistic_and_tanh_of_every_value(kind: str, scale: float) -> None:
    x = Given(every(DType.INT16), q(scale))
    assert_agrees(run_alone(kind, [x], [Wanted(DType.INT16, q(2.0**-15))]))


@pytest.mark.parametrize("seed", range(5))
def test_8_bit_elu_and_gelu_of_every_value(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for dtype in (DType.INT8, DType.UINT8):
        x = Given(every(dtype), any_quantization(rng, dtype))
        made = Wanted(dtype, any_quantization(rng, dtype, 1e-2))
        for approximate in (False, True):
            assert_agrees(run_alone("GELU", [x], [made], approximate=approximate))
        if dtype is DType.INT8:
            assert_agrees(run_alone("ELU", [x], [made]))


@pytest.mark.parametrize("kind", ["LOGISTIC", "TANH", "ELU", "GELU"])
def test_float_sigmoid_variants_agree_near_and_far_from_zero(kind: str) -> None:
    rng = np.random.default_rng(6)
    x = np.concatenate([rng.normal(0, 5, 500), [0, 100, -100, 1e30, -1e30]]).astype(np.float32)
    recorded = run_alone(kind, [Given(x)], [Wanted(DType.FLOAT32)])
    (got,), (wanted,) = recorded.run(), recorded.wanted
    np.testing.assert_allclose(got, wanted, 2e-6, 1e-30)


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("value", [2.5, -0.5, 9.0])
def test_gelu_of_a_scalar_agrees_with_litert(value: float, approximate: bool) -> None:
    x = Given(np.array(value, np.float32))
    assert_agrees(run_alone("GELU", [x], [Wanted(DType.FLOAT32)], approximate=approximate))


def test_approximate_gelu_agrees_with_litert() -> None:
    x = np.linspace(-8, 8, 300, dtype=np.float32)
    assert_agrees(run_alone("GELU", [Given(x)], [Wanted(DType.FLOAT32)], approximate=True))


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16])
def test_logistic_refuses_an_uncommon_output_scale(dtype: DType) -> None:
    x, y = (Operand(dtype, (4,), quantization=q(s)) for s in (0.1, 0.01))
    assert "another scale" in refusal("LOGISTIC", [x], [y])


def test_sigmoid_variants_refuse_unsupported_types() -> None:
    x = Operand(DType.UINT8, (4,), quantization=q(0.1))
    assert refusal("ELU", [x], [x]) == "ELU of (uint8) -> (uint8)"
    whole = Operand(DType.INT32, (4,))
    assert refusal("TANH", [whole], [whole]) == "TANH of (int32) -> (int32)"


@given(st.floats(-30.0, 26.0))
def test_erfc_agrees_with_the_mathematical_library(x: float) -> None:
    (got,) = complementary_error_function(np.array([x]))
    assert math.isclose(got, math.erfc(x), rel_tol=1e-12, abs_tol=1e-300)


def test_erfc_of_large_numbers_is_0_or_2() -> None:
    np.testing.assert_array_equal(
        np.round(complementary_error_function(np.array([40.0, -40.0, 1e300, -np.inf])), 12),
        [0, 2, 0, 2],
    )
