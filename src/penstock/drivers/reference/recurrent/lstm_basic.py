"""The basic kernel of LSTM, whose weights are one matrix, and NNAPI's QUANTIZED_16BIT_LSTM.

Gates are in the order input, new values, forget, output: rows of the weights [4 * cells, inputs +
cells], whose columns are those of the input, then of the previous activation.

Nonlinearities are tables over int16 (`driverkit.tables_16`), indexed by stored values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from penstock.driverkit import fixed_point
from penstock.driverkit.tables_16 import GREATEST, LEAST, logistic_q3, tanh_of
from penstock.drivers.reference.kernel import Inputs, Kernel, Outputs, Site, kernel, require
from penstock.drivers.reference.numerics.products import Columns
from penstock.drivers.reference.numerics.weights import given
from penstock.drivers.reference.recurrent.cells import REAL, logistic, real_array
from penstock.ir import DType, NDArray


def multiply_q15(a: NDArray, b: NDArray | int) -> NDArray:
    """The product of int16 values over 2**15 to the nearest, halves up; -1 times -1 saturates."""
    return fixed_point.doubling_high_mul(a, b, 16)


Scale: TypeAlias = Callable[[NDArray, int, int], NDArray]
"""Scales sums by a quantised multiplier: mantissa and shift."""

STATE_BITS = 4
"""Integer bits of the integer cell state."""

INPUT_ZERO = 128
GATES = 4


def basic_lstm(site: Site) -> Kernel:
    """Float, and uint8 with an int16 state of scale 2**-11.

    As TFLite's kernel, assumes the scale 1/128 and the zero point 128 of the activation.
    """
    inputs = [site.input(i).dtype for i in range(5)]
    if all(dtype in REAL for dtype in inputs):
        return _real(site)
    if inputs == [DType.UINT8] * 3 + [DType.INT32, DType.INT16]:
        return _integer(site)
    raise site.unsupported_types()


def _results(site: Site, *results: NDArray) -> list[NDArray]:
    """Activation, state, joined input and gates; then the new activation and the new state."""
    pairs = zip((*results, *results[:2]), site.outputs, strict=False)
    return [array.astype(operand.dtype.numpy, copy=False) for array, operand in pairs]


def _real(site: Site) -> Kernel:
    def run(inputs: Inputs) -> Outputs:
        source, before, weights, bias, state = (real_array(given(a)) for a in inputs[:5])
        joined = np.concatenate([source, before], axis=1)
        gates = np.matmul(joined, weights.T) + bias
        admit, new, forget, shown = np.split(gates, GATES, axis=1)
        state = logistic(admit.copy()) * np.tanh(new) + logistic(forget.copy()) * state
        return _results(site, logistic(shown.copy()) * np.tanh(state), state, joined, gates)

    return run


def _integer(site: Site) -> Kernel:
    state = site.output_quantization(1)
    require(
        fixed_point.power_of_two(state.scale) == STATE_BITS - 15,
        "a state of another scale than 2**-11",
    )
    multiplier = 4096.0 * float(np.float32(site.quantization(3).scale))
    zero_point = site.quantization(2).zero_point
    constants = site.constant(2), site.constant(3)
    ready = None
    if constants[0] is not None and constants[1] is not None:
        ready = joined_gates(constants[0], constants[1], zero_point, multiplier, _rounded_up)

    def run(inputs: Inputs) -> Outputs:
        source, before, weights, bias, cell = (given(a) for a in inputs[:5])
        gates_of = ready or joined_gates(weights, bias, zero_point, multiplier, _rounded_up)
        joined = np.concatenate([source, before], axis=1)
        gates = gates_of(joined)
        activation, after = stepped(gates, cell)
        return _results(site, activation, after, joined, gates)

    return run


def _rounded_up(sums: NDArray, mantissa: int, shift: int) -> NDArray:
    """Scales as TFLite's matrix products: both roundings are to the nearest, halves up."""
    right = max(-shift, 0)
    high = fixed_point.doubling_high_mul(sums << max(shift, 0), mantissa)
    return (high + ((1 << right) >> 1)) >> right


def joined_gates(
    weights: NDArray, bias: NDArray, zero_point: int, multiplier: float, scale: Scale
) -> Callable[[NDArray], NDArray]:
    """uint8 rows [rows, inputs + cells] to int16 gates [rows, 4 * cells] in Q3, as int64."""
    columns = Columns(weights.astype(np.int64) - zero_point, 256)
    scaling = fixed_point.quantize_multiplier(multiplier)
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
    after = np.clip(fixed_point.rounding_divide_by_pot(added, STATE_BITS) + kept, LEAST, GREATEST)
    activation = multiply_q15(logistic_q3()[shown], tanh_of(STATE_BITS)[after])
    return INPUT_ZERO + np.clip(fixed_point.rounding_divide_by_pot(activation, 8), -128, 127), after


@kernel("QUANTIZED_16BIT_LSTM")
def quantized_16bit_lstm(site: Site) -> Kernel:
    """The integer kernel with one matrix for each gate.

    NNAPI fixes scales and zero points: 1/128 and 128 for the activations, 2**-11 for the cell
    state, and the weights' scale over 128 for biases.

    NNAPI puts the recurrent weights before the input's, and the input before the previous output.
    The first columns of the joined weights multiply the input, whichever matrix they come from.
    """
    wanted = [*[DType.UINT8] * 9, *[DType.INT32] * 4, DType.INT16, DType.UINT8]
    site.require_types([site.input(i).dtype for i in range(len(wanted))] == wanted)
    weights = site.quantization(1)
    multiplier = 4096.0 * float(np.float32(site.quantization(9).scale))
    order = (0, 2, 1, 3)
    """Reorders NNAPI's gates (input, forget, cell, output) to input, new values, forget, output."""

    def run(inputs: Inputs) -> Outputs:
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
            fixed_point.rescale,
        )
        joined = np.concatenate([given(inputs[0]), given(inputs[14])], axis=1)
        activation, after = stepped(gates(joined), given(inputs[13]))
        return [after.astype(np.int16), activation.astype(np.uint8)]

    return run
