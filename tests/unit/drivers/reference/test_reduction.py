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

AXES = [(0,), (1, 2), (2, 1), (-1,), (0, 1, 2, 3), (1, 1), (3, 0)]
QUANTIZED = (DType.INT8, DType.UINT8, DType.INT16)
SHAPE = (2, 5, 7, 6)


def _whole(*values: int) -> Given:
    return Given(np.array(values, np.int32), constant=True)


def _numbers(dtype: DType, shape: tuple[int, ...] = SHAPE) -> NDArray:
    rng = np.random.default_rng(0)
    if dtype.is_float:
        return rng.normal(0, 4, shape).astype(np.float32)
    return rng.integers(-20, 20, shape).astype(dtype.numpy)


@pytest.mark.parametrize("kind", ["MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN"])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT32, DType.INT64])
@pytest.mark.parametrize("axes", AXES)
def test_reductions_agree_with_litert(kind: str, dtype: DType, axes: tuple[int, ...]) -> None:
    x = Given(_numbers(dtype))
    for keep in (True, False):
        recorded = run_alone(kind, [x, _whole(*axes)], [Wanted(dtype)], keep_dims=keep)
        assert_agrees(recorded, 2e-5)  # sums of 420 float32 terms, in another order


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT32, DType.INT64])
def test_reduce_prod_agrees_with_litert(dtype: DType) -> None:
    x = Given(_numbers(dtype, (3, 4, 5)))
    for axes in ((0,), (1, 2), (-1,)):
        recorded = run_alone("REDUCE_PROD", [x, _whole(*axes)], [Wanted(dtype)], keep_dims=False)
        assert_agrees(recorded)


@pytest.mark.parametrize("axes", AXES)
def test_reduce_any_and_all_agree_with_litert(axes: tuple[int, ...]) -> None:
    rare = np.random.default_rng(1).random(SHAPE) < 0.1
    for kind, x in (("REDUCE_ANY", rare), ("REDUCE_ALL", ~rare)):
        recorded = run_alone(kind, [Given(x), _whole(*axes)], [Wanted(DType.BOOL)], keep_dims=True)
        assert_agrees(recorded)


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("seed", range(3))
def test_quantised_mean_maximum_and_minimum_agree_with_litert(
    dtype: DType, axes: tuple[int, ...], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    given = any_quantization(rng, dtype)
    made = any_quantization(rng, dtype, given.scale * 0.05, given.scale * 20)
    x = [Given(uniform(rng, dtype, SHAPE), given), _whole(*axes)]
    assert_agrees(run_alone("MEAN", x, [Wanted(dtype, made)], keep_dims=seed == 0))
    for kind in ("REDUCE_MAX", "REDUCE_MIN"):
        assert_agrees(run_alone(kind, x, [Wanted(dtype, given)], keep_dims=seed == 0))


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("seed", range(10))
def test_quantised_mean_of_any_count_and_scale_agrees_with_litert(dtype: DType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    given = any_quantization(rng, dtype)
    made = any_quantization(rng, dtype, given.scale * 1e-2, given.scale * 1e4)
    x = Given(uniform(rng, dtype, (1, int(rng.integers(1, 3000)), 2)), given)
    assert_agrees(run_alone("MEAN", [x, _whole(1)], [Wanted(dtype, made)], keep_dims=True))


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("seed", range(3))
def test_uint8_sum_agrees_with_litert(axes: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    given = any_quantization(rng, DType.UINT8)
    made = any_quantization(rng, DType.UINT8, given.scale, given.scale * 500)
    x = [Given(uniform(rng, DType.UINT8, SHAPE), given), _whole(*axes)]
    assert_agrees(run_alone("SUM", x, [Wanted(DType.UINT8, made)], keep_dims=False))


def test_int8_sums_are_those_of_the_real_values() -> None:
    x = Operand(DType.INT8, (3, 4), quantization=q(0.5, 3))
    y = Operand(DType.INT8, (3,), quantization=q(2.0, -7))
    kernel = kernel_of("SUM", [x, Operand(DType.INT32, (1,))], [y])
    stored = np.random.default_rng(2).integers(-60, 60, (3, 4)).astype(np.int8)
    (got,) = kernel([stored, np.array([1], np.int32)])
    real = 0.5 * (stored.astype(np.float64) - 3).sum(axis=1)
    np.testing.assert_allclose(2.0 * (got.astype(np.float64) + 7), real, atol=1.0)


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16])
@pytest.mark.parametrize("seed", range(6))
def test_quantised_reduce_prod_agrees_with_litert(dtype: DType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = Given(uniform(rng, dtype, (2, 2, 3)), any_quantization(rng, dtype))
    made = Wanted(dtype, any_quantization(rng, dtype, 0.05, 2.0))
    assert_agrees(run_alone("REDUCE_PROD", [x, _whole(0, 2)], [made], keep_dims=False))


def test_mean_of_no_elements_agrees_with_litert() -> None:
    axes = Operand(DType.INT32, (1,))
    x = Operand(DType.FLOAT32, (2, 0))
    (got,) = kernel_of("MEAN", [x, axes], [x])([np.ones((2, 0), np.float32), np.array([1])])
    assert np.isnan(got).all()
    whole = Operand(DType.INT32, (2, 0))
    (got,) = kernel_of("MEAN", [whole, axes], [whole])([np.ones((2, 0), np.int32), np.array([1])])
    np.testing.assert_array_equal(got, [0, 0])


def test_reduce_max_and_min_ignore_nan() -> None:
    x = np.array([[1, np.nan, 3], [-np.inf, -np.inf, -np.inf]], np.float32)
    for kind in ("REDUCE_MAX", "REDUCE_MIN"):
        for axes in ((1,), (0, 1)):
            recorded = run_alone(kind, [Given(x), _whole(*axes)], [Wanted(DType.FLOAT32)])
            np.testing.assert_array_equal(recorded.run()[0], recorded.wanted[0])


@pytest.mark.parametrize("kind", ["ARG_MAX", "ARG_MIN"])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT32])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_arg_max_and_min_agree_with_litert(kind: str, dtype: DType, axis: int) -> None:
    x = Given(np.random.default_rng(3).integers(0, 9, (3, 9, 8)).astype(dtype.numpy))
    for index in (DType.INT32, DType.INT64):
        recorded = run_alone(kind, [x, _whole(axis)], [Wanted(index)], output_type=index.name)
        assert_agrees(recorded)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT32, DType.INT64])
