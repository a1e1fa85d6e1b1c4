"""Operands joined, split and sliced."""

from __future__ import annotations

from typing import Any

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

TYPES = (DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16, DType.INT32)
WHOLE = Operand(DType.INT32, (None,))


def _x(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> NDArray:
    return uniform(np.random.default_rng(seed), dtype, shape)


def _whole(*values: int) -> Given:
    return Given(np.array(values, np.int32), constant=True)


@pytest.mark.parametrize("dtype", [*TYPES, DType.INT64, DType.BOOL])
def test_concatenation_agrees_with_litert(dtype: DType) -> None:
    parts = [Given(_x(dtype, (4, n), n)) for n in (3, 2, 1)]
    assert_agrees(run_alone("CONCATENATION", parts, [Wanted(dtype)], axis=-1))
    twice = [parts[0], Given(_x(dtype, (2, 3)), constant=True)]
    assert_agrees(run_alone("CONCATENATION", twice, [Wanted(dtype)], axis=0))


@pytest.mark.parametrize("seed", range(15))
def test_concatenation_rescales_uint8_inputs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = any_quantization(rng, DType.UINT8)
    others = [any_quantization(rng, DType.UINT8), made, any_quantization(rng, DType.UINT8)]
    parts = [Given(uniform(rng, DType.UINT8, (2, 30)), o) for o in others]
    assert_agrees(run_alone("CONCATENATION", parts, [Wanted(DType.UINT8, made)], axis=1))


def test_concatenation_refuses_other_int8_scales_and_activations() -> None:
    x, y = (Operand(DType.INT8, (2,), quantization=q(s)) for s in (0.1, 0.2))
    assert "another scale" in refusal("CONCATENATION", [x, y], [y])
    assert "RELU" in refusal("CONCATENATION", [x], [x], fused_activation_function="RELU")


@pytest.mark.parametrize("dtype", TYPES)
def test_pack_and_unpack_agree_with_litert(dtype: DType) -> None:
    pair = [Given(_x(dtype, (4, 3), seed)) for seed in (1, 2)]
    for axis in (0, 1, -1):
        assert_agrees(run_alone("PACK", pair, [Wanted(dtype)], values_count=2, axis=axis))
    scalars = [Given(_x(dtype, (), seed)) for seed in (1, 2)]
    assert_agrees(run_alone("PACK", scalars, [Wanted(dtype)], values_count=2, axis=0))
    assert_agrees(run_alone("UNPACK", pair[:1], [Wanted(dtype)] * 3, num=3, axis=1))
    assert_agrees(run_alone("UNPACK", pair[:1], [Wanted(dtype)] * 4, num=4, axis=-2))


@pytest.mark.parametrize("dtype", [*TYPES, DType.INT64])
def test_split_agrees_with_litert(dtype: DType) -> None:
    x, made = Given(_x(dtype, (4, 6))), Wanted(dtype)
    at_run = Given(np.array(-1, np.int32))
    assert_agrees(run_alone("SPLIT", [_whole(1), x], [made] * 3, num_splits=3))
    assert_agrees(run_alone("SPLIT", [at_run, x], [made] * 2, num_splits=2))
    sizes = [_whole(1, -1, 2), _whole(1)]
    assert_agrees(run_alone("SPLIT_V", [x, *sizes], [made] * 3, num_splits=3))
    sizes = [_whole(1, 3), _whole(0)]
    assert_agrees(run_alone("SPLIT_V", [x, *sizes], [made] * 2, num_splits=2))


def test_split_refuses_parts_that_do_not_fit() -> None:
    x = Operand(DType.FLOAT32, (4, 6))
    value = np.ones((4, 6), np.float32)
    with pytest.raises(ShapeMismatch, match="SPLIT"):
        kernel_of("SPLIT", [WHOLE, x], [x] * 4, num_splits=4)([np.array([1]), value])
    with pytest.raises(ShapeMismatch, match="UNPACK"):
        kernel_of("UNPACK", [x], [x] * 2, num=2, axis=0)([value])
    split_v = kernel_of("SPLIT_V", [x, WHOLE, WHOLE], [x] * 2, num_splits=2)
    for sizes in ([1, 2], [-1, -1], [9, -1], [1, 2, 3]):
        with pytest.raises(ShapeMismatch, match="SPLIT_V"):
            split_v([value, np.array(sizes), np.array([1])])


def test_concatenation_keeps_stored_int16_values() -> None:
    a, b = np.array([10, -20], np.int16), np.array([7], np.int16)
    given = [Given(a, q(0.1)), Given(b, q(0.2))]
    recorded = run_alone("CONCATENATION", given, [Wanted(DType.INT16, q(0.4))], axis=0)
    assert_agrees(recorded)
    np.testing.assert_array_equal(recorded.run()[0], [10, -20, 7])


SLICED_TYPES = (
    DType.FLOAT32,
    DType.INT8,
    DType.UINT8,
    DType.INT16,
    DType.INT32,
    DType.INT64,
    DType.BOOL,
)

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


def _operand(dtype: DType, shape: tuple[int, ...] = (4, 5, 6)) -> NDArray:
    return uniform(np.random.default_rng(0), dtype, shape)


def _whole_slice(values: list[int], dtype: DType = DType.INT32, *, constant: bool = True) -> Given:
    return Given(np.array(values, dtype.numpy), constant=constant)


@pytest.mark.parametrize("dtype", SLICED_TYPES)
def test_slice_agrees_with_litert(dtype: DType) -> None:
    x, made = Given(_operand(dtype)), [Wanted(dtype)]
    assert_agrees(run_alone("SLICE", [x, _whole_slice([1, 0, 2]), _whole_slice([2, -1, 3])], made))
    bounds = [_whole_slice(v, DType.INT64, constant=False) for v in ([1, 0, 2], [2, 5, -1])]
    assert_agrees(run_alone("SLICE", [x, *bounds], made))


@pytest.mark.parametrize(
    ("begin", "size"), [([0, 0, 5], [1, 1, 2]), ([-1, 0, 0], [1, 1, 1]), ([0, 0], [1, 1])]
)
def test_slice_refuses_blocks_outside_the_operand(begin: list[int], size: list[int]) -> None:
    x = Operand(DType.FLOAT32, (4, 5, 6))
    kernel = kernel_of("SLICE", [x, WHOLE, WHOLE], [x])
    with pytest.raises(ShapeMismatch, match="SLICE"):
        kernel([_operand(DType.FLOAT32), np.array(begin), np.array(size)])


@pytest.mark.parametrize("dtype", SLICED_TYPES)
@pytest.mark.parametrize(("begin", "end", "strides", "masks"), STRIDED)
def test_strided_slice_agrees_with_litert(
    dtype: DType, begin: list[int], end: list[int], strides: list[int], masks: dict[str, Any]
) -> None:
    given = [Given(_operand(dtype)), *(_whole_slice(v) for v in (begin, end, strides))]
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
        kernel([_operand(DType.FLOAT32), *(np.array(v) for v in (begin, end, strides))])


def test_strided_slice_refuses_an_element_outside_the_operand() -> None:
    x = Operand(DType.FLOAT32, (4, 5, 6))
    kernel = kernel_of("STRIDED_SLICE", [x, WHOLE, WHOLE, WHOLE], [x], shrink_axis_mask=1)
    with pytest.raises(IndexError):
        kernel([_operand(DType.FLOAT32), np.array([4]), np.array([5]), np.array([1])])


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8, DType.INT32, DType.INT64])
@pytest.mark.parametrize("start", [[1, 2, 3], [-5, 9, 9]])
def test_dynamic_update_slice_clamps_its_start(dtype: DType, start: list[int]) -> None:
    update = Given(_operand(dtype, (2, 3, 2)))
    given = [Given(_operand(dtype)), update, _whole_slice(start, constant=False)]
    assert_agrees(run_alone("DYNAMIC_UPDATE_SLICE", given, [Wanted(dtype)]))


def test_dynamic_update_slice_refuses_an_update_larger_than_the_operand() -> None:
    x = Operand(DType.FLOAT32, (2,))
    kernel = kernel_of("DYNAMIC_UPDATE_SLICE", [x, x, WHOLE], [x])
    with pytest.raises(ShapeMismatch, match="update"):
        kernel([np.ones(2, np.float32), np.ones(3, np.float32), np.array([0])])
