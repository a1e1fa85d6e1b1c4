"""RANDOM_MULTINOMIAL: the shares of the classes, seeds, and what cannot be drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from penstock.errors import InputError, ShapeMismatch
from penstock.ir import DType, NDArray
from tests.unit.drivers.reference.alone import alone

LOGITS = np.log(np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 1e-9]], np.float32))


def drawn(logits: NDArray, samples: int, *seeds: int) -> NDArray:
    inputs = [logits, np.array(seeds, np.int32)]
    (got,) = alone("RANDOM_MULTINOMIAL", inputs, [DType.INT32], samples=samples)
    return got


def test_random_multinomial_draws_classes_by_probability() -> None:
    got = drawn(LOGITS + 50, 100_000, 37, -42)
    assert got.shape == (2, 100_000)
    for row, logits in zip(got, LOGITS, strict=True):
        shares = np.bincount(row, minlength=3) / row.size
        np.testing.assert_allclose(shares, np.exp(logits), atol=0.01)


def test_random_multinomial_repeats_with_equal_seeds() -> None:
    once = drawn(LOGITS, 1000, 1, 2)
    np.testing.assert_array_equal(drawn(LOGITS, 1000, 1, 2), once)
    np.testing.assert_array_equal(drawn(LOGITS.astype(np.float16), 1000, 1, 2).shape, once.shape)
    for other in ((2, 1), (1, 3), (-1, 2)):
        assert (drawn(LOGITS, 1000, *other) != once).any()


@pytest.mark.parametrize("seeds", [(37, 42), (-5, 0), (0, -(2**31))])
def test_random_multinomial_equals_multinomial(seeds: tuple[int, int]) -> None:
    inputs = [LOGITS, np.array(500, np.int32)]
    (same, *_) = alone("MULTINOMIAL", inputs, [DType.INT32], seed=seeds[0], seed2=seeds[1])
    np.testing.assert_array_equal(drawn(LOGITS, 500, *seeds), same)


def test_random_multinomial_without_seeds_differs_between_runs() -> None:
    assert (drawn(LOGITS, 1000, 0, 0) != drawn(LOGITS, 1000, 0, 0)).any()


def test_random_multinomial_never_draws_infinite_logits() -> None:
    logits = np.array([[math.inf, 1, math.nan, 1, -math.inf]], np.float32)
    assert set(drawn(logits, 1000, 5, 6).reshape(-1).tolist()) == {1, 3}
    with pytest.raises(InputError, match="no class"):
        drawn(np.full((2, 3), -math.inf, np.float32), 4, 5, 6)
    with pytest.raises(InputError, match="no class"):
        drawn(np.empty((2, 0), np.float32), 4, 5, 6)


def test_random_multinomial_of_no_samples_is_empty() -> None:
    assert drawn(np.empty((0, 3), np.float32), 4, 5, 6).shape == (0, 4)


def test_random_multinomial_refuses_wrong_shapes() -> None:
    with pytest.raises(ShapeMismatch, match="seeds"):
        drawn(LOGITS, 4, 1, 2, 3)
    with pytest.raises(ShapeMismatch, match="RANDOM_MULTINOMIAL to the shape"):
        drawn(LOGITS, 2**31 - 1, 1, 2)
