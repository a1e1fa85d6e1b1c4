from typing import Any

import numpy as np
import pytest

from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray, Operand
from tests.support_litert import Given, Wanted, assert_agrees, kernel_of, run_alone, uniform

TYPES = (DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64, DType.BOOL)
WHOLE = Operand(DType.INT32, (None,))

STRIDED: list[tuple[list[int], list[int], list[int], dict[str, Any]]] = [
    ([0, 1, 2], [4, 5, 6], [2, 1, 3], {}),
    ([3, -1, 0], [0, -6, 6], [-1, -2, 1], {}),
    ([1, 0, 0], [2, 3, 4], [1, 1, 1], {"shrink_axis_mask": 1}),
    ([0, 2, 9], [9, 3, -9], [1, 1, -1], {"begin_mask": 1, "end_mask": 4}),
    ([0, 0], [2, 2], [1, 1], {"ellipsis_mask": 1}),
    ([0, 0, 1], [0, 0, 2], [1, 1, 1], {"new_axis_mask": 1}),
    ([1, 0, 0, 1], [3, 0, 0, 4], [1, 1, 1, 2], {"ellipsis_mask": 2, "new_axis_mask": 4}),
    ([-1, 0, -2], [0, 0, 0], [1, 1, 1], {"shrink_axis_mask": 7}),
    ([2], [3], [1], {"shrink_axis_mask": 1}),
    ([-10, -10, 1], [10, 10, 1], [1, 1, 1], {}),
    ([1, 1, 1], [2, 2, 2], [1, 1, 1], {"offset": True}),
    ([5, 0, 0], [-9, 5, 6], [-1, 1, 1], {"begin_mask": 1, "end_mask": 1}),
    ([0, 1], [0, 2], [1, 1], {"new_axis_mask": 1, "shrink_axis_mask": 2}),
]


def _x(dtype: DType, shape: tuple[int, ...] = (4, 5, 6)) -> NDArray:
    return uniform(np.random.default_rng(0), dtype, shape)


def _whole(values: list[int], dtype: DType = DType.INT32, *, constant: bool = True) -> Given:
    return Given(np.array(values, dtype.numpy), constant=constant)


@pytest.mark.parametrize("dtype", TYPES)
def test_slice_agrees_with_litert(dtype: DType) -> None:
    x, made = Given(_x(dtype)), [Wanted(dtype)]
    assert_agrees(run_alone("SLICE", [x, _whole([1, 0, 2]), _whole([2, -1, 3])], made))
    bounds = [_whole(v, DType.INT64, constant=False) for v in ([1, 0, 2], [2, 5, -1])]
    assert_agrees(run_alone("SLICE", [x, *bounds], made))


@pytest.mark.parametrize(
    ("begin", "size"), [([0, 0, 5], [1, 1, 2]), ([-1, 0, 0], [1, 1, 1]), ([0, 0], [1, 1])]
)
def test_slice_refuses_blocks_outside_the_operand(begin: list[int], size: list[int]) -> None:
    x = Operand(DType.FLOAT32, (4, 5, 6))
    kernel = kernel_of("SLICE", [x, WHOLE, WHOLE], [x])
    with pytest.raises(ShapeMismatch, match="SLICE"):
        kernel([_x(DType.FLOAT32), np.array(begin), np.array(size)])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("begin", "end", "strides", "masks"), STRIDED)
def test_strided_slice_agrees_with_litert(
    dtype: DType, begin: list[int], end: list[int], strides: list[int], masks: dict[str, Any]
) -> None:
    given = [Given(_x(dtype)), *(_whole(v) for v in (begin, end, strides))]
    assert_agrees(run_alone("STRIDED_SLICE", given, [Wanted(dtype)], b"", **masks))


@pytest.mark.parametrize(
    ("begin", "end", "strides"), [([0], [1], [0]), ([0] * 4, [1] * 4, [1] * 4), ([0], [1, 2], [1])]
)
def test_strided_slice_refuses_invalid_arguments(
    begin: list[int], end: list[int], strides: list[int]
) -> None:
    x = Operand(DType.FLOAT32, (4, 5, 6))
    kernel = kernel_of("STRIDED_SLICE", [x, WHOLE, WHOLE, WHOLE], [x])
    with pytest.raises(ShapeMismatch):
        kernel([_x(DType.FLOAT32), *(np.array(v) for v in (begin, end, strides))])


def test_strided_slice_refuses_an_element_outside_the_operand() -> None:
    x = Operand(DType.FLOAT32, (4, 5, 6))
    kernel = kernel_of("STRIDED_SLICE", [x, WHOLE, WHOLE, WHOLE], [x], shrink_axis_mask=1)
    with pytest.raises(IndexError):
        kernel([_x(DType.FLOAT32), np.array([4]), np.array([5]), np.array([1])])


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8, DType.INT32, DType.INT64])
@pytest.mark.parametrize("start", [[1, 2, 3], [-5, 9, 9]])
def test_dynamic_update_slice_clamps_its_start(dtype: DType, start: list[int]) -> None:
    update = Given(_x(dtype, (2, 3, 2)))
    given = [Given(_x(dtype)), update, _whole(start, constant=False)]
    assert_agrees(run_alone("DYNAMIC_UPDATE_SLICE", given, [Wanted(dtype)]))


def test_dynamic_update_slice_refuses_an_update_larger_than_the_operand() -> None:
    x = Operand(DType.FLOAT32, (2,))
    kernel = kernel_of("DYNAMIC_UPDATE_SLICE", [x, x, WHOLE], [x])
    with pytest.raises(ShapeMismatch, match="update"):
        kernel([np.ones(2, np.float32), np.ones(3, np.float32), np.array([0])])
