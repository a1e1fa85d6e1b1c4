"""Its values are the reference device's, its refusals say why, and chaos does no harm."""

from __future__ import annotations

import numpy as np
import pytest
from penstock_example import create

import penstock
from penstock.ir import DType, Model, ModelBuilder
from penstock.testing.operations import cases_of, distance, run_case

KINDS = {"ADD": 2, "SUB": 2, "MUL": 2, "RELU": 1, "LOGISTIC": 1}


def model_of(kind: str, shape: tuple[int, ...] = (3, 50), dtype: DType = DType.FLOAT32) -> Model:
    builder = ModelBuilder()
    inputs = [builder.input(dtype, shape, f"x{k}") for k in range(KINDS.get(kind, 1))]
    return builder.build(builder.operation(kind, inputs, [(dtype, shape)]))


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_the_references(kind: str) -> None:
    model = model_of(kind)
    rng = np.random.default_rng(1)
    arrays = [rng.normal(0, 40, (3, 50)).astype(np.float32) for _ in model.inputs]
    for case in cases_of(model, arrays):
        found = distance(case, run_case(case, create(), "exact"), "exact")
        assert not found.departs, found.show()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (model_of("TANH"), "example has no TANH"),
        (model_of("RELU", dtype=DType.INT32), "input 0 is int32, not float32"),
        (model_of("RELU", (1,) * 7), "operands have 7 dimensions, and the device 6"),
    ],
)
def test_a_refusal_says_why(model: Model, reason: str) -> None:
    with pytest.raises(penstock.PenstockError, match=reason):
        penstock.compile(model, devices=[create()], cache=None)
