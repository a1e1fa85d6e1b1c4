"""Long short-term memories over real values, with float or hybrid weights.

For the gates g of input, forget, cell and output at each step (TFLite's LSTM; NNAPI's LSTM and
sequence forms):
    g = activate(W x + A aux + R h + peephole * c + b), or with layer normalisation
    g = activate(coefficients * normalised(W x + A aux + R h + peephole * c) + b);
    c = clip(forget * c + input * cell), h = output * activate(c), h = clip(P h + bias).
Without an input gate it is 1 - forget. The output gate sees the new c.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Items
from typing import Final

from penstock.compiler.expression import Expression, Scope, Value
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.products import F32
from penstock.compiler.legalise.recurrent import (
    Sequence,
    State,
    Weights,
    activated,
    both_of,
    input_sums,
    keep,
    multiply,
    require_real,
    rows_of,
    sequence_of,
    state_of,
    step_of,
    target_of,
    vector_of,
    weights_of,
)
from penstock.compiler.program import Access, Position, along
from penstock.driverkit.lstm_operands import (
    CELL,
    FORGET,
    INPUT,
    OUTPUT,
    UNIDIRECTIONAL,
    Positions,
)
from penstock.driverkit.site import Refused, Site, require

VARIANCE_FLOOR: Final = 1e-8

STATES: Final = (18, 19)
AUXILIARY: Final = 39
FORWARD: Final = Positions(first=1, norms=48, auxiliary=40)
BACKWARD: Final = Positions(first=18, norms=52, auxiliary=44)
BOTH_STATES: Final = (35, 36, 37, 38)


def gates_of(site: Site, positions: Positions) -> list[int]:
    """The gates of this direction: all, or all but the input gate, which is coupled.

    TFLite's kernels treat empty input weights as omitted. Refuses a gate with only some of its
    parameters.
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
    if not coupled and 0 in (site.input(positions.weights(INPUT)).shape or ()):
        gates.remove(INPUT)
    return gates


def clip_of(site: Site, name: str) -> float:
    """An upper bound of magnitudes; 0 means no bound."""
    clip = site.attributes.number(name)
    require(clip >= 0, f"a {name} of {clip}")
    return clip


