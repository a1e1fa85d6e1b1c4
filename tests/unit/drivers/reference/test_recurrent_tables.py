"""The nonlinearities of integer recurrent cells against the functions they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.drivers.reference.recurrent.lstm_basic import (
    MOST_INTEGER_BITS,
    cut_logistic,
    cut_tanh,
    logistic_q3,
    multiply_q15,
    tanh_of,
)

X = np.arange(-(2**15), 2**15)


def test_the_logistic_function_is_near_the_real_one_and_symmetric() -> None:
    found = logistic_q3()[X]
    assert np.abs(found / 2**15 - 1 / (1 + np.exp(-X / 2**12))).max() < 7 / 2**15
    np.testing.assert_array_equal(found[X > 0] + found[X < 0][:0:-1], 2**15 - 1)
    assert found[X == 0] == 2**14


@pytest.mark.parametrize("bits", range(MOST_INTEGER_BITS + 1))
def test_the_hyperbolic_tangent_is_near_the_real_one_and_odd(bits: int) -> None:
    found = tanh_of(bits)[X]
    assert np.abs(found / 2**15 - np.tanh(X / 2 ** (15 - bits))).max() < 13 / 2**15
    np.testing.assert_array_equal(found[1:], -found[:0:-1])


@pytest.mark.parametrize("bits", [0, 3])
def test_cut_functions_lose_less_than_one_step_towards_zero(bits: int) -> None:
    real = np.tanh(X / 2 ** (15 - bits)) * 2**15
    tanh = np.abs(real) - np.abs(cut_tanh(bits)[X])
    logistic = 2**15 / (1 + np.exp(-X / 2**12)) - cut_logistic()[X]
    for off in (tanh, logistic):
        assert off.min() > -0.01
        assert off.max() < 1.01


def test_int16_products_round_halves_up_and_saturate() -> None:
    a = np.array([-(2**15), 2**14, -(2**14), 3], np.int16)
    b = np.array([-(2**15), 1, 1, 2**14], np.int16)
    np.testing.assert_array_equal(multiply_q15(a, b), [2**15 - 1, 1, 0, 2])


def test_recurrent_tables_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        logistic_q3()[0] = 0
