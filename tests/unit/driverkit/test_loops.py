"""Rounds of loops that are known before they run, and loops written out."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.driverkit.unrolling import MOST_ROUNDS, rounds_of, unroll
from penstock.ir.transforms import specialized
from penstock.testing.contract.cases import looping
from tests.support_loops import given_to, scanning
from tests.support_operations import run_on


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_the_rounds_of_a_scan_follow_from_its_shapes(rounds: int) -> None:
    model = specialized(scanning(rounds, seed=3))
    (operation,) = model.operations
    found = rounds_of(model, operation)
    assert found is not None
    assert [int(known[0]) for known in found] == list(range(rounds + 1))


def test_loops_of_unknown_or_of_too_many_rounds_stay() -> None:
    for model in (looping(1.0), scanning(MOST_ROUNDS + 1, seed=0)):
        flat = unroll(specialized(model))
        assert [operation.type for operation in flat.model.operations] == ["WHILE"]
        assert flat.origins == (0,)


@pytest.mark.parametrize("seed", range(12))
def test_a_loop_written_out_computes_the_same_bits(seed: int) -> None:
    model = scanning(1 + seed % 4, seed)
    flat = unroll(specialized(model))
    assert "WHILE" not in {operation.type for operation in flat.model.operations}
    assert set(flat.origins) == {0}
    assert (flat.model.inputs, flat.model.outputs) == (model.inputs, model.outputs)
    given = [given_to(model, s) for s in range(2)]
    wanted = run_on(["reference"], model, given)
    found = run_on(["reference"], flat.model, given)
    for got, want in zip(found, wanted, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_model_without_control_flow_is_as_it_was() -> None:
    model = unroll(specialized(scanning(2, seed=1))).model
    plain = replace(model, subgraphs=(model.entry,), main=0)
    assert specialized(plain) is plain
    assert unroll(plain).model is plain
