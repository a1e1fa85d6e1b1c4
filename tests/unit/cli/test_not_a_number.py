"""Outputs that are not numbers: shown as such, without a warning."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from penstock.cli.answers import Results, answer
from penstock.cli.output import Output
from penstock.ir import DType, ModelBuilder, NDArray


def shown(array: NDArray, task: str) -> str:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, array.shape, "x")
    model = builder.build(list(builder.operation("RELU", [x], [(DType.FLOAT32, array.shape)])))
    indexes = model.entry.ordinary_outputs
    operands = tuple(model.operands[i] for i in indexes)
    stream = io.StringIO()
    found = answer(Results(model, operands, indexes, (array,)), task)
    found.show(Output(console=Console(file=stream, width=80)))
    return stream.getvalue()


@pytest.mark.parametrize("other", [0.5, 3.0, np.inf, -np.inf, np.nan])
def test_a_score_that_is_not_a_number_is_shown_as_such(other: float) -> None:
    assert "NaN" in shown(np.array([[np.nan, other]], np.float32), "classification")


def test_the_other_scores_stay_probabilities() -> None:
    assert "60.0 %" in shown(np.array([[np.nan, 0.6, 0.4]], np.float32), "classification")


def test_infinities_have_a_summary() -> None:
    assert "nan" in shown(np.array([[-np.inf, np.inf]], np.float32), "outputs")
