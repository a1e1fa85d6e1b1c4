import numpy as np
import pytest

from penstock.ir import DType, NDArray, Operand
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
