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
NUMBERS = TYPES[:-1]
WHOLE = Operand(DType.INT32, (None,))


def _x(dtype: DType, shape: tuple[int, ...] = (4, 5, 6), seed: int = 0) -> NDArray:
    return uniform(np.random.default_rng(seed), dtype, shape)


def _few(dtype: DType, shape: tuple[int, ...]) -> NDArray:
    """Values of which many are equal."""
    return np.random.default_rng(1).integers(0, 6, shape).astype(dtype.numpy)


def _at_run(values: object, dtype: DType = DType.INT32) -> Given:
    return Given(np.array(values, dtype.numpy))


def _whole(*values: int) -> Given:
    return Given(np.array(values, np.int32), constant=True)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("indices", "axis"), [([[0, 3], [2, 2]], 0), ([4, 0, 1], 1), (2, -1)])
def test_gather_agrees_with_litert(dtype: DType, indices: object, axis: int) -> None:
    given = [Given(_x(dtype)), _at_run(indices)]
    assert_agrees(run_alone("GATHER", given, [Wanted(dtype)], axis=axis))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("shape", "axis", "batches"),
    [((4, 3), 1, 1), ((4, 3), 2, 1), ((4, 5, 2), 2, 2), ((4, 2), 2, -1)],
)
def test_gather_with_batch_dimensions_agrees_with_litert(
    dtype: DType, shape: tuple[int, ...], axis: int, batches: int
) -> None:
    indices = np.random.default_rng(2).integers(0, 5, shape)
    given = [Given(_x(dtype)), _at_run(indices)]
    recorded = run_alone("GATHER", given, [Wanted(dtype)], axis=axis, batch_dims=batches)
    assert_agrees(recorded)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("indices", [[[0, 3], [2, 2]], [[[0], [3]], [[2], [2]]], [1, 2, 3]])
def test_gather_nd_agrees_with_litert(dtype: DType, indices: object) -> None:
    assert_agrees(run_alone("GATHER_ND", [Given(_x(dtype)), _at_run(indices)], [Wanted(dtype)]))


@pytest.mark.parametrize("dtype", [d for d in TYPES if d is not DType.INT16])
def test_scatter_nd_adds_updates_at_equal_indices(dtype: DType) -> None:
    rows = [_at_run([[0], [3], [0]]), Given(_x(dtype, (3, 2))), _whole(5, 2)]
    assert_agrees(run_alone("SCATTER_ND", rows, [Wanted(dtype)]))
    places = [_at_run([[[0, 1], [3, 0]]]), Given(_x(dtype, (1, 2))), _at_run([5, 2])]
    assert_agrees(run_alone("SCATTER_ND", places, [Wanted(dtype)]))


@pytest.mark.parametrize("index", [-1, 4])
def test_gather_and_scatter_refuse_indexes_out_of_range(index: int) -> None:
    x = Operand(DType.FLOAT32, (4, 5))
    value, at = np.ones((4, 5), np.float32), np.array([[index]], np.int32)
    for kind in ("GATHER", "GATHER_ND"):
        with pytest.raises(IndexError, match=r"0\.\.3"):
            kernel_of(kind, [x, WHOLE], [x])([value, at])
    with pytest.raises(IndexError, match=r"0\.\.3"):
        kernel_of("SCATTER_ND", [WHOLE, x, WHOLE], [x])([at, value[:1], np.array([4, 5])])


def test_gather_and_scatter_refuse_wrong_shapes() -> None:
    x = Operand(DType.FLOAT32, (4, 5))
    value = np.ones((4, 5), np.float32)
    with pytest.raises(ShapeMismatch, match="indexes"):
        kernel_of("GATHER_ND", [x, WHOLE], [x])([value, np.zeros((2, 3), np.int32)])
    scatter = kernel_of("SCATTER_ND", [WHOLE, x, WHOLE], [x])
    with pytest.raises(ShapeMismatch, match="updates"):
        scatter([np.array([[0]]), value, np.array([4, 5])])
    with pytest.raises(ShapeMismatch, match="scattering"):
        scatter([np.array([[0]]), value[:1], np.array([2**20, 2**20])])
    with pytest.raises(ShapeMismatch, match="batch"):
        kernel_of("GATHER", [x, WHOLE], [x], batch_dims=1, axis=1)([value, np.zeros((3, 2), int)])


@pytest.mark.parametrize("dtype", [d for d in TYPES if d is not DType.INT16])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot_agrees_with_litert(dtype: DType, axis: int) -> None:
    scalars = [Given(_x(dtype, (), seed)) for seed in (1, 2)]
    given = [_at_run([[0, 3, -1], [9, 1, 2]]), _whole(4), *scalars]
    assert_agrees(run_alone("ONE_HOT", given, [Wanted(dtype)], axis=axis))


