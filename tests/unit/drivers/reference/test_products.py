"""Products: exact where they must be, in order where that is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.drivers.reference.kernel import Unsupported
from penstock.drivers.reference.numerics.products import (
    TILE_BYTES,
    Columns,
    SignedInput,
    exact_dtype,
    multiply_rows,
    tiles,
)
from penstock.ir import DType


@pytest.mark.parametrize(
    ("bound", "dtype"),
    [(2.0**24 - 1, np.float32), (2.0**24, np.float64), (2.0**53 - 1, np.float64)],
)
def test_exact_dtype_is_the_narrowest_exact_type(bound: float, dtype: type) -> None:
    assert exact_dtype(bound) == dtype


def test_exact_dtype_refuses_sums_beyond_53_bits() -> None:
    with pytest.raises(Unsupported, match="sums of products"):
        exact_dtype(2.0**53)


@pytest.mark.parametrize("magnitude", [128, 32768])
def test_integer_products_are_exact_at_their_bound(magnitude: int) -> None:
    rng = np.random.default_rng(magnitude)
    weights = rng.integers(-128, 128, (5, 900))
    columns = Columns(weights, magnitude)
    rows = np.where(weights[:1] > 0, magnitude - 1, -magnitude)
    out = np.empty((1, 5), np.int64)
    multiply_rows(rows, columns.values, out, lambda sums, part: np.copyto(part, sums, "unsafe"))
    assert out.tolist() == (rows @ weights.T).tolist()
    assert np.all(np.abs(out) <= columns.bound)
    assert columns.sums.tolist() == weights.sum(axis=1).tolist()


def test_unsigned_bytes_become_signed() -> None:
    source = SignedInput(DType.UINT8, 130)
    values = np.array([0, 128, 255], np.uint8)
    assert source.signed(values).tolist() == [-128, 0, 127]
    assert (source.zero_point, source.magnitude) == (2, 128)
    assert SignedInput(DType.INT16, 7).magnitude == 32768


def test_tiles_cover_everything_once_within_the_limit() -> None:
    found = list(tiles(10, TILE_BYTES // 4))
    assert [(t.start, t.stop) for t in found] == [(0, 4), (4, 8), (8, 10)]
    assert [t.stop - t.start for t in tiles(3, 2 * TILE_BYTES)] == [1, 1, 1]
