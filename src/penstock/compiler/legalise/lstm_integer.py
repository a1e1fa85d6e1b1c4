"""Integer long short-term memories: int8 data and weights, int16 gates and cell state.

They have five intermediate results: sums of products become int16 gates directly, and the
nonlinearities are tables over int16 (`driverkit.tables_16`). Scales are float32 numbers. NNAPI's
QUANTIZED_LSTM is the same cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Items
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock.compiler.expression import Expression, Scope, Value
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.lstm import STATES, clip_of, gates_of
from penstock.compiler.legalise.norm_16 import normalised
from penstock.compiler.legalise.products import product
from penstock.compiler.legalise.quantised import Finish, rescale, scale_of
from penstock.compiler.legalise.recurrent import (
    Place,
    Sequence,
    State,
    keep,
    rows_of,
    sequence_of,
    stacked,
    state_of,
    step_of,
    target_of,
)
from penstock.compiler.program import Access, Position, along
from penstock.driverkit import tables_16
from penstock.driverkit.fixed_point import power_of_two, quantize_multipliers
from penstock.driverkit.lstm_operands import CELL, FORGET, INPUT, OUTPUT, UNIDIRECTIONAL as AT
from penstock.driverkit.site import Refused, Site, require
from penstock.driverkit.tables_16 import GREATEST, LEAST
from penstock.ir import DType, NDArray

I8, I16, I32 = DType.INT8, DType.INT16, DType.INT32

GATE_SCALE: Final = np.float32(2.0**-12)
"""Scale of a gate before its activation: Q3."""

Tail: TypeAlias = Callable[[Value], Value]
"""What becomes of a scaled sum: the value that is stored."""


class Intermediates(Struct, frozen=True):
    """*gates*: scales of the four gates' sums. *hidden*: scale of the output before its projection.
    *zero_point* is added when that output is stored, and subtracted by the projection.
    """

    gates: tuple[np.float32, ...]
    hidden: np.float32
    zero_point: int


def integer_lstm(operation: Operation) -> None:
    """The memory of an LSTM whose input is int8."""
    site = operation.site
    check_types(site)
    scales = tuple(np.float32(s) for s in _numbers(site, "intermediate_scales"))
    zero_points = tuple(int(z) for z in _numbers(site, "intermediate_zero_points"))
    require(len(scales) == len(zero_points), "an intermediate result without a zero point")
    require(len(scales) == 5, f"an integer memory with {len(scales)} intermediate results")
    norms = site.has(AT.norm(FORGET))
    gates = scales[:4] if norms else (GATE_SCALE,) * 4
    # TFLite's kernel reads the zero point with the opposite sign if there is a projection.
    zero_point = -zero_points[4] if site.has(AT.projection) else zero_points[4]
    require(all(s > 0 for s in (scales[4], *gates[1:])), "an intermediate result without a scale")
    time_major = None if site.operation.type == "LSTM" else site.flag("time_major")
    memory = Memory(operation, Intermediates(gates, scales[4], zero_point))
    memory.run(time_major, 0, (1, 2))


@legal("QUANTIZED_LSTM")
def quantized_lstm(operation: Operation) -> None:
    """NNAPI's form with all scales as attributes; its outputs are both states, then the result."""
    site = operation.site
    check_types(site)
    attributes = site.attributes
    names = ("input", "forget", "cell", "output")
    intermediates = Intermediates(
        tuple(np.float32(attributes.number(f"{g}_intermediate_scale")) for g in names),
        np.float32(attributes.number("hidden_state_scale")),
        attributes.integer("hidden_state_zero_point"),
    )
    Memory(operation, intermediates).run(None, 2, (0, 1))


def _numbers(site: Site, name: str) -> Items[float]:
    value = site.attributes.get(name)
    return value if isinstance(value, tuple) else ()


