"""The work of operations: by shape, for every type of the table."""

from __future__ import annotations

import math

import numpy as np
import pytest

from penstock.ir import DType, Model, ModelBuilder, Operand
from penstock.ir.operations import OPERATIONS
from penstock.partitioning.work import (
    GUESSED_DIMENSION,
    GUESSED_ELEMENTS,
    PICKING,
    RECURRENT_WEIGHT,
    RULES,
    VIEWS,
    WEIGHTS,
    elements_of,
    nbytes_of,
    times_of,
    work_of,
)


def convolution(kind: str, kernel: tuple[int, ...], channels: int, **more: int | str) -> Model:
    net = ModelBuilder()
    x = net.input(DType.FLOAT32, (1, 8, 8, 3), "x")
    weights = net.constant(np.zeros(kernel, np.float32))
    bias = net.constant(np.zeros(channels, np.float32))
    attributes = {"padding": "SAME", "stride_w": 1, "stride_h": 1, **more}
    out = Operand(DType.FLOAT32, (1, 8, 8, channels))
    return net.build(list(net.operation(kind, [x, weights, bias], [out], attributes)))


def work(model: Model) -> tuple[float, float]:
    found = work_of(model.entry, model.operations[-1])
    return found.macs, found.nbytes


def test_convolutions_multiply_every_output_with_a_filter() -> None:
    macs, nbytes = work(convolution("CONV_2D", (16, 3, 3, 3), 16))
    assert macs == 8 * 8 * 16 * 3 * 3 * 3
    assert nbytes == 4 * 8 * 8 * (3 + 16)
    depthwise, _ = work(convolution("DEPTHWISE_CONV_2D", (1, 3, 3, 6), 6, depth_multiplier=2))
    assert depthwise == 8 * (8 * 8 * 6 * 3 * 3)


def test_matrix_products() -> None:
    net = ModelBuilder()
    x = net.input(DType.FLOAT32, (5, 7), "x")
    weights = net.constant(np.zeros((11, 7), np.float32))
    (y,) = net.operation("FULLY_CONNECTED", [x, weights], [Operand(DType.FLOAT32, (5, 11))])
    (z,) = net.operation("BATCH_MATMUL", [x, y], [Operand(DType.FLOAT32, (7, 11))], {"adj_x": True})
    model = net.build([z])
    assert work_of(model.entry, model.operations[0]).macs == 5 * 7 * 11
    assert work_of(model.entry, model.operations[1]).macs == 7 * 11 * 5


def test_recurrent_operations_multiply_every_row_with_every_matrix() -> None:
    net = ModelBuilder()
    x = net.input(DType.FLOAT32, (2, 5), "x")
    weights = net.constant(np.zeros((3, 5), np.float32))
    recurrent = net.constant(np.zeros((3, 3), np.float32))
    bias = net.constant(np.zeros(3, np.float32))
    state = net.constant(np.zeros((2, 3), np.float32))
    inputs = [x, weights, recurrent, bias, state]
    (y,) = net.operation("RNN", inputs, [Operand(DType.FLOAT32, (2, 3))])
    assert work(net.build([y]))[0] == RECURRENT_WEIGHT * 2 * (3 * 5 + 3 * 3 + 2 * 3)


def test_views_cost_an_operation_and_no_more() -> None:
    net = ModelBuilder()
    x = net.input(DType.FLOAT32, (5, 7), "x")
    shape = net.constant(np.array([35], np.int32))
    model = net.build(list(net.operation("RESHAPE", [x, shape], [Operand(DType.FLOAT32, (35,))])))
    assert work(model) == (0.0, 0.0)
    assert times_of(model.entry, model.operations[0])[0] > 0


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), 1),
        ((2, 3), 6),
        ((0, 3), 0),
        ((None, 3), 3),
        ((None, None, 3), 3 * GUESSED_DIMENSION),
        (None, GUESSED_ELEMENTS),
    ],
)
def test_unknown_shapes_are_guessed(shape: tuple[int | None, ...] | None, expected: int) -> None:
    assert elements_of(shape) == expected
    assert nbytes_of(Operand(DType.INT16, shape)) == 2 * expected
    assert nbytes_of(Operand(DType.INT4, shape)) == expected / 2


def test_every_rule_names_an_operation_of_the_table() -> None:
    assert set(OPERATIONS) >= {*RULES, *VIEWS, *PICKING, *WEIGHTS}
    assert not set(RULES) & VIEWS
    assert not set(RULES) & set(WEIGHTS)


def test_strings_and_omitted_inputs_have_a_price() -> None:
    assert nbytes_of(Operand(DType.STRING, (2,))) == 2 * GUESSED_ELEMENTS
    assert math.isfinite(elements_of((2**20, 2**20)))
