"""Integer long short-term memories whose sums of products become int16 gates at once.

Bit for bit as TFLite's kernels for int8 activations and an int16 cell state with five intermediate
results; their scales are float32 numbers. NNAPI's QUANTIZED_LSTM is the same cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.drivers.reference.ops.kernel import Site, require
from penstock.drivers.reference.ops.numerics.fixed_point import (
    multiply_by_quantized_multiplier,
    quantize_multiplier,
)
from penstock.drivers.reference.ops.numerics.fixed_point_functions import (
    inverse_square_root,
    power_of_two,
)
from penstock.drivers.reference.ops.recurrent.lstm_integer_parts import (
    ScaledProduct,
    clamp_8,
    clamp_16,
    output_scale,
    quantization_of,
    quantized_clip,
    scale_of,
    updated_cell,
)
from penstock.drivers.reference.ops.recurrent.lstm_parameters import (
    CELL,
    FORGET,
    INPUT,
    OUTPUT,
    Memory,
    Positions,
    clip_of,
    gates_of,
)
from penstock.drivers.reference.ops.recurrent.products import Arrays
from penstock.drivers.reference.ops.recurrent.sequences import rows_of
from penstock.drivers.reference.ops.recurrent.tables import (
    MOST_INTEGER_BITS,
    logistic_q3,
    tanh_of,
)
from penstock.interrupts import watched
from penstock.ir import DType, NDArray

GATE_SCALE = np.float32(2.0**-12)
"""Scale of a gate before its activation: Q3."""

RESOLUTION = 1 << 10
"""Steps of a normalised value and of a mean to one step of the sums."""


@dataclass(frozen=True, slots=True)
class Intermediates:
    """*gates*: scales of the four gates' sums. *hidden*: scale of the output before its projection;
    *hidden_zero_point* is added to it when it is stored, and taken off again by the projection.
    """

    gates: tuple[np.float32, ...]
    hidden: np.float32
    hidden_zero_point: int


def cell_power(site: Site, position: int) -> int:
    """The binary logarithm of the cell state's scale."""
    power = power_of_two(quantization_of(site, position).scale)
    require(
        power is not None and -15 <= power <= MOST_INTEGER_BITS - 15,
        "a cell state whose scale is not a power of two between 2**-15 and 2**-9",
    )
    return power or 0


class Memory16:
    """The cell with its parameters prepared; *states* are the positions of output and cell state."""

    def __init__(
        self,
        site: Site,
        positions: Positions,
        states: tuple[int, int],
        arrays: Arrays,
        intermediates: Intermediates,
    ) -> None:
        gates = gates_of(site, positions, arrays)
        source, state = quantization_of(site, 0), quantization_of(site, states[0])
        normalised = site.has(positions.norm(FORGET))
        self._gates, self._power = gates, cell_power(site, states[1])
        self._clip = quantized_clip(
            clip_of(site, "cell_clip"), quantization_of(site, states[1]).scale, DType.INT16
        )

        def product(where: list[int], scale: float, zero_point: int, biased: bool) -> ScaledProduct:
            scales = [scale_of(site, p) * np.float32(scale) for p in where]
            return ScaledProduct(
                [arrays[p] for p in where],
                [s / intermediates.gates[g] for s, g in zip(scales, gates, strict=True)],
                zero_point,
                [arrays[positions.bias(g)] if biased else None for g in gates],
            )

        self._input = product(
            [positions.weights(g) for g in gates], source.scale, source.zero_point, not normalised
        )
        self._recurrent = product(
            [positions.recurrent(g) for g in gates], state.scale, state.zero_point, False
        )
        self._norms = {g: Norm.of(site, positions, g, arrays) for g in gates} if normalised else {}
        self._peepholes = {
            g: Peephole.of(site, position, self._power, intermediates.gates[g], arrays)
            for g in gates
            if (position := positions.peephole(g)) is not None and site.has(position)
        }
        self.cells, self.outputs = arrays[positions.recurrent(FORGET)].shape
        hidden = intermediates.hidden
        self._hidden = quantize_multiplier(float(np.float32(2.0**-15 / float(hidden) * 2.0**-15)))
        self._hidden_zero_point = intermediates.hidden_zero_point
        self._projection = None
        if site.has(positions.projection):
            scale = scale_of(site, positions.projection) * hidden / np.float32(state.scale)
            self._projection = ScaledProduct(
                [arrays[positions.projection]],
                [scale],
                self._hidden_zero_point,
                [arrays.get(positions.projection_bias)],
            )
        self._output_zero_point = state.zero_point
        self._output_clip = quantized_clip(
            clip_of(site, "proj_clip"), output_scale(site), DType.INT8
        )

    def run(self, source: NDArray, state: Memory) -> tuple[NDArray, Memory]:
        """Outputs [time, batch, outputs] int8 for *source* [time, batch, size], and the state
        afterwards.
        """
        steps, batch, _ = source.shape
        shape = batch, len(self._gates), self.cells
        sums = clamp_16(self._input(rows_of(source))).reshape(steps, *shape)
        hidden = state.output.reshape(batch, self.outputs)
        cell = state.cell.reshape(batch, self.cells).astype(np.int64)
        outputs = np.empty((steps, batch, self.outputs), np.int8)
        for step in watched(range(steps)):
            gates = clamp_16(sums[step] + self._recurrent(hidden).reshape(shape))
            hidden, cell = self._step(gates, cell)
            outputs[step] = hidden
        return outputs, Memory(hidden.astype(np.int8), cell.astype(np.int16))

    def _step(self, sums: NDArray, cell: NDArray) -> tuple[NDArray, NDArray]:
        gates = {gate: sums[:, at] for at, gate in enumerate(self._gates)}
        forget = logistic_q3()[self._finished(FORGET, gates[FORGET], cell)]
        new = tanh_of(3)[self._finished(CELL, gates[CELL], cell)]
        admit = None
        if INPUT in gates:
            admit = logistic_q3()[self._finished(INPUT, gates[INPUT], cell)]
        cell = updated_cell(cell, forget, admit, new, self._power, self._clip)
        shown = logistic_q3()[self._finished(OUTPUT, gates[OUTPUT], cell)]
        hidden = shown * tanh_of(15 + self._power)[cell]
        hidden = multiply_by_quantized_multiplier(hidden, *self._hidden)
        hidden = clamp_8(hidden + self._hidden_zero_point)
        if self._projection is not None:
            hidden = clamp_8(self._projection(hidden) + self._output_zero_point)
            if self._output_clip > 0:
                np.clip(hidden, -self._output_clip, self._output_clip, out=hidden)
        return hidden, cell

    def _finished(self, gate: int, sums: NDArray, cell: NDArray) -> NDArray:
        """A gate before its activation."""
        if gate in self._peepholes:
            sums = clamp_16(sums + self._peepholes[gate](cell))
        return self._norms[gate](sums) if gate in self._norms else sums


