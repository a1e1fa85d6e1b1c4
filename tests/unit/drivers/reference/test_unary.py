"""Functions of one operand, element by element, and Fourier transforms."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import ShapeMismatch
from penstock.ir import DType, Operand
from tests.support_litert import (
    Given,
    Wanted,
    any_quantization,
    assert_agrees,
    every,
    kernel_of,
    q,
    refusal,
    run_alone,
)

QUANTIZED = (DType.INT8, DType.INT16)


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("kind", ["ABS", "EXP", "LOG"])
@pytest.mark.parametrize("seed", range(8))
def test_quantised_unary_functions_agree_for_every_value(
    kind: str, dtype: DType, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    given = any_quantization(rng, dtype)
    made = given if seed == 0 else any_quantization(rng, dtype, 1e-3, 10.0)
    assert_agrees(run_alone(kind, [Given(every(dtype), given)], [Wanted(dtype, made)]))


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("seed", range(8))
def test_quantised_rsqrt_of_every_value_that_is_not_negative(dtype: DType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    given, made = any_quantization(rng, dtype), any_quantization(rng, dtype)
    x = every(dtype)
    x = x[x >= given.zero_point]
    assert_agrees(run_alone("RSQRT", [Given(x, given)], [Wanted(dtype, made)]))


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_quantised_rsqrt_of_a_negative_value_fails(dtype: DType) -> None:
    x = np.array([1, 2], dtype.numpy)
    kernel = run_alone("RSQRT", [Given(x, q(0.1))], [Wanted(dtype, q(0.1))]).kernel
    with pytest.raises(ShapeMismatch, match="negative"):
        kernel([np.array([1, -1], dtype.numpy)])


@pytest.mark.parametrize(
    "kind", ["EXP", "SQUARE", "FLOOR", "CEIL", "ROUND", "ABS", "NEG", "SIGN", "SIN", "COS"]
)
def test_float_unary_functions_agree_with_litert(kind: str) -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(0, 20, 500), [0, 0.5, 1.5, 2.5, -0.5, -1.5]])
    recorded = run_alone(kind, [Given(x.astype(np.float32))], [Wanted(DType.FLOAT32)])
    np.testing.assert_allclose(recorded.run()[0], recorded.wanted[0], 1e-6, 1e-7)


@pytest.mark.parametrize("kind", ["LOG", "SQRT", "RSQRT"])
def test_float_unary_functions_of_positive_numbers_agree_with_litert(kind: str) -> None:
    x = np.append(np.geomspace(1e-30, 1e30, 300), 0).astype(np.float32)
    recorded = run_alone(kind, [Given(x)], [Wanted(DType.FLOAT32)])
    np.testing.assert_allclose(recorded.run()[0], recorded.wanted[0], 1e-6, 1e-7)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("NEG", DType.INT8),
        ("NEG", DType.INT16),
        ("NEG", DType.INT32),
        ("NEG", DType.INT64),
        ("ABS", DType.INT16),
        ("ABS", DType.INT32),
        ("SIGN", DType.INT32),
    ],
)
def test_integer_unary_functions_agree_with_litert(kind: str, dtype: DType) -> None:
    x = np.arange(-5, 6).astype(dtype.numpy)
    assert_agrees(run_alone(kind, [Given(x)], [Wanted(dtype)]))


def test_unary_functions_refuse_unsupported_types() -> None:
    x = Operand(DType.INT8, (4,), quantization=q(0.1))
    assert refusal("CEIL", [x], [x]) == "CEIL of (int8) -> (int8)"
    assert refusal("SIN", [x], [x]) == "SIN of (int8) -> (int8)"
    whole = Operand(DType.INT64, (4,))
    assert refusal("ABS", [whole], [whole]) == "ABS of (int64) -> (int64)"


@pytest.mark.parametrize(("dtype", "zero_point"), [(DType.INT8, -128), (DType.INT16, 0)])
def test_quantised_square_roots_are_rounded_down(dtype: DType, zero_point: int) -> None:
    x = np.arange(zero_point, np.iinfo(dtype.numpy).max + 1).astype(dtype.numpy)
    made = Wanted(dtype, q(0.0126, -120 if dtype is DType.INT8 else 0))
    assert_agrees(run_alone("SQRT", [Given(x, q(0.3, zero_point))], [made]))


@pytest.mark.parametrize("kind", ["SIN", "COS", "FLOOR", "ROUND", "NEG"])
def test_short_floats_are_rounded_from_float32(kind: str) -> None:
    x = np.linspace(-4, 4, 101).astype(np.float16)
    recorded = run_alone(kind, [Given(x)], [Wanted(DType.FLOAT16)])
    (got,) = recorded.run()
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, recorded.wanted[0], 1e-3)


@pytest.mark.parametrize("lengths", [(8, 8), (16, 16), (4, 32), (1, 2)])
def test_rfft2d_of_cropped_and_padded_images_agrees_with_litert(lengths: tuple[int, int]) -> None:
    image = Given(np.random.default_rng(0).normal(0, 1, (2, 3, 16, 12)).astype(np.float32))
    size = Given(np.array(lengths, np.int32), constant=True)
    assert_agrees(run_alone("RFFT2D", [image, size], [Wanted(DType.COMPLEX64)]))


@pytest.mark.parametrize("kind", ["COMPLEX_ABS", "REAL", "IMAG"])
def test_real_imag_and_complex_abs_agree_with_litert(kind: str) -> None:
    rng = np.random.default_rng(1)
    x = (rng.normal(0, 1, (3, 5)) + 1j * rng.normal(0, 1, (3, 5))).astype(np.complex64)
    assert_agrees(run_alone(kind, [Given(x)], [Wanted(DType.FLOAT32)]))


def test_real_imag_and_complex_abs_of_a_scalar_are_scalars() -> None:
    x = Operand(DType.COMPLEX64, ())
    (got,) = kernel_of("REAL", [x], [Operand(DType.FLOAT32, ())])([np.array(2 + 1j, np.complex64)])
    assert got.shape == ()
