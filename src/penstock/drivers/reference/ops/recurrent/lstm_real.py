"""One direction of a long short-term memory over real values, with float or hybrid weights.

For the gates g of input, forget, cell and output at each step (TFLite's LSTM; NNAPI's LSTM and
sequence forms):
    g = activate(W x + A aux + R h + peephole * c + b), or with layer normalisation
    g = activate(coefficients * normalised(W x + A aux + R h + peephole * c) + b);
    c = clip(forget * c + input * cell), h = output * activate(c), h = clip(P h + bias).
Without an input gate it is 1 - forget. The output gate sees the new c.
"""

from __future__ import annotations

import numpy as np

from penstock.drivers.reference.ops.kernel import Site
from penstock.drivers.reference.ops.recurrent.activations import activation_function, logistic
from penstock.drivers.reference.ops.recurrent.lstm_parameters import (
    CELL,
    FORGET,
    INPUT,
    Memory,
    Positions,
    clip_of,
    gates_of,
)
from penstock.drivers.reference.ops.recurrent.products import (
    Arrays,
    Product,
    real_array,
    real_product,
    real_values,
)
from penstock.drivers.reference.ops.recurrent.sequences import rows_of, times
from penstock.ir import NDArray

VARIANCE_FLOOR = np.float32(1e-8)


class RealMemory:
    """One direction with its parameters prepared. *cells* and *outputs* are its sizes."""

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
        self, source: NDArray, auxiliary: NDArray | None, state: Memory, *, backward: bool = False
    ) -> tuple[NDArray, Memory]:
        """Outputs [time, batch, outputs] for *source* [time, batch, size], and the state
        afterwards.

        *auxiliary* is [time, batch, its size], used where there are weights for it.
        """
        steps, batch, _ = source.shape
        sums = self._sums(source, auxiliary).reshape(steps, batch, len(self._gates), self.cells)
        hidden = real_array(state.output).reshape(batch, self.outputs)
        cell = real_array(state.cell).reshape(batch, self.cells)
        outputs = np.empty((steps, batch, self.outputs), np.float32)
        for step in times(steps, backward=backward):
            recurrent = self._recurrent(hidden).reshape(batch, len(self._gates), self.cells)
            recurrent += sums[step]
            hidden, cell = self._step(recurrent, cell)
            outputs[step] = hidden
        return outputs, Memory(hidden, cell)

    def _sums(self, source: NDArray, auxiliary: NDArray | None) -> NDArray:
        """What the inputs add to every gate at every step, biases included where they belong there."""
        sums = self._input(rows_of(real_array(source)))
        if self._norm is None:
            sums += self._bias.reshape(-1)
        if self._auxiliary is not None and auxiliary is not None:
            sums += self._auxiliary(rows_of(real_array(auxiliary)))
        return sums

    def _step(self, sums: NDArray, cell: NDArray) -> tuple[NDArray, NDArray]:
        """Output and cell state after one step; *sums* [batch, gates, cells] is destroyed.

        The output gate is finished last, for it may see the new cell state.
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
        """Layer normalisation of some gates, where there is one, in place."""
        if self._norm is None:
            return
        part = sums[:, gates]
        part -= np.add.reduce(part, axis=2, keepdims=True) / np.float32(self.cells)
        variance = np.add.reduce(part * part, axis=2, keepdims=True) / np.float32(self.cells)
        part *= np.float32(1) / np.sqrt(variance + VARIANCE_FLOOR)
        part *= self._norm[gates]
        part += self._bias[gates]


def _stacked(site: Site, arrays: Arrays, positions: list[int]) -> NDArray:
    """Vectors of parameters, one a row."""
    return np.stack([real_values(arrays[p], site.input(p)) for p in positions])
