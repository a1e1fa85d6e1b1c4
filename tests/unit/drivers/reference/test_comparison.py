import numpy as np
import pytest

from penstock.errors import ShapeMismatch
from penstock.ir import DType, Operand
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
