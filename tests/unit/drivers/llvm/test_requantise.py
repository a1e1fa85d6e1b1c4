"""Requantisation by proof: what is proved agrees with TFLite's fixed point for every sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from penstock.driverkit.fixed_point import quantize_multipliers, rescale
from penstock.drivers.llvm.proof.requantise import Line, Proof, solve
from penstock.ir import NDArray


def computed(proof: Proof, channel: int, sums: NDArray, *, down: bool) -> NDArray:
    """What instructions compute of *sums* by the proof of one channel, exceptions patched."""
    below = proof.above if proof.single else proof.below
    line = Line(proof.a[channel], proof.above[channel], below[channel], down)
    result: NDArray = line.at(sums[None, :])[0].astype(np.int64)
    for total, delta in proof.exceptions[:, :, channel]:
        result += np.where(sums == total, delta, 0)
    return result


@pytest.mark.parametrize("down", [True, False])
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    exponents=st.tuples(st.floats(-13, 1.5), st.floats(-13, 1.5)),
    zero_point=st.integers(-128, 127),
    rectified=st.booleans(),
)
def test_all_sums_of_random_channels_are_right(
    down: bool, seed: int, exponents: tuple[float, float], zero_point: int, rectified: bool
) -> None:
    rng = np.random.default_rng(seed)
    channels = 5
    mantissas, shifts = quantize_multipliers(
        2.0 ** rng.uniform(min(exponents), max(exponents), channels)
    )
    limits = (zero_point if rectified else -128, 127)
    greatest = rng.integers(1, 40_000, channels)
    least = -rng.integers(1, 40_000, channels)
    proof = solve(mantissas, shifts, zero_point, limits, least, greatest, down=down)
    for channel in np.flatnonzero(proof.proved):
        sums = np.arange(least[channel], greatest[channel] + 1)
        true = rescale(sums, mantissas[channel], shifts[channel]) + zero_point
        found = computed(proof, int(channel), sums, down=down) + zero_point
        np.testing.assert_array_equal(np.clip(found, *limits), np.clip(true, *limits))


@pytest.mark.parametrize("down", [True, False])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), exponent=st.floats(-13, 0), zero_point=st.integers(-128, 20))
def test_lifted_sums_are_right(down: bool, seed: int, exponent: float, zero_point: int) -> None:
    rng = np.random.default_rng(seed)
    mantissas, shifts = quantize_multipliers(2.0 ** (exponent + rng.uniform(-1, 1, 3)))
    greatest, limits = rng.integers(1, 40_000, 3), (zero_point, 127)
    least = -rng.integers(1, 40_000, 3)
    proof = solve(mantissas, shifts, zero_point, limits, least, greatest, down=down)
    if proof.lifted is None:
        return
    for channel in range(3):
        sums = np.arange(least[channel], greatest[channel] + 1)
        bits = (proof.lifted.start[channel] + sums).astype(np.int32)
        a, c = (proof.constants[n][channel].astype(np.float64) for n in ("a", "c"))
        real = a * bits.view(np.float32) + c
        found = np.floor(real) if down else np.rint(real.astype(np.float32))
        true = rescale(sums, mantissas[channel], shifts[channel]) + zero_point
        np.testing.assert_array_equal(np.clip(found + zero_point, *limits), np.clip(true, *limits))


@pytest.mark.parametrize("exponents", [(-12, -4), (-13, -10)])
@pytest.mark.parametrize("zero_point", [-128, 3])
def test_code_gets_the_same_without_the_lines_that_it_does_not_need(
    exponents: tuple[int, int], zero_point: int
) -> None:
    rng = np.random.default_rng(3)
    mantissas, shifts = quantize_multipliers(2.0 ** rng.uniform(*exponents, 90))
    bound = np.full(90, 200_000)
    given = mantissas, shifts, zero_point, (-128, 127), -bound, bound
    whole, short = (solve(*given, down=True, lines=lines) for lines in (True, False))
    np.testing.assert_array_equal(short.proved, whole.proved)
    np.testing.assert_array_equal(short.patches, whole.patches)
    assert short.constants.keys() == whole.constants.keys()
    for name, values in whole.constants.items():
        np.testing.assert_array_equal(short.constants[name], values)
    assert bool(short.a.any()) == (whole.lifted is None)


def test_most_channels_with_one_constant_are_lifted() -> None:
    rng = np.random.default_rng(2)
    mantissas, shifts = quantize_multipliers(2.0 ** rng.uniform(-12, -4, 600))
    lifted = 0
    for some in np.array_split(np.arange(600), 50):
        bound = np.full(len(some), 200_000)
        given = mantissas[some], shifts[some], -128, (-128, 127), -bound, bound
        proof = solve(*given, down=True)
        lifted += proof.lifted is not None
        assert not len(proof.patches) or proof.lifted is None
        beyond = solve(*given[:4], -32 * bound, 32 * bound, down=True)
        assert beyond.lifted is None
    assert lifted > 45


@pytest.mark.parametrize("down", [True, False])
def test_most_channels_are_proved(down: bool) -> None:
    rng = np.random.default_rng(0)
    mantissas, shifts = quantize_multipliers(2.0 ** rng.uniform(-12, -4, 2_000))
    bound = np.full(2_000, 200_000)
    proof = solve(mantissas, shifts, 3, (-128, 127), -bound, bound, down=down)
    assert proof.proved.mean() > 0.99


def test_exceptions_are_patched() -> None:
    """Among many channels some are wrong at a few sums, and are right with these patched."""
    rng = np.random.default_rng(5)
    count = 1_000
    mantissas, shifts = quantize_multipliers(2.0 ** rng.uniform(-13, -10, count))
    bound = np.full(count, 2**20)
    proof = solve(mantissas, shifts, 0, (-128, 127), -bound, bound, down=False)
    patched = np.flatnonzero((proof.exceptions[:, 1] != 0).any(axis=0) & proof.proved)
    assert patched.size
    sums = np.arange(-(2**20), 2**20 + 1)
    for channel in patched[:6]:
        true = np.clip(rescale(sums, mantissas[channel], shifts[channel]), -128, 127)
        found = computed(proof, int(channel), sums, down=False)
        np.testing.assert_array_equal(np.clip(found, -128, 127), true)


def test_channels_of_one_multiplier_share_a_proof_for_the_sums_of_all() -> None:
    mantissas, shifts = quantize_multipliers([0.01, 0.02, 0.01])
    least, greatest = np.array([-900, -900, -90_000]), np.array([900, 900, 90_000])
    proof = solve(mantissas, shifts, -3, (-128, 127), least, greatest, down=True)
    assert proof.a[0] == proof.a[2]
    assert proof.above[0] == proof.above[2]
    assert proof.below[0] == proof.below[2]


def test_one_possible_result_needs_no_steps() -> None:
    mantissas, shifts = quantize_multipliers([0.5])
    proof = solve(mantissas, shifts, 7, (7, 7), np.array([-9]), np.array([9]), down=True)
    assert proof.proved.all()
    assert proof.single


@pytest.mark.parametrize(("scale", "bound"), [(2.0**-24, 2**30), (1.9, 2**31 - 1), (1e-5, 2**31)])
def test_channels_that_would_not_be_exact_are_not_proved(scale: float, bound: int) -> None:
    mantissas, shifts = quantize_multipliers([scale])
    proof = solve(
        mantissas, shifts, 0, (-128, 127), np.array([-bound]), np.array([bound]), down=True
    )
    assert not proof.proved.any()