@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("axis", [0, -1])
def test_cumsum_agrees_with_litert(dtype: DType, exclusive: bool, reverse: bool, axis: int) -> None:
    recorded = run_alone(
        "CUMSUM",
        [Given(_numbers(dtype, (3, 4, 5))), _whole(axis)],
        [Wanted(dtype)],
        exclusive=exclusive,
        reverse=reverse,
    )
    assert_agrees(recorded)


def test_reduction_refuses_an_axis_out_of_range() -> None:
    x = Operand(DType.FLOAT32, (2, 3))
    kernel = kernel_of("SUM", [x, Operand(DType.INT32, (1,))], [x])
    with pytest.raises(ShapeMismatch, match="axis 2"):
        kernel([np.ones((2, 3), np.float32), np.array([2])])


def test_reduction_refusals_name_the_reason() -> None:
    axes = Operand(DType.INT32, (1,))
    x, y = (Operand(DType.INT8, (2, 3), quantization=q(s)) for s in (0.1, 0.2))
    assert "another scale" in refusal("REDUCE_MAX", [x, axes], [y])
    assert "bool" in refusal("REDUCE_ANY", [x, axes], [x])
    byte = Operand(DType.UINT8, (2, 3), quantization=q(0.1))
    assert (
        refusal("REDUCE_PROD", [byte, axes], [byte]) == "REDUCE_PROD of (uint8, int32) -> (uint8)"
    )


@pytest.mark.parametrize("kind", ["ARG_MAX", "ARG_MIN"])
def test_arg_max_and_min_ignore_nan(kind: str) -> None:
    nan = np.nan
    x = np.array([[1, nan, 3], [nan, 5, 2], [4, 0, nan]], np.float32)
    given = [Given(x), Given(np.array(1, np.int32), constant=True)]
    assert_agrees(run_alone(kind, given, [Wanted(DType.INT32)], output_type="INT32"))


def test_quantised_reduction_of_nan_is_the_least_value() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.3], np.float32)
    recorded = run_alone(
        "FAKE_QUANT", [Given(x)], [Wanted(DType.FLOAT32)], min=-1.8, max=3.0, num_bits=5
    )
    assert_agrees(recorded)