def check_types(site: Site) -> None:
    """Requires int8, but int32 biases and int16 cell state, peepholes and normalisation."""
    wide = {*range(9, 12), *range(20, 24), STATES[1]}
    for position, operand in enumerate(site.inputs):
        wanted = I8
        if position in wide:
            wanted = I16
        elif 12 <= position <= 15 or position == AT.projection_bias:
            wanted = I32
        if operand is not None and operand.dtype is not wanted:
            site.refuse_types()


def quantised_clip(clip: float, scale: float, least: int, greatest: int) -> int:
    """A clip in steps of *scale*, truncated to the type's range; 0 means no clip."""
    return int(np.clip(np.float32(clip) / np.float32(scale), least, greatest)) if clip > 0 else 0


def looked_up(operation: Operation, table: int, value: Value) -> Value:
    """The element of a table over int16 for the int16 *value*, int32."""
    index = value.cast(I32).apply("and", 0xFFFF)
    return value.scope.lookup(table, index, operation.build.tensors[table].dtype).cast(I32)


def table_16(operation: Operation, values: NDArray) -> int:
    """A table over int16 as a constant."""
    return operation.build.constant(I16, values.shape, lambda: values)


class Product(Struct, frozen=True):
    """Products of int8 rows with weights [units, depth] at the inputs *positions*, below each
    other, plus *biases*, scaled by *multipliers*, one each. *zero_point* is that of the rows.
    """

    positions: tuple[int, ...]
    multipliers: tuple[np.float32, ...]
    zero_point: int
    biases: tuple[int, ...] = ()


def multiply_integers(
    operation: Operation, source: tuple[int, Place], rows: tuple[int, ...], of: Product,
    write: Access, added: Items[Access], tail: Tail,
) -> None:  # fmt: skip
    """Adds the kernel of a product. What is *added* is added to the scaled sums."""
    site, rank = operation.site, len(rows)
    shapes = [site.shape(p) for p in of.positions]
    require(len({s[1:] for s in shapes}) == 1 and len(shapes[0]) == 2, "weights that do not fit")
    weights = stacked(operation, of.positions, I8)
    mantissas, shifts = (
        np.concatenate([np.full(s[0], v) for s, v in zip(shapes, values, strict=True)])
        for values in quantize_multipliers([float(m) for m in of.multipliers])
    )
    finish = Finish(operation, I32, along(rank)[0])
    bias = None
    if of.biases:
        bias = finish.read(stacked(operation, of.biases, I32))
    vectors = finish.vector(mantissas, I32), finish.vector(shifts, I32)
    arguments = [finish.read(access.tensor, access.axes) for access in added]
    scope = finish.scope()
    total = scope.argument(0)
    if bias is not None:
        total = total + scope.argument(bias)
    factors = [
        scope.constant(int(values[0]), I32) if vector is None else scope.argument(vector)
        for vector, values in zip(vectors, (mantissas, shifts), strict=True)
    ]
    value = scope.add("rescale", total, *factors, dtype=I32)
    for argument in arguments:
        value = value + scope.argument(argument).cast(I32)
    tensor, place = source
    units, depth = sum(s[0] for s in shapes), shapes[0][1]
    operation.build.emit(
        "product",
        (*rows, units),
        [
            Access(tensor, place(along(rank + 1)[0])),
            Access(weights, along(rank, rank + 1)),
        ],
        product(I8, I8, I32, (of.zero_point, 0)),
        write,
        reduced=(depth,),
        combine="sum",
        sums=I32,
        finish=scope.finish(tail(value)),
        extras=finish.extras,
    )


def clamped_16(value: Value) -> Value:
    return value.clamp(LEAST, GREATEST).cast(I16)


