"""Comparisons, logic, selection, and elementwise functions of two or more operands."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import ShapeMismatch
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

COMPARISONS = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
TRUTH = [Wanted(DType.BOOL)]


@pytest.mark.parametrize("kind", COMPARISONS)
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT32, DType.INT64])
def test_comparisons_of_numbers_agree_with_litert(kind: str, dtype: DType) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 3, shape).astype(dtype.numpy) for shape in ((3, 4, 5), (4, 1)))
    assert_agrees(run_alone(kind, [Given(a), Given(b)], TRUTH))


@pytest.mark.parametrize("kind", COMPARISONS)
@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("seed", range(6))
def test_quantised_values_compare_at_their_own_scales(kind: str, dtype: DType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = any_quantization(rng, dtype, 1e-3, 0.8)
    b = any_quantization(rng, dtype, a.scale * 0.8, a.scale * 1.2)
    x, y = Given(uniform(rng, dtype, (3, 4, 5)), a), Given(uniform(rng, dtype, (5,)), b)
    assert_agrees(run_alone(kind, [x, y], TRUTH))


def test_scales_of_1_and_more_compare_as_the_real_values() -> None:
    x, y = (Operand(DType.UINT8, (3,), quantization=q(scale)) for scale in (2.0, 1.0))
    kernel = kernel_of("LESS", [x, y], [Operand(DType.BOOL, (3,))])
    (got,) = kernel([np.array([3, 4, 5], np.uint8), np.array([8, 8, 8], np.uint8)])
    np.testing.assert_array_equal(got, [True, False, False])


@pytest.mark.parametrize("kind", ["EQUAL", "NOT_EQUAL"])
def test_equality_of_int16_booleans_and_strings(kind: str) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-2, 2, 20).astype(np.int16) for _ in range(2))
    assert_agrees(run_alone("EQUAL", [Given(a), Given(b)], TRUTH))
    scaled = [Given(v, any_quantization(rng, DType.INT16)) for v in (a, b)]
    assert_agrees(run_alone(kind, scaled, TRUTH))
    assert_agrees(run_alone(kind, [Given(a > 0), Given(b > 0)], TRUTH))
    words = [np.array(w, object) for w in ([b"a", b"bc", b""], [b"a", b"b", b"c"])]
    assert_agrees(run_alone(kind, [Given(w) for w in words], TRUTH))


def test_logical_operations_agree_with_litert() -> None:
    rng = np.random.default_rng(2)
    a, b = (Given(uniform(rng, DType.BOOL, shape)) for shape in ((3, 4), (4,)))
    for kind in ("LOGICAL_AND", "LOGICAL_OR"):
        assert_agrees(run_alone(kind, [a, b], TRUTH))
    assert_agrees(run_alone("LOGICAL_NOT", [a], TRUTH))


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8, DType.INT32, DType.BOOL])
def test_select_agrees_with_litert(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    a, b, row = (Given(uniform(rng, dtype, shape)) for shape in ((3, 4), (3, 4), (4,)))
    for shape in ((3,), (), (3, 4)):
        condition = Given(uniform(rng, DType.BOOL, shape))
        assert_agrees(run_alone("SELECT", [condition, a, b], [Wanted(dtype)]))
    for broadcast in ((3, 1), (1,), (2, 3, 4)):
        condition = Given(uniform(rng, DType.BOOL, broadcast))
        assert_agrees(run_alone("SELECT_V2", [condition, a, row], [Wanted(dtype)]))


def test_select_of_two_shapes_fails() -> None:
    a = Given(np.ones((3, 4), np.float32))
    condition = Given(np.array([True, False, True]))
    kernel = run_alone("SELECT", [condition, a, a], [Wanted(DType.FLOAT32)]).kernel
    with pytest.raises(ShapeMismatch):
        kernel([np.ones(3, bool), np.ones((3, 4), np.float32), np.ones((1, 4), np.float32)])


def test_comparison_refuses_unsupported_types() -> None:
    word, truth = Operand(DType.STRING, (4,)), Operand(DType.BOOL, (4,))
    assert refusal("LESS", [word, word], [truth]) == "LESS of (string, string) -> (bool)"
    assert "bool" in refusal("GREATER", [truth, truth], [truth])


SHAPES = [((3, 4, 5), (3, 4, 5)), ((3, 4, 5), (5,)), ((4, 1), (3, 4, 5)), ((1,), (7,))]
NUMBERS = (DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64)
TYPES = {
    "MAXIMUM": NUMBERS,
    "MINIMUM": NUMBERS,
    "SQUARED_DIFFERENCE": (DType.FLOAT32, DType.INT32),
    "FLOOR_DIV": (DType.FLOAT32, DType.INT8, DType.INT16, DType.INT32),
    "FLOOR_MOD": (DType.FLOAT32, DType.INT8, DType.INT16, DType.INT32, DType.INT64),
    "BITWISE_XOR": (DType.INT8, DType.UINT8, DType.INT16, DType.INT32),
    "RIGHT_SHIFT": (DType.INT8, DType.UINT8, DType.INT16, DType.INT32),
}


def _numbers(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> NDArray:
    if dtype.is_float:
        return rng.normal(0, 4, shape).astype(np.float32)
    low = 0 if dtype is DType.UINT8 else -20
    return rng.integers(low, 20, shape).astype(dtype.numpy)


@pytest.mark.parametrize(("kind", "dtype"), [(k, d) for k, ds in TYPES.items() for d in ds])
@pytest.mark.parametrize("shapes", SHAPES)
def test_elementwise_pairs_of_numbers_agree_with_litert(
    kind: str, dtype: DType, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    rng = np.random.default_rng(0)
    a, b = (_numbers(rng, dtype, shape) for shape in shapes)
    b[b == 0] = 3
    assert_agrees(run_alone(kind, [Given(a), Given(b)], [Wanted(dtype)]))


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT32])
def test_pow_agrees_with_litert(dtype: DType) -> None:
    rng = np.random.default_rng(1)
    a, b = (np.abs(_numbers(rng, dtype, (3, 5))) for _ in range(2))
    assert_agrees(run_alone("POW", [Given(a), Given(b // 4)], [Wanted(dtype)]))


def test_atan2_agrees_with_litert() -> None:
    rng = np.random.default_rng(2)
    a, b = (_numbers(rng, DType.FLOAT32, (30,)) for _ in range(2))
    assert_agrees(run_alone("ATAN2", [Given(a), Given(b)], [Wanted(DType.FLOAT32)]))


@pytest.mark.parametrize("seed", range(15))
def test_quantised_squared_difference_agrees_with_litert(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = SHAPES[seed % len(SHAPES)]
    a, b = (any_quantization(rng, DType.INT8) for _ in range(2))
    size = max(a.scale, b.scale) ** 2
    made = any_quantization(rng, DType.INT8, 3 * size, 300 * size)
    x, y = (Given(uniform(rng, DType.INT8, s), z) for s, z in zip(shapes, (a, b), strict=True))
    assert_agrees(run_alone("SQUARED_DIFFERENCE", [x, y], [Wanted(DType.INT8, made)]))


def test_maximum_and_minimum_of_nan_are_the_second_operand() -> None:
    a = Given(np.array([np.nan, 1, np.nan], np.float32))
    b = Given(np.array([2, np.nan, np.nan], np.float32))
    for kind in ("MAXIMUM", "MINIMUM"):
        assert_agrees(run_alone(kind, [a, b], [Wanted(DType.FLOAT32)]))


def test_add_n_agrees_with_litert() -> None:
    rng = np.random.default_rng(3)
    for dtype in (DType.FLOAT32, DType.INT32):
        terms = [Given(_numbers(rng, dtype, (3, 4))) for _ in range(4)]
        assert_agrees(run_alone("ADD_N", terms, [Wanted(dtype)]))


@pytest.mark.parametrize("kind", ["FLOOR_DIV", "FLOOR_MOD"])
def test_floor_div_and_mod_of_integers_by_zero_fail(kind: str) -> None:
    ones = Given(np.ones(2, np.int32))
    kernel = run_alone(kind, [ones, ones], [Wanted(DType.INT32)]).kernel
    with pytest.raises(ZeroDivisionError):
        kernel([np.ones(2, np.int32), np.zeros(2, np.int32)])


def test_pow_of_integers_refuses_negative_exponents() -> None:
    ones = Given(np.ones(2, np.int32))
    kernel = run_alone("POW", [ones, ones], [Wanted(DType.INT32)]).kernel
    with pytest.raises(ValueError, match="negative"):
        kernel([np.ones(2, np.int32), np.full(2, -1, np.int32)])


def test_elementwise_pairs_refuse_unsupported_types() -> None:
    x = Operand(DType.INT64, (4,))
    assert refusal("FLOOR_DIV", [x, x], [x]) == "FLOOR_DIV of (int64, int64) -> (int64)"
    byte = Operand(DType.UINT8, (4,), quantization=q(0.1))
    assert "uint8" in refusal("SQUARED_DIFFERENCE", [byte, byte], [byte])


def test_add_n_stays_finite_at_every_step() -> None:
    parts = [np.array([v, 1], np.float32) for v in (-3e38, -3e38, 3e38)]
    recorded = run_alone("ADD_N", [Given(p) for p in parts], [Wanted(DType.FLOAT32)])
    np.testing.assert_array_equal(recorded.run()[0], recorded.wanted[0])