class Memory:
    """One direction of a memory. *cells* and *outputs* are its sizes."""

    def __init__(self, operation: Operation, positions: Positions) -> None:
        site = operation.site
        self._operation, self._build = operation, operation.build
        self._at, self._site = positions, site
        # The gates in the order of their sums: that of new values first.
        self._gates = sorted(gates_of(site, positions), key=lambda gate: gate != CELL)
        self._asymmetric = site.flag("asymmetric_quantize_inputs")
        self._input = self._weights([positions.weights(g) for g in self._gates])
        self._recurrent = self._weights([positions.recurrent(g) for g in self._gates])
        self.cells = self.outputs = self._input.rows // len(self._gates)
        self._projection = None
        if site.has(positions.projection):
            self._projection = self._weights([positions.projection])
            self.outputs = self._projection.rows
        fits = self._recurrent.rows == self._input.rows
        require(fits and self._recurrent.depth == self.outputs, "recurrent weights that do not fit")
        self._normalised = site.has(positions.norm(FORGET))
        self._name = site.attributes.text("fused_activation_function")
        self._clips = clip_of(site, "cell_clip"), clip_of(site, "proj_clip")

    def _weights(self, positions: Items[int]) -> Weights:
        return weights_of(self._operation, positions)

    def run(
        self, source: Sequence, auxiliary: Sequence | None, states: tuple[int, int], out: Sequence,
        kept: tuple[int, int], *, backward: bool = False,
    ) -> None:  # fmt: skip
        """Emits the kernels of all steps. *states* are the inputs of the output and the cell state,
        *kept* the outputs where they are written, if the operation has these.
        """
        batch, sums = source.batch, self._sums(source, auxiliary)
        hidden = state_of(self._operation, states[0], (batch, self.outputs))
        cell = state_of(self._operation, states[1], (batch, self.cells))
        order = range(source.steps)[:: -1 if backward else 1]
        for step in order:
            gates = self._build.tensor(F32, (batch, self._input.rows))
            before = Access(sums.tensor, sums.at(step, *along(0, 1)))
            multiply(
                self._operation, (hidden.tensor, hidden.place), (batch,), self._recurrent,
                Access(gates, along(0, 1)), [before], asymmetric=self._asymmetric,
            )  # fmt: skip
            final = step == order[-1] and kept[1] < len(self._site.outputs)
            hidden, cell = self._step(
                gates, cell, step_of(out, step), kept[1] if final else None, batch
            )
        keep(self._operation, hidden, kept[0], (batch, self.outputs))

    def _sums(self, source: Sequence, auxiliary: Sequence | None) -> Sequence:
        """The inputs' terms of every gate and step, with biases if there is no normalisation."""
        biases = [] if self._normalised else [self._vector(self._at.bias)]
        sums = input_sums(self._operation, source, self._input, biases, asymmetric=self._asymmetric)
        first = self._at.auxiliary
        if auxiliary is not None and first is not None and self._site.has(first + FORGET):
            other = self._weights([first + gate for gate in self._gates])
            sums = input_sums(
                self._operation, auxiliary, other, [], asymmetric=self._asymmetric,
                more=sums.tensor,
            )  # fmt: skip
        return sums

    def _vector(self, position_of: Callable[[int], int]) -> int:
        return vector_of(self._operation, [position_of(g) for g in self._gates])

    def _step(
        self, gates: int, cell: State, out: State, kept: int | None, batch: int
    ) -> tuple[State, State]:
        """Output and cell state after one step. The output gate is computed last, because it may
        use the new cell state.
        """
        reads = [self._gate(g, gates, cell, batch) for g in self._gates if g != OUTPUT]
        shape = batch, self.cells
        made = (
            self._build.tensor(F32, shape)
            if kept is None
            else target_of(self._operation, kept, shape)
        )
        self._emit(
            "cell", self._new_cell(), [*reads, cell.element(0, 1)], Access(made, along(0, 1)), batch
        )
        after = rows_of(made)
        shown = [self._gate(OUTPUT, gates, after, batch), after.element(0, 1)]
        scope = Scope(F32, F32)
        value = scope.argument(0).apply("logistic") * activated(scope.argument(1), self._name)
        body = scope.finish(value)
        if self._projection is None:
            self._emit("output", body, shown, out.element(0, 1), batch)
            return out, after
        inner = self._build.tensor(F32, shape)
        self._emit("output", body, shown, Access(inner, along(0, 1)), batch)
        self._project(inner, out, batch)
        return out, after

    def _emit(
        self, name: str, body: Expression, reads: Items[Access], write: Access, batch: int
    ) -> None:
        self._build.emit(name, (batch, self.cells), reads, body, write)

    def _new_cell(self) -> Expression:
        """The new cell state, forget * c + input * new, clipped, of the gates in order and c."""
        count = len(self._gates)
        scope = Scope(*(F32,) * count)
        new = activated(scope.argument(0), self._name)
        forget = scope.argument(count - 2).apply("logistic")
        if INPUT in self._gates:
            admitted = scope.argument(1).apply("logistic")
        else:
            admitted = scope.constant(1.0, F32) - forget
        value = forget * scope.argument(count - 1) + new * admitted
        return scope.finish(_clipped(value, self._clips[0]))

    def _project(self, inner: int, out: State, batch: int) -> None:
        added = []
        if self._site.has(self._at.projection_bias):
            bias = vector_of(self._operation, [self._at.projection_bias])
            added = [Access(bias, along(1))]
        given = rows_of(inner)
        if self._projection is None:
            raise Refused("a projection without weights")
        multiply(
            self._operation, (given.tensor, given.place), (batch,), self._projection,
            out.element(0, 1), added, asymmetric=self._asymmetric,
            change=lambda value: _clipped(value, self._clips[1]),
        )  # fmt: skip

    def _gate(self, gate: int, sums: int, cell: State, batch: int) -> Access:
        """A gate before its activation, for the loops of batch and cell."""
        first = self._gates.index(gate) * self.cells
        found = Access(sums, (*along(0), Position(first, ((1, 1),))))
        position = self._at.peephole(gate)
        if position is not None and self._site.has(position):
            weights = vector_of(self._operation, [position])
            scope = Scope(F32, F32, F32)
            body = scope.finish(scope.argument(0) + scope.argument(1) * scope.argument(2))
            reads = [found, Access(weights, along(1)), cell.element(0, 1)]
            found = self._made("peephole", body, reads, batch)
        return self._normal(gate, found, batch) if self._normalised else found

    def _made(self, name: str, body: Expression, reads: Items[Access], batch: int) -> Access:
        target = Access(self._build.tensor(F32, (batch, self.cells)), along(0, 1))
        self._emit(name, body, reads, target, batch)
        return target

    def _normal(self, gate: int, sums: Access, batch: int) -> Access:
        """Layer normalisation of one gate."""
        count, row = float(self.cells), along(0)
        mean, variance = (self._build.tensor(F32, (batch,)) for _ in range(2))
        scope = Scope(F32)
        share = scope.finish(scope.argument(0) / count)
        whole = Scope(F32)
        self._build.emit(
            "mean", (batch,), [sums], whole.finish(whole.argument(0)), Access(mean, row),
            reduced=(self.cells,), combine="sum", finish=share,
        )  # fmt: skip
        square = Scope(F32, F32)
        centred = square.argument(0) - square.argument(1)
        self._build.emit(
            "variance", (batch,), [sums, Access(mean, row)], square.finish(centred * centred),
            Access(variance, row), reduced=(self.cells,), combine="sum", finish=share,
        )  # fmt: skip
        vectors = [
            vector_of(self._operation, [p]) for p in (self._at.norm(gate), self._at.bias(gate))
        ]
        last = Scope(*(F32,) * 5)
        value, middle, spread, factor, bias = (last.argument(i) for i in range(5))
        inverse = last.constant(1.0, F32) / (spread + VARIANCE_FLOOR).apply("sqrt")
        body = last.finish((value - middle) * inverse * factor + bias)
        reads = [sums, Access(mean, row), Access(variance, row)]
        reads += [Access(vector, along(1)) for vector in vectors]
        return self._made("normalise", body, reads, batch)


