"""Integer long short-term memories whose sums of products become int16 gates directly, and the
parts shared with int8 products: scaled products, the update of the cell, clips.

Bit for bit as TFLite's kernels for int8 activations and an int16 cell state with five intermediate
results. Their scales are float32 numbers. NNAPI's QUANTIZED_LSTM is the same cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.drivers.reference.kernel import Site, require
from penstock.drivers.reference.numerics import fixed_point
from penstock.drivers.reference.numerics.products import Columns
from penstock.drivers.reference.recurrent.cells import Arrays, States, rows_of
from penstock.drivers.reference.recurrent.lstm_basic import (
    GREATEST,
    LEAST,
    MOST_INTEGER_BITS,
    logistic_q3,
    tanh_of,
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
from penstock.ir import DType, NDArray, Quantization

INT8_MAGNITUDE = 128


def scale_of(site: Site, position: int) -> np.float32:
    """The scale of an input that has one scale, as float32."""
    return np.float32(quantization_of(site, position).scale)


def quantization_of(site: Site, position: int) -> Quantization:
    return site.quantization(position)


def output_scale(site: Site) -> float:
    """The scale of the first output."""
    return site.output_quantization().scale


def clamp_16(values: NDArray) -> NDArray:
    return np.clip(values, LEAST, GREATEST, out=values)


def clamp_8(values: NDArray) -> NDArray:
    return np.clip(values, -128, 127, out=values)


def quantized_clip(clip: float, scale: float, dtype: DType) -> int:
    """A clip in steps of *scale*, truncated to the type's range; 0 means no clip."""
    if not clip > 0:
        return 0
    least, greatest = (LEAST, GREATEST) if dtype is DType.INT16 else (-128, 127)
    return int(np.clip(np.float32(clip) / np.float32(scale), least, greatest))


class ScaledProduct:
    """Products of int8 vectors with the weights of several gates, plus a bias, scaled for each
    gate.

    *multipliers* has a real multiplier for each gate, *biases* a vector of integers or None;
    *zero_point* is that of the vectors.
    """

    def __init__(
        self,
        weights: Sequence[NDArray],
        multipliers: Sequence[np.float32],
        zero_point: int,
        biases: Sequence[NDArray | None],
    ) -> None:
        columns = Columns(np.concatenate(weights).astype(np.int64), INT8_MAGNITUDE)
        counts = [len(w) for w in weights]
        mantissas, shifts = fixed_point.quantize_multipliers([float(m) for m in multipliers])
        self._columns = columns.values
        self._mantissas, self._shifts = (np.repeat(v, counts) for v in (mantissas, shifts))
        added = [
            np.zeros(n, np.int64) if b is None else b.astype(np.int64)
            for b, n in zip(biases, counts, strict=True)
        ]
        self._bias = np.concatenate(added) - zero_point * columns.sums

    def __call__(self, rows: NDArray) -> NDArray:
        """int8 *rows* [rows, depth] to scaled sums [rows, columns], int64."""
        sums = np.matmul(rows.astype(self._columns.dtype), self._columns.T).astype(np.int64)
        sums += self._bias
        return fixed_point.rescale(sums, self._mantissas, self._shifts)


def updated_cell(
    cell: NDArray, forget: NDArray, admit: NDArray | None, new: NDArray, cell_power: int, clip: int
) -> NDArray:
    """The int16 cell state after one step. Its scale is 2**cell_power, and gates are in Q0.

    Without an input gate, that gate is 32767 - forget.
    """
    kept = _wrapped(fixed_point.rounding_divide_by_pot(forget * cell, 15))
    if admit is None:
        admit = GREATEST - forget
    added = _wrapped(fixed_point.rounding_divide_by_pot(admit * new, 30 + cell_power))
    cell = clamp_16(kept + added)
    if clip > 0:
        np.clip(cell, -clip, clip, out=cell)
    return cell


def _wrapped(values: NDArray) -> NDArray:
    result: NDArray = values.astype(np.int16).astype(np.int64)
    return result


