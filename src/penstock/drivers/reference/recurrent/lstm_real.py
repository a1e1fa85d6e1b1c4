"""One direction of a long short-term memory over real values, with float or hybrid weights, and the
positions of its inputs.

For the gates g of input, forget, cell and output at each step (TFLite's LSTM; NNAPI's LSTM and
sequence forms):
    g = activate(W x + A aux + R h + peephole * c + b), or with layer normalisation
    g = activate(coefficients * normalised(W x + A aux + R h + peephole * c) + b);
    c = clip(forget * c + input * cell), h = output * activate(c), h = clip(P h + bias).
Without an input gate it is 1 - forget. The output gate sees the new c.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.driverkit.lstm_operands import CELL, FORGET, INPUT, OUTPUT, Positions
from penstock.drivers.reference.kernel import Site, require
from penstock.drivers.reference.recurrent.cells import (
    Arrays,
    Product,
    States,
    activation_function,
    logistic,
    real_array,
    real_product,
    real_values,
    rows_of,
)
from penstock.ir import NDArray

STATES: Final = (18, 19)
"""The inputs of a cell of one direction: its parameters, and its output and cell state."""


def gates_of(site: Site, positions: Positions, arrays: Arrays) -> list[int]:
    """The gates of this direction: all, or all but the input gate (CIFG).

    TFLite's kernels treat empty input weights as omitted (their pointer is null): the input gate is
    coupled. Like TFLite, raises `Unsupported` for a gate with only some of its parameters.
    """
    coupled = not site.has(positions.weights(INPUT))
    gates = [FORGET, CELL, OUTPUT] if coupled else [INPUT, FORGET, CELL, OUTPUT]
    for gate in gates:
        for position in (positions.weights(gate), positions.recurrent(gate), positions.bias(gate)):
            site.input(position)
    rest = any(site.has(i) for i in (positions.recurrent(INPUT), positions.bias(INPUT)))
    require(not (coupled and rest), "parameters of an input gate without its input weights")
    peepholes = {site.has(at) for g in gates if (at := positions.peephole(g)) is not None}
    require(len(peepholes) == 1, "peephole weights of some gates only")
    norms = {site.has(positions.norm(g)) for g in gates}
    require(len(norms) == 1, "layer normalisation coefficients of some gates only")
    projected = site.has(positions.projection) or not site.has(positions.projection_bias)
    require(projected, "a projection bias without projection weights")
    if not coupled and not arrays[positions.weights(INPUT)].size:
        gates.remove(INPUT)
    return gates


def clip_of(site: Site, name: str) -> float:
    """An upper bound of magnitudes; 0 means no bound. Raises `Unsupported` for a negative one."""
    clip = site.attributes.number(name)
    require(clip >= 0, f"a {name} of {clip}")
    return clip


VARIANCE_FLOOR = np.float32(1e-8)


class RealMemory:
    """One direction with prepared parameters. *cells* and *outputs* are its sizes."""

    def __init__(self, site: Site, positions: Positions, arrays: Arrays) -> None:
        gates = sorted(gates_of(site, positions, arrays), key=lambda gate: gate != CELL)
        asymmetric = site.attributes.flag("asymmetric_quantize_inputs")

        def product(where: list[int]) -> Product:
            return real_product(site, where, arrays, asymmetric=asymmetric)

        self._gates, self._coupled = gates, INPUT not in gates
        self._input = product([positions.weights(g) for g in gates])
        self._recurrent = product([positions.recurrent(g) for g in gates])
        self._auxiliary = None
        if positions.auxiliary is not None and site.has(positions.auxiliary + FORGET):
            self._auxiliary = product([positions.auxiliary + g for g in gates])
        self._bias = _stacked(site, arrays, [positions.bias(g) for g in gates])
        self.cells = self._bias.shape[1]
        self._peephole = self._norm = None
        if site.has(positions.peephole(FORGET) or 0):
            seen = [p for p in map(positions.peephole, gates) if p is not None]
            self._peephole = _stacked(site, arrays, seen)
        if site.has(positions.norm(FORGET)):
            self._norm = _stacked(site, arrays, [positions.norm(g) for g in gates])
        self._projection = None
        self.outputs = self.cells
        if site.has(positions.projection):
            self._projection = product([positions.projection])
            self.outputs = len(arrays[positions.projection])
        self._projection_bias = (
            real_values(arrays[positions.projection_bias], site.input(positions.projection_bias))
            if site.has(positions.projection_bias)
            else None
        )
        self._activation = activation_function(site.attributes.text("fused_activation_function"))
        self._cell_clip = np.float32(clip_of(site, "cell_clip"))
        self._output_clip = np.float32(clip_of(site, "proj_clip"))

    def run(
        self, source: NDArray, auxiliary: NDArray | None, states: States, *, backward: bool = False
    ) -> tuple[NDArray, States]:
        """As `Direction`; the states are output [batch, outputs] and cell [batch, cells]."""
        steps, batch, _ = source.shape
        sums = self._sums(source, auxiliary).reshape(steps, batch, len(self._gates), self.cells)
        hidden = real_array(states[0]).reshape(batch, self.outputs)
        cell = real_array(states[1]).reshape(batch, self.cells)
        outputs = np.empty((steps, batch, self.outputs), np.float32)
        for step in range(steps)[:: -1 if backward else 1]:
            recurrent = self._recurrent(hidden).reshape(batch, len(self._gates), self.cells)
            recurrent += sums[step]
            hidden, cell = self._step(recurrent, cell)
            outputs[step] = hidden
        return outputs, (hidden, cell)

    def _sums(self, source: NDArray, auxiliary: NDArray | None) -> NDArray:
        """The inputs' terms of every gate and step, with biases if there is no normalisation."""
        sums = self._input(rows_of(real_array(source)))
        if self._norm is None:
            sums += self._bias.reshape(-1)
        if self._auxiliary is not None and auxiliary is not None:
            sums += self._auxiliary(rows_of(real_array(auxiliary)))
        return sums

    def _step(self, sums: NDArray, cell: NDArray) -> tuple[NDArray, NDArray]:
        """Output and cell state after one step; overwrites *sums* [batch, gates, cells].

        The output gate is computed last, because it may use the new cell state.
        """
        shown = sums[:, -1]
        if self._peephole is None:
            self._normalise(sums, slice(None))
            logistic(sums[:, 1:])
        else:
            sums[:, 1:-1] += self._peephole[:-1] * cell[:, None]
            self._normalise(sums, slice(None, -1))
            logistic(sums[:, 1:-1])
        forget = sums[:, -2]
        new = self._activation(sums[:, 0])
        new *= np.float32(1) - forget if self._coupled else sums[:, 1]
        cell = forget * cell
        cell += new
        if self._cell_clip > 0:
            np.clip(cell, -self._cell_clip, self._cell_clip, out=cell)
        if self._peephole is not None:
            shown += self._peephole[-1] * cell
            self._normalise(sums, slice(-1, None))
            logistic(shown)
        hidden = shown * self._activation(cell.copy())
        if self._projection is not None:
            hidden = self._projection(hidden)
            if self._projection_bias is not None:
                hidden += self._projection_bias
            if self._output_clip > 0:
                np.clip(hidden, -self._output_clip, self._output_clip, out=hidden)
        return hidden, cell

    def _normalise(self, sums: NDArray, gates: slice) -> None:
        """Layer normalisation in place, of the gates that have it."""
        if self._norm is None:
            return
        part = sums[:, gates]
        part -= np.add.reduce(part, axis=2, keepdims=True) / np.float32(self.cells)
        variance = np.add.reduce(part * part, axis=2, keepdims=True) / np.float32(self.cells)
        part *= np.float32(1) / np.sqrt(variance + VARIANCE_FLOOR)
        part *= self._norm[gates]
        part += self._bias[gates]


def _stacked(site: Site, arrays: Arrays, positions: list[int]) -> NDArray:
    """Parameter vectors as rows of a matrix."""
    return np.stack([real_values(arrays[p], site.input(p)) for p in positions])
