"""gemmlowp's fixed-point functions against the real ones, to what their bits can hold.

Bit for bit they are proven by the softmax, normalisation and RSQRT kernels against LiteRT's.
"""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.drivers.reference.numerics import fixed_point as functions


@given(st.integers(1, 2**32 - 1))
def test_leading_zeros_are_those_of_32_bits(x: int) -> None:
    assert functions.count_leading_zeros(np.array([x]))[0] == 32 - x.bit_length()


def test_zero_has_32_leading_zeros() -> None:
    assert functions.count_leading_zeros(np.array([0]))[0] == 32


@given(st.integers(-(2**31), 0))
def test_exp_of_negative_q5(raw: int) -> None:
    (got,) = functions.exp_on_negative_values(np.array([raw]))
    assert got / 2**31 == pytest.approx(math.exp(raw / 2**26), abs=5e-7)


@given(st.integers(0, 2**31 - 1))
def test_reciprocal_of_one_plus_q0(raw: int) -> None:
    (got,) = functions.one_over_one_plus_x(np.array([raw]))
    assert got / 2**31 == pytest.approx(1 / (1 + raw / 2**31), abs=1e-8)


@given(st.integers(1, 2**31 - 1))
def test_reciprocal_of_a_positive_number(raw: int) -> None:
    mantissa, shift = functions.reciprocal(np.array([raw]), 31)
    assert mantissa[0] / 2**31 / 2.0 ** shift[0] == pytest.approx(1 / raw, rel=1e-7)


@given(st.integers(2**19, 2**31 - 1))
def test_logarithm_of_q12(raw: int) -> None:
    (got,) = functions.log(np.array([raw]))
    assert got / 2**26 == pytest.approx(math.log(raw / 2**19), abs=1e-6)


@given(st.integers(1, 2**31 - 1))
def test_inverse_square_root_of_an_integer(x: int) -> None:
    mantissa, shift = functions.inverse_square_root(np.array([x]))
    assert mantissa[0] / 2**31 * 2.0 ** shift[0] == pytest.approx(x**-0.5, rel=1e-4)


@given(st.integers(-60, 60))
def test_powers_of_two_are_recognised(power: int) -> None:
    assert functions.power_of_two(2.0**power) == power
    assert functions.power_of_two(2.0**power * 1.01) is None