@pytest.mark.parametrize("dtype", [d for d in TYPES if d is not DType.INT16])
def test_where_agrees_with_litert(dtype: DType) -> None:
    assert_agrees(run_alone("WHERE", [Given(_few(dtype, (4, 5)))], [Wanted(DType.INT64)]))


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("index", [DType.INT32, DType.INT64])
def test_unique_agrees_with_litert(dtype: DType, index: DType) -> None:
    made = [Wanted(dtype), Wanted(index)]
    x = Given(_few(dtype, (20,)))
    assert_agrees(run_alone("UNIQUE", [x], made, idx_out_type=index.name))


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("k", [1, 7, 30])
def test_topk_keeps_the_order_of_equal_elements(dtype: DType, k: int) -> None:
    made = [Wanted(dtype), Wanted(DType.INT32)]
    for x in (_few(dtype, (3, 30)), _x(dtype, (3, 30))):
        assert_agrees(run_alone("TOPK_V2", [Given(x), _whole(k)], made))


def test_topk_refuses_more_elements_than_there_are() -> None:
    x = Operand(DType.FLOAT32, (4,))
    with pytest.raises(ShapeMismatch, match="largest"):
        kernel_of("TOPK_V2", [x, WHOLE], [x, WHOLE])([np.ones(4, np.float32), np.array([5])])


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT32])
def test_sparse_to_dense_agrees_with_litert(dtype: DType) -> None:
    default = Given(_x(dtype, ()))
    vectors = [_at_run([[0, 1], [2, 3]]), _whole(3, 4), Given(_x(dtype, (2,))), default]
    assert_agrees(run_alone("SPARSE_TO_DENSE", vectors, [Wanted(dtype)]))
    places = [_at_run([1, 3]), _whole(5), Given(_x(dtype, ())), default]
    assert_agrees(run_alone("SPARSE_TO_DENSE", places, [Wanted(dtype)]))


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT32])
def test_segment_reductions_agree_with_litert(dtype: DType) -> None:
    x = np.random.default_rng(3).integers(-9, 9, (5, 3)).astype(dtype.numpy)
    sorted_ids = _at_run([0, 0, 1, 1, 2])
    assert_agrees(run_alone("SEGMENT_SUM", [Given(x), sorted_ids], [Wanted(dtype)]))
    for name in ("SUM", "PROD", "MAX", "MIN"):
        rows = [Given(x), _at_run([0, 3, 2, -1, 3]), _whole(5)]
        assert_agrees(run_alone(f"UNSORTED_SEGMENT_{name}", rows, [Wanted(dtype)]))
        cells = [Given(x), _at_run(np.random.default_rng(4).integers(-1, 4, (5, 3))), _whole(4)]
        assert_agrees(run_alone(f"UNSORTED_SEGMENT_{name}", cells, [Wanted(dtype)]))


def test_segment_sum_refuses_decreasing_ids() -> None:
    x = Operand(DType.FLOAT32, (2, 1))
    with pytest.raises(ShapeMismatch, match="segment"):
        kernel_of("SEGMENT_SUM", [x, WHOLE], [x])([np.ones((2, 1), np.float32), np.array([1, 0])])


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT32, DType.INT64])
def test_bucketize_agrees_with_litert(dtype: DType) -> None:
    x = Given(np.arange(-9, 10).astype(dtype.numpy))
    bounds = (-5.0, 0.0, 3.0, 7.0)
    assert_agrees(run_alone("BUCKETIZE", [x], [Wanted(DType.INT32)], boundaries=bounds))


def test_scatter_nd_refuses_strings() -> None:
    word = Operand(DType.STRING, (2,))
    assert "string" in refusal("SCATTER_ND", [WHOLE, word, WHOLE], [word])


def test_gather_of_empty_batches_is_empty() -> None:
    x = _x(DType.FLOAT32, (0, 1, 3))
    given = [Given(x), Given(np.zeros((0, 1), np.int32))]
    recorded = run_alone("GATHER", given, [Wanted(DType.FLOAT32)], axis=2, batch_dims=1)
    assert recorded.run()[0].shape == (0, 1, 1)


def test_gather_of_one_string_is_a_scalar() -> None:
    words = np.array([b"a", b"bc"], object)
    given = [Given(words), Given(np.array(1, np.int32))]
    recorded = run_alone("GATHER", given, [Wanted(DType.STRING)], axis=0)
    (got,) = recorded.run()
    assert got.shape == ()
    assert got.tolist() == b"bc"


@pytest.mark.parametrize("kind", ["UNSORTED_SEGMENT_MAX", "UNSORTED_SEGMENT_MIN"])
def test_segment_maximum_and_minimum_ignore_nan(kind: str) -> None:
    x = np.array([np.nan, 2, np.nan, -3], np.float32)
    given = [Given(x), Given(np.array([0, 1, 1, 1], np.int32)), Given(np.array(2, np.int32))]
    assert_agrees(run_alone(kind, given, [Wanted(DType.FLOAT32)]))
