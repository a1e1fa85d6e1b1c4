import numpy as np
import pytest

from penstock.drivers.reference.numerics.tables import (
    by_bits,
    interpolate,
    look_up,
    round_half_away,
    stored_values,
)
from penstock.ir import DType


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8, DType.INT16])
def test_a_table_by_bits_is_indexed_by_the_bits_of_every_stored_value(dtype: DType) -> None:
    stored = stored_values(dtype)
    values = stored.astype(dtype.numpy)
    np.testing.assert_array_equal(look_up(by_bits(stored * 3, dtype), values), stored * 3)


def test_table_rounding_rounds_halves_away_from_zero() -> None:
    x = np.array([-2.5, -1.5, -0.5, -0.49, 0.49, 0.5, 1.5, 2.5], np.float32)
    np.testing.assert_array_equal(round_half_away(x), [-3, -2, -1, 0, 0, 1, 2, 3])


def test_interpolation_meets_the_points_and_wraps_at_16_bits() -> None:
    points = np.linspace(-32768, 32767, 513).astype(np.int64)
    starts = np.arange(-32768, 32768, 128)
    np.testing.assert_array_equal(interpolate(points, starts), points[:-1])
    steep = np.zeros(513, np.int64)
    steep[0], steep[1] = -32768, 32767
    assert interpolate(steep, np.array([-32768 + 64]))[0] == -32768
