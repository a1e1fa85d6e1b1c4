"""Integer long short-term memories whose products become int8 before they are added.

Activations and weights are int8, the cell state is int16. In TFLite's form with twelve intermediate
results, the input's product and the recurrent product of each gate become int8 before they are
added. Sums are normalised and activated in float32. That form has layer normalisation and a
projection with a bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.drivers.reference.kernel import Site, require
from penstock.drivers.reference.numerics import fixed_point
from penstock.drivers.reference.numerics.one_operand import round_half_away
from penstock.drivers.reference.recurrent.cells import Arrays, States, rows_of
from penstock.drivers.reference.recurrent.lstm_basic import cut_logistic, cut_tanh
from penstock.drivers.reference.recurrent.lstm_integer_16 import (
    Peephole,
    ScaledProduct,
    clamp_8,
    clamp_16,
    output_scale,
    quantization_of,
    quantized_clip,
    scale_of,
    updated_cell,
)
from penstock.drivers.reference.recurrent.lstm_real import (
    CELL,
    FORGET,
    INPUT,
    OUTPUT,
    Positions,
    clip_of,
    gates_of,
)
from penstock.interrupts import watched
from penstock.ir import DType, NDArray

CELL_POWER = -15


@dataclass(frozen=True, slots=True)
class Intermediates8:
    """Scales and zero points for each gate in turn: of the sum, the input's product and the
    recurrent product.
    """

    scales: tuple[np.float32, ...]
    zero_points: tuple[int, ...]


class Memory8:
    """The cell with prepared parameters; *states* are the positions of output state and cell
    state.
    """

    def __init__(
        self,
        site: Site,
        positions: Positions,
        states: tuple[int, int],
        arrays: Arrays,
        intermediates: Intermediates8,
    ) -> None:
        gates = gates_of(site, positions, arrays)
        for needed in (positions.norm(FORGET), positions.projection, positions.projection_bias):
            site.input(needed)
        cell = quantization_of(site, states[1])
        require(cell.scale == 2.0**CELL_POWER, "a cell state of another scale than 2**-15")
        self._gates = gates
        self._parts = {g: Gate(site, positions, states[0], g, arrays, intermediates) for g in gates}
        clip = clip_of(site, "cell_clip")
        self._clip = quantized_clip(clip if clip < 1 else 0.0, cell.scale, DType.INT16)
        state = quantization_of(site, states[0])
        scale = (
            float(scale_of(site, positions.projection)) * 2.0**-15 / float(np.float32(state.scale))
        )
        self._multiplier = fixed_point.quantize_multiplier(float(np.float32(scale)))
        self._projection = arrays[positions.projection].astype(np.float64)
        self._bias = arrays[positions.projection_bias].astype(np.int64)
        self.outputs, self.cells = self._projection.shape
        self._zero_point = state.zero_point
        self._output_clip = quantized_clip(
            clip_of(site, "proj_clip"), output_scale(site), DType.INT8
        )

    def run(
        self, source: NDArray, _auxiliary: NDArray | None, states: States, *, backward: bool = False
    ) -> tuple[NDArray, States]:
        """As `Direction`, forward only; the states are int8 output and int16 cell."""
        steps, batch, _ = source.shape
        rows = rows_of(source)
        inputs = {g: p.from_input(rows).reshape(steps, batch, -1) for g, p in self._parts.items()}
        hidden = states[0].reshape(batch, self.outputs)
        cell = states[1].reshape(batch, self.cells).astype(np.int64)
        outputs = np.empty((steps, batch, self.outputs), np.int8)
        for step in watched(range(steps)):
            hidden, cell = self._step({g: v[step] for g, v in inputs.items()}, hidden, cell)
            outputs[step] = hidden
        return outputs, (hidden.astype(np.int8), cell.astype(np.int16))

    def _step(
        self, inputs: dict[int, NDArray], hidden: NDArray, cell: NDArray
    ) -> tuple[NDArray, NDArray]:
        def gate(which: int, cell: NDArray) -> NDArray:
            return self._parts[which].normalised(inputs[which], hidden, cell)

        admit = cut_logistic()[gate(INPUT, cell)] if INPUT in self._gates else None
        forget, new = cut_logistic()[gate(FORGET, cell)], cut_tanh(3)[gate(CELL, cell)]
        cell = updated_cell(cell, forget, admit, new, CELL_POWER, self._clip)
        shown = cut_logistic()[gate(OUTPUT, cell)]
        activated = fixed_point.rounding_divide_by_pot(shown * cut_tanh(0)[cell], 15)
        projected = np.matmul(activated.astype(np.float64), self._projection.T).astype(np.int64)
        projected += self._bias
        scaled = fixed_point.rescale_wide(projected, *self._multiplier)
        hidden = clamp_8(scaled + self._zero_point)
        if self._output_clip > 0:
            np.clip(hidden, -self._output_clip, self._output_clip, out=hidden)
        return hidden, cell


class Gate:
    """One gate: int8 products, an int16 sum, and layer normalisation."""

    def __init__(
        self,
        site: Site,
        positions: Positions,
        output_state: int,
        gate: int,
        arrays: Arrays,
        intermediates: Intermediates8,
    ) -> None:
        total, by_input, by_state = intermediates.scales[3 * gate : 3 * gate + 3]
        _, *zero_points = intermediates.zero_points[3 * gate : 3 * gate + 3]
        self._zero_points = [int(np.int8(z)) for z in zero_points]
        self._products = [
            _product(site, arrays, 0, positions.weights(gate), by_input),
            _product(site, arrays, output_state, positions.recurrent(gate), by_state),
        ]
        self._multipliers = [
            fixed_point.quantize_multiplier(float(s / total)) for s in (by_input, by_state)
        ]
        position = positions.peephole(gate)
        self._peephole = (
            Peephole.of(site, position, CELL_POWER, total, arrays)
            if position is not None and site.has(position)
            else None
        )
        scale = scale_of(site, positions.norm(gate))
        mantissa, shift = fixed_point.quantize_multiplier(float(scale))
        self._scale = np.float32(mantissa * 2.0 ** (shift - 31))
        self._coefficients = arrays[positions.norm(gate)].astype(np.float32)
        self._bias = arrays[positions.bias(gate)].astype(np.float32) * (
            np.float32(2.0**-10) * self._scale
        )

    def from_input(self, rows: NDArray) -> NDArray:
        """The term that the input adds to the sum of the gate."""
        return self._part(0, rows)

    def normalised(self, by_input: NDArray, hidden: NDArray, cell: NDArray) -> NDArray:
        """The gate in Q3 before its activation."""
        whole = clamp_16(by_input + self._part(1, hidden))
        if self._peephole is not None:
            whole = clamp_16(whole + self._peephole(cell))
        sums = whole.astype(np.float32)
        count = np.float32(sums.shape[1])
        mean = sums.cumsum(axis=1)[:, -1:] / count
        variance = np.square(sums).cumsum(axis=1)[:, -1:] / count - mean * mean
        inverse = np.float32(1) / np.sqrt(np.where(variance == 0, np.float32(1e-8), variance))
        scaled = (sums - mean) * inverse * self._coefficients * self._scale + self._bias
        return clamp_16(round_half_away(scaled * np.float32(2**12)).astype(np.int64))

    def _part(self, which: int, rows: NDArray) -> NDArray:
        zero_point = self._zero_points[which]
        stored = clamp_8(self._products[which](rows) + zero_point)
        return fixed_point.rescale(stored - zero_point, *self._multipliers[which])


def _product(
    site: Site, arrays: Arrays, vectors: int, weights: int, scale: np.float32
) -> ScaledProduct:
    given = quantization_of(site, vectors)
    multiplier = scale_of(site, weights) * np.float32(given.scale) / scale
    return ScaledProduct([arrays[weights]], [multiplier], given.zero_point, [None])
