import numpy as np
import pytest

from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray, Operand
from tests.support_litert import Given, Wanted, assert_agrees, kernel_of, run_alone, uniform

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
