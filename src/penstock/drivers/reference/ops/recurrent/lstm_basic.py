"""The basic kernel of LSTM, whose weights are one matrix, and NNAPI's QUANTIZED_16BIT_LSTM.

Gates stand in the order input, new values, forget, output: rows of the weights [4 * cells,
inputs + cells], whose columns are those of the input, then of the previous activation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from penstock.drivers.reference.ops.kernel import (
    Kernel,
    Site,
    kernel,
    require,
    tensor_quantization,
)
from penstock.drivers.reference.ops.numerics.fixed_point import (
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    rounding_divide_by_pot,
    saturating_rounding_doubling_high_mul,
)
from penstock.drivers.reference.ops.numerics.fixed_point_functions import power_of_two
from penstock.drivers.reference.ops.numerics.products import Columns
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.drivers.reference.ops.recurrent.activations import logistic
from penstock.drivers.reference.ops.recurrent.products import REAL, real_array
from penstock.drivers.reference.ops.recurrent.tables import (
    GREATEST,
    LEAST,
    logistic_q3,
    multiply_q15,
    tanh_of,
)
from penstock.ir import DType, NDArray

Scale: TypeAlias = Callable[[NDArray, int, int], NDArray]
"""Sums times a quantised multiplier: mantissa and shift."""

STATE_BITS = 4
"""Integer bits of the integer cell state."""

INPUT_ZERO = 128
GATES = 4


def basic_lstm(site: Site) -> Kernel:
    """Float, and uint8 with an int16 state of scale 2**-11.

    The activation's scale is taken to be 1/128 and its zero point 128, as TFLite's kernel does.
    """
    inputs = [site.input(i).dtype for i in range(5)]
    if all(dtype in REAL for dtype in inputs):
        return _real(site)
    if inputs == [DType.UINT8] * 3 + [DType.INT32, DType.INT16]:
        return _integer(site)
    raise site.unsupported_types()


def _results(site: Site, *results: NDArray) -> list[NDArray]:
    """Activation, state, joined input and gates; then activation and state once more, as the new
    ones.
    """
    pairs = zip((*results, *results[:2]), site.outputs, strict=False)
    return [array.astype(operand.dtype.numpy, copy=False) for array, operand in pairs]


def _real(site: Site) -> Kernel:
    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        source, before, weights, bias, state = (real_array(given(a)) for a in inputs[:5])
        joined = np.concatenate([source, before], axis=1)
        gates = np.matmul(joined, weights.T) + bias
        admit, new, forget, shown = np.split(gates, GATES, axis=1)
        state = logistic(admit.copy()) * np.tanh(new) + logistic(forget.copy()) * state
        return _results(site, logistic(shown.copy()) * np.tanh(state), state, joined, gates)

    return run


def _integer(site: Site) -> Kernel:
    state = tensor_quantization(site.output(1), "the state")
    require(power_of_two(state.scale) == STATE_BITS - 15, "a state of another scale than 2**-11")
    multiplier = 4096.0 * float(np.float32(tensor_quantization(site.input(3), "the biases").scale))
    zero_point = tensor_quantization(site.input(2), "the weights").zero_point
    constants = site.constant(2), site.constant(3)
    ready = None
    if constants[0] is not None and constants[1] is not None:
        ready = joined_gates(constants[0], constants[1], zero_point, multiplier, _rounded_up)

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        source, before, weights, bias, cell = (given(a) for a in inputs[:5])
        gates_of = ready or joined_gates(weights, bias, zero_point, multiplier, _rounded_up)
        joined = np.concatenate([source, before], axis=1)
        gates = gates_of(joined)
        activation, after = stepped(gates, cell)
        return _results(site, activation, after, joined, gates)

    return run


def _rounded_up(sums: NDArray, mantissa: int, shift: int) -> NDArray:
    """As TFLite's matrix products do it: both roundings are to the nearest, halves up."""
    right = max(-shift, 0)
    high = saturating_rounding_doubling_high_mul(sums << max(shift, 0), mantissa)
    return (high + ((1 << right) >> 1)) >> right


def joined_gates(
    weights: NDArray, bias: NDArray, zero_point: int, multiplier: float, scale: Scale
) -> Callable[[NDArray], NDArray]:
    """uint8 rows [rows, inputs + cells] to int16 gates [rows, 4 * cells] in Q3, as int64."""
    columns = Columns(weights.astype(np.int64) - zero_point, 256)
    scaling = quantize_multiplier(multiplier)
    offset = bias.astype(np.int64) - INPUT_ZERO * columns.sums

    def gates(joined: NDArray) -> NDArray:
        sums = np.matmul(joined.astype(columns.values.dtype), columns.values.T).astype(np.int64)
        scaled = scale(sums + offset, *scaling)
        return np.clip(scaled, LEAST, GREATEST, out=scaled)

    return gates


def stepped(gates: NDArray, cell: NDArray) -> tuple[NDArray, NDArray]:
    """The uint8 activation and the int16 cell state after *gates*, int64."""
    admit, new, forget, shown = np.split(gates, GATES, axis=1)
    added = multiply_q15(logistic_q3()[admit], tanh_of(3)[new])
    kept = multiply_q15(logistic_q3()[forget], cell)
    after = np.clip(rounding_divide_by_pot(added, STATE_BITS) + kept, LEAST, GREATEST)
    activation = multiply_q15(logistic_q3()[shown], tanh_of(STATE_BITS)[after])
    return INPUT_ZERO + np.clip(rounding_divide_by_pot(activation, 8), -128, 127), after


@kernel("QUANTIZED_16BIT_LSTM")
def quantized_16bit_lstm(site: Site) -> Kernel:
    """The integer kernel with a matrix for each gate; scales and zero points as NNAPI fixes them:
    1/128 and 128 for the activations, 2**-11 for the cell state, and for the biases the weights'
    over 128.

    NNAPI puts the recurrent weights before the input's, and the input before the previous output:
    the first columns of the joined weights meet the input, whichever matrix they come from.
    """
    wanted = [*[DType.UINT8] * 9, *[DType.INT32] * 4, DType.INT16, DType.UINT8]
    if [site.input(i).dtype for i in range(len(wanted))] != wanted:
        raise site.unsupported_types()
    weights = tensor_quantization(site.input(1), "the weights")
    multiplier = 4096.0 * float(np.float32(tensor_quantization(site.input(9), "the biases").scale))
    order = (0, 2, 1, 3)
    """Input, new values, forget, output out of NNAPI's input, forget, cell, output."""

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        rows = [
            np.concatenate([given(inputs[5 + gate]), given(inputs[1 + gate])], axis=1)
            for gate in order
        ]
        bias = np.concatenate([given(inputs[9 + gate]) for gate in order])
        gates = joined_gates(
            np.concatenate(rows),
            bias,
            weights.zero_point,
            multiplier,
            multiply_by_quantized_multiplier,
        )
        joined = np.concatenate([given(inputs[0]), given(inputs[14])], axis=1)
        activation, after = stepped(gates(joined), given(inputs[13]))
        return [after.astype(np.int16), activation.astype(np.uint8)]

    return run
