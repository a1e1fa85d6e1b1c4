"""Integer LSTM cells, bit for bit as TFLite's kernels for int8 activations and weights and an int16
cell state. Their scales are float32 numbers.

In the form with five intermediate results (`Memory16`), sums of products become int16 gates
directly. NNAPI's QUANTIZED_LSTM is the same cell. In the form with twelve (`Memory8`), the input's
product and the recurrent product of each gate become int8 before they are added. Sums are
normalised and activated in float32. That form has layer normalisation and a projection with a bias.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from penstock.driverkit import fixed_point, tables_16
from penstock.driverkit.lstm_operands import CELL, FORGET, INPUT, OUTPUT, UNIDIRECTIONAL as AT
from penstock.driverkit.tables_16 import GREATEST, LEAST, round_half_away
from penstock.drivers.reference.kernel import Site, require
from penstock.drivers.reference.numerics.products import Columns
from penstock.drivers.reference.recurrent.cells import Arrays, States, rows_of
from penstock.drivers.reference.recurrent.lstm_real import STATES, clip_of, gates_of
from penstock.interrupts import watched
from penstock.ir import NDArray

INT8_MAGNITUDE: Final = 128

Product: TypeAlias = Callable[[NDArray], NDArray]
"""int8 rows [rows, depth] to terms of every gate [rows, gates * cells], int64."""


def scale_of(site: Site, position: int) -> np.float32:
    """The scale of an input that has one scale, as float32."""
    return np.float32(site.quantization(position).scale)


def clamp_16(values: NDArray) -> NDArray:
    return np.clip(values, LEAST, GREATEST, out=values)


def clamp_8(values: NDArray) -> NDArray:
    return np.clip(values, -128, 127, out=values)


def quantized_clip(clip: float, scale: float, least: int, greatest: int) -> int:
    """A clip in steps of *scale*, truncated to the type's range; 0 means no clip."""
    return int(np.clip(np.float32(clip) / np.float32(scale), least, greatest)) if clip > 0 else 0


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
        self._columns = columns.values
        self._multiplier = _repeated(multipliers, counts)
        added = [
            np.zeros(n, np.int64) if b is None else b.astype(np.int64)
            for b, n in zip(biases, counts, strict=True)
        ]
        self._bias = np.concatenate(added) - zero_point * columns.sums

    def __call__(self, rows: NDArray) -> NDArray:
        """int8 *rows* [rows, depth] to scaled sums [rows, columns], int64."""
        sums = np.matmul(rows.astype(self._columns.dtype), self._columns.T).astype(np.int64)
        sums += self._bias
        return fixed_point.rescale(sums, *self._multiplier)


def _repeated(multipliers: Sequence[np.float32], counts: Sequence[int]) -> tuple[NDArray, NDArray]:
    """Quantised multipliers, one for each column."""
    mantissas, shifts = fixed_point.quantize_multipliers([float(m) for m in multipliers])
    return np.repeat(mantissas, counts), np.repeat(shifts, counts)


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
        return cls(arrays[position].astype(np.int64), fixed_point.quantize_multiplier(real))

    def __call__(self, cell: NDArray) -> NDArray:
        return fixed_point.rescale(self.weights * cell, *self.multiplier)