class Memory:
    """One direction of a memory with five intermediate results."""

    def __init__(self, operation: Operation, intermediates: Intermediates) -> None:
        site = operation.site
        self._operation, self._build, self._site = operation, operation.build, site
        self._scales = intermediates
        self._gates = gates_of(site, AT)
        cell = scale_of(site.input(STATES[1]), "the cell state")
        power = power_of_two(cell.scale)
        most = tables_16.MOST_INTEGER_BITS - 15
        if power is None or not -15 <= power <= most:
            raise Refused("a cell state whose scale is not a power of two from 2**-15 to 2**-9")
        self._power = power
        self._clip = quantised_clip(clip_of(site, "cell_clip"), cell.scale, LEAST, GREATEST)
        self._state = scale_of(site.input(STATES[0]), "the output state")
        self.cells, self.outputs = site.shape(AT.recurrent(FORGET))
        self._normalised = site.has(AT.norm(FORGET))
        self._logistic = table_16(operation, tables_16.logistic_q3())
        self._tanhs = {
            bits: table_16(operation, tables_16.tanh_of(bits)) for bits in {3, 15 + power}
        }

    def _scale(self, position: int) -> np.float32:
        return np.float32(scale_of(self._site.input(position), "weights").scale)

    def _product(self, positions: Items[int], vectors: int, *, biased: bool) -> Product:
        given = scale_of(self._site.input(vectors), "the rows of a product")
        scales = [self._scale(p) * np.float32(given.scale) for p in positions]
        pairs = zip(scales, self._gates, strict=True)
        multipliers = tuple(np.float32(s / self._scales.gates[g]) for s, g in pairs)
        biases = tuple(AT.bias(g) for g in self._gates) if biased else ()
        return Product(tuple(positions), multipliers, given.zero_point, biases)

    def run(self, time_major: bool | None, output: int, kept: tuple[int, int]) -> None:
        """Emits the kernels of all steps. *output* is the result's position, *kept* those of the
        new states.
        """
        operation = self._operation
        source = sequence_of(operation, operation.tensor(), time_major)
        out = sequence_of(operation, operation.target(output), time_major)
        self._output_clip = quantised_clip(
            clip_of(self._site, "proj_clip"),
            scale_of(self._site.output(output), "an output").scale,
            -128,
            127,
        )
        batch, terms = source.batch, self._terms(source)
        hidden = state_of(operation, STATES[0], (batch, self.outputs))
        cell = state_of(operation, STATES[1], (batch, self.cells))
        recurrent = self._product([AT.recurrent(g) for g in self._gates], STATES[0], biased=False)
        for step in range(source.steps):
            gates = self._build.tensor(I16, (batch, self.cells * len(self._gates)))
            before = Access(terms.tensor, terms.at(step, *along(0, 1)))
            multiply_integers(
                operation, (hidden.tensor, hidden.place), (batch,), recurrent,
                Access(gates, along(0, 1)), [before], clamped_16,
            )  # fmt: skip
            final = step == source.steps - 1 and kept[1] < len(self._site.outputs)
            cell = self._cell(gates, cell, kept[1] if final else None, batch)
            hidden = step_of(out, step)
            self._output(gates, cell, hidden, batch)
        keep(operation, hidden, kept[0], (batch, self.outputs))

    def _terms(self, source: Sequence) -> Sequence:
        """The input's terms of every gate and step."""
        of = self._product([AT.weights(g) for g in self._gates], 0, biased=not self._normalised)
        rows = source.rows
        terms = self._build.tensor(I16, (*rows, self.cells * len(self._gates)))
        multiply_integers(
            self._operation, (source.tensor, lambda deep: (*along(0, 1), deep)), rows, of,
            Access(terms, along(0, 1, 2)), [], clamped_16,
        )  # fmt: skip
        return replace(source, tensor=terms, first=0)

    def _emit(
        self, name: str, body: Expression, reads: Items[Access], write: Access, batch: int
    ) -> None:
        self._build.emit(name, (batch, self.cells), reads, body, write)

    def _gate(self, gate: int, gates: int, cell: State, batch: int) -> Access:
        """A gate before its activation, int16."""
        first = self._gates.index(gate) * self.cells
        found = Access(gates, (*along(0), Position(first, ((1, 1),))))
        position = AT.peephole(gate)
        if position is not None and self._site.has(position):
            scale = float(self._scales.gates[gate])
            real = np.float32(2.0**self._power * float(self._scale(position)) / scale)
            scope = Scope(I16, I16, I16)
            weight, state = (scope.argument(i).cast(I32) for i in (1, 2))
            total = scope.argument(0).cast(I32) + rescale(weight * state, float(real))
            weights = Access(self._operation.tensor(position), along(1))
            target = Access(self._build.tensor(I16, (batch, self.cells)), along(0, 1))
            reads = [found, weights, cell.element(0, 1)]
            self._emit("peephole", scope.finish(clamped_16(total)), reads, target, batch)
            found = target
        if self._normalised:
            positions = AT.norm(gate), AT.bias(gate)
            found = normalised(self._operation, found, (batch, self.cells), positions)
        return found

    def _cell(self, gates: int, cell: State, kept: int | None, batch: int) -> State:
        """The new cell state, written to the output *kept* if that is a position."""
        shape = batch, self.cells
        made = (
            self._build.tensor(I16, shape)
            if kept is None
            else target_of(self._operation, kept, shape)
        )
        used = [g for g in (FORGET, CELL, INPUT) if g in self._gates]
        reads = [self._gate(g, gates, cell, batch) for g in used]
        scope = Scope(*(I16 for _ in (*used, cell)))
        forget = looked_up(self._operation, self._logistic, scope.argument(0))
        new = looked_up(self._operation, self._tanhs[3], scope.argument(1))
        if INPUT in used:
            admitted = looked_up(self._operation, self._logistic, scope.argument(2))
        else:
            admitted = scope.constant(GREATEST, I32) - forget
        before = scope.argument(len(used)).cast(I32)
        kept_part = (forget * before).apply("divide_by_power", 15).cast(I16).cast(I32)
        shift = 30 + self._power
        added = (admitted * new).apply("divide_by_power", shift).cast(I16).cast(I32)
        value = (kept_part + added).clamp(LEAST, GREATEST)
        if self._clip > 0:
            value = value.clamp(-self._clip, self._clip)
        body = scope.finish(value.cast(I16))
        reads.append(cell.element(0, 1))
        self._emit("cell", body, reads, Access(made, along(0, 1)), batch)
        return rows_of(made)

    def _output(self, gates: int, cell: State, out: State, batch: int) -> None:
        hidden = float(self._scales.hidden)
        reads = [self._gate(OUTPUT, gates, cell, batch), cell.element(0, 1)]
        scope = Scope(I16, I16)
        shown = looked_up(self._operation, self._logistic, scope.argument(0))
        state = looked_up(self._operation, self._tanhs[15 + self._power], scope.argument(1))
        scaled = rescale(shown * state, float(np.float32(2.0**-15 / hidden * 2.0**-15)))
        value = (scaled + self._scales.zero_point).clamp(-128, 127).cast(I8)
        body = scope.finish(value)
        if not self._site.has(AT.projection):
            require(self.outputs == self.cells, "an output of another size than the cells")
            self._emit("output", body, reads, out.element(0, 1), batch)
            return
        inner = rows_of(self._build.tensor(I8, (batch, self.cells)))
        self._emit("output", body, reads, inner.element(0, 1), batch)
        scale = self._scale(AT.projection) * self._scales.hidden
        multiplier = np.float32(scale / np.float32(self._state.scale))
        biases = (AT.projection_bias,) if self._site.has(AT.projection_bias) else ()
        of = Product((AT.projection,), (multiplier,), self._scales.zero_point, biases)
        multiply_integers(
            self._operation, (inner.tensor, inner.place), (batch,), of, out.element(0, 1), [],
            self._projected,
        )  # fmt: skip

    def _projected(self, value: Value) -> Value:
        result = (value + self._state.zero_point).clamp(-128, 127)
        if self._output_clip > 0:
            result = result.clamp(-self._output_clip, self._output_clip)
        return result.cast(I8)
