"""Contradictions between the operands of recurrent operations that kernels do not look for."""

from __future__ import annotations

import pytest

from penstock.errors import ShapeMismatch
from tests.unit.ir.operations.cases.recurrent import CELL, both
from tests.unit.ir.operations.single import FLOAT, Given, StateInput, shapes, x, zeros


@pytest.mark.parametrize("states", [((), (2, 5)), ((2, 5), (2,)), ((2, 5), (2, 4))])
def test_basic_lstm_infers_its_states(states: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    activation, state = map(StateInput, states)
    inputs: list[Given] = [x(2, 4), activation, zeros(20, 9), zeros(20), state]
    with pytest.raises(ShapeMismatch):
        shapes("LSTM", inputs, [FLOAT] * 4, {"kernel_type": "BASIC"})


@pytest.mark.parametrize("auxiliary", [x(2, 3), x(2, 3, 4, 5)])
def test_bidirectional_cells_check_the_rank_of_an_auxiliary_input(auxiliary: Given) -> None:
    state = StateInput((2, 5))
    inputs: list[Given] = [x(2, 3, 4), *CELL, state, *CELL, state, auxiliary, None, None]
    with pytest.raises(ShapeMismatch):
        shapes("BIDIRECTIONAL_SEQUENCE_RNN", inputs, [FLOAT, FLOAT])
    with pytest.raises(ShapeMismatch):
        shapes("BIDIRECTIONAL_SEQUENCE_LSTM", [*both(), auxiliary, *[None] * 8], [FLOAT, FLOAT])


def test_an_auxiliary_input_without_weights_feeds_the_backward_direction() -> None:
    state = StateInput((2, 5))
    backward = (zeros(5, 6), *CELL[1:])
    inputs = [x(2, 3, 4), *CELL, state, *backward, state, x(2, 3, 6), None, None]
    assert shapes("BIDIRECTIONAL_SEQUENCE_RNN", inputs, [FLOAT, FLOAT]) == [(2, 3, 5), (2, 3, 5)]


def test_bidirectional_lstm_accepts_layer_normalisation() -> None:
    inputs: list[Given] = [*both(), *[None] * 9, *[zeros(5)] * 8]
    found = shapes("BIDIRECTIONAL_SEQUENCE_LSTM", inputs, [FLOAT, FLOAT], {"time_major": False})
    assert found == [(2, 3, 5), (2, 3, 5)]
