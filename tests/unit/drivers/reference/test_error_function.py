import math

import numpy as np
from hypothesis import given, strategies as st

from penstock.drivers.reference.elements.sigmoid import complementary_error_function


@given(st.floats(-30.0, 26.0))
def test_erfc_agrees_with_the_mathematical_library(x: float) -> None:
    (got,) = complementary_error_function(np.array([x]))
    assert math.isclose(got, math.erfc(x), rel_tol=1e-12, abs_tol=1e-300)


def test_erfc_of_large_numbers_is_0_or_2() -> None:
    np.testing.assert_array_equal(
        np.round(complementary_error_function(np.array([40.0, -40.0, 1e300, -np.inf])), 12),
        [0, 2, 0, 2],
    )