class IntegerMemory:
    """The steps that both forms share.

    Subclasses set `_norms`, which normalise gates, and products with the weights of all gates.
    *power* is the binary logarithm of the cell state's scale, *cell_clip* a bound of its magnitude,
    and *scales* are those of the gates' sums.
    """

    _norms: dict[int, Product]

    def __init__(
        self, site: Site, arrays: Arrays, power: int, cell_clip: float, scales: Sequence[np.float32]
    ) -> None:
        self._gates = gates = gates_of(site, AT, arrays)
        self._power = power
        self._clip = quantized_clip(cell_clip, site.quantization(STATES[1]).scale, LEAST, GREATEST)
        self._output_clip = quantized_clip(
            clip_of(site, "proj_clip"), site.output_quantization().scale, -128, 127
        )
        self._peepholes = {
            g: Peephole.of(site, position, power, scales[g], arrays)
            for g in gates
            if (position := AT.peephole(g)) is not None and site.has(position)
        }
        self.cells, self.outputs = arrays[AT.recurrent(FORGET)].shape
        self._zero_point = site.quantization(STATES[0]).zero_point

    _input: Product
    _recurrent: Product
    _logistic: NDArray
    _tanh: Callable[[int], NDArray]
    """The hyperbolic tangent of numbers with so many integer bits, as a table."""

    def _output(self, activated: NDArray) -> NDArray:
        """int8 outputs from the output gate times the activated cell state, in Q0 times Q0."""
        raise NotImplementedError

    def run(
        self, source: NDArray, _auxiliary: NDArray | None, states: States, *, backward: bool = False
    ) -> tuple[NDArray, States]:
        """As `Direction`, forward only; the states are int8 output and int16 cell."""
        steps, batch, _ = source.shape
        shape = batch, len(self._gates), self.cells
        terms = self._input(rows_of(source)).reshape(steps, *shape)
        hidden = states[0].reshape(batch, self.outputs)
        cell = states[1].reshape(batch, self.cells).astype(np.int64)
        outputs = np.empty((steps, batch, self.outputs), np.int8)
        for step in watched(range(steps)):
            gates = clamp_16(terms[step] + self._recurrent(hidden).reshape(shape))
            hidden, cell = self._step(gates, cell)
            outputs[step] = hidden
        return outputs, (hidden.astype(np.int8), cell.astype(np.int16))

    def _step(self, sums: NDArray, cell: NDArray) -> tuple[NDArray, NDArray]:
        forget = self._logistic[self._gate(FORGET, sums, cell)]
        new = self._tanh(3)[self._gate(CELL, sums, cell)]
        if INPUT in self._gates:
            admit = self._logistic[self._gate(INPUT, sums, cell)]
        else:
            admit = GREATEST - forget
        kept = _wrapped(fixed_point.rounding_divide_by_pot(forget * cell, 15))
        added = _wrapped(fixed_point.rounding_divide_by_pot(admit * new, 30 + self._power))
        cell = clamp_16(kept + added)
        if self._clip > 0:
            np.clip(cell, -self._clip, self._clip, out=cell)
        shown = self._logistic[self._gate(OUTPUT, sums, cell)]
        return self._output(shown * self._tanh(15 + self._power)[cell]), cell

    def _gate(self, gate: int, sums: NDArray, cell: NDArray) -> NDArray:
        """A gate before its activation."""
        total = sums[:, self._gates.index(gate)]
        if gate in self._peepholes:
            total = clamp_16(total + self._peepholes[gate](cell))
        return self._norms[gate](total) if gate in self._norms else total

    def _projected(self, projection: NDArray) -> NDArray:
        hidden = clamp_8(projection + self._zero_point)
        if self._output_clip > 0:
            np.clip(hidden, -self._output_clip, self._output_clip, out=hidden)
        return hidden


def _wrapped(values: NDArray) -> NDArray:
    result: NDArray = values.astype(np.int16).astype(np.int64)
    return result


GATE_SCALE: Final = np.float32(2.0**-12)
"""Scale of a gate before its activation: Q3."""

RESOLUTION: Final = 1 << 10
"""Numbers of steps of a normalised value, and of a mean, in one step of the sums."""


@dataclass(frozen=True, slots=True)
class Intermediates:
    """*gates*: scales of the four gates' sums. *hidden*: scale of the output before its projection.
    *hidden_zero_point* is added when that output is stored, and subtracted by the projection.
    """

    gates: tuple[np.float32, ...]
    hidden: np.float32
    hidden_zero_point: int


