import math

import numpy as np
from hypothesis import given, strategies as st

from penstock.drivers.reference.elements.sigmoid import complementary_error_function


@given(st.floats(-30.0, 26.0))
def test_erfc_is_that_of_the_mathematical_library(x: float) -> None:
    (got,) = complementary_error_function(np.array([x]))
    assert math.isclose(got, math.erfc(x), rel_tol=1e-12, abs_tol=1e-300)


def test_erfc_far_out_is_0_and_2() -> None:
    np.testing.assert_array_equal(
        np.round(complementary_error_function(np.array([40.0, -40.0, 1e300, -np.inf])), 12),
        [0, 2, 0, 2],
    )
