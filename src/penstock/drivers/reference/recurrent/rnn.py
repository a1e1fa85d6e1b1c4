"""RNN, UNIDIRECTIONAL_SEQUENCE_RNN and BIDIRECTIONAL_SEQUENCE_RNN, float and hybrid, and SVDF.

At each step of an RNN h = activate(W x + A aux + R h + b), and h is the output.

SVDF is a fully connected layer over a sliding memory, its weights factored into features and time.
The state holds the last `memory` values of each filter, oldest first: [batch, filters * memory].
Each run shifts it by one place, then stores the newest values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np

from penstock.driverkit import fixed_point
from penstock.drivers.reference.kernel import (
    Inputs,
    Kernel,
    Site,
    kernel,
    require,
    tensor_quantization,
)
from penstock.drivers.reference.numerics.products import Columns, exact_dtype
from penstock.drivers.reference.numerics.requantize import integer_range
from penstock.drivers.reference.numerics.weights import flattened, given
from penstock.drivers.reference.recurrent.cells import (
    Arrays,
    States,
    activation_function,
    both_directions,
    check_real,
    real_array,
    real_product,
    real_results,
    real_values,
    rows_of,
    single_direction,
    with_parameters,
)
from penstock.ir import DType, NDArray

SINGLE: Final = (1, 2, 3)
FORWARD: Final = (1, 2, 3, 10)
BACKWARD: Final = (5, 6, 7, 11)
"""Positions of weights, recurrent weights, bias, and the weights of an auxiliary input."""

STATE: Final = 4
STATES: Final = (4, 8)
AUXILIARY: Final = 9


class Cell:
    """One direction with its parameters prepared."""

    def __init__(self, site: Site, positions: Sequence[int], arrays: Arrays) -> None:
        asymmetric = site.attributes.flag("asymmetric_quantize_inputs")
        weights, recurrent, bias, *auxiliary = positions
        self._input = real_product(site, [weights], arrays, asymmetric=asymmetric)
        self._recurrent = real_product(site, [recurrent], arrays, asymmetric=asymmetric)
        self._bias = real_values(arrays[bias], site.input(bias))
        self._auxiliary = None
        if auxiliary and site.has(auxiliary[0]):
            self._auxiliary = real_product(site, auxiliary, arrays, asymmetric=asymmetric)
        self._activate = activation_function(site.attributes.text("fused_activation_function"))

    def run(
        self, source: NDArray, auxiliary: NDArray | None, states: States, *, backward: bool = False
    ) -> tuple[NDArray, States]:
        """As `Direction`."""
        steps, batch, _ = source.shape
        units = len(self._bias)
        sums = self._input(rows_of(real_array(source)))
        sums += self._bias
        if self._auxiliary is not None and auxiliary is not None:
            sums += self._auxiliary(rows_of(real_array(auxiliary)))
        sums = sums.reshape(steps, batch, units)
        hidden = real_array(states[0]).reshape(batch, units)
        outputs = np.empty((steps, batch, units), np.float32)
        for step in range(steps)[:: -1 if backward else 1]:
            hidden = self._activate(sums[step] + self._recurrent(hidden))
            outputs[step] = hidden
        return outputs, (hidden,)


@kernel("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN")
def rnn(site: Site) -> Kernel:
    check_real(site, 0, STATE)
    return single_direction(site, "RNN", SINGLE, [STATE], partial(Cell, site, SINGLE))


@kernel("BIDIRECTIONAL_SEQUENCE_RNN")
def bidirectional_rnn(site: Site) -> Kernel:
    check_real(site, 0, *STATES)

    def make(arrays: Arrays) -> tuple[Cell, Cell]:
        return Cell(site, FORWARD, arrays), Cell(site, BACKWARD, arrays)

    return both_directions(site, FORWARD + BACKWARD, STATES, AUXILIARY, site.has(10), make)


@kernel("SVDF")
def svdf(site: Site) -> Kernel:
    """Float, hybrid, and integer with int8 inputs and an int16 or int8 state."""
    source, features, state = (site.input(i).dtype for i in (0, 1, 4))
    if source is features is DType.INT8 and state in {DType.INT8, DType.INT16}:
        return _integer(site)
    check_real(site, 0, 4)
    return _real(site)


def _slide(state: NDArray, newest: NDArray, memory: int) -> NDArray:
    """The state [batch, filters, memory] with *newest* in place of the oldest values."""
    batch, filters = newest.shape
    before = state.reshape(batch, filters, memory)
    return np.concatenate([before[:, :, 1:], newest[:, :, None].astype(state.dtype)], axis=2)


def _real(site: Site) -> Kernel:
    rank = site.attributes.integer("rank")
    activate = activation_function(site.attributes.text("fused_activation_function"))
    asymmetric = site.attributes.flag("asymmetric_quantize_inputs")

    def prepare(arrays: Arrays) -> Kernel:
        feature = real_product(site, [1], arrays, asymmetric=asymmetric)
        weights = real_values(arrays[2], site.input(2))
        bias = real_array(arrays[3]) if 3 in arrays else None

        def run(inputs: Inputs) -> Sequence[NDArray]:
            newest = feature(real_array(given(inputs[0])))
            state = _slide(real_array(given(inputs[4])), newest, weights.shape[1])
            sums = np.einsum("bfm,fm->bf", state, weights)
            out = sums.reshape(len(sums), weights.shape[0] // rank, rank).sum(axis=2)
            if bias is not None:
                out += bias
            return real_results(site, [activate(out), flattened(state)])

        return run

    return with_parameters(site, [1, 2, 3], prepare)


def _integer(site: Site) -> Kernel:
    """The integer kernel of SVDF. Both scalings use quantised multipliers of ratios computed in
    float32.

    Sums over time wrap at 32 bits. The only activation is RELU, which the output's type applies:
    TFLite's kernel assumes that the output's zero point is the least value of the type.
    """
    activation = site.attributes.text("fused_activation_function")
    require(activation == "RELU", f"an integer SVDF with the activation {activation}")
    rank = site.attributes.integer("rank")
    source, features, time, state, target = (
        tensor_quantization(operand, "an operand")
        for operand in (*(site.input(i) for i in (0, 1, 2, 4)), site.output())
    )
    scales = [np.float32(q.scale) for q in (source, features, time, state, target)]
    first = fixed_point.quantize_multiplier(scales[0] * scales[1] / scales[3])
    second = fixed_point.quantize_multiplier(scales[3] * scales[2] / scales[4])
    dtype = site.output().dtype
    limits, state_limits = integer_range(dtype), integer_range(site.input(4).dtype)

    def prepare(arrays: Arrays) -> Kernel:
        columns = Columns(arrays[1].astype(np.int64), -integer_range(DType.INT8)[0])
        offset = source.zero_point * columns.sums
        weights = arrays[2].astype(np.int64)
        reach = np.abs(weights).max(initial=0) * float(weights.shape[1])
        exact = exact_dtype(reach * -state_limits[0])
        taps = weights.astype(exact)
        shift = state.zero_point * weights.sum(axis=1)

        def run(inputs: Inputs) -> Sequence[NDArray]:
            rows = given(inputs[0]).astype(columns.values.dtype)
            sums = np.matmul(rows, columns.values.T).astype(np.int64) - offset
            newest = np.clip(fixed_point.rescale(sums, *first), *state_limits)
            after = _slide(given(inputs[4]), newest, weights.shape[1])
            over_time = np.einsum("bfm,fm->bf", after.astype(exact), taps).astype(np.int64)
            over_time -= shift
            out = over_time.reshape(len(over_time), -1, rank).sum(axis=2)
            if 3 in arrays:
                out += arrays[3]
            wrapped = out.astype(np.int32)
            scaled = fixed_point.rescale(wrapped, *second) + target.zero_point
            stored = np.clip(scaled, *limits).astype(dtype.numpy)
            return (stored, flattened(after))[: len(site.outputs)]

        return run

    return with_parameters(site, [1, 2, 3], prepare)
