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
