"""Fixed-point multiplication and functions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.driverkit import fixed_point, fixed_point as functions

INT32 = st.integers(-(2**31), 2**31 - 1)
MANTISSA = st.integers(2**30, 2**31 - 1)


def half_up(x: Fraction) -> int:
    return math.floor(x + Fraction(1, 2))


def half_away(x: Fraction) -> int:
    return half_up(x) if x >= 0 else -half_up(-x)


def wrap(x: int) -> int:
    """What 32 bits hold of *x*."""
    return (x + 2**31) % 2**32 - 2**31


def scaled(x: int, mantissa: int, shift: int) -> int:
    """The definition: a left shift by the last five bits of a number of places, which wraps, a
    product halves up, a quotient halves away from zero.
    """
    wrapped = wrap(x * 2 ** (max(shift, 0) % 32))
    high = half_up(Fraction(wrapped * mantissa, 2**31))
    return half_away(Fraction(high, 2 ** max(-shift, 0)))


@pytest.mark.parametrize(
    ("real", "mantissa", "shift"),
    [
        (0.0, 0, 0),
        (1.0, 2**30, 1),
        (0.5, 2**30, 0),
        (0.75, 3 * 2**29, 0),
        (3.0, 3 * 2**29, 2),
        (2.0**-32, 2**30, -31),
        (2.0**-33, 0, 0),
        (1 - 2.0**-40, 2**30, 1),
    ],
)
def test_multipliers_have_mantissas_of_31_bits(real: float, mantissa: int, shift: int) -> None:
    assert fixed_point.quantize_multiplier(real) == (mantissa, shift)


@given(st.floats(1e-9, 2.0**29))
def test_a_quantised_multiplier_is_its_real_one_to_31_bits(real: float) -> None:
    mantissa, shift = fixed_point.quantize_multiplier(real)
    assert 2**30 <= mantissa < 2**31
    assert math.ldexp(mantissa, shift - 31) == pytest.approx(real, rel=2.0**-31)


def test_multipliers_of_a_layer_are_quantised_together() -> None:
    reals = [0.0, 0.3, 2.0**-40, 7.0]
    mantissas, shifts = fixed_point.quantize_multipliers(reals)
    pairs = list(zip(mantissas.tolist(), shifts.tolist(), strict=True))
    assert pairs == [fixed_point.quantize_multiplier(r) for r in reals]


@pytest.mark.parametrize("real", [math.inf, math.nan])
def test_multipliers_that_are_no_finite_number_make_everything_zero(real: float) -> None:
    assert fixed_point.quantize_multiplier(real) == (0, 0)


@given(st.floats(2.0**30, 1e300))
def test_a_multiplier_of_any_finite_size_is_quantised(real: float) -> None:
    mantissa, shift = fixed_point.quantize_multiplier(real)
    assert math.ldexp(mantissa, shift - 31) == pytest.approx(real, rel=2.0**-31)


@given(INT32, MANTISSA, st.integers(-31, 130))
def test_saturating_scaling_ends_at_32_bits(x: int, mantissa: int, shift: int) -> None:
    shifted = max(-(2**31), min(x * 2 ** max(shift, 0), 2**31 - 1))
    wanted = half_away(Fraction(half_up(Fraction(shifted * mantissa, 2**31)), 2 ** max(-shift, 0)))
    assert fixed_point.rescale_saturating(np.array([x]), mantissa, shift).tolist() == [wanted]


@given(INT32, MANTISSA, st.integers(-31, 130))
def test_fixed_point_scaling_equals_its_definition(x: int, mantissa: int, shift: int) -> None:
    got = fixed_point.rescale(np.array([x]), mantissa, shift)
    assert got.tolist() == [scaled(x, mantissa, shift)]


def test_scaling_broadcasts_over_channels() -> None:
    x = np.array([[3, -3, 100], [5, -5, -100]])
    mantissas, shifts = fixed_point.quantize_multipliers([0.5, 0.5, 1.25])
    got = fixed_point.rescale(x, mantissas, shifts)
    assert got.tolist() == [[2, -1, 125], [3, -2, -125]]


@given(INT32, INT32)
def test_high_products_round_halves_up_and_saturate(a: int, b: int) -> None:
    got = fixed_point.doubling_high_mul(np.array([a]), b)
    assert got.tolist() == [min(half_up(Fraction(a * b, 2**31)), 2**31 - 1)]


@given(INT32, st.integers(0, 31))
def test_quotients_round_halves_away_from_zero(x: int, exponent: int) -> None:
    got = fixed_point.rounding_divide_by_pot(np.array([x]), exponent)
    assert got.tolist() == [half_away(Fraction(x, 2**exponent))]


@given(st.integers(-(2**47), 2**47 - 1), MANTISSA, st.integers(-31, 7))
def test_wide_scaling_has_16_bits_of_mantissa_and_rounds_once(
    x: int, mantissa: int, shift: int
) -> None:
    reduced = (mantissa + 2**15) >> 16 if mantissa < 0x7FFF0000 else 0x7FFF
    got = fixed_point.rescale_wide(np.array([x]), mantissa, shift)
    assert got.tolist() == [wrap(half_up(Fraction(x * reduced, 2 ** (15 - shift))))]


@pytest.mark.parametrize(
    ("real", "whole"),
    [(0.5, 1), (-0.5, -1), (2.5, 3), (-2.5, -3), (0.49999999999999994, 0), (-7.2, -7)],
)
def test_floats_round_halves_away_from_zero(real: float, whole: int) -> None:
    assert fixed_point.round_half_away(real) == whole
    assert fixed_point.round_half_away_from_zero(np.array([real])).tolist() == [whole]


def test_the_float32_below_one_half_rounds_to_zero() -> None:
    below = np.nextafter(np.float32(0.5), np.float32(0))
    assert fixed_point.round_half_away_from_zero(np.array([below, -below])).tolist() == [0.0, 0.0]


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
