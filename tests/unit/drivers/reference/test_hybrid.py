"""Rows quantised at run time: the two forms agree, however many rows come together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.drivers.reference.numerics.hybrid import centred_rows, quantize_rows, reach_of

REALS = st.floats(-(2.0**99), 2.0**99, width=32).filter(lambda x: x == 0 or abs(x) > 1e-25)
ROWS = st.lists(st.lists(REALS, min_size=5, max_size=5), min_size=1, max_size=4)


@given(ROWS, st.booleans())
def test_centred_rows_are_quantised_rows_less_their_offsets(
    drawn: list[list[float]], asymmetric: bool
) -> None:
    rows = np.array(drawn, np.float32)
    quantised = quantize_rows(rows, asymmetric=asymmetric)
    values, scales = centred_rows(rows, asymmetric=asymmetric)
    expected = quantised.values.astype(np.int64) - quantised.offsets[:, None]
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(np.reshape(scales, -1), quantised.scales)
    assert np.abs(values).max() <= reach_of(asymmetric=asymmetric)


@given(ROWS, st.booleans())
def test_row_is_quantised_the_same_alone_and_among_others(
    drawn: list[list[float]], asymmetric: bool
) -> None:
    rows = np.array(drawn, np.float32)
    among = np.concatenate([rows, rows[:1]])
    together = quantize_rows(among, asymmetric=asymmetric)
    for index, row in enumerate(rows):
        alone = quantize_rows(row[None], asymmetric=asymmetric)
        np.testing.assert_array_equal(alone.values[0], together.values[index])
        assert alone.scales[0] == together.scales[index]
        assert alone.offsets[0] == together.offsets[index]


@pytest.mark.parametrize("asymmetric", [False, True])
def test_zero_and_empty_rows_have_scale_1(asymmetric: bool) -> None:
    for shape in ((1, 3), (2, 3), (1, 0), (2, 0)):
        rows = quantize_rows(np.zeros(shape, np.float32), asymmetric=asymmetric)
        assert rows.values.shape == shape
        assert rows.scales.tolist() == [1.0] * shape[0]
        assert not rows.values.any()
        assert rows.offsets.tolist() == [0] * shape[0]