class Memory16(IntegerMemory):
    """The form with five intermediate results, its parameters prepared."""

    _tanh = staticmethod(tables_16.tanh_of)

    def __init__(self, site: Site, intermediates: Intermediates, arrays: Arrays) -> None:
        power = fixed_point.power_of_two(site.quantization(STATES[1]).scale)
        fits = power is not None and -15 <= power <= tables_16.MOST_INTEGER_BITS - 15
        require(fits, "a cell state whose scale is not a power of two between 2**-15 and 2**-9")
        clip, hidden = clip_of(site, "cell_clip"), intermediates.hidden
        super().__init__(site, arrays, power or 0, clip, intermediates.gates)
        gates, normalised = self._gates, site.has(AT.norm(FORGET))
        self._norms = {g: Norm.of(site, g, arrays) for g in gates if normalised}
        self._logistic = tables_16.logistic_q3()

        def product(where: list[int], vectors: int, biased: bool) -> ScaledProduct:
            given = site.quantization(vectors)
            scales = [scale_of(site, p) * np.float32(given.scale) for p in where]
            return ScaledProduct(
                [arrays[p] for p in where],
                [s / intermediates.gates[g] for s, g in zip(scales, gates, strict=True)],
                given.zero_point,
                [arrays[AT.bias(g)] if biased else None for g in gates],
            )

        terms = product([AT.weights(g) for g in gates], 0, not normalised)
        self._input = lambda rows: clamp_16(terms(rows))
        self._recurrent = product([AT.recurrent(g) for g in gates], STATES[0], False)
        self._hidden = fixed_point.quantize_multiplier(
            np.float32(2.0**-15 / float(hidden) * 2.0**-15)
        )
        self._hidden_zero_point = intermediates.hidden_zero_point
        self._projection = None
        if site.has(AT.projection):
            scale = scale_of(site, AT.projection) * hidden / scale_of(site, STATES[0])
            self._projection = ScaledProduct(
                [arrays[AT.projection]],
                [scale],
                self._hidden_zero_point,
                [arrays.get(AT.projection_bias)],
            )

    def _output(self, activated: NDArray) -> NDArray:
        hidden = fixed_point.rescale(activated, *self._hidden)
        hidden = clamp_8(hidden + self._hidden_zero_point)
        return hidden if self._projection is None else self._projected(self._projection(hidden))


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
    def of(cls, site: Site, gate: int, arrays: Arrays) -> Norm:
        scale = scale_of(site, AT.norm(gate))
        mantissa, shift = fixed_point.quantize_multiplier(scale)
        return cls(
            arrays[AT.norm(gate)].astype(np.int64),
            arrays[AT.bias(gate)].astype(np.int64),
            (mantissa, shift + 12),
            max(1, int(np.float32(10000) * scale)),
        )

    def __call__(self, sums: NDArray) -> NDArray:
        """int16 sums [batch, cells] to int16 gates in Q3; weighted terms wrap at 32 bits."""
        cells = sums.shape[1]
        mean = _quotient(sums.sum(axis=1) * RESOLUTION, cells)
        squares = np.square(sums).sum(axis=1) * (RESOLUTION**2 // cells)
        variance = _quotient(squares - mean * mean, RESOLUTION**2).astype(np.int32)
        mantissas, shifts = fixed_point.inverse_square_root(
            np.where(variance < 1, self.least_variance, variance)
        )
        centred = RESOLUTION * sums - mean[:, None]
        scaled = fixed_point.rescale(centred, mantissas[:, None], shifts[:, None])
        weighted = (scaled * self.coefficients + self.bias).astype(np.int32).astype(np.int64)
        rounded = _quotient(weighted + np.where(weighted > 0, 512, -512), RESOLUTION)
        return clamp_16(fixed_point.rescale(rounded, *self.multiplier))


def _quotient(a: NDArray, b: int) -> NDArray:
    """*a* over *b* > 0, truncated towards zero."""
    return np.asarray(np.sign(a) * (np.abs(a) // b))


@dataclass(frozen=True, slots=True)
class Intermediates8:
    """For each gate, of the sum and of the input's and the recurrent product."""

    scales: tuple[np.float32, ...]
    zero_points: tuple[int, ...]


class Memory8(IntegerMemory):
    """The form with twelve intermediate results, its parameters prepared."""

    _tanh = staticmethod(tables_16.cut_tanh)

    def __init__(self, site: Site, intermediates: Intermediates8, arrays: Arrays) -> None:
        for needed in (AT.norm(FORGET), AT.projection, AT.projection_bias):
            site.input(needed)
        cell_scale = site.quantization(STATES[1]).scale
        require(cell_scale == 2.0**-15, "a cell state of another scale than 2**-15")
        clip, totals = clip_of(site, "cell_clip"), intermediates.scales[::3]
        super().__init__(site, arrays, -15, clip if clip < 1 else 0.0, totals)
        gates = self._gates
        self._norms = {g: RealNorm(site, g, arrays) for g in gates}
        self._logistic = tables_16.cut_logistic()

        def product(where: list[int], vectors: int, which: int) -> NarrowProduct:
            given, scales = site.quantization(vectors), intermediates.scales[which::3]
            ratios = [scale_of(site, p) * np.float32(given.scale) for p in where]
            weights = [arrays[p] for p in where]
            return NarrowProduct(
                ScaledProduct(
                    weights,
                    [r / scales[g] for r, g in zip(ratios, gates, strict=True)],
                    given.zero_point,
                    [None] * len(gates),
                ),
                np.repeat(
                    [int(np.int8(intermediates.zero_points[which::3][g])) for g in gates],
                    self.cells,
                ),
                _repeated([scales[g] / totals[g] for g in gates], [len(w) for w in weights]),
            )

        self._input = product([AT.weights(g) for g in gates], 0, 1)
        self._recurrent = product([AT.recurrent(g) for g in gates], STATES[0], 2)
        scale = float(scale_of(site, AT.projection)) * 2.0**-15 / float(scale_of(site, STATES[0]))
        self._multiplier = fixed_point.quantize_multiplier(np.float32(scale))
        self._projection = arrays[AT.projection].astype(np.float64)
        self._bias = arrays[AT.projection_bias].astype(np.int64)

    def _output(self, activated: NDArray) -> NDArray:
        real = fixed_point.rounding_divide_by_pot(activated, 15).astype(np.float64)
        projected = np.matmul(real, self._projection.T).astype(np.int64) + self._bias
        return self._projected(fixed_point.rescale_wide(projected, *self._multiplier))


@dataclass(frozen=True, slots=True)
class NarrowProduct:
    """A product that is stored as int8, then rescaled to the sums of the gates."""

    product: ScaledProduct
    zero_points: NDArray
    multiplier: tuple[NDArray, NDArray]

    def __call__(self, rows: NDArray) -> NDArray:
        stored = clamp_8(self.product(rows) + self.zero_points)
        return fixed_point.rescale(stored - self.zero_points, *self.multiplier)


class RealNorm:
    """Layer normalisation of one gate in float32, to Q3."""

    def __init__(self, site: Site, gate: int, arrays: Arrays) -> None:
        mantissa, shift = fixed_point.quantize_multiplier(scale_of(site, AT.norm(gate)))
        self._scale = np.float32(mantissa * 2.0 ** (shift - 31))
        self._coefficients = arrays[AT.norm(gate)].astype(np.float32)
        self._bias = arrays[AT.bias(gate)].astype(np.float32) * (np.float32(2.0**-10) * self._scale)

    def __call__(self, total: NDArray) -> NDArray:
        sums = total.astype(np.float32)
        count = np.float32(sums.shape[1])
        mean = sums.cumsum(axis=1)[:, -1:] / count
        variance = np.square(sums).cumsum(axis=1)[:, -1:] / count - mean * mean
        inverse = np.float32(1) / np.sqrt(np.where(variance == 0, np.float32(1e-8), variance))
        scaled = (sums - mean) * inverse * self._coefficients * self._scale + self._bias
        return clamp_16(round_half_away(scaled * np.float32(2**12)).astype(np.int64))
