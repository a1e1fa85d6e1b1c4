"""Requantisation, and tables over stored values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.driverkit import fixed_point
from penstock.driverkit.tables_16 import round_half_away
from penstock.drivers.reference.numerics import one_operand
from penstock.drivers.reference.numerics.requantize import BLOCK, RealRequantizer, Requantizer
from penstock.ir import DType, NDArray

LIMITS = {DType.INT8: (-128, 127), DType.UINT8: (0, 255), DType.INT16: (-32768, 32767)}


def defined(
    sums: NDArray, reals: NDArray, dtype: DType, zero_point: int, bias: NDArray, *, wide: bool
) -> NDArray:
    """The definition, in 64-bit integers."""
    scale = fixed_point.rescale_wide if wide else fixed_point.rescale
    total = sums.astype(np.int64) + bias
    scaled = scale(total, *fixed_point.quantize_multipliers(reals)) + zero_point
    return np.asarray(np.clip(scaled, *LIMITS[dtype]), dtype.numpy)


def near_ties(
    rng: np.random.Generator, reals: NDArray, rows: int, bound: float, bias: NDArray
) -> NDArray:
    """Sums whose results lie next to a half, where rounding is decided, some at random."""
    results = rng.integers(-300, 300, (rows, reals.size)) + 0.5
    sums = np.round(results / reals) + rng.integers(-2, 3, results.shape) - bias
    anywhere = rng.integers(-int(bound), int(bound) + 1, results.shape)
    sums = np.where(rng.random(results.shape) < 0.2, anywhere, sums)
    return np.clip(sums, -bound, bound)


@given(
    seed=st.integers(0, 2**32),
    channels=st.integers(1, 40),
    dtype=st.sampled_from(list(LIMITS)),
    bits=st.integers(4, 30),
    exponent=st.floats(-28, 2),
    wide=st.booleans(),
)
def test_requantizer_equals_its_definition(
    seed: int, channels: int, dtype: DType, bits: int, exponent: float, wide: bool
) -> None:
    rng = np.random.default_rng(seed)
    count = channels if seed % 2 else 1
    reals = np.exp2(exponent + rng.uniform(-2, 2, count))
    if seed % 3 == 0:
        reals = np.exp2(np.floor(np.log2(reals)))  # powers of two: exact ties
    bound = 2.0**bits
    bias = rng.integers(-(2**12), 2**12, channels)
    zero_point = 0 if dtype is DType.INT16 else int(rng.integers(*LIMITS[dtype]))
    spread = np.broadcast_to(reals, (channels,))
    sums = near_ties(rng, spread, 70, bound, bias)
    requantizer = Requantizer(
        reals, channels, bound, dtype, zero_point, LIMITS[dtype], bias, wide=wide
    )
    out = np.empty(sums.shape, dtype.numpy)
    requantizer(sums, out)
    expected = defined(sums, spread, dtype, zero_point, bias, wide=wide)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("channels", [1, 3, 100, BLOCK + 1])
def test_requantizer_covers_blocks_of_every_size(channels: int) -> None:
    rng = np.random.default_rng(channels)
    sums = rng.integers(-(2**18), 2**18, (max(2, 3 * BLOCK // channels + 5), channels))
    reals = rng.uniform(1e-4, 1e-3, channels)
    bias = rng.integers(-1000, 1000, channels)
    out = np.empty(sums.shape, np.int8)
    Requantizer(reals, channels, 2.0**18, DType.INT8, 3, (-128, 127), bias)(
        sums.astype(np.float32), out
    )
    np.testing.assert_array_equal(out, defined(sums, reals, DType.INT8, 3, bias, wide=False))


def test_requantizer_writes_to_strided_arrays() -> None:
    sums = np.array([[100, -100], [50, 70]])
    store = np.zeros((2, 4), np.int8)
    Requantizer([0.5], 2, 100.0, DType.INT8, 1, (-128, 127))(sums, store[:, ::2])
    assert store.tolist() == [[51, 0, -49, 0], [26, 0, 36, 0]]


def test_sums_that_leave_32_bits_wrap() -> None:
    sums = np.array([[2.0**31]])
    out = np.empty((1, 1), np.int8)
    Requantizer([2.0**-30], 1, 2.0**31, DType.INT8, 0, (-128, 127))(sums, out)
    assert out.tolist() == [[-2]]


def test_real_scaling_rounds_once_halves_away_from_zero() -> None:
    sums = np.array([[1, 3, -1, -3, 400]])
    out = np.empty((1, 5), np.int8)
    RealRequantizer(np.array([0.5]), 10, (-128, 127), np.zeros(1), np.full(1, 1e3), wide=False)(
        sums, out
    )
    assert out.tolist() == [[11, 12, 9, 8, 127]]


def test_wide_real_sums_wrap_at_64_bits() -> None:
    sums, out = np.array([[0.0, 1.0, 5.0]]), np.empty((1, 3), np.int16)
    bias = np.full(3, 2**63 - 1, np.int64)
    RealRequantizer(np.array([1e-16]), 0, (-32768, 32767), bias, np.full(3, 8.0), wide=True)(
        sums, out
    )
    assert out.tolist() == [[922, -922, -922]]


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8, DType.INT16])
def test_a_table_by_bits_is_indexed_by_the_bits_of_every_stored_value(dtype: DType) -> None:
    stored = one_operand.stored_values(dtype)
    values = stored.astype(dtype.numpy)
    np.testing.assert_array_equal(
        one_operand.look_up(one_operand.by_bits(stored * 3, dtype), values), stored * 3
    )


def test_table_rounding_rounds_halves_away_from_zero() -> None:
    x = np.array([-2.5, -1.5, -0.5, -0.49, 0.49, 0.5, 1.5, 2.5], np.float32)
    np.testing.assert_array_equal(round_half_away(x), [-3, -2, -1, 0, 0, 1, 2, 3])


def test_interpolation_meets_the_points_and_wraps_at_16_bits() -> None:
    points = np.linspace(-32768, 32767, 513).astype(np.int64)
    starts = np.arange(-32768, 32768, 128)
    np.testing.assert_array_equal(one_operand.interpolate(points, starts), points[:-1])
    steep = np.zeros(513, np.int64)
    steep[0], steep[1] = -32768, 32767
    assert one_operand.interpolate(steep, np.array([-32768 + 64]))[0] == -32768