@dataclass(frozen=True, slots=True)
class Peephole:
    """What the cell state adds to a gate: int16 *weights* and a multiplier."""

    weights: NDArray
    multiplier: tuple[int, int]

    @classmethod
    def of(
        cls, site: Site, position: int, power: int, gate_scale: np.float32, arrays: Arrays
    ) -> Peephole:
        real = np.float32(2.0**power * float(scale_of(site, position)) / float(gate_scale))
        return cls(arrays[position].astype(np.int64), quantize_multiplier(float(real)))

    def __call__(self, cell: NDArray) -> NDArray:
        return multiply_by_quantized_multiplier(self.weights * cell, *self.multiplier)


@dataclass(frozen=True, slots=True)
class Norm:
    """Layer normalisation of one gate: int16 *coefficients*, int32 *bias*, the multiplier to Q3,
    and the variance that is taken where there is none.
    """

    coefficients: NDArray
    bias: NDArray
    multiplier: tuple[int, int]
    least_variance: int

    @classmethod
    def of(cls, site: Site, positions: Positions, gate: int, arrays: Arrays) -> Norm:
        position = positions.norm(gate)
        scale = scale_of(site, position)
        mantissa, shift = quantize_multiplier(float(scale))
        return cls(
            arrays[position].astype(np.int64),
            arrays[positions.bias(gate)].astype(np.int64),
            (mantissa, shift + 12),
            max(1, int(np.float32(10000) * scale)),
        )

    def __call__(self, sums: NDArray) -> NDArray:
        """int16 sums [batch, cells] to int16 gates in Q3; products with the coefficients wrap at 32
        bits.
        """
        cells = sums.shape[1]
        mean = _quotient(sums.sum(axis=1) * RESOLUTION, cells)
        squares = np.square(sums).sum(axis=1)
        variance = _quotient(
            squares * (RESOLUTION**2 // cells) - mean * mean, RESOLUTION**2
        ).astype(np.int32)
        mantissas, shifts = inverse_square_root(
            np.where(variance < 1, self.least_variance, variance)
        )
        scaled = multiply_by_quantized_multiplier(
            RESOLUTION * sums - mean[:, None], mantissas[:, None], shifts[:, None]
        )
        weighted = (scaled * self.coefficients + self.bias).astype(np.int32).astype(np.int64)
        rounded = _quotient(weighted + np.where(weighted > 0, 512, -512), RESOLUTION)
        return clamp_16(multiply_by_quantized_multiplier(rounded, *self.multiplier))


def _quotient(a: NDArray, b: int) -> NDArray:
    """*a* over *b* > 0, cut off towards zero."""
    result: NDArray = np.sign(a) * (np.abs(a) // b)
    return result
