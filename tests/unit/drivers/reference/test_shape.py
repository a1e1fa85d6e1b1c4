"""Shapes, arrays made from shapes, and conversions of element types."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray, Operand
from tests.support_litert import (
    Given,
    Wanted,
    assert_agrees,
    kernel_of,
    refusal,
    run_alone,
    uniform,
)

TYPES = (DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64, DType.BOOL)
WHOLE = Operand(DType.INT32, (None,))


def _x(dtype: DType, shape: tuple[int, ...] = (2, 3, 4)) -> NDArray:
    return uniform(np.random.default_rng(0), dtype, shape)


def _whole(*values: int) -> Given:
    return Given(np.array(values, np.int32), constant=True)


@pytest.mark.parametrize("dtype", TYPES)
def test_reshape_agrees_with_litert(dtype: DType) -> None:
    made, x = [Wanted(dtype)], Given(_x(dtype))
    assert_agrees(run_alone("RESHAPE", [x, _whole(4, -1)], made, new_shape=(4, 6)))
    at_run = Given(np.array([6, -1], np.int32))
    assert_agrees(run_alone("RESHAPE", [x, at_run], made, new_shape=(6, 4)))
    assert_agrees(run_alone("RESHAPE", [x], made, new_shape=(-1,)))
    assert_agrees(run_alone("EXPAND_DIMS", [x, _whole(-1)], made))
    assert_agrees(run_alone("EXPAND_DIMS", [x, _whole(1)], made))
    thin = Given(_x(dtype, (1, 1, 3, 1)))
    assert_agrees(run_alone("SQUEEZE", [thin], made, squeeze_dims=()))
    assert_agrees(run_alone("SQUEEZE", [thin], made, squeeze_dims=(-4, 1)))


def test_reshape_attribute_of_one_zero_is_a_scalar() -> None:
    x = Operand(DType.FLOAT32, (1, 1))
    kernel = kernel_of("RESHAPE", [x], [Operand(DType.FLOAT32, ())], new_shape=(0,))
    assert kernel([np.ones((1, 1), np.float32)])[0].shape == ()


@pytest.mark.parametrize("target", [(-1, -1), (5, -1), (-2, 3), (7,)])
def test_reshape_refuses_targets_that_do_not_fit(target: tuple[int, ...]) -> None:
    kernel = kernel_of("RESHAPE", [Operand(DType.FLOAT32, (6,)), WHOLE], [WHOLE])
    with pytest.raises(ValueError, match=r"target shape|does not have the elements"):
        kernel([np.ones(6, np.float32), np.array(target, np.int32)])


def test_reshape_of_empty_arrays_agrees_with_litert() -> None:
    kernel = kernel_of("RESHAPE", [Operand(DType.FLOAT32, (0, 3)), WHOLE], [WHOLE])
    (got,) = kernel([np.ones((0, 3), np.float32), np.array([0, -1], np.int32)])
    assert got.shape == (0, 3)


def test_squeeze_refuses_a_dimension_other_than_1() -> None:
    x = Operand(DType.FLOAT32, (2, 1))
    kernel = kernel_of("SQUEEZE", [x], [x], squeeze_dims=(0,))
    with pytest.raises(ValueError, match="size"):
        kernel([np.ones((2, 1), np.float32)])


@pytest.mark.parametrize("axis", [-4, 3])
def test_expand_dims_refuses_an_axis_out_of_range(axis: int) -> None:
    x = Operand(DType.FLOAT32, (2, 3))
    kernel = kernel_of("EXPAND_DIMS", [x, WHOLE], [x])
    with pytest.raises(ShapeMismatch, match="axis"):
        kernel([np.ones((2, 3), np.float32), np.array([axis], np.int32)])


@pytest.mark.parametrize("dtype", TYPES)
def test_shape_and_rank_agree_with_litert(dtype: DType) -> None:
    x = Given(_x(dtype))
    for out in (DType.INT32, DType.INT64):
        assert_agrees(run_alone("SHAPE", [x], [Wanted(out)], out_type=out.name))
    assert_agrees(run_alone("RANK", [x], [Wanted(DType.INT32)]))


@pytest.mark.parametrize("dtype", TYPES)
def test_broadcast_to_agrees_with_litert(dtype: DType) -> None:
    x = Given(_x(dtype, (2, 1, 4)))
    assert_agrees(run_alone("BROADCAST_TO", [x, _whole(5, 2, 3, 4)], [Wanted(dtype)]))


def test_broadcast_args_agrees_with_litert() -> None:
    b = Given(np.array([2, 1, 4], np.int32))
    assert_agrees(run_alone("BROADCAST_ARGS", [_whole(3, 1), b], [Wanted(DType.INT32)]))


def test_densify_returns_dense_constants() -> None:
    x = Operand(DType.FLOAT16, (2,))
    value = np.ones(2, np.float16)
    assert kernel_of("DENSIFY", [x], [x])([value])[0] is value


MADE = (*TYPES, DType.FLOAT16, DType.COMPLEX64, DType.UINT16, DType.UINT32)


@pytest.mark.parametrize("given", TYPES)
@pytest.mark.parametrize("made", MADE)
def test_cast_agrees_with_litert(given: DType, made: DType) -> None:
    x = Given(uniform(np.random.default_rng(0), given, (40,)))
    names = {"in_data_type": given.name, "out_data_type": made.name}
    assert_agrees(run_alone("CAST", [x], [Wanted(made)], b"", **names))


@pytest.mark.parametrize("made", MADE)
def test_floats_beyond_an_integer_type_saturate(made: DType) -> None:
    extremes = [300.7, -300.2, 1e20, -1e20, np.nan, np.inf, -np.inf, 2.5, -2.5]
    x = Given(np.array(extremes, np.float32))
    names = {"in_data_type": "FLOAT32", "out_data_type": made.name}
    assert_agrees(run_alone("CAST", [x], [Wanted(made)], b"", **names))


def test_a_cast_of_complex_numbers_keeps_the_real_part() -> None:
    x = Given(np.array([1 + 2j, -3.7 + 1j], np.complex64))
    for made in (DType.FLOAT32, DType.INT32):
        names = {"in_data_type": "COMPLEX64", "out_data_type": made.name}
        assert_agrees(run_alone("CAST", [x], [Wanted(made)], b"", **names))


def test_strings_do_not_cast() -> None:
    word, number = Operand(DType.STRING, (1,)), Operand(DType.INT32, (1,))
    assert refusal("CAST", [word], [number]) == "CAST of (string) -> (int32)"
    assert refusal("BITCAST", [word], [number]) == "BITCAST of (string) -> (int32)"


@pytest.mark.parametrize("given", TYPES[:-1])
@pytest.mark.parametrize("made", TYPES[:-1])
def test_bitcasts_change_the_last_dimension_with_the_width(given: DType, made: DType) -> None:
    ratio = (made.bits or 0) // (given.bits or 1)
    shape = (3, ratio) if ratio > 1 else (3, 2)
    x = Given(uniform(np.random.default_rng(1), given, shape))
    assert_agrees(run_alone("BITCAST", [x], [Wanted(made)]))


def test_a_bitcast_that_leaves_bytes_over_fails() -> None:
    kernel = kernel_of("BITCAST", [Operand(DType.INT8, (8,))], [Operand(DType.INT32, ())])
    with pytest.raises(ShapeMismatch):
        kernel([np.ones(8, np.int8)])


@pytest.mark.parametrize("dtype", TYPES)
def test_fill_agrees_with_litert(dtype: DType) -> None:
    value = Given(uniform(np.random.default_rng(2), dtype, ()))
    target = Given(np.array([2, 3], np.int32), constant=True)
    assert_agrees(run_alone("FILL", [target, value], [Wanted(dtype)]))


@pytest.mark.parametrize("target", [(-1, 2), (2**20, 2**20)])
def test_fills_of_impossible_shapes_fail_before_they_allocate(target: tuple[int, ...]) -> None:
    kernel = kernel_of(
        "FILL", [Operand(DType.INT32, (2,)), Operand(DType.INT8, ())], [Operand(DType.INT8, None)]
    )
    with pytest.raises(ShapeMismatch, match="FILL"):
        kernel([np.array(target, np.int32), np.array(1, np.int8)])


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT32, DType.INT64])
def test_zeros_like_agrees_with_litert(dtype: DType) -> None:
    x = Given(uniform(np.random.default_rng(3), dtype, (2, 3)))
    assert_agrees(run_alone("ZEROS_LIKE", [x], [Wanted(dtype)]))


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT32, DType.INT64])
@pytest.mark.parametrize("terms", [(0, 10, 3), (10, 0, -3), (1, 2, 5), (0, 9, 3)])
def test_range_agrees_with_litert(dtype: DType, terms: tuple[int, int, int]) -> None:
    given = [Given(np.array(t, dtype.numpy)) for t in terms]
    assert_agrees(run_alone("RANGE", given, [Wanted(dtype)]))


def test_a_float_range_adds_up_as_float32() -> None:
    given = [Given(np.array(t, np.float32)) for t in (0.1, 30.7, 0.1)]
    assert_agrees(run_alone("RANGE", given, [Wanted(DType.FLOAT32)]), 0.0)


@pytest.mark.parametrize("terms", [(0, 10, -1), (10, 0, 1), (0, 10, 0), (0, 2**40, 1)])
def test_range_that_does_not_end_fails(terms: tuple[int, int, int]) -> None:
    scalar = Operand(DType.INT64, ())
    kernel = kernel_of("RANGE", [scalar] * 3, [Operand(DType.INT64, (None,))])
    with pytest.raises(ShapeMismatch, match="RANGE"):
        kernel([np.array(t, np.int64) for t in terms])


def test_range_may_be_empty() -> None:
    scalar = Operand(DType.INT32, ())
    kernel = kernel_of("RANGE", [scalar] * 3, [Operand(DType.INT32, (None,))])
    assert kernel([np.array(t, np.int32) for t in (5, 5, 1)])[0].shape == (0,)
