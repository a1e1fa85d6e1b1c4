"""MATRIX_DIAG and MATRIX_SET_DIAG beside LiteRT in the types its kernels know, else by their
definition.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from penstock.drivers.reference.kernel import Unsupported
from penstock.errors import PenstockError
from penstock.ir import DType, Operand
from tests.support_litert import kernel_of
from tests.unit.drivers.reference.single_models import check, computed, single, values

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
