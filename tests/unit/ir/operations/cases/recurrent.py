"""Cases of recurrent operations."""

from __future__ import annotations

from typing import Final

from tests.unit.ir.operations.cases.case import agreed, refused
from tests.unit.ir.operations.single import FLOAT, Given, Input, StateInput, x, zeros

CELL: Final = (zeros(5, 4), zeros(5, 5), zeros(5))
"""Weights, recurrent weights and bias of a basic cell of 5 units over 4 inputs."""


def lstm(
    source: Input, *, input_gate: bool = True, peephole: bool = False, projected: int | None = None
) -> list[Given]:
    """Inputs of a memory of 5 cells over 4 inputs, as far as the cell state."""
    outputs = projected or 5

    def gates(*shape: int) -> list[Given]:
        return [zeros(*shape) if input_gate else None, *[zeros(*shape)] * 3]

    return [
        source,
        *gates(5, 4),
        *gates(5, outputs),
        *([zeros(5)] * 3 if peephole else [None] * 3),
        *gates(5),
        zeros(outputs, 5) if projected else None,
        None,
        StateInput((2, outputs)),
        StateInput((2, 5)),
    ]


def replaced(position: int, by: Given) -> list[Given]:
    inputs = lstm(x(2, 3, 4))
    inputs[position] = by
    return inputs


def both(*, input_gate: bool = True) -> list[Given]:
    """Inputs of a bidirectional memory, as far as the states."""
    inputs = lstm(x(2, 3, 4), input_gate=input_gate)
    return [*inputs[:18], *inputs[1:18], *[StateInput((2, 5))] * 4]


CASES: Final = (
    agreed("RNN", [x(2, 4), *CELL, StateInput((2, 5))], (2, 5), fused_activation_function="TANH"),
    refused("RNN", [x(2, 3), *CELL, StateInput((2, 5))], fused_activation_function="TANH"),
    agreed("UNIDIRECTIONAL_SEQUENCE_RNN", [x(2, 3, 4), *CELL, StateInput((2, 5))], (2, 3, 5)),
    agreed(
        "UNIDIRECTIONAL_SEQUENCE_RNN",
        [x(3, 2, 4), *CELL, StateInput((2, 5))],
        (3, 2, 5),
        time_major=True,
    ),
    agreed(
        "BIDIRECTIONAL_SEQUENCE_RNN",
        [x(2, 3, 4), *CELL, StateInput((2, 5)), *CELL, StateInput((2, 5)), None, None, None],
        [(2, 3, 5), (2, 3, 5)],
        outputs=[FLOAT, FLOAT],
    ),
    agreed(
        "BIDIRECTIONAL_SEQUENCE_RNN",
        [x(2, 3, 4), *CELL, StateInput((2, 5)), *CELL, StateInput((2, 5)), None, None, None],
        (2, 3, 10),
        merge_outputs=True,
    ),
    agreed(
        "SVDF", [x(2, 4), zeros(6, 4), zeros(6, 10), zeros(3), StateInput((2, 60))], (2, 3), rank=2
    ),
    agreed("SVDF", [x(2, 4), zeros(6, 4), zeros(6, 10), None, StateInput((2, 60))], (2, 3), rank=2),
    refused("SVDF", [x(2, 4), zeros(6, 5), zeros(6, 10), zeros(3), StateInput((2, 60))], rank=2),
    refused("SVDF", [x(2, 4), zeros(6, 4), zeros(6, 10), zeros(3), StateInput((2, 50))], rank=2),
    refused("SVDF", [x(2, 4), zeros(6, 4), zeros(6, 10), zeros(3), StateInput((2, 60))], rank=4),
    refused("SVDF", [x(2, 4), zeros(6, 4), zeros(6, 10), zeros(3), StateInput((2, 60))], rank=0),
    agreed(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [*lstm(x(2, 3, 4))],
        (2, 3, 5),
        fused_activation_function="TANH",
    ),
    agreed(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [*lstm(x(3, 2, 4))],
        (3, 2, 5),
        fused_activation_function="TANH",
        time_major=True,
    ),
    agreed(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [*lstm(x(2, 3, 4), input_gate=False)],
        (2, 3, 5),
        fused_activation_function="TANH",
    ),
    agreed(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [*lstm(x(2, 3, 4), peephole=True)],
        (2, 3, 5),
        fused_activation_function="TANH",
    ),
    agreed(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [*lstm(x(2, 3, 4), projected=3)],
        (2, 3, 3),
        fused_activation_function="TANH",
    ),
    agreed(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [*lstm(x(2, 3, 4)), *[zeros(5)] * 4],
        (2, 3, 5),
        fused_activation_function="TANH",
    ),
    refused(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [*replaced(2, zeros(5, 6))],
        fused_activation_function="TANH",
    ),
    refused(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [*replaced(6, zeros(5, 6))],
        fused_activation_function="TANH",
    ),
    refused(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", [*replaced(13, zeros(6))], fused_activation_function="TANH"
    ),
    refused(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [*replaced(18, StateInput((2, 6)))],
        fused_activation_function="TANH",
    ),
    refused(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [*replaced(19, StateInput((3, 5)))],
        fused_activation_function="TANH",
    ),
    agreed("LSTM", [*lstm(x(2, 4))], (2, 5), fused_activation_function="TANH"),
    agreed(
        "LSTM",
        [x(2, 4), StateInput((2, 5)), zeros(20, 9), zeros(20), StateInput((2, 5))],
        [(2, 5), (2, 5), (2, 9), (2, 20)],
        outputs=[FLOAT, FLOAT, FLOAT, FLOAT],
        fused_activation_function="TANH",
        kernel_type="BASIC",
    ),
    agreed(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        [*both(), *[None] * 9],
        [(2, 3, 5), (2, 3, 5)],
        outputs=[FLOAT, FLOAT],
        fused_activation_function="TANH",
        time_major=False,
    ),
    agreed(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        [*both(), *[None] * 9],
        (2, 3, 10),
        fused_activation_function="TANH",
        time_major=False,
        merge_outputs=True,
    ),
    agreed(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        [*both(), x(2, 3, 6), *[zeros(5, 6)] * 8],
        [(2, 3, 5), (2, 3, 5)],
        outputs=[FLOAT, FLOAT],
        fused_activation_function="TANH",
        time_major=False,
    ),
    agreed(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        [*both(input_gate=False), x(2, 3, 6), *[None, *[zeros(5, 6)] * 3] * 2],
        [(2, 3, 5), (2, 3, 5)],
        outputs=[FLOAT, FLOAT],
        fused_activation_function="TANH",
        time_major=False,
    ),
    agreed(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [*replaced(18, StateInput((10,)))],
        (2, 3, 5),
        fused_activation_function="TANH",
    ),
)