def _clipped(value: Value, clip: float) -> Value:
    return value.clamp(-clip, clip) if clip > 0 else value


def real_lstm(operation: Operation) -> None:
    """One step, or a sequence of them."""
    site = operation.site
    require_real(operation, 0, *STATES)
    time_major = None if site.operation.type == "LSTM" else site.flag("time_major")
    memory = Memory(operation, UNIDIRECTIONAL)
    source = sequence_of(operation, operation.tensor(), time_major)
    out = sequence_of(operation, operation.target(), time_major)
    memory.run(source, None, STATES, out, (1, 2))


@legal("BIDIRECTIONAL_SEQUENCE_LSTM")
def bidirectional_lstm(operation: Operation) -> None:
    """A forward and a backward memory, whose outputs may be merged."""
    site = operation.site
    require_real(operation, 0, *BOTH_STATES)
    memories = Memory(operation, FORWARD), Memory(operation, BACKWARD)
    weighted = site.has(AUXILIARY + 1 + FORGET)
    sizes = memories[0].outputs, memories[1].outputs
    both = both_of(operation, AUXILIARY, sizes, weighted=weighted)
    first = 1 if both.merged else 2
    for index, memory in enumerate(memories):
        states = BOTH_STATES[2 * index], BOTH_STATES[2 * index + 1]
        kept = first + 2 * index, first + 2 * index + 1
        memory.run(
            both.sources[index], both.auxiliary, states, both.outs[index], kept,
            backward=index == 1,
        )  # fmt: skip
