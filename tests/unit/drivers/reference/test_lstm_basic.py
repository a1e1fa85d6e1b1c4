"""The basic kernel of LSTM, and the tables of integer cells."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.driverkit import tables_16
from penstock.drivers.reference.recurrent import lstm_basic
from penstock.ir import DType, NDArray, Operand
from tests.support_litert import kernel_of, q, refusal
from tests.unit.drivers.reference import support_cells
from tests.unit.drivers.reference.support_recurrent import Constant, compare, run_reference


@pytest.mark.parametrize(("batch", "cells"), [(1, 4), (2, 5), (3, 16)])
def test_basic_lstm_of_floats_agrees_with_litert(batch: int, cells: int) -> None:
    rng = np.random.default_rng(1)
    case = support_cells.real_basic_case(rng, batch, 3, cells)
    compare(case, case.feeds(rng, 4))


@pytest.mark.parametrize("seed", range(12))
def test_basic_integer_lstm_agrees_with_litert_in_every_intermediate_result(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = support_cells.integer_basic_case(rng, 1 + seed % 3, 3, 1 + seed)
    compare(case, case.feeds(rng, 6))


def test_basic_lstm_accepts_weights_at_run_time() -> None:
    rng = np.random.default_rng(2)
    case = support_cells.integer_basic_case(rng, 2, 3, 4)
    (feed,) = case.feeds(rng, 1)
    (wanted,) = run_reference(case.model(), [feed])
    inputs = case.quantized_operands()
    outputs = [Operand(t.dtype, t.shape, quantization=t.quantization) for t in case.outputs]
    run = kernel_of("LSTM", inputs, outputs, **case.attributes)
    start: list[NDArray | None] = [
        feed[0],
        np.zeros((2, 4), np.uint8),
        *(c.value for c in case.inputs[2:4] if isinstance(c, Constant)),
        np.zeros((2, 4), np.int16),
    ]
    for got, want in zip(run(start), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_basic_lstm_refuses_other_scales_and_types() -> None:
    inputs = support_cells.integer_basic_case(
        np.random.default_rng(3), 1, 2, 3
    ).quantized_operands()
    cell = Operand(support_cells.INT16, (1, 3), quantization=q(2.0**-10))
    assert "2**-11" in refusal("LSTM", inputs, [inputs[1], cell], **support_cells.BASIC)
    inputs[0] = Operand(DType.INT8, (1, 2), quantization=q(1 / 128))
    assert "LSTM of" in refusal("LSTM", inputs, [inputs[1], cell], **support_cells.BASIC)


def nnapi_inputs(cells: int, size: int) -> list[Operand]:
    weights = [(cells, size)] * 4 + [(cells, cells)] * 4
    return [
        Operand(support_cells.UINT8, (2, size), quantization=support_cells.ACTIVATION),
        *(Operand(support_cells.UINT8, shape, quantization=q(0.004, 100)) for shape in weights),
        *[Operand(DType.INT32, (cells,), quantization=q(0.004 / 128))] * 4,
        Operand(support_cells.INT16, (2, cells), quantization=support_cells.CELL),
        Operand(support_cells.UINT8, (2, cells), quantization=support_cells.ACTIVATION),
    ]


def test_quantized_16bit_lstm_approximates_the_real_cell() -> None:
    """Weights that are equal within a row do not tell the columns apart."""
    rng = np.random.default_rng(4)
    cells, size = 4, 2
    operands = nnapi_inputs(cells, size)
    rows = [rng.integers(0, 256, (cells, 1)) for _ in range(4)]
    biases = [rng.integers(-20000, 20000, cells) for _ in range(4)]
    source, before = rng.integers(0, 256, (2, size)), rng.integers(0, 256, (2, cells))
    cell = rng.integers(-4000, 4000, (2, cells))
    given: list[NDArray | None] = [
        source.astype(np.uint8),
        *(np.repeat(r, size, axis=1).astype(np.uint8) for r in rows),
        *(np.repeat(r, cells, axis=1).astype(np.uint8) for r in rows),
        *(b.astype(np.int32) for b in biases),
        cell.astype(np.int16),
        before.astype(np.uint8),
    ]
    run = kernel_of("QUANTIZED_16BIT_LSTM", operands, [operands[13], operands[14]])
    after, output = run(given)
    total = ((np.concatenate([source, before], axis=1) - 128) / 128).sum(axis=1, keepdims=True)
    gates = [
        total * (r[:, 0] - 100) * 0.004 + b * 0.004 / 128 for r, b in zip(rows, biases, strict=True)
    ]
    admit, forget, shown = (1 / (1 + np.exp(-gates[g])) for g in (0, 1, 3))
    wanted = admit * np.tanh(gates[2]) + forget * cell / 2048
    np.testing.assert_allclose(after / 2048, wanted, atol=0.01)
    np.testing.assert_allclose((output - 128.0) / 128, shown * np.tanh(wanted), atol=0.01)


X = np.arange(-(2**15), 2**15)


def test_the_logistic_function_is_near_the_real_one_and_symmetric() -> None:
    found = tables_16.logistic_q3()[X]
    assert np.abs(found / 2**15 - 1 / (1 + np.exp(-X / 2**12))).max() < 7 / 2**15
    np.testing.assert_array_equal(found[X > 0] + found[X < 0][:0:-1], 2**15 - 1)
    assert found[X == 0] == 2**14


@pytest.mark.parametrize("bits", range(tables_16.MOST_INTEGER_BITS + 1))
def test_the_hyperbolic_tangent_is_near_the_real_one_and_odd(bits: int) -> None:
    found = tables_16.tanh_of(bits)[X]
    assert np.abs(found / 2**15 - np.tanh(X / 2 ** (15 - bits))).max() < 13 / 2**15
    np.testing.assert_array_equal(found[1:], -found[:0:-1])


@pytest.mark.parametrize("bits", [0, 3])
def test_cut_functions_lose_less_than_one_step_towards_zero(bits: int) -> None:
    real = np.tanh(X / 2 ** (15 - bits)) * 2**15
    tanh = np.abs(real) - np.abs(tables_16.cut_tanh(bits)[X])
    logistic = 2**15 / (1 + np.exp(-X / 2**12)) - tables_16.cut_logistic()[X]
    for off in (tanh, logistic):
        assert off.min() > -0.01
        assert off.max() < 1.01


def test_int16_products_round_halves_up_and_saturate() -> None:
    a = np.array([-(2**15), 2**14, -(2**14), 3], np.int16)
    b = np.array([-(2**15), 1, 1, 2**14], np.int16)
    np.testing.assert_array_equal(lstm_basic.multiply_q15(a, b), [2**15 - 1, 1, 0, 2])


def test_recurrent_tables_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        tables_16.logistic_q3()[0] = 0