GATE_SCALE = np.float32(2.0**-12)
"""Scale of a gate before its activation: Q3."""

RESOLUTION = 1 << 10
"""Numbers of steps of a normalised value, and of a mean, in one step of the sums."""


@dataclass(frozen=True, slots=True)
class Intermediates:
    """*gates*: scales of the four gates' sums. *hidden*: scale of the output before its projection.
    *hidden_zero_point* is added when that output is stored, and subtracted by the projection.
    """

    gates: tuple[np.float32, ...]
    hidden: np.float32
    hidden_zero_point: int


def cell_power(site: Site, position: int) -> int:
    """The binary logarithm of the cell state's scale."""
    power = fixed_point.power_of_two(quantization_of(site, position).scale)
    require(
        power is not None and -15 <= power <= MOST_INTEGER_BITS - 15,
        "a cell state whose scale is not a power of two between 2**-15 and 2**-9",
    )
    return power or 0


class Memory16:
    """The cell with prepared parameters; *states* are the positions of output state and cell
    state.
    """

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
        self._hidden = fixed_point.quantize_multiplier(
            float(np.float32(2.0**-15 / float(hidden) * 2.0**-15))
        )
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

    def run(
        self, source: NDArray, _auxiliary: NDArray | None, states: States, *, backward: bool = False
    ) -> tuple[NDArray, States]:
        """As `Direction`, forward only; the states are int8 output and int16 cell."""
        steps, batch, _ = source.shape
        shape = batch, len(self._gates), self.cells
        sums = clamp_16(self._input(rows_of(source))).reshape(steps, *shape)
        hidden = states[0].reshape(batch, self.outputs)
        cell = states[1].reshape(batch, self.cells).astype(np.int64)
        outputs = np.empty((steps, batch, self.outputs), np.int8)
        for step in watched(range(steps)):
            gates = clamp_16(sums[step] + self._recurrent(hidden).reshape(shape))
            hidden, cell = self._step(gates, cell)
            outputs[step] = hidden
        return outputs, (hidden.astype(np.int8), cell.astype(np.int16))

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
        hidden = fixed_point.rescale(hidden, *self._hidden)
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
    """The term that the cell state adds to a gate: int16 *weights* and a multiplier."""

    weights: NDArray
    multiplier: tuple[int, int]

    @classmethod
    def of(
        cls, site: Site, position: int, power: int, gate_scale: np.float32, arrays: Arrays
    ) -> Peephole:
        real = np.float32(2.0**power * float(scale_of(site, position)) / float(gate_scale))
        return cls(arrays[position].astype(np.int64), fixed_point.quantize_multiplier(float(real)))

    def __call__(self, cell: NDArray) -> NDArray:
        return fixed_point.rescale(self.weights * cell, *self.multiplier)


@dataclass(frozen=True, slots=True)
class Norm:
    """Layer normalisation of one gate: int16 *coefficients*, int32 *bias*, the multiplier to Q3,
    and the variance used in place of zero.
    """

    coefficients: NDArray
    bias: NDArray
    multiplier: tuple[int, int]
    least_variance: int

    @classmethod
    def of(cls, site: Site, positions: Positions, gate: int, arrays: Arrays) -> Norm:
        position = positions.norm(gate)
        scale = scale_of(site, position)
        mantissa, shift = fixed_point.quantize_multiplier(float(scale))
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
        mantissas, shifts = fixed_point.inverse_square_root(
            np.where(variance < 1, self.least_variance, variance)
        )
        scaled = fixed_point.rescale(
            RESOLUTION * sums - mean[:, None], mantissas[:, None], shifts[:, None]
        )
        weighted = (scaled * self.coefficients + self.bias).astype(np.int32).astype(np.int64)
        rounded = _quotient(weighted + np.where(weighted > 0, 512, -512), RESOLUTION)
        return clamp_16(fixed_point.rescale(rounded, *self.multiplier))


def _quotient(a: NDArray, b: int) -> NDArray:
    """*a* over *b* > 0, truncated towards zero."""
    return np.asarray(np.sign(a) * (np.abs(a) // b))
