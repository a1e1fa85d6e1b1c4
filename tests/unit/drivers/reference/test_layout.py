"""Dimensions reordered, padded and reversed, and diagonals of matrices."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from penstock.drivers.reference.kernel import Unsupported
from penstock.errors import PenstockError, ShapeMismatch
from penstock.ir import DType, NDArray, Operand
from tests.support_litert import Given, Wanted, assert_agrees, kernel_of, q, run_alone, uniform
from tests.unit.drivers.reference.single_models import check, computed, single, values

TYPES = (DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64, DType.BOOL)
BLOCKS = (DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT32, DType.INT64)


def _x(dtype: DType, shape: tuple[int, ...] = (2, 3, 4)) -> NDArray:
    return uniform(np.random.default_rng(0), dtype, shape)


def _whole(*values: object) -> Given:
    return Given(np.array(values, np.int32), constant=True)


@pytest.mark.parametrize("dtype", TYPES)
def test_transpose_tile_and_reverse_agree_with_litert(dtype: DType) -> None:
    made, x = [Wanted(dtype)], Given(_x(dtype))
    assert_agrees(run_alone("TRANSPOSE", [x, _whole(2, 0, 1)], made))
    order = Given(np.array([1, 2, 0], np.int32))
    assert_agrees(run_alone("TRANSPOSE", [x, order], made))
    assert_agrees(run_alone("TILE", [x, _whole(1, 3, 2)], made))
    assert_agrees(run_alone("REVERSE_V2", [x, _whole(-2)], made))
    value = Given(_x(dtype, ()), constant=True)
    assert_agrees(run_alone("DILATE", [x, _whole(2, 1, 3), value], made))


@pytest.mark.parametrize("dtype", TYPES)
def test_padding_agrees_with_litert(dtype: DType) -> None:
    made, x, pads = [Wanted(dtype)], Given(_x(dtype)), _whole([0, 0], [1, 2], [3, 0])
    assert_agrees(run_alone("PAD", [x, pads], made))
    assert_agrees(run_alone("PADV2", [x, pads, Given(_x(dtype, (1,)), constant=True)], made))
    mirrored = _whole([0, 1], [2, 1], [3, 3])
    for mode in ("REFLECT", "SYMMETRIC"):
        assert_agrees(run_alone("MIRROR_PAD", [x, mirrored], made, mode=mode))


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8])
def test_quantised_pad_uses_the_zero_point(dtype: DType) -> None:
    quantization = q(0.1, 5)
    made = [Wanted(dtype, quantization)]
    pads = _whole([0, 0], [1, 2], [3, 0])
    assert_agrees(run_alone("PAD", [Given(_x(dtype), quantization), pads], made))
    image = Given(_x(dtype, (2, 4, 6, 3)), quantization)
    blocks = [_whole(2, 3), _whole([1, 1], [2, 1])]
    assert_agrees(run_alone("SPACE_TO_BATCH_ND", [image, *blocks], made))


@pytest.mark.parametrize(
    ("lengths", "along", "batch"), [((1, 3), 1, 0), ((2, 0, 4), 2, 1), ((2, 0, 1, 1), 0, 2)]
)
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.UINT8, DType.INT32])
def test_reverse_sequence_agrees_with_litert(
    dtype: DType, lengths: tuple[int, ...], along: int, batch: int
) -> None:
    x = Given(_x(dtype))
    recorded = run_alone(
        "REVERSE_SEQUENCE", [x, _whole(*lengths)], [Wanted(dtype)], seq_dim=along, batch_dim=batch
    )
    assert_agrees(recorded)


@pytest.mark.parametrize("dtype", BLOCKS)
def test_space_to_depth_and_back_agree_with_litert(dtype: DType) -> None:
    image = Given(_x(dtype, (2, 4, 6, 8)))
    for kind in ("SPACE_TO_DEPTH", "DEPTH_TO_SPACE"):
        assert_agrees(run_alone(kind, [image], [Wanted(dtype)], block_size=2))


@pytest.mark.parametrize("dtype", BLOCKS)
def test_space_to_batch_and_back_agree_with_litert(dtype: DType) -> None:
    made = [Wanted(dtype)]
    image, row = Given(_x(dtype, (2, 4, 6, 3))), Given(_x(dtype, (2, 4, 6)))
    batches, rows = Given(_x(dtype, (6, 4, 6, 3))), Given(_x(dtype, (6, 4, 6)))
    two, one = [_whole(2, 3), _whole([1, 1], [2, 1])], [_whole(2), _whole([1, 1])]
    assert_agrees(run_alone("SPACE_TO_BATCH_ND", [image, *two], made))
    assert_agrees(run_alone("SPACE_TO_BATCH_ND", [row, *one], made))
    assert_agrees(run_alone("BATCH_TO_SPACE_ND", [batches, *two], made))
    assert_agrees(run_alone("BATCH_TO_SPACE_ND", [rows, *one], made))


def test_space_to_batch_of_an_empty_batch_is_empty() -> None:
    x = Operand(DType.FLOAT32, (0, 4, 6, 1))
    sizes = [np.array([2, 2], np.int32), np.zeros((2, 2), np.int32)]
    whole = Operand(DType.INT32, (2,))
    (cut,) = kernel_of("SPACE_TO_BATCH_ND", [x, whole, whole], [x])(
        [np.ones((0, 4, 6, 1), np.float32), *sizes]
    )
    assert cut.shape == (0, 2, 3, 1)
    (back,) = kernel_of("BATCH_TO_SPACE_ND", [x, whole, whole], [x])([cut, *sizes])
    assert back.shape == (0, 4, 6, 1)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("PAD", [[0, 0], [-1, 0], [0, 0]]),
        ("PAD", [[0, 0]]),
        ("MIRROR_PAD", [[0, 0], [3, 0], [0, 0]]),
        ("TILE", [1, 2]),
        ("TILE", [1, -2, 1]),
        ("TRANSPOSE", [0, 0, 1]),
        ("REVERSE_V2", [3]),
    ],
)
def test_layout_operations_refuse_wrong_arguments(kind: str, value: list[object]) -> None:
    x = Operand(DType.FLOAT32, (2, 3, 4))
    kernel = kernel_of(kind, [x, Operand(DType.INT32, None)], [x])
    with pytest.raises(ValueError):
        kernel([np.ones((2, 3, 4), np.float32), np.array(value, np.int32)])


@pytest.mark.parametrize(
    ("kind", "value"), [("TILE", [2**30, 1, 1]), ("PAD", [[0, 2**30], [0, 0], [0, 0]])]
)
def test_layout_operations_refuse_outputs_beyond_32_bits_before_allocating(
    kind: str, value: list[object]
) -> None:
    x = Operand(DType.FLOAT32, (2, 3, 4))
    kernel = kernel_of(kind, [x, Operand(DType.INT32, None)], [x])
    with pytest.raises(ShapeMismatch, match="to the shape"):
        kernel([np.ones((2, 3, 4), np.float32), np.array(value, np.int32)])


def test_batch_to_space_refuses_crops_beyond_the_image() -> None:
    x, whole = Operand(DType.FLOAT32, (4, 1, 1, 1)), Operand(DType.INT32, (2,))
    kernel = kernel_of("BATCH_TO_SPACE_ND", [x, whole, whole], [x])
    with pytest.raises(ShapeMismatch, match="crops"):
        kernel([np.ones((4, 1, 1, 1), np.float32), np.array([2, 2]), np.array([[2, 1], [0, 0]])])


JUDGED: Final = [DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64]
OTHERS: Final = [DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16, DType.UINT16, DType.BOOL]


@pytest.mark.parametrize("dtype", JUDGED, ids=lambda d: d.value)
def test_matrix_diag_agrees_with_litert(dtype: DType) -> None:
    rng = np.random.default_rng(5)
    shape: tuple[int, ...]
    for shape in ((3,), (2, 3), (2, 1, 4)):
        x = values(rng, dtype, shape)
        check(single("MATRIX_DIAG", [x], [(dtype, None)]), [x])
    for shape in ((3, 3), (2, 3), (3, 2), (2, 4, 3), (2, 1, 2, 5)):
        x, diagonal = values(rng, dtype, shape), values(rng, dtype, (*shape[:-2], min(shape[-2:])))
        check(single("MATRIX_SET_DIAG", [x, diagonal], [(dtype, None)]), [x, diagonal])


@pytest.mark.parametrize("dtype", OTHERS, ids=lambda d: d.value)
def test_matrix_diag_supports_types_that_litert_misreads(dtype: DType) -> None:
    rng = np.random.default_rng(6)
    x, diagonal = values(rng, dtype, (4, 3)), values(rng, dtype, (3,))
    (got,) = computed(single("MATRIX_DIAG", [diagonal], [(dtype, None)]), [diagonal])
    wanted = np.zeros((3, 3), dtype.numpy)
    wanted[[0, 1, 2], [0, 1, 2]] = diagonal
    np.testing.assert_array_equal(got, wanted)
    (got,) = computed(single("MATRIX_SET_DIAG", [x, diagonal], [(dtype, None)]), [x, diagonal])
    wanted = x.copy()
    wanted[[0, 1, 2], [0, 1, 2]] = diagonal
    np.testing.assert_array_equal(got, wanted)


def test_matrix_set_diag_of_empty_matrices_is_empty() -> None:
    x = np.zeros((2, 0), np.float32)
    assert computed(single("MATRIX_DIAG", [x], [(DType.FLOAT32, None)]), [x])[0].shape == (2, 0, 0)


def test_matrix_set_diag_refuses_a_diagonal_of_another_length() -> None:
    inputs = [np.zeros((4, 3), np.float32), np.zeros(4, np.float32)]
    with pytest.raises(PenstockError):
        computed(single("MATRIX_SET_DIAG", inputs, [(DType.FLOAT32, None)]), inputs)


def test_matrix_diag_refuses_strings() -> None:
    strings = Operand(DType.STRING, (2,))
    with pytest.raises(Unsupported):
        kernel_of("MATRIX_DIAG", [strings], [Operand(DType.STRING, (2, 2))])
