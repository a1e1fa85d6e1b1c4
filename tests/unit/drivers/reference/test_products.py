"""Products of integers through BLAS, and float sums in order."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from penstock.drivers.reference.kernel import Unsupported
from penstock.drivers.reference.numerics import products
from penstock.drivers.reference.program import Entered, make_sites
from penstock.ir import AttributeValue, DType, ModelBuilder, NDArray, Operand, Quantization


@pytest.mark.parametrize(
    ("bound", "dtype"),
    [(2.0**24 - 1, np.float32), (2.0**24, np.float64), (2.0**53 - 1, np.float64)],
)
def test_exact_dtype_is_the_narrowest_exact_type(bound: float, dtype: type) -> None:
    assert products.exact_dtype(bound) == dtype


def test_exact_dtype_refuses_sums_beyond_53_bits() -> None:
    with pytest.raises(Unsupported, match="sums of products"):
        products.exact_dtype(2.0**53)


@pytest.mark.parametrize("magnitude", [128, 32768])
def test_integer_products_are_exact_at_their_bound(magnitude: int) -> None:
    rng = np.random.default_rng(magnitude)
    weights = rng.integers(-128, 128, (5, 900))
    columns = products.Columns(weights, magnitude)
    rows = np.where(weights[:1] > 0, magnitude - 1, -magnitude)
    out = np.empty((1, 5), np.int64)
    products.multiply_rows(
        rows, columns.values, out, lambda sums, part: np.copyto(part, sums, "unsafe")
    )
    assert out.tolist() == (rows @ weights.T).tolist()
    assert np.all(np.abs(out) <= columns.bound)
    assert columns.sums.tolist() == weights.sum(axis=1).tolist()


def test_unsigned_bytes_become_signed() -> None:
    source = products.SignedInput(DType.UINT8, 130)
    values = np.array([0, 128, 255], np.uint8)
    assert source.signed(values).tolist() == [-128, 0, 127]
    assert (source.zero_point, source.magnitude) == (2, 128)
    assert products.SignedInput(DType.INT16, 7).magnitude == 32768


def test_tiles_cover_everything_once_within_the_limit() -> None:
    found = list(products.tiles(10, products.TILE_BYTES // 4))
    assert [(t.start, t.stop) for t in found] == [(0, 4), (4, 8), (8, 10)]
    assert [t.stop - t.start for t in products.tiles(3, 2 * products.TILE_BYTES)] == [1, 1, 1]


def one_by_one(left: NDArray, columns: NDArray) -> NDArray:
    sums = np.zeros((len(left), len(columns)), np.float32)
    for row in range(len(left)):
        for column in range(len(columns)):
            total = np.float32(0)
            for step in range(left.shape[1]):
                total = np.float32(total + np.float32(left[row, step] * columns[column, step]))
            sums[row, column] = total
    return sums


@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(7, 3, 40), (3, 7, 40), (1, 1, 1), (2, 5, 0), (0, 4, 3)]
)
def test_ordered_product_rounds_after_each_addition(rows: int, columns: int, depth: int) -> None:
    random = np.random.default_rng(rows * 100 + columns)
    left = random.standard_normal((rows, depth)).astype(np.float32)
    right = random.standard_normal((columns, depth)).astype(np.float32)
    ordered = products.multiply_in_order(left, right)
    np.testing.assert_array_equal(ordered, one_by_one(left, right))
    np.testing.assert_allclose(ordered, products.multiply_fast(left, right), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rows", "columns", "depth"), [(7, 3, 40), (3, 7, 40), (2, 5, 0)])
def test_fused_product_begins_at_the_bias_and_rounds_once_a_step(
    rows: int, columns: int, depth: int
) -> None:
    random = np.random.default_rng(depth)
    left = random.standard_normal((rows, depth)).astype(np.float32)
    right = random.standard_normal((columns, depth)).astype(np.float32)
    bias = random.standard_normal(columns).astype(np.float32)
    wanted = np.zeros((rows, columns), np.float32)
    for row in range(rows):
        for column in range(columns):
            total = Fraction(float(bias[column]))
            for step in range(depth):
                exact = Fraction(float(left[row, step])) * Fraction(float(right[column, step]))
                total = Fraction(float(np.float32(float(total + exact))))
            wanted[row, column] = np.float32(float(total))
    np.testing.assert_array_equal(products.multiply_fused(left, right, bias), wanted)


@pytest.mark.parametrize(("rows", "columns", "depth"), [(7, 3, 40), (1, 9, 300), (2, 5, 0)])
def test_a_wide_sum_is_rounded_once(rows: int, columns: int, depth: int) -> None:
    random = np.random.default_rng(depth)
    left = random.standard_normal((rows, depth)).astype(np.float32)
    right = random.standard_normal((columns, depth)).astype(np.float32)
    wanted = [
        [math.fsum(np.multiply(row, column, dtype=np.float64)) for column in right] for row in left
    ]
    np.testing.assert_array_equal(products.multiply_wide(left, right), np.array(wanted, np.float32))


def test_wide_sums_of_equal_columns_are_equal_at_any_position() -> None:
    random = np.random.default_rng(0)
    left = random.uniform(0, 1e6, (13, 512)).astype(np.float32)
    right = np.tile(random.uniform(0, 1e3, 512).astype(np.float32), (1001, 1))
    assert all(len(np.unique(row)) == 1 for row in products.multiply_wide(left, right))


def test_a_wide_sum_beyond_float32_is_infinite() -> None:
    left = np.full((1, 2), np.float32(3e38))
    assert products.multiply_wide(left, np.ones((1, 2), np.float32)).tolist() == [[np.inf]]


def test_many_rows_are_taken_in_tiles() -> None:
    random = np.random.default_rng(0)
    left = random.standard_normal((20_000, 5)).astype(np.float32)
    right = random.standard_normal((4, 5)).astype(np.float32)
    picked = [0, 1, 9_999, 16_384, 19_999]
    np.testing.assert_array_equal(
        products.multiply_in_order(left, right)[picked], one_by_one(left[picked], right)
    )


def test_sums_are_ordered_only_where_rounding_follows() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, 2), "x")
    weights = builder.constant(np.ones((2, 2), np.float32))
    narrow = builder.constant(np.ones((2, 2), np.int8), quantization=Quantization((0.1,), (0,)))
    shape = [Operand(DType.FLOAT32, (1, 2))]
    before = builder.operation("FULLY_CONNECTED", [x, weights, None], shape)
    active = builder.operation("RELU", before, shape)
    hybrid = builder.operation("FULLY_CONNECTED", [active[0], narrow, None], shape)
    after = builder.operation("FULLY_CONNECTED", [hybrid[0], weights, None], shape)
    sites = make_sites(builder.build(after), 0, Entered({}, []))
    assert [s.sums for s in sites] == ["ordered", "ordered", "any", "any"]


def test_sums_before_an_argmax_pooling_are_fused() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, 2, 2, 1), "x")
    filters = builder.constant(np.ones((1, 1, 1, 1), np.float32))
    image = [Operand(DType.FLOAT32, (1, 2, 2, 1))]
    window: dict[str, AttributeValue] = {"padding": "VALID", "stride_w": 1, "stride_h": 1}
    before = builder.operation("CONV_2D", [x, filters, None], image, window)
    options = np.array([1, 2, 2, 2, 2, 0, -1, -1], "<i4").tobytes()
    code: dict[str, AttributeValue] = {
        "custom_code": "MaxPoolingWithArgmax2D",
        "custom_options": options,
    }
    pooled = [Operand(DType.FLOAT32, (1, 1, 1, 1)), Operand(DType.FLOAT32, (1, 1, 1, 1))]
    values, _ = builder.operation("CUSTOM", before, pooled, code)
    after = builder.operation(
        "CONV_2D", [values, filters, None], [Operand(DType.FLOAT32, (1, 1, 1, 1))], window
    )
    assert [s.sums for s in make_sites(builder.build(after), 0, Entered({}, []))] == [
        "fused",
        "any",
        "any",
    ]
